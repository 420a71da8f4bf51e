"""Test that no hull becomes a child that the code of a model would iterate over."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from programs import assert_right_or_refused, imported

import hullo

CONTAINERS = {
    "nn.Sequential": "self.append(nn.Linear(4, 4)); self.append(nn.ReLU())",
    "nn.ModuleList": "self.append(nn.Linear(4, 4)); self.append(nn.ReLU())",
    "nn.ModuleDict": "self.update({'a': nn.Linear(4, 4), 'b': nn.ReLU()})",
    "nn.Module": "self.a, self.b = nn.Linear(4, 4), nn.ReLU()",
}
LOOPS = {
    "super": "x = super().forward(x)",
    "for": "for part in self: x = part(x)",
    "children": "for part in self.children(): x = part(x)",
    "length": "x = x * len(list(self.children()))",
    "parameters": "x = x + sum(part.sum() for part in self.parameters())",
    "variables": "x = x * len(vars(self)['_modules'])",
}
FITS = {"super": ("nn.Sequential",), "for": ("nn.Sequential", "nn.ModuleList")}


@pytest.mark.parametrize("loop", LOOPS)
def test_functions_are_not_replaced_if_code_would_see_the_hull(loop: str, tmp_path: Path) -> None:
    for base in FITS.get(loop, tuple(CONTAINERS)):
        space = imported(
            f"""
class Net({base}):
    def __init__(self):
        super().__init__()
        {CONTAINERS[base]}

    def forward(self, x):
        {LOOPS[loop]}
        return torch.tanh(x)

class Outer(Base):
    def build(self):
        self.inner = Net()

    def forward(self, x):
        return self.inner(self.l0(x))
""",
            tmp_path,
        )
        for name, hull in assert_right_or_refused(space["Outer"], torch.randn(3, 4)).items():
            assert name in ("inner.1", "inner.b"), (base, name)
            assert hull.replaced == "ReLU"


@pytest.mark.parametrize("walk", ["self.inner.children()", "[part for _, part in self.inner.named_children()]"])
def test_iteration_over_children_does_not_see_hulls(walk: str, tmp_path: Path) -> None:
    space = imported(
        f"""
class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.act = nn.Linear(4, 4), nn.ReLU()

    def forward(self, x):
        return F.gelu(self.act(self.layer(self.act(x))))

class Net(Base):
    def build(self):
        self.inner = Inner()

    def forward(self, x):
        x = self.inner(torch.tanh(self.l0(x)))
        for part in {walk}:
            x = part(x)
        return x
""",
        tmp_path,
    )
    assert "l0_tanh" in assert_right_or_refused(space["Net"], torch.randn(3, 4))


def test_children_keep_their_order() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4), torch.nn.Tanh())
    names = list(model._modules)
    assert list(hullo.replace_activations(model)._modules) == names
