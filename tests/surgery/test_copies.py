"""Test that copies of a swapped module have its hulls, also for classes that define how they are copied."""

from __future__ import annotations

import copy
import pickle
import threading
from pathlib import Path

import pytest
import torch
from programs import change_hulls, imported, outputs
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

import hullo
from made_hulls import through_torch_save

PADDING = torch.tensor([[0, 0, 0, 1, 1], [0] * 5, [0, 0, 0, 0, 1]]).bool()


WAYS = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "save": through_torch_save,
    "average": lambda model: AveragedModel(model).module,
}

HOOKS = {
    "getstate drops a lock": """
    def __getstate__(self):
        return {key: item for key, item in vars(self).items() if key != "lock"}
""",
    "reduce": """
    def __reduce__(self):
        return type(self), (), vars(self)
""",
    "deepcopy by hand": """
    def __deepcopy__(self, memo):
        made = type(self).__new__(type(self))
        made.__dict__.update(copy.deepcopy(vars(self), memo))
        return made
""",
}


@pytest.mark.parametrize("act", ["nn.ReLU()", "F.relu"])
@pytest.mark.parametrize("name", HOOKS)
def test_class_with_custom_copying_keeps_hulls(name: str, act: str, tmp_path: Path) -> None:
    net = imported(
        f"""
import copy
class Net(Base):
    def build(self):
        self.act = {act}
{HOOKS[name]}
    def forward(self, x):
        return torch.tanh(self.l1(self.act(self.l0(x))))
""",
        tmp_path,
    )["Net"]
    model, x = net(), torch.randn(3, 4)
    hullo.replace_activations(model, example_inputs=x)
    change_hulls(model)
    for way in WAYS.values():
        again = way(model)
        assert list(hullo.summary(again).hulls) == list(hullo.summary(model).hulls)
        torch.testing.assert_close(outputs(again, x, False), outputs(model, x, False))


@pytest.mark.filterwarnings("ignore:enable_nested_tensor:UserWarning")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", [nn.TransformerEncoderLayer, nn.TransformerDecoderLayer])
def test_transformer_layers_keep_their_hull(make: type[nn.Module], way: str) -> None:
    x = (torch.randn(3, 2, 8),) * (1 if make is nn.TransformerEncoderLayer else 2)
    layer = hullo.replace_activations(make(8, 2, 16, dropout=0.0), example_inputs=x)
    change_hulls(layer)
    stack = (nn.TransformerEncoder if make is nn.TransformerEncoderLayer else nn.TransformerDecoder)(layer, 2)
    for again in (WAYS[way](layer), *stack.layers, WAYS[way](stack).layers[1], WAYS[way](hullo.fold(layer))):
        torch.testing.assert_close(again(*x), layer(*x), rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*nested tensor:UserWarning")
def test_padded_encoder_matches_where_it_is_not_padded() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, activation="gelu")
    model, x = nn.TransformerEncoder(layer, 2).eval(), torch.randn(3, 5, 8)
    with torch.no_grad():
        before = model(x, src_key_padding_mask=PADDING)
        inputs = {"src": x, "src_key_padding_mask": PADDING}
        hullo.replace_activations(model, example_inputs=inputs)
        for again in (model, copy.deepcopy(model), through_torch_save(model), hullo.fold(model, example_inputs=inputs)):
            output = again(x, src_key_padding_mask=PADDING)
            torch.testing.assert_close(output[~PADDING], before[~PADDING], rtol=1e-4, atol=1e-5)


class Holds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.act, self.lock = nn.Linear(4, 4), nn.ReLU(), threading.Lock()
        self.factor = self.layer.weight.mean() * 0 + 2

    def forward(self, x: Tensor) -> Tensor:
        with self.lock:
            return self.act(self.layer(x)) * self.factor


def test_module_with_lock_and_nonleaf_tensor_is_supported() -> None:
    model, x = Holds(), torch.randn(3, 4)
    before = model(x).detach()
    hullo.replace_activations(model, groups="channels", channel_dim=-1, example_inputs=x)
    torch.testing.assert_close(model(x).detach(), before)
    folded = hullo.fold(model, example_inputs=x)
    assert folded.lock is model.lock
    torch.testing.assert_close(folded(x).detach(), before)


def test_uncopyable_model_is_not_folded() -> None:
    model = hullo.replace_activations(Holds())
    model.stream = (n for n in range(3))  # type: ignore[assignment]
    with pytest.raises(TypeError, match=r"model cannot be copied: .*generator"):
        hullo.fold(model)
