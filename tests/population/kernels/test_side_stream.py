"""Gradients of weights on a second stream are those of one stream, and nothing is freed too early."""

from __future__ import annotations

import contextlib
import functools
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

pytest.importorskip("triton")
GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
HALF = torch.bfloat16 if GPU else torch.float16

from hullo.population import SGD, Population, capture, kernels  # noqa: E402
from hullo.population.kernels import convolution, side_stream  # noqa: E402
from hullo.population.kernels.convolution import convolve  # noqa: E402

DONE: list[Any] = []


class FakeEvent:
    def record(self) -> None:
        DONE.append(("record", self))


class FakeStream:
    device = torch.device(DEVICE)

    def __init__(self, device: torch.device | None = None) -> None:
        """Take the arguments of `torch.cuda.current_stream`."""

    def wait_event(self, event: FakeEvent) -> None:
        DONE.append(("wait", event))


@pytest.fixture
def _fake_streams(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Record what is done on streams during a capture; all kernels run in order, on the current stream."""
    monkeypatch.setattr(side_stream, "_is_captured", lambda weight: True)
    monkeypatch.setattr(kernels, "support", lambda x: x.dtype != torch.float64)
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", FakeStream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(side_stream, "_second_stream", FakeStream)
    DONE.clear()
    yield
    wait_for_threads()
    side_stream.consume_join_flag()


def wait_for_threads() -> None:
    """Wait until no thread of automatic differentiation holds a pass that raised; on a CPU there is none."""
    end = time.monotonic() + 30
    while side_stream._passes and time.monotonic() < end:
        time.sleep(0.01)
    assert not side_stream._passes


def layer(x: Tensor, weight: Tensor) -> Tensor:
    filters, deferred = side_stream.flatten(weight)
    return convolve(x, filters, None, members=2, padding=(1, 1), deferred=deferred)[0].sin()


def layers(x: Tensor, weights: list[Tensor]) -> Tensor:
    for weight in weights:
        x = layer(x, weight)
    return x


def shared(x: Tensor, weights: list[Tensor]) -> Tensor:
    """Use parameters in several layers, and elsewhere before and after that."""
    penalty = weights[0].square().sum()
    return penalty + layers(x, [*weights, weights[0]]).sum() + weights[1].square().sum()


def nested(x: Tensor, weights: list[Tensor]) -> Tensor:
    """Have a backward pass of two layers inside that of the others."""
    inner: Any = checkpoint(layers, layer(x, weights[0]), weights[::-1], use_reentrant=True)
    return layer(inner, weights[1]).sum()


def draw() -> tuple[Tensor, list[Tensor]]:
    """Return images and weights; layers have not as many channels in as out, so cuDNN has no part in them."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, 2, 4, 3, 3), (2, 4, 2, 3, 3)]
    weights = [torch.randn(shape, generator=generator).to(DEVICE).requires_grad_() for shape in shapes]
    return torch.randn(1, 8, 3, 3, generator=generator).to(DEVICE).requires_grad_(), weights


@pytest.mark.usefixtures("_fake_streams")
@pytest.mark.parametrize(("loss", "passes", "count"), [(shared, 2, 3), (nested, 1, 4)])
def test_deferred_gradients_are_those_of_one_stream_and_wait_for_their_inputs(
    loss: Callable[[Tensor, list[Tensor]], Tensor], passes: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[Any] = []

    def watched(dy: Tensor, *others: Any, **settings: Any) -> Any:
        held.append(weakref.ref(dy))
        DONE.append(("compute", None))
        return compute(dy, *others, **settings)

    compute = convolution._weight_gradient
    monkeypatch.setattr(convolution, "_weight_gradient", watched)
    gradients = []
    for capturing in (False, True):
        monkeypatch.setattr(side_stream, "_is_captured", lambda weight, on=capturing: on)
        DONE.clear()
        x, weights = draw()
        for _ in range(passes):  # their gradients add up
            loss(x, weights).backward()
        gradients.append([x.grad, *(weight.grad for weight in weights)])
    assert all(torch.equal(own, other) for own, other in zip(*gradients, strict=True))
    kinds = [kind for kind, _ in DONE]
    assert kinds.count("compute") == passes * count
    for at in (i for i, kind in enumerate(kinds) if kind == "compute"):
        kind, ready = DONE[at - 1]
        assert kind == "wait"
        assert ("record", ready) in DONE[: at - 1]  # where the output's gradient was complete
        assert kinds[at + 1] == "record"
        assert ("wait", DONE[at + 1][1]) in DONE[at + 1 :]  # the other stream waits for the end before it frees memory
    assert all(ref() is None for ref in held)


@pytest.mark.usefixtures("_fake_streams")
def test_what_an_unfinished_gradient_reads_stays_in_memory() -> None:
    works = [side_stream.Deferred() for _ in range(3)]
    alive = []

    class Layer(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, number: int) -> Tensor:
            ctx.number = number
            return x.clone()

        @staticmethod
        def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
            images = torch.zeros(1)
            alive.append(weakref.ref(images))
            works[ctx.number].put(functools.partial(torch.clone, images))
            works[ctx.number].run()
            del images
            counted.append([ref() is not None for ref in alive])
            return dy * 2, None

    counted: list[list[bool]] = []
    x = torch.zeros(1, requires_grad=True)
    y = x
    for number in range(3):
        y = Layer.apply(y, number)  # type: ignore[no-untyped-call]
    y.backward()
    assert counted == [[True], [True, True], [False, True, True]]
    assert not any(ref() is not None for ref in alive)


@pytest.mark.usefixtures("_fake_streams")
def test_a_pass_that_raises_leaves_nothing_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: Any, **settings: Any) -> Any:
        held.append(weakref.ref(given[0]))
        if len(held) == 2:
            raise RuntimeError("out of memory")
        return compute(*given, **settings)

    held: list[Any] = []
    compute = convolution._weight_gradient
    monkeypatch.setattr(convolution, "_weight_gradient", broken)
    x, weights = draw()
    with pytest.raises(RuntimeError, match="out of memory"):
        layers(x, weights).sum().backward()
    wait_for_threads()
    assert all(ref() is None for ref in held)
    for weight in weights:
        weight.grad = None
    layers(x, weights).sum().backward()
    expected = torch.autograd.grad(layers(x, weights).sum(), weights)
    assert all(torch.equal(weight.grad, other) for weight, other in zip(weights, expected, strict=True))


@pytest.mark.usefixtures("_fake_streams")
def test_gradients_of_images_alone_leave_nothing_to_a_later_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[Any] = []  # as threads of automatic differentiation may hold passes that are over
    current = side_stream._Pass.current
    monkeypatch.setattr(side_stream._Pass, "current", lambda: held.append(current()) or held[-1])
    x, weights = draw()
    loss = layers(x, weights).sum()
    torch.autograd.grad(loss, x, retain_graph=True)
    assert not side_stream._passes
    assert [work.left for work in held] == [{}, {}]
    expected = torch.autograd.grad(loss, weights, retain_graph=True)
    loss.backward()
    assert all(torch.equal(weight.grad, other) for weight, other in zip(weights, expected, strict=True))


@pytest.mark.usefixtures("_fake_streams")
def test_a_gradient_of_a_gradient_is_refused_and_not_taken_for_zero() -> None:
    x, weights = draw()
    with pytest.raises(RuntimeError, match="no second derivatives"):
        torch.autograd.grad(layers(x, weights).square().sum(), weights, create_graph=True)


@pytest.mark.usefixtures("_fake_streams")
@pytest.mark.parametrize(
    "why", ["not captured", "no gradient", "a hook", "a late hook", "a copy", "not a parameter", "frozen"]
)
def test_one_stream_is_used_where_a_second_is_of_no_use_or_not_safe(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(2, 4, 3, device=DEVICE, requires_grad=why != "frozen")
    if why == "not captured":
        monkeypatch.undo()
    if why == "a hook":
        weight.register_hook(torch.clone)
    if why == "a late hook":
        weight.register_post_accumulate_grad_hook(lambda parameter: None)
    if why == "a copy":
        weight = torch.randn(4, 2, 3, device=DEVICE).transpose(0, 1).requires_grad_()
    if why == "not a parameter":
        weight = weight * 2
    with torch.set_grad_enabled(why != "no gradient"):
        flat, deferred = side_stream.flatten(weight)
    assert torch.equal(flat, weight.reshape(8, 3))
    assert deferred is None


class Block(nn.Module):
    """Residual blocks that share their filters."""

    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, channels, 3, padding=1, bias=False)
        self.shared = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(3))
        self.last = nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1, bias=False)
        self.linear = nn.Linear(2 * channels, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norms[0](self.first(x)).relu()
        for norm in list(self.norms)[1:]:
            x = (norm(self.shared(x)) + x).relu()
        return self.linear(self.last(x).mean((2, 3)))


@pytest.mark.usefixtures("_fake_streams")
def test_a_population_defers_the_gradients_of_its_convolutions(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.rand(2, 1, 3, 4, 4, device=DEVICE)
    population = Population(Block, seeds=range(2)).to(DEVICE)
    optimizer = SGD(population, lr=0.1, copies=HALF)
    gradients = []
    for capturing in (False, True):
        monkeypatch.setattr(side_stream, "_is_captured", lambda weight, on=capturing: on)
        optimizer.zero_grad()
        with torch.autocast(DEVICE, HALF):
            population(x).float().square().sum().backward()
        gradients.append([leaf.grad for leaf in optimizer.leaves.values()])
        assert [kind for kind, _ in DONE].count("wait") == (6 if capturing else 0)
    assert all(torch.equal(own, other) for own, other in zip(*gradients, strict=True))


def step_at_once(population: Population, optimizer: SGD, x: Tensor, y: Tensor) -> Tensor:
    optimizer.zero_grad()
    with torch.autocast("cuda", torch.bfloat16):
        logits = population(x)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), y.flatten())
    loss.backward()
    optimizer.step()
    return loss.detach()


