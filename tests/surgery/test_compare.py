"""Test that a swap that changes outputs is undone, and that comparing leaves no trace in the model."""

from __future__ import annotations

import collections
import copy
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hullo
from hullo.recognition.known import Reading
from hullo.recognition.table import read_type
from hullo.surgery import observe
from hullo.surgery.prove import difference


@dataclass
class Output:
    logits: Tensor
    parts: dict[str, tuple[Tensor, ...]]


class Stateful(nn.Module):
    """A model that leaves traces wherever a model can, and draws random numbers of all kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.act = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU()
        self.drop, self.calls, self.seen = nn.Dropout(0.5), 0, [torch.zeros(4)]
        self.generator = torch.Generator().manual_seed(0)
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x: Tensor) -> Output:
        x = x.mul_(1.0)
        self.calls += 1
        h = self.drop(self.act(self.norm(self.layer(x))))
        self.seen.append(h)
        self.total += h.detach().mean(0)
        noise = random.random() + np.random.rand() + torch.rand((), generator=self.generator)
        return Output(h + noise, {"tanh": (torch.tanh(x), self.total.clone())})


def state(model: nn.Module) -> dict[str, object]:
    return {
        "tensors": {name: item.clone() for name, item in model.state_dict().items() if "raw" not in name},
        "modes": [module.training for name, module in model.named_modules() if name in ("", "layer", "norm", "drop")],
        "calls": (model.calls, len(model.seen)),
        "generator": model.generator.get_state(),
        "gradient": model.layer.weight.grad.clone(),  # type: ignore[union-attr]
        "random": (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()),
    }


def same(a: object, b: object) -> bool:
    if isinstance(a, Tensor):
        return torch.equal(a, b)  # type: ignore[arg-type]
    if isinstance(a, dict):
        return all(same(item, b[key]) for key, item in a.items())  # type: ignore[index]
    if isinstance(a, (list, tuple)):
        return all(same(*pair) for pair in zip(a, b, strict=True))  # type: ignore[call-overload]
    return a == b


def test_runs_have_no_side_effects() -> None:
    model, x = Stateful(), torch.randn(5, 4)
    model.norm.eval()
    model(x).logits.sum().backward()
    before, given = state(model), x.clone()
    hullo.replace_activations(model, example_inputs=(x,))
    assert same(before, state(model))
    hullo.fold(model, example_inputs=(x,))
    assert same(before, state(model))
    assert torch.equal(x, given)
    assert "same outputs as the original model in training and evaluation mode" in str(hullo.summary(model))


class Irreps(tuple):  # type: ignore[type-arg]
    """A tuple that does not tell its length, as of some libraries."""

    def __len__(self) -> int:
        raise NotImplementedError


class Counting(nn.Module):
    """A model that keeps its state in containers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.act, self.irreps = nn.Linear(4, 4), nn.ReLU(), Irreps((1, 2))
        self.queue, self.counts = collections.deque([0.0], maxlen=2), collections.Counter(calls=3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.act(self.layer(x))
        self.queue.append(float(h.sum()))
        self.counts["calls"] += 1
        return h


def test_containers_are_restored() -> None:
    model, x = Counting(), torch.randn(5, 4)
    queue = model.queue
    hullo.replace_activations(model, example_inputs=x)
    hullo.fold(model, example_inputs=x)
    assert model.queue is queue
    assert (list(queue), queue.maxlen, dict(model.counts)) == ([0.0], 2, {"calls": 3})


def test_training_step_as_example_inputs_is_undone() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.randn(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model[0].bias.grad = torch.ones(4)
    weight = model[0].weight.detach().clone()

    def step(m: nn.Module) -> Tensor:
        loss: Tensor = m(x).square().sum()
        loss.backward()
        optimizer.step()
        return loss

    hullo.replace_activations(model, example_inputs=step)
    assert model[0].weight.grad is None
    assert torch.equal(model[0].bias.grad, torch.ones(4))  # type: ignore[arg-type]
    assert torch.equal(model[0].weight, weight)
    assert isinstance(model[1], hullo.AffineHull)


def test_summary_says_if_nothing_was_compared() -> None:
    model = hullo.replace_activations(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    assert "not compared" in str(hullo.summary(model))


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.act, self.other = nn.Linear(4, 4), nn.ReLU(), nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.layer(x)) if x.dim() == 2 else self.other(x)


def test_activations_that_did_not_run_are_listed() -> None:
    model = hullo.replace_activations(Branch(), example_inputs=torch.randn(2, 4))
    assert [(site.name, site.reason) for site in hullo.summary(model).not_replaced] == [
        ("other", "it did not run on example_inputs, or ran in another thread")
    ]


def attributes(model: nn.Module) -> list[object]:
    return [
        (type(module), list(vars(module)), list(module._modules.items()), list(module._forward_hooks.items()))
        for module in model.modules()
    ]


class Mixed(nn.Module):
    """A module with all that a swap changes: classes, attributes, children and the flags of encoders."""

    def __init__(self) -> None:
        super().__init__()
        self.act, self.first, self.fn = nn.GELU(), nn.Linear(8, 8), F.silu
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)
        self.act.register_forward_hook(lambda module, args, output: None)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.encoder(F.relu(self.first(self.act(self.fn(x))))))


