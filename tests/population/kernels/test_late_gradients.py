"""A batch norm computes what convolutions leave to it; on the CPU its kernels run in Triton's interpreter."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import hullo
from hullo.functional import apply
from hullo.kernels import CombineSpec
from hullo.parametrizations import get_parametrization

pytest.importorskip("triton")
GPU = torch.cuda.is_available()
DEVICE, DTYPE = ("cuda", torch.bfloat16) if GPU else ("cpu", torch.float32)

from hullo.population.kernels import bn_act, choice, square_gradient  # noqa: E402
from hullo.population.kernels.convolution import convolve  # noqa: E402
from hullo.population.kernels.late_gradients import LateGradients  # noqa: E402

MEMBERS, CHANNELS, EPSILON = 2, 4, 1e-3
BASES = (hullo.get_base("relu"), hullo.get_base("tanh"))


class Case(NamedTuple):
    """The users of a batch norm's output, (side, stride, padding) of each convolution, and how many kernels compute the
    gradients of the convolutions' images."""

    users: tuple[tuple[int, int, tuple[int, int]], ...]
    kernels: int
    size: tuple[int, int] = (6, 6)
    used: bool = False  # by something else, too
    residual: bool = False


SAME, HALF, POINT = (3, 1, (1, 1)), (3, 2, (0, 1)), (1, 2, (0, 0))
CASES = {
    "one": Case((SAME,), 1, used=True),
    "two of stride two": Case((HALF, POINT), 1, residual=True),
    "two of stride two, odd sides, and another gradient": Case((POINT, HALF), 1, size=(5, 7), used=True),
    "two of different strides": Case((SAME, HALF), 2),
    "three, and another gradient": Case((POINT, HALF, POINT), 3, used=True, residual=True),
}


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Serve small layers, by kernels where cuDNN is the default."""
    square = square_gradient.Tile(64, 16, 4, 2)

    def compute(key: object, ways: dict[str, choice.Way], default: str) -> choice.Outputs:
        return ways["windows" if default == "cudnn" else default]()

    monkeypatch.setattr(choice, "compute", compute)
    monkeypatch.setattr(square_gradient, "TILES", {(side, CHANNELS, 8): square for side in (1, 3)})


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of all kernels that are launched."""
    names: list[str] = []
    real = bn_act.launch

    def launch(kernel: Any, *arguments: Any, **constants: Any) -> None:
        names.append(getattr(kernel, "fn", kernel).__name__)
        if constants.get("TRANSPOSED"):
            names[-1] = "input gradient"
        real(kernel, *arguments, **constants)

    for module in ("bn_act", "channel_stats", "convolution", "row_conv", "row_weights", "square_gradient"):
        monkeypatch.setattr(f"hullo.population.kernels.{module}.launch", launch)
    return names