def step_in_halves(population: Population, optimizer: SGD, x: Tensor, y: Tensor) -> Tensor:
    """Add up the gradients of two halves of a batch, clip them and update; then once more."""
    for _ in range(2):
        optimizer.zero_grad()
        for images, labels in zip(x.chunk(2, 1), y.chunk(2, 1), strict=True):
            with torch.autocast("cuda", torch.bfloat16):
                logits = population(images)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
            loss.backward()
        nn.utils.clip_grad_norm_(optimizer.leaves.values(), 0.5)
        optimizer.step()
    return loss.detach()


@pytest.mark.skipif(not GPU, reason="streams are those of a GPU")
@pytest.mark.parametrize(
    ("step", "copies"), [(step_at_once, None), (step_at_once, torch.bfloat16), (step_in_halves, torch.bfloat16)]
)
def test_captured_steps_train_the_same_networks_bit_by_bit(
    step: Callable[..., Tensor], copies: torch.dtype | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(8, 32, 3, 32, 32, device="cuda"), torch.randint(10, (8, 32), device="cuda")
    flatten, trained = side_stream.flatten, []
    for deferred in (False, True):
        monkeypatch.setattr(side_stream, "flatten", flatten if deferred else lambda w: (w.flatten(0, 1), None))
        population = Population(Block, seeds=range(8)).to("cuda")
        optimizer = SGD(population, lr=0.1, momentum=0.9, copies=copies)
        taken = capture(functools.partial(step, population, optimizer), population, optimizer)
        losses = [taken(x, y).item() for _ in range(10)]
        trained.append((losses, {name: tensor.clone() for name, tensor in population.state_dict().items()}))
    (plain_losses, plain), (losses, state) = trained
    assert losses == plain_losses
    assert losses[-1] < losses[0]
    assert all(torch.equal(plain[name], state[name]) for name in plain)
    assert not side_stream._passes


@pytest.mark.skipif(not GPU, reason="streams are those of a GPU")
def test_a_capture_succeeds_after_one_whose_backward_pass_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: Any, **settings: Any) -> Any:
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError("out of memory")
        return compute(*given, **settings)

    compute = convolution._weight_gradient
    x, y = torch.randn(2, 8, 3, 32, 32, device="cuda"), torch.randint(10, (2, 8), device="cuda")
    population = Population(Block, seeds=range(2)).to("cuda")
    optimizer = SGD(population, lr=0.1)
    taken = capture(functools.partial(step_at_once, population, optimizer), population, optimizer)
    with monkeypatch.context() as patch:
        patch.setattr(convolution, "_weight_gradient", broken)
        with pytest.raises(RuntimeError, match="out of memory"):
            taken(x, y)
    losses = [taken(x, y).item() for _ in range(10)]
    assert losses[-1] < losses[0]
