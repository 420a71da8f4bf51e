"""Test that exported hulls and folded models (torch.export, ONNX) have equal values for any batch size."""

from __future__ import annotations

import copy
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hullo

OPSET = 18
HULLS = 9  # for all bases: each with several that are linearly independent


class Every(nn.Module):
    """Hulls with all bases of the catalogue, and hulls with every parametrization; one output per hull."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.hulls = nn.ModuleList()
        names = hullo.list_bases()
        for first in range(HULLS):
            hull = hullo.AffineHull(*names[first::HULLS], strict=False, groups=groups)
            with torch.no_grad():
                hull.raw.add_(torch.randn_like(hull.raw))
            self.hulls.append(hull)
        for kind, parametrization in (
            (hullo.AffineHull, "free"),
            (hullo.ConvexHull, "projection"),
            (hullo.ConvexHull, "softmax"),
        ):
            self.hulls.append(
                kind("identity", "relu", "tanh", parametrization=parametrization, groups=groups, init=[0.2, 0.3, 0.5])
            )

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(hull(x) for hull in self.hulls)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8, 5)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.act(self.conv(x)))
        return self.head(self.act(x.mean((2, 3))))


def trained(groups: int | str) -> nn.Module:
    model = hullo.replace_activations(Net(), groups=groups, example_inputs=torch.randn(1, 3, 6, 6)).eval()
    for hull in hullo.summary(model).hulls.values():
        with torch.no_grad():
            hull.raw.add_(0.1 * torch.randn_like(hull.raw))
    return model


def make(kind: str, groups: int) -> tuple[nn.Module, Tensor, Tensor]:
    """Return a model, an input to export it with and one of another batch size."""
    if kind.startswith("every"):
        model: nn.Module = Every(groups).eval()
        shape = (8, 3)
    else:
        model = trained("channels" if groups > 1 else 1)
        shape = (3, 6, 6)
    return hullo.fold(model) if kind.endswith("folded") else model, torch.randn(2, *shape), 2 * torch.randn(5, *shape)


@pytest.mark.parametrize(
    ("kind", "groups"), [("every base", 8), ("every base folded", 1), ("network", 1), ("network folded", 8)]
)
def test_torch_export_keeps_the_values_for_any_batch(kind: str, groups: int) -> None:
    model, x, other = make(kind, groups)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    torch.testing.assert_close(program.module()(other), model(other))


@pytest.mark.parametrize(("kind", "groups"), [("every base", 8), ("network folded", 1)])
def test_onnx_keeps_the_values_for_any_batch(kind: str, groups: int, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    model, x, other = make(kind, groups)
    path = tmp_path / "model.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own
        torch.onnx.export(
            model, (x,), path, dynamo=True, opset_version=OPSET, dynamic_shapes=({0: "batch"},), verbose=False
        )
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    outputs = session.run(None, {session.get_inputs()[0].name: other.numpy()})
    expected = model(other)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for index, (output, value) in enumerate(zip(outputs, expected, strict=True)):
        torch.testing.assert_close(
            torch.from_numpy(output), value.detach(), rtol=1e-5, atol=2e-6, msg=lambda text, at=index: f"{at}: {text}"
        )


def test_exported_model_runs_without_hullo(tmp_path: Path) -> None:
    model, x, _ = make("network folded", 1)
    torch.export.save(torch.export.export(model, (x,)), tmp_path / "model.pt2")
    torch.save((x, model(x).detach()), tmp_path / "values.pt")
    program = f"""
import sys
sys.modules["hullo"] = None
import torch
x, y = torch.load({str(tmp_path / "values.pt")!r})
torch.testing.assert_close(torch.export.load({str(tmp_path / "model.pt2")!r}).module()(x), y)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("raw", [(-0.1, 0.55, 0.55), (0.7, 0.9, -0.6), (0.2, 0.3, 0.5)])
@pytest.mark.parametrize("hull", [hullo.ConvexHull, hullo.ConicHull])
def test_exported_hull_has_the_gradients_of_the_original(
    hull: type[hullo.Hull], raw: tuple[float, ...], strict: bool
) -> None:
    act, x = hull("identity", "relu", "tanh"), torch.linspace(-2, 2, 9)
    with torch.no_grad():
        act.raw.copy_(torch.tensor(raw))  # outside, the projection has no derivative of its own
    exported = torch.export.export(copy.deepcopy(act), (x,), strict=strict).module()
    for module in (act, exported):
        (module(x) * (1 + x)).sum().backward()
    torch.testing.assert_close(next(exported.parameters()).grad, act.raw.grad)
    torch.testing.assert_close(exported(x), act(x))
