"""Test that activations become hulls, one per call, and the model computes the same as before."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from models_to_swap import Block, FunctionalNet, assert_replaced
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import hullo
from hullo.surgery import Site


@pytest.mark.parametrize("activation", [F.relu, F.gelu, nn.GELU(), functools.partial(F.gelu, approximate="tanh")])
@pytest.mark.parametrize("batch_first", [False, True])
def test_pytorch_transformers_are_replaced_without_fast_path(activation, batch_first: bool) -> None:  # type: ignore[no-untyped-def]
    layer = nn.TransformerEncoderLayer(8, 2, 16, activation=activation, batch_first=batch_first)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x = torch.randn(3, 5, 8)
    with torch.no_grad():
        before = model(x)
        hullo.replace_activations(model, example_inputs=x)
        torch.testing.assert_close(model(x), before, rtol=1e-5, atol=1e-6)
        next(iter(hullo.summary(model).hulls.values())).coefficients = "identity"
        assert not torch.allclose(model(x), before, atol=1e-3)


def test_transformer_is_replaced() -> None:
    model = nn.Transformer(8, 2, 2, 2, 16, dropout=0.0, batch_first=True)
    hulls = [f"{part}.layers.{n}.linear1_relu" for part in ("encoder", "decoder") for n in range(2)]
    assert_replaced(model, torch.randn(2, 5, 8), torch.randn(2, 4, 8), hulls=hulls, tolerance=1e-5)


def test_mode_dtype_device_hooks_and_ties_are_kept() -> None:
    tied = nn.Linear(4, 4, dtype=torch.float64)
    model = nn.Sequential(tied, nn.ReLU(), tied, nn.GELU()).double()
    model[1].eval()
    seen: list[str] = []
    handle = model[1].register_forward_hook(lambda module, args, out: seen.append(type(module).__name__))
    x = torch.randn(3, 4, dtype=torch.float64)
    expected = model(x)
    hullo.replace_activations(model)
    seen.clear()
    torch.testing.assert_close(model(x), expected, rtol=1e-14, atol=1e-14)
    assert seen == ["AffineHull"]
    handle.remove()
    model(x)
    assert seen == ["AffineHull"]
    assert model[0] is model[2]
    assert model[1].raw.dtype == torch.float64
    assert (model[1].training, model[3].training) == (False, True)
    assert hullo.replace_activations(nn.Sequential(nn.Linear(2, 2), nn.ReLU()).to("meta"))[1].raw.device.type == "meta"


def test_hull_beside_whole_numbers_has_the_dtype_of_the_model() -> None:
    block = nn.Sequential(nn.ReLU())
    block.register_buffer("steps", torch.zeros((), dtype=torch.int64))
    model = hullo.replace_activations(nn.Sequential(nn.Linear(4, 4), block).double())
    assert model[1][0].raw.dtype == torch.float64


def test_names_types_functions_and_predicates_choose_sites() -> None:
    def make() -> nn.Sequential:
        return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.GELU(), nn.Sigmoid())

    def hulls(**choice: object) -> list[str]:
        return list(hullo.summary(hullo.replace_activations(make(), **choice)).hulls)  # type: ignore[arg-type]

    assert hulls() == ["1", "3"]
    assert hulls(where="1") == ["1"]
    assert hulls(where=["[0-2]", nn.GELU]) == ["1", "3"]
    assert hulls(where=nn.GELU) == ["3"]
    assert hulls(where=lambda site: site.function == "gelu") == ["3"]
    assert hulls(functions=["sigmoid"]) == ["4"]


def test_one_of_two_calls_of_a_module_can_be_chosen() -> None:
    model, x = Block().eval(), torch.randn(5, 6)
    before = model(x)
    hullo.replace_activations(model, where="relu_2", example_inputs=x)
    torch.testing.assert_close(model(x), before)
    assert list(hullo.summary(model).hulls) == ["relu_2"]
    hullo.replace_activations(model)
    torch.testing.assert_close(model(x), before)
    assert sorted(hullo.summary(model).hulls) == ["relu", "relu_2"]


def test_hull_bases_init_and_parametrization_can_be_chosen() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    hullo.replace_activations(model, hull=hullo.ConvexHull, bases=["relu", "tanh"], init=[0.25, 0.75])
    assert repr(model[1]) == "ConvexHull(relu=0.25, tanh=0.75)"
    model = hullo.replace_activations(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), parametrization="free")
    assert repr(model[1]) == "AffineHull(identity=0, relu=1, tanh=0, parametrization='free')"

    def make(site: Site) -> hullo.AffineHull:
        return hullo.AffineHull("identity", "tanh", parametrization="free")

    model = hullo.replace_activations(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), hull=make)
    assert repr(model[1]) == "AffineHull(identity=0.5, tanh=0.5, parametrization='free')"


def test_one_activation_per_channel() -> None:
    x = torch.randn(2, 3, 8, 8)
    model = FunctionalNet().eval()
    before = model(x)
    rng = torch.get_rng_state()
    hullo.replace_activations(model, groups="channels", example_inputs=x)
    assert torch.equal(torch.get_rng_state(), rng)
    assert {hull.groups for hull in hullo.summary(model).hulls.values()} == {8}
    torch.testing.assert_close(model(x), before)
    layer = nn.TransformerEncoderLayer(8, 2, 24)
    hullo.replace_activations(layer, groups="channels", channel_dim=-1, example_inputs={"src": torch.randn(3, 1, 8)})
    assert layer.linear1_relu.groups == 24


class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(x)


BAD: list[tuple[Callable[[], object], dict[str, object], type[Exception], str]] = [
    (lambda: nn.Sequential(nn.Linear(2, 2)), {}, ValueError, "none was found"),
    (lambda: nn.ReLU(), {}, ValueError, "none was found"),
    (lambda: "model", {}, TypeError, "not a str"),
    (lambda: nn.ReLU, {}, TypeError, "not a type; give the model itself"),
    (lambda: nn.Sequential(nn.ReLU()), {"where": 1}, TypeError, "where=1: give patterns"),
    (lambda: nn.Sequential(nn.ReLU()), {"where": ["x", 1]}, TypeError, r"where=1: give patterns"),
    (lambda: nn.Sequential(nn.GELU()), {"functions": ["relu"]}, ValueError, r"0 \(gelu\): excluded by functions=\['re"),
    (lambda: nn.Sequential(nn.Hardshrink()), {}, ValueError, "not in the catalogue, or has parameters"),
    (lambda: nn.Sequential(nn.ReLU()), {"where": "x*"}, ValueError, r"where='x\*' .*1 sites: 0"),
    (lambda: nn.Sequential(nn.ReLU()), {"where": lambda site: False}, ValueError, "matches none"),
    (lambda: nn.Sequential(nn.Sigmoid()), {}, ValueError, "only if named in functions"),
    (lambda: nn.Sequential(nn.ReLU()), {"functions": ["rlu"]}, ValueError, "unknown function 'rlu'"),
    (lambda: nn.Sequential(nn.ReLU()), {"functions": "relu"}, TypeError, "functions='relu'.*list"),
    (
        lambda: nn.Sequential(nn.GELU()),
        {"bases": ["relu", "tanh"]},
        ValueError,
        "0 is gelu, .*combination of relu, tanh",
    ),
    (lambda: nn.Sequential(nn.ReLU()), {"hull": 3}, TypeError, "hull=3"),
    *(
        (lambda: nn.Sequential(nn.ReLU()), {"hull": hull}, TypeError, "hull=.*give a class of hulls.*lambda site")
        for hull in (
            functools.partial(hullo.AffineHull, "identity", "relu"),
            hullo.presets.xielu,
            hullo.GatedHull,
            hullo.Hull,
        )
    ),
    (lambda: nn.Sequential(nn.ReLU()), {"hull": hullo.AffineHull("relu")}, TypeError, "hull=Affine.*class"),
    (lambda: nn.Sequential(nn.ReLU()), {"hull": lambda site: nn.ReLU()}, TypeError, r"For 0 it gave ReLU\(\)"),
    (lambda: nn.Sequential(nn.ReLU()), {"groups": "channels"}, ValueError, "needs example_inputs"),
    (lambda: nn.Sequential(nn.ReLU()), {"groups": "each"}, ValueError, "groups='each'"),
    (lambda: nn.Sequential(nn.ReLU()), {"parametrization": "softmax"}, ValueError, "'recentred', 'free'"),
    (
        lambda: nn.Sequential(nn.ReLU()),
        {"parametrization": "free", "hull": lambda site: hullo.AffineHull("relu")},
        TypeError,
        "function that makes hulls.*bases",
    ),
    (lambda: nn.Sequential(nn.PReLU(4)), {"groups": 2, "channel_dim": 1}, ValueError, r"shape \(4, 3\).*2 rows"),
]


@pytest.mark.parametrize(("make", "arguments", "error", "message"), BAD)
def test_bad_input_is_rejected_and_the_model_unchanged(make, arguments, error, message) -> None:  # type: ignore[no-untyped-def]
    model = make()
    before = repr(model)
    with pytest.raises(error, match=message):
        hullo.replace_activations(model, **arguments)
    assert repr(model) == before


@pytest.mark.parametrize(
    ("functions", "expected"),
    [
        (["GELU"], ["1"]),
        (["SiLU", "ReLU6"], ["2", "3"]),
        (["LeakyReLU"], ["4", "5"]),
        (["leaky_relu(0.2)"], ["5"]),
        (["leaky_relu(0.01)"], ["4"]),
        (["PReLU"], ["6"]),
    ],
)
def test_functions_have_the_names_of_bases(functions: list[str], expected: list[str]) -> None:
    acts = [nn.GELU(), nn.SiLU(), nn.ReLU6(), nn.LeakyReLU(), nn.LeakyReLU(0.2), nn.PReLU()]
    model = nn.Sequential(nn.Linear(2, 2), *acts)
    assert list(hullo.summary(hullo.replace_activations(model, functions=functions)).hulls) == expected


def test_summary_says_what_would_be_replaced_and_what_was_not_selected() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.GELU())
    assert str(hullo.summary(model)).count("would be replaced") == 2
    text = str(hullo.summary(hullo.replace_activations(model, where="1")))
    assert "2             gelu      not selected by where or functions" in text


def test_a_hull_that_is_returned_twice_is_shared() -> None:
    shared = hullo.AffineHull("identity", "relu")
    model = hullo.replace_activations(nn.Sequential(nn.ReLU(), nn.ReLU()), hull=lambda site: shared)
    assert model[0] is model[1] is shared


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_scripted_model_is_rejected_and_scripted_part_reported() -> None:
    scripted = torch.jit.script(Scripted())
    with pytest.raises(TypeError, match=r"RecursiveScriptModule; replace .* script the result of hullo\.fold"):
        hullo.replace_activations(scripted)
    model = hullo.replace_activations(nn.Sequential(scripted, nn.ReLU()))
    assert [(site.name, site.reason) for site in hullo.summary(model).not_replaced] == [
        ("0", "it is scripted; replace before scripting")
    ]


CONFIGS = {
    "Bert": {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2},
    "GPT2": {"vocab_size": 50, "n_embd": 16, "n_layer": 2, "n_head": 2},
    "ViT": {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 16, "patch_size": 8},
    "ResNet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"},
    "ConvNext": {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2},
}


HULLS = {"Bert": 3, "GPT2": 2, "ViT": 3, "ResNet": 5, "ConvNext": 2}


@pytest.mark.parametrize("name", CONFIGS)
def test_transformers_models_are_replaced_and_train(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    model = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**CONFIGS[name])).eval()
    x = torch.randint(0, 50, (2, 5)) if name in ("Bert", "GPT2") else torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        before = model(x)[0]
        after = hullo.replace_activations(model)(x)[0]
    torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-6)
    summary = hullo.summary(model)
    assert (len(summary.hulls), len(summary.not_replaced)) == (HULLS[name], 0)
    starts = {name: hull.raw.detach().clone() for name, hull in summary.hulls.items()}
    optimizer = torch.optim.Adam(hullo.parameter_groups(model, lr=1e-3))
    target = torch.randn_like(before)
    losses = []
    for _ in range(4):
        output = model(x)
        loss = F.mse_loss(output[0], target)
        if "pooler_output" in output:  # where BERT and ViT have their last activation
            loss = loss + output["pooler_output"].square().mean()
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < losses[0]
    assert not any(torch.equal(hull.raw, starts[name]) for name, hull in summary.hulls.items())


class Remembers(nn.Module):
    """Uses the input of an in-place activation after it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.inner, self.act = nn.Linear(3, 3), nn.ReLU(inplace=True), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(self.inner(self.layer(x)))
        return self.act(y) * 2 + y