def draw(case: Case) -> tuple[dict[str, Tensor], list[Tensor]]:
    """Return the tensors that have a gradient, and gradients of the users' outputs."""
    torch.manual_seed(len(case.users))
    wide, images = MEMBERS * CHANNELS, (2, MEMBERS * CHANNELS, *case.size)
    tensors = {
        "x": torch.randn(images),
        "scale": 1 + 0.5 * torch.randn(wide),
        "shift": torch.randn(wide),
        "rows": torch.rand(MEMBERS, len(BASES)) + 0.5,
    }
    tensors |= {"residual": torch.randn(images)} if case.residual else {}
    tensors |= {f"weight {i}": torch.randn(MEMBERS * 8, CHANNELS, u[0], u[0]) for i, u in enumerate(case.users)}
    tensors = {name: t.to(DEVICE, DTYPE if t.dim() == 4 else None) for name, t in tensors.items()}
    sizes = [[(length + sum(pad) - side) // stride + 1 for length in case.size] for side, stride, pad in case.users]
    gradients = [torch.randn(2, MEMBERS * 8, *size).to(DEVICE, DTYPE) for size in sizes]
    return tensors, [*gradients, torch.randn(images).to(DEVICE, DTYPE)]


def forward(case: Case, t: dict[str, Tensor], late: LateGradients | None) -> list[Tensor]:
    """Return the outputs of the users, and the other output of the batch norm if something else uses it."""
    running = torch.zeros_like(t["scale"]), torch.ones_like(t["scale"])
    one, other = bn_act.normalize_combine(
        t["x"], *running, t["scale"], t["shift"], t["rows"], BASES, True,
        momentum=0.1, eps=EPSILON, residual=t.get("residual"), late=late,
    )  # fmt: skip
    outputs = [
        convolve(one, t[f"weight {i}"], None, members=MEMBERS, stride=stride, padding=padding, late=late)[0]
        for i, (_, stride, padding) in enumerate(case.users)
    ]
    return [*outputs, other] if case.used else outputs


def forward_plain(case: Case, t: dict[str, Tensor]) -> list[Tensor]:
    y = F.batch_norm(t["x"], None, None, t["scale"], t["shift"], True, 0.1, EPSILON) + t.get("residual", 0.0)
    spec = CombineSpec(BASES, get_parametrization("given"), 1)
    y = apply(y, t["rows"], spec, backend="reference")
    outputs = [
        F.conv2d(F.pad(y, (*padding, *padding)), t[f"weight {i}"], stride=stride, groups=MEMBERS)
        for i, (_, stride, padding) in enumerate(case.users)
    ]
    return [*outputs, y] if case.used else outputs


def leaves(tensors: dict[str, Tensor], dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    return {name: t.to(dtype or t.dtype).detach().requires_grad_() for name, t in tensors.items()}


def differentiate(outputs: list[Tensor], t: dict[str, Tensor], gradients: list[Tensor], **options: Any) -> Any:
    given = [*gradients[: len(outputs) - 1], gradients[-1] if len(outputs) == len(gradients) else gradients[-2]]
    return torch.autograd.grad(outputs, list(t.values()), [g.to(outputs[0].dtype) for g in given], **options)


@pytest.mark.parametrize("name", CASES)
def test_gradients_that_users_leave_are_those_of_plain_operations(name: str, launched: list[str]) -> None:
    case = CASES[name]
    tensors, gradients = draw(case)
    own, precise = leaves(tensors), leaves(tensors, torch.float64)
    outputs = forward(case, own, LateGradients())
    launched.clear()
    found = differentiate(outputs, own, gradients)
    assert launched.count("input gradient") + launched.count("_square_kernel") == case.kernels
    oracle = differentiate(forward_plain(case, precise), precise, gradients)
    rounding = 2**-6 if GPU else 2e-5
    for ours, theirs in zip(found, oracle, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=rounding, atol=rounding * theirs.abs().max().item())


def test_a_second_backward_pass_and_one_after_an_error_give_the_same() -> None:
    case = CASES["two of stride two"]
    tensors, gradients = draw(case)
    own, lone = leaves(tensors), leaves(tensors)
    outputs = forward(case, own, LateGradients())
    first = differentiate(outputs, own, gradients, retain_graph=True)
    hook = outputs[0].register_hook(lambda gradient: pytest.fail("stopped after the other user"))
    with pytest.raises(pytest.fail.Exception, match="stopped"):
        differentiate(outputs, own, gradients, retain_graph=True)
    hook.remove()
    (alone,) = torch.autograd.grad(outputs[0], own["x"], gradients[0], retain_graph=True)
    (expected,) = torch.autograd.grad(forward(case, lone, None)[0], lone["x"], gradients[0])
    assert torch.equal(alone, expected)
    again = differentiate(outputs, own, gradients)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_a_gradient_to_differentiate_is_refused() -> None:
    case = CASES["one"]
    tensors, gradients = draw(case)
    own = leaves(tensors)
    output = forward(case, own, LateGradients())[0]
    (dx,) = torch.autograd.grad(output, own["x"], gradients[0].requires_grad_(), create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivatives"):
        dx.sum().backward()