@pytest.mark.filterwarnings("ignore:.*nested tensor:UserWarning")
@pytest.mark.parametrize("start", [None, [0.2, 0.3, 0.5]])
def test_difference_is_an_error_and_undone(monkeypatch: pytest.MonkeyPatch, start: list[float] | None) -> None:
    monkeypatch.setattr(observe, "read_type", wrong_reading)
    model, x = Mixed(), torch.randn(2, 3, 8)
    before, outputs, names = attributes(model), model.eval()(x), list(model.state_dict())
    options = {"init": start, "bases": start and ["identity", "relu", "tanh"], "where": "act*"}
    with pytest.raises(RuntimeError, match=r"act \(tanh\): .* in (training|evaluation) mode, output differs by 0\.\d+"):
        hullo.replace_activations(model, example_inputs=x, **options)
    assert attributes(model) == before
    assert list(model.state_dict()) == names
    torch.testing.assert_close(model(x), outputs)
    assert model.encoder.use_nested_tensor


def test_difference_of_gradients_alone_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observe, "read_type", wrong_reading)
    model = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2))
    for parameter in model[0].parameters():  # at zero, both functions are zero, with slopes 1/2 and 1
        nn.init.zeros_(parameter)
    with pytest.raises(RuntimeError, match=r"in training mode, gradient of 0\.(weight|bias) differs"):
        hullo.replace_activations(model, example_inputs=torch.randn(5, 3))


class RemembersInBuffer(nn.Module):
    """Only a buffer depends on what an activation writes into its input."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.act = nn.Tanh(), nn.ReLU(inplace=True)
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.inner(x)
        output = self.act(hidden)
        self.mean = hidden.mean().detach()
        return output


def test_difference_of_buffers_alone_is_an_error() -> None:
    model = hullo.replace_activations(RemembersInBuffer(), example_inputs=torch.randn(5, 3))
    (site,) = hullo.summary(model).not_replaced
    assert "mode, buffer mean differs" in site.reason


def wrong_reading(module: nn.Module) -> Reading | None:
    """Take every GELU for a tanh."""
    return read_type(nn.Tanh() if isinstance(module, nn.GELU) else module)


class Interrupts(hullo.AffineHull):
    def train(self, mode: bool = True) -> Interrupts:
        raise KeyboardInterrupt


@pytest.mark.filterwarnings("ignore:.*nested tensor:UserWarning")
def test_interruption_is_undone() -> None:
    model = Mixed()
    before = attributes(model)
    made = []

    def make(site: object) -> hullo.AffineHull:
        made.append(site)
        return (Interrupts if len(made) == 3 else hullo.AffineHull)("identity", "relu")

    with pytest.raises(KeyboardInterrupt):
        hullo.replace_activations(model, hull=make, example_inputs=torch.randn(2, 3, 8))
    assert attributes(model) == before


class Unsteady(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.act = nn.Linear(4, 4), nn.ReLU()
        self.count = iter(range(100))

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.layer(x)) + next(self.count)


def test_nondeterministic_model_is_rejected() -> None:
    with pytest.raises(RuntimeError, match="not deterministic"):
        hullo.replace_activations(Unsteady(), example_inputs=torch.randn(2, 4))


class Coarser(nn.Module):
    """An activation in a coarser type than the rest of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.act = nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(x.float()).to(x.dtype)  # type: ignore[no-any-return]


class CoarserInside(nn.Module):
    """An activation that computes in a coarser type by itself."""

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(x.float()).to(x.dtype)


@pytest.mark.parametrize("kind", [Coarser, CoarserInside])
def test_rounding_of_a_coarser_submodule_is_accepted(kind: type[nn.Module]) -> None:
    wide = nn.Sequential(nn.Linear(4, 4096), kind(), nn.Linear(4096, 4)).double()
    hullo.replace_activations(wide, example_inputs=torch.randn(16, 4, dtype=torch.float64))
    assert len(hullo.summary(wide).hulls) == 1


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.act = hullo.AffineHull("relu", "tanh")

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.act(x + y)


@pytest.mark.parametrize("function", [hullo.plot, hullo.fold])
def test_list_is_one_argument_of_the_model(function: Callable[..., Any]) -> None:
    x = torch.randn(2, 3)
    function(TwoInputs(), example_inputs=(x, x))
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        function(TwoInputs(), example_inputs=[x, x])


def test_failing_mode_is_not_compared() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU())  # one image has no variance in training
    hullo.replace_activations(model, example_inputs=torch.randn(1, 4))
    assert "same outputs as the original model in evaluation mode" in str(hullo.summary(model))
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        hullo.replace_activations(copy.deepcopy(Branch()), example_inputs=torch.randn(2, 5))
    with pytest.raises(ValueError, match="uninitialized parameter"):
        hullo.replace_activations(nn.Sequential(nn.LazyLinear(4), nn.ReLU()), example_inputs=torch.randn(2, 5))