def test_activation_on_whose_overwriting_the_model_relies_is_listed() -> None:
    model = hullo.replace_activations(Remembers(), example_inputs=torch.randn(5, 3))
    (site,) = hullo.summary(model).not_replaced
    assert (list(hullo.summary(model).hulls), site.name) == (["inner"], "act")
    assert "computes something else" in site.reason


def test_hulls_are_trainable_in_frozen_modules() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.PReLU()).requires_grad_(False)
    hullo.replace_activations(model)
    assert [parameter.requires_grad for parameter in model.parameters()] == [False, False, True]


def test_hull_in_a_model_without_parameters_is_trained() -> None:
    model = nn.Sequential(nn.ReLU(), nn.Tanh())
    hulls = [hullo.AffineHull("relu", "tanh").requires_grad_(False), hullo.AffineHull("relu", "tanh")]
    hullo.replace_activations(model, hull=lambda site: hulls[int(site.name)])
    assert [act.raw.requires_grad for act in model] == [False, True]


class TwoWays(nn.Module):
    """Entry points other than forward, and a loop over layers in a method that both use."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.head = nn.ModuleList(nn.Linear(4, 4) for _ in range(2)), nn.Linear(4, 1)

    def features(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.relu(layer(x))
        return x

    def training_step(self, batch: Tensor) -> Tensor:
        return torch.tanh(self.head(self.features(batch))).square().mean()

    def generate(self, z: Tensor) -> Tensor:
        return F.gelu(self.features(z))


def test_everything_that_a_function_of_the_model_runs_is_observed() -> None:
    x = torch.randn(3, 4)
    model = hullo.replace_activations(TwoWays(), example_inputs=lambda m: m.training_step(x))
    assert list(hullo.summary(model).hulls) == ["layers_relu.0", "layers_relu.1", "head_tanh"]
    assert [(site.function, site.reason) for site in hullo.summary(model).not_replaced] == [
        ("gelu", "it did not run on example_inputs, or ran in another thread")
    ]
    model = hullo.replace_activations(TwoWays(), example_inputs=lambda m: (m.training_step(x), m.generate(x)))
    assert sorted(hullo.summary(model).hulls) == ["head_tanh", "layers_gelu", "layers_relu.0", "layers_relu.1"]


def test_without_inputs_modules_are_replaced_and_functions_counted() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.GELU(), TwoWays())
    assert "2 of relu" not in str(hullo.summary(model))
    hullo.replace_activations(model)
    assert list(hullo.summary(model).hulls) == ["1"]
    assert all(f"1 of {name}" in str(hullo.summary(model)) for name in ("relu", "tanh", "gelu"))
    with pytest.raises(ValueError, match=r"1 of relu, 1 of gelu, 1 of tanh; example_inputs"):
        hullo.replace_activations(TwoWays())
    with pytest.raises(ValueError, match=r"none was found; example_inputs"):
        hullo.replace_activations(HoldsFunctions())
    with pytest.warns(UserWarning, match="relu in several places"):
        hullo.replace_activations(Twice())


class HoldsFunctions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.acts = [torch.relu, torch.tanh]

    def forward(self, x: Tensor) -> Tensor:
        return self.acts[1](self.acts[0](x))


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.relu = nn.Linear(4, 4), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.layer(self.relu(x)))


def test_fake_model_is_observed() -> None:
    with FakeTensorMode():
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GELU())
        hullo.replace_activations(model, example_inputs=torch.randn(2, 3, 8, 8), groups="channels")
        assert (model[1].groups, "not compared" in str(hullo.summary(model))) == (4, True)


def test_model_on_the_meta_device_is_observed() -> None:
    with torch.device("meta"):
        model, x = TwoWays(), torch.randn(3, 4)
    hullo.replace_activations(model, example_inputs=lambda m: m.generate(x), compare=False)
    assert list(hullo.summary(model).hulls) == ["layers_relu.0", "layers_relu.1", "layers_gelu"]
    assert "not compared" in str(hullo.summary(model))


@pytest.mark.filterwarnings("ignore:Guards may run slower:RuntimeWarning")  # on Python 3.13.0
@pytest.mark.parametrize("wrap", [nn.DataParallel, lambda model: torch.compile(model, backend="eager")])
def test_wrapped_model_is_swapped_inside(wrap: Callable[[nn.Module], nn.Module]) -> None:
    x = torch.randn(3, 4)
    inner = Twice()
    expected = inner(x)
    model = wrap(inner)
    assert hullo.replace_activations(model, example_inputs=x) is model
    assert sorted(hullo.summary(inner).hulls) == ["relu", "relu_2"]
    torch.testing.assert_close(model(x), expected)


def test_forward_that_differentiates_is_replaced() -> None:
    class Forces(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 8)

        def forward(self, x: Tensor) -> Tensor:
            x = x.detach().requires_grad_()
            return -torch.autograd.grad(F.silu(self.layer(x)).sum(), x, create_graph=True)[0]

    x = torch.randn(5, 3)
    model = Forces()
    expected = model(x)
    hullo.replace_activations(model, example_inputs=x)
    assert list(hullo.summary(model).hulls) == ["layer_silu"]
    torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-6)


def test_glu_is_listed_with_the_hull_to_use() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.glu = nn.Linear(4, 8), nn.GLU()

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(self.glu(self.layer(x)) + F.glu(self.layer(x)))

    model = hullo.replace_activations(Gated(), example_inputs=torch.randn(2, 4))
    assert ["GatedHull" in site.reason for site in hullo.summary(model).not_replaced] == [True, True]


def test_forward_under_no_grad_and_with_decorators_is_replaced() -> None:
    class Decorated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        @torch.no_grad()
        def teacher(self, x: Tensor) -> Tensor:
            return F.gelu(self.layer(x))

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(self.layer(x)) + self.teacher(x)

    x = torch.randn(2, 4)
    model = Decorated()
    expected = model(x)
    hullo.replace_activations(model, example_inputs=x)
    assert sorted(hullo.summary(model).hulls) == ["layer_gelu", "layer_tanh"]
    torch.testing.assert_close(model(x), expected)


def test_decorator_that_refers_to_itself_is_kept() -> None:
    def counted(function: Any) -> Any:
        def wrapper(*args: Any) -> Any:
            wrapper.calls += 1  # type: ignore[attr-defined]
            return function(*args)

        wrapper.calls = 0  # type: ignore[attr-defined]
        return wrapper

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        @counted
        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(self.linear(x))

    model = hullo.replace_activations(Net(), example_inputs=torch.randn(2, 4))
    assert isinstance(model.linear_relu, hullo.AffineHull)
    before = type(model).forward.calls
    model(torch.randn(2, 4))
    assert type(model).forward.calls == before + 1


def test_replacing_twice_reports_existing_hulls() -> None:
    model = hullo.replace_activations(nn.Sequential(nn.Linear(3, 4), nn.ReLU()))
    with pytest.raises(ValueError, match="1 hulls already"):
        hullo.replace_activations(model)
    with pytest.raises(ValueError, match=r"1 hulls already, .*2 \(sigmoid\)"):
        hullo.replace_activations(model.append(nn.Sigmoid()))  # type: ignore[operator]


def test_hulls_of_a_function_have_the_device_of_the_model() -> None:
    model = nn.Sequential(nn.Linear(4, 4, device="meta"), nn.ReLU())
    hullo.replace_activations(model, hull=lambda site: hullo.AffineHull("identity", "relu"))
    assert model[1].raw.is_meta


def test_wrappers_of_wrappers_are_swapped_inside() -> None:
    inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    hullo.replace_activations(nn.DataParallel(nn.DataParallel(inner)), example_inputs=torch.randn(2, 4))
    assert hullo.summary(inner).compared == "training and evaluation"


def test_hull_that_does_not_take_the_inputs_is_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with pytest.raises(RuntimeError, match="the changed model fails in training mode"):
        hullo.replace_activations(
            model, hull=lambda site: hullo.AffineHull("identity", "relu", groups=3), example_inputs=torch.randn(2, 4)
        )
    assert isinstance(model[1], nn.ReLU)


def test_modules_are_listed_once_and_parametrizations_stay() -> None:
    model = nn.Module()
    model.one = model.other = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Sigmoid())
    nn.utils.parametrize.register_parametrization(model.one[0], "weight", nn.ReLU())
    summary = hullo.summary(hullo.replace_activations(model))
    assert list(summary.hulls) == ["one.1"]
    assert [site.name for site in summary.not_replaced] == ["one.2"]


def test_xielu_is_replaced_by_what_its_parameters_stand_for() -> None:
    activations = pytest.importorskip("transformers.activations")
    model = nn.Sequential(nn.Linear(4, 4), activations.XIELUActivation())
    x = torch.randn(5, 4)
    expected = model(x)
    hullo.replace_activations(model, example_inputs=x)
    assert model[1].replaced == "XIELUActivation"
    torch.testing.assert_close(model(x), expected, rtol=1e-3, atol=1e-3)  # in bfloat16