class Overwriting(nn.Module):
    """Adds to the input of its activation: ReLU needs only its output for the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.act = nn.Linear(4, 4), nn.Linear(4, 4), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x += self.second(self.act(x))
        return x


def test_hull_whose_input_is_overwritten_is_refused_by_name() -> None:
    model, x = Overwriting(), torch.randn(3, 4)
    model(x).sum().backward()
    before = [parameter.grad for parameter in model.parameters()]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        hullo.replace_activations(model, example_inputs=x)
    assert isinstance(model.act, nn.ReLU)
    assert all(p.grad is grad for p, grad in zip(model.parameters(), before, strict=True))


def test_model_without_a_backward_pass_is_compared_forwards() -> None:
    class Doubled(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return torch.sigmoid(super().forward(x)).mul_(2)  # sigmoid needs its output for the backward pass

    for is_frozen in (False, True):
        model, x = Doubled(nn.Linear(4, 4), nn.ReLU()), torch.randn(3, 4)
        model.requires_grad_(not is_frozen)
        if not is_frozen:
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                model(x).sum().backward()
        hullo.replace_activations(model, example_inputs=x)
        assert "in training and evaluation mode" in str(hullo.summary(model))


def test_only_the_site_to_blame_is_left_out() -> None:
    class Both(Overwriting):
        def __init__(self) -> None:
            super().__init__()
            self.before = nn.ReLU(inplace=True)

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(self.before(self.second(x)))

    model = hullo.replace_activations(Both(), example_inputs=torch.randn(3, 4))
    (site,) = hullo.summary(model).not_replaced
    assert (list(hullo.summary(model).hulls), site.name) == (["before"], "act")
    assert "modified by an inplace operation" in site.reason


def test_hulls_of_a_loop_stay_where_another_site_is_to_blame() -> None:
    class Loop(Overwriting):
        def forward(self, x: Tensor) -> Tensor:
            for layer in (self.first, self.second):
                x = torch.tanh(layer(x))
            return super().forward(x)

    model = hullo.replace_activations(Loop(), example_inputs=torch.randn(3, 4))
    assert sorted(hullo.summary(model).hulls) == ["first_tanh.0", "first_tanh.1"]
    assert [site.name for site in hullo.summary(model).not_replaced] == ["act"]


def test_backward_hooks_are_not_called() -> None:
    model, called = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), []
    model[0].register_full_backward_hook(lambda *_: called.append("module"))
    hullo.replace_activations(model, example_inputs=torch.randn(3, 4))
    assert called == []
    model(torch.randn(3, 4, requires_grad=True)).sum().backward()
    assert called == ["module"]


def test_differences_are_detected_in_any_output() -> None:
    one = {"a": torch.tensor([1.0, float("nan"), float("inf")]), "b": torch.tensor([1, 2]), "c": "x"}
    assert difference(one, copy.deepcopy(one)) == ("", 0.0)
    assert difference({**one, "a": torch.tensor([1.5, float("nan"), float("inf")])}, one) == ("a", 0.5)
    for other in ({"b": torch.tensor([1, 3])}, {"c": "y"}, {"a": torch.tensor([1.0])}, {"d": 1}):
        assert difference({**one, **other}, one)[1] == float("inf")


def test_runs_on_example_inputs_leave_no_hooks() -> None:
    model, x = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.ReLU(inplace=True)), torch.randn(5, 3)
    hullo.replace_activations(model, groups="channels", example_inputs=x)
    hullo.plot(model, example_inputs=x)
    folded = hullo.fold(model, example_inputs=x)
    modules = [*model.modules(), *folded.modules()]
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in modules)
    assert not any(module._forward_pre_hooks_with_kwargs for module in modules)


@pytest.mark.parametrize(
    ("actual", "expected", "distance"),
    [
        (torch.ones(2), torch.ones(2, dtype=torch.float64), math.inf),
        (torch.ones(2), torch.ones(1, 2), math.inf),
        (torch.tensor([1.0, math.nan]), torch.tensor([1.0, 2.0]), math.inf),
        (torch.tensor([1.0, math.inf]), torch.tensor([1.0, math.inf]), 0.0),
        (torch.tensor([1.0, math.nan]), torch.tensor([1.0, math.nan]), 0.0),
        (torch.tensor([1.0, 8.0]), torch.tensor([2.0, 8.0]), 1 / 8),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), math.inf),
        (3, 3, 0.0),
        (3, 3.0, math.inf),
    ],
)
def test_difference_is_relative_to_the_largest_number(actual: Any, expected: Any, distance: float) -> None:
    assert difference({"x": actual}, {"x": expected})[1] == pytest.approx(distance)


def test_weight_without_a_gradient_does_not_fail_the_proof() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model.register_parameter("unused", nn.Parameter(torch.ones(1)))
    hullo.replace_activations(model, example_inputs=torch.randn(2, 4))
    assert hullo.summary(model).compared == "training and evaluation"
