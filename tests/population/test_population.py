"""Members of a population compute and train as the same networks do alone, in plain PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import plain_networks
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import hullo
from hullo.population import SGD, Adam, AdamW, LoweringError, Optimizer, Population, RMSprop

STEPS, BATCH = 10, 4

ACTIVATIONS: list[Callable[[], nn.Module | None]] = [
    lambda: None,
    nn.Tanh,
    lambda: hullo.ConvexHull("identity", "relu", init=[0.0, 1.0]),
    lambda: hullo.AffineHull("identity", "relu", "tanh"),
    lambda: hullo.AffineHull("tanh", "relu", parametrization="free"),
    lambda: hullo.ConicHull("relu", "relu3"),
    nn.PReLU,
]
# Some gradients are zero but for rounding (biases before a normalization, keys' biases); a small eps would make steps
# of the rounding.
OPTIMIZERS: dict[str, tuple[type[Optimizer], type[torch.optim.Optimizer], dict[str, Any]]] = {
    "sgd": (SGD, torch.optim.SGD, {"lr": 0.005, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-2}),
    "rmsprop": (RMSprop, torch.optim.RMSprop, {"lr": 1e-3, "weight_decay": 1e-2, "eps": 1e-4}),
    "adam": (Adam, torch.optim.Adam, {"lr": 1e-2, "weight_decay": 1e-2, "eps": 1e-4}),
    "adamw": (AdamW, torch.optim.AdamW, {"lr": 1e-2, "eps": 1e-4}),
}


def make(kind: Callable[..., nn.Module], activations: Sequence[Callable[[], nn.Module | None]]) -> list[nn.Module]:
    members = []
    for seed, activation in enumerate(activations):
        torch.manual_seed(seed)
        members.append(kind(activation()).double())
    return members


def inputs_of(kind: type[nn.Module], members: int, steps: int = STEPS) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    if kind is plain_networks.GPT:
        return torch.randint(11, (steps, members, BATCH, 7), generator=generator)
    shape = (6,) if kind is plain_networks.MLP else (3, 8, 8)
    return torch.randn(steps, members, BATCH, *shape, generator=generator, dtype=torch.float64)


def train(population: Population, optimizer: Optimizer, batches: Tensor) -> Tensor:
    losses = torch.zeros(len(population), dtype=torch.float64)
    for x in batches:
        losses = population(x).square().flatten(1).mean(1)
        optimizer.zero_grad()
        losses.sum().backward()
        optimizer.step()
    return losses.detach()


def train_alone(member: nn.Module, optimizer: torch.optim.Optimizer, batches: Tensor) -> Tensor:
    loss = torch.zeros(())
    for x in batches:
        loss = member(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.detach()


def assert_equal_states(one: nn.Module, other: nn.Module) -> None:
    state = other.state_dict()
    assert one.state_dict().keys() == state.keys()
    for name, tensor in one.state_dict().items():
        torch.testing.assert_close(tensor, state[name], rtol=0, atol=1e-10, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("kind", ["MLP", "ResNet", "GPT", "ViT", "UNet"])
def test_members_train_as_they_do_alone(kind: str, name: str) -> None:
    network = getattr(plain_networks, kind)
    members = make(network, ACTIVATIONS)
    own, plain, options = OPTIMIZERS[name]
    batches = inputs_of(network, len(members))
    population = Population(members)
    losses = train(population, own(population, **options), batches)
    for k, member in enumerate(members):
        loss = train_alone(member, plain(member.parameters(), **options), batches[:, k])
        torch.testing.assert_close(losses[k], loss, rtol=0, atol=1e-10)
        assert type(population[k]) is network
        assert_equal_states(population[k], member)
    population.eval()
    x = batches[0]
    for k, member in enumerate(members):
        torch.testing.assert_close(population(x)[k], member.eval()(x[k]), rtol=0, atol=1e-10)


def test_a_network_of_transformers_trains_as_it_does_alone() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        vocab_size=23,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    members = []
    for seed in range(3):
        torch.manual_seed(seed)
        members.append(transformers.BertForSequenceClassification(config).double().train())
    hullo.replace_activations(members[1], bases=("identity", "tanh", "gelu"))
    population = Population(members)
    optimizer = AdamW(population, lr=1e-2, eps=1e-4)
    tokens = torch.randint(23, (5, 3, 2, 6), generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 1])
    plain = [torch.optim.AdamW(member.parameters(), lr=1e-2, eps=1e-4) for member in members]
    for batch in tokens:
        output = population(input_ids=batch, labels=labels.expand(3, -1))
        optimizer.zero_grad()
        output.loss.sum().backward()
        optimizer.step()
        for k, (member, own) in enumerate(zip(members, plain, strict=True)):
            loss = member(input_ids=batch[k], labels=labels).loss
            torch.testing.assert_close(output.loss[k], loss, rtol=0, atol=1e-10)
            own.zero_grad()
            loss.backward()
            own.step()
    for k, member in enumerate(members):
        assert_equal_states(population[k], member)


def test_rates_decay_schedules_and_clipping_are_each_members_own() -> None:
    members = make(plain_networks.MLP, ACTIVATIONS[:4])
    batches = 3 * inputs_of(plain_networks.MLP, 4)
    lr, decay, norm = [0.1, 0.01, 0.05, 0.02], [0.0, 0.1, 0.01, 0.2], [0.05, 0.1, 10.0, 0.2]
    population = Population(members)
    optimizer = SGD(
        population,
        lr=lr,
        momentum=0.9,
        weight_decay=decay,
        max_norm=norm,
        schedule=lambda updates: 1 / (1 + updates),
        groups=[{"params": [population.activations.raw], "lr": 0.3, "weight_decay": 0.0}],
    )
    train(population, optimizer, batches)
    for k, member in enumerate(members):
        raw = hullo.coefficient_parameters(member)
        others = [p for p in member.parameters() if all(p is not item for item in raw)]
        groups = [{"params": others}, {"params": raw, "lr": 0.3, "weight_decay": 0.0}]
        plain = torch.optim.SGD([g for g in groups if g["params"]], lr=lr[k], momentum=0.9, weight_decay=decay[k])
        scheduler = torch.optim.lr_scheduler.LambdaLR(plain, lambda updates: 1 / (1 + updates))
        for x in batches[:, k]:
            plain.zero_grad()
            member(x).square().mean().backward()
            nn.utils.clip_grad_norm_(member.parameters(), norm[k])
            plain.step()
            scheduler.step()
        assert_equal_states(population[k], member)


class Dropping(nn.Module):
    """Dropouts of every kind, one of them in attention."""

    def __init__(self, rate: float = 0.5) -> None:
        super().__init__()
        self.conv, self.linear = nn.Conv2d(3, 4, 3), nn.Linear(4 * 36, 8)
        self.first, self.second = nn.Dropout2d(0.3), nn.Dropout(rate)
        self.out = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(self.linear(self.first(F.relu(self.conv(x))).flatten(1)))
        y = F.dropout(y, 0.2, self.training)[:, None, None]
        return self.out(F.scaled_dot_product_attention(y, y, y, dropout_p=0.1 * self.training)[:, 0, 0])


@pytest.mark.parametrize("rates", [[0.5, 0.5, 0.5], [0.1, 0.5, 0.9]])
def test_with_dropout_members_are_the_same_in_any_company(rates: list[float]) -> None:
    members = [Dropping(rate).double() for rate in rates]
    batches = inputs_of(Dropping, 3)
    together = Population(members, seeds=[4, 7, 9])
    train(together, SGD(together, lr=0.1), batches)
    for k, seed in enumerate([4, 7, 9]):
        alone = Population([members[k]], seeds=[seed])
        train(alone, SGD(alone, lr=0.1), batches[:, k : k + 1])
        assert_equal_states(together[k], alone[0])
    other = Population([members[0]], seeds=[5])
    train(other, SGD(other, lr=0.1), batches[:, :1])
    assert not torch.allclose(other[0].linear.weight, together[0].linear.weight)  # type: ignore[arg-type, union-attr]


def test_dropout_drops_at_its_rate_keeps_the_mean_and_stops_in_evaluation() -> None:
    population = Population([nn.Sequential(nn.Dropout(rate)) for rate in (0.25, 0.75, 1.0)])
    y = population(torch.ones(40_000), in_dims=None)
    torch.testing.assert_close((y == 0).double().mean(1), torch.tensor([0.25, 0.75, 1.0]).double(), atol=0.01, rtol=0)
    torch.testing.assert_close(y.mean(1), torch.tensor([1.0, 1.0, 0.0]), atol=0.02, rtol=0)
    assert not population(torch.ones(40_000), in_dims=None).equal(y)
    assert population.eval()(torch.ones(9), in_dims=None).equal(torch.ones(3, 9))


@settings(max_examples=15, deadline=None)
@given(
    stride=st.integers(1, 3),
    padding=st.integers(0, 2),
    dilation=st.integers(1, 2),
    groups=st.sampled_from([1, 2, 4]),
    dims=st.integers(1, 2),
    shared=st.booleans(),
    bias=st.booleans(),
)
def test_convolutions_of_every_kind_equal_those_of_the_members(
    stride: int, padding: int, dilation: int, groups: int, dims: int, shared: bool, bias: bool
) -> None:
    layer = nn.Conv1d if dims == 1 else nn.Conv2d
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "bias": bias}
    members = [layer(4, 8, 3, **options).double() for _ in range(3)]
    x = torch.randn(*([] if shared else [3]), 2, 4, *[9] * dims, dtype=torch.float64)
    found = Population(members)(x, in_dims=None if shared else 0)
    expected = torch.stack([member(x if shared else x[k]) for k, member in enumerate(members)])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


def test_one_hull_at_several_places_gets_the_sum_of_their_gradients() -> None:
    def network(act: nn.Module) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 6), act, nn.Linear(6, 6), act, nn.Linear(6, 3)).double()

    members = [network(hullo.AffineHull("identity", "relu")), network(nn.ReLU())]
    batches = inputs_of(plain_networks.MLP, 2)
    population = Population(members)
    assert population.activations.raw.shape == (2, 2, 2)
    train(population, SGD(population, lr=0.1), batches)
    for k, member in enumerate(members):
        train_alone(member, torch.optim.SGD(member.parameters(), lr=0.1), batches[:, k])
        assert_equal_states(population[k], member)
    assert population[0][1] is population[0][3] or population[0][1].raw.equal(population[0][3].raw)  # type: ignore[index]


def test_hulls_per_channel_stand_beside_hulls_per_layer_and_fixed_functions() -> None:
    def network(act: nn.Module) -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 4, 3), act, nn.Flatten(), nn.Linear(144, 2)).double()

    bases = ("identity", "relu", "tanh")
    members = [
        network(act)
        for act in (
            hullo.ConvexHull(*bases, groups=4),
            hullo.AffineHull(*bases, groups=2),
            hullo.AffineHull(*bases, parametrization="free"),
            nn.PReLU(4),
            nn.LeakyReLU(0.2),
            hullo.LinearHull("tanh", groups=4),
        )
    ]
    batches = inputs_of(plain_networks.ResNet, len(members))
    population = Population(members)
    options = {"lr": 0.01, "weight_decay": 0.1}
    train(population, Adam(population, max_norm=0.1, **options), batches)
    for k, member in enumerate(members):
        optimizer = torch.optim.Adam(member.parameters(), **options)
        for x in batches[:, k]:
            optimizer.zero_grad()
            member(x).square().mean().backward()
            nn.utils.clip_grad_norm_(member.parameters(), 0.1)
            optimizer.step()
        assert_equal_states(population[k], member)


def test_what_is_frozen_stays_and_comes_out_as_it_went_in() -> None:
    members = [
        nn.Sequential(nn.Linear(6, 6), act, nn.Linear(6, 3)).double()
        for act in (
            hullo.ConvexHull("identity", "relu", parametrization="softmax", init=[0.2, 0.8]).requires_grad_(False),
            nn.PReLU(6, init=0.3).requires_grad_(False),
            hullo.AffineHull("identity", "tanh"),
        )
    ]
    batches = inputs_of(plain_networks.MLP, 3)
    population = Population(members)
    train(population, SGD(population, lr=0.1, weight_decay=0.1), batches)
    for k, member in enumerate(members):
        learned = [parameter for parameter in member.parameters() if parameter.requires_grad]
        train_alone(member, torch.optim.SGD(learned, lr=0.1, weight_decay=0.1), batches[:, k])
        assert_equal_states(population[k], member)
        assert [p.requires_grad for p in population[k].parameters()] == [p.requires_grad for p in member.parameters()]


def test_a_member_that_turns_to_nan_leaves_the_bits_of_the_others_alone() -> None:
    members = make(plain_networks.ResNet, ACTIVATIONS)
    batches = inputs_of(plain_networks.ResNet, len(members))
    states = []
    for broken in (False, True):
        population = Population(members)
        with torch.no_grad():
            if broken:
                population.stacked.stem.weight[2] = torch.nan  # type: ignore[index, union-attr]
        train(population, Adam(population, max_norm=1.0), batches)
        states.append([member.state_dict() for member in population])
    for k, (sound, beside) in enumerate(zip(*states, strict=True)):
        for name, tensor in sound.items():
            assert tensor.equal(beside[name]) == (k != 2 or not tensor.is_floating_point()), (k, name)


def test_a_base_that_overflows_does_not_reach_members_without_it() -> None:
    members = [nn.Sequential(act) for act in (hullo.ConicHull("relu", "relu3"), nn.ReLU())]
    y = Population(members)(torch.full((2, 1), 1e15))
    assert y[0].isinf().all()
    assert y[1].equal(torch.full((1,), 1e15))


def test_members_are_the_users_own_class_with_ties_buffers_and_modes() -> None:
    members = make(plain_networks.GPT, ACTIVATIONS[:2])
    members[0].blocks[0].eval()
    population = Population(members)
    member = population[-1]
    assert member.head.weight is member.tokens.weight
    assert_equal_states(member, members[1])
    assert not member.blocks[0].training
    assert member.training
    member.tokens.weight.data.zero_()
    assert population[-1].tokens.weight.any()
    assert len(population[:]) == len(list(population)) == len(population) == 2
    with pytest.raises(IndexError, match="2"):
        population[2]


def test_a_state_is_saved_and_loaded_to_the_bit() -> None:
    members = make(plain_networks.ResNet, ACTIVATIONS)
    batches = inputs_of(plain_networks.ResNet, len(members))
    population = Population(members)
    optimizer = Adam(population)
    train(population, optimizer, batches[:5])
    saved = copy.deepcopy((population.state_dict(), optimizer.state_dict()))
    train(population, optimizer, batches[5:])
    other = Population(make(plain_networks.ResNet, ACTIVATIONS))
    other(batches[0])  # buffers that a forward pass changes are known then
    resumed = Adam(other)
    other.load_state_dict(saved[0])
    resumed.load_state_dict(saved[1])
    train(other, resumed, batches[5:])
    for name, tensor in population.state_dict().items():
        assert tensor.equal(other.state_dict()[name]), name


def test_a_function_and_seeds_make_members_that_differ_and_leave_the_global_generator_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    population = Population(plain_networks.MLP, seeds=[5, 6])
    assert torch.rand(1).equal(expected)
    torch.manual_seed(6)
    assert_equal_states(population[1], plain_networks.MLP())
    assert not population[0].hidden.weight.equal(population[1].hidden.weight)


def test_explain_lists_what_goes_through_vmap_with_its_line() -> None:
    class Sorting(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.sort(x, -1).values

    found = Population([Sorting(), Sorting()]).explain(torch.randn(2, 5))
    assert "aten.sort" in found
    assert "torch.sort(x, -1).values" in found
    mlp = Population(make(plain_networks.MLP, ACTIVATIONS))
    assert "vmap" not in mlp.explain(inputs_of(plain_networks.MLP, len(mlp))[0])


class Branching(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return x
        return -x


class Noisy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x)


@pytest.mark.parametrize(("kind", "words"), [(Branching, ("values", "if x.sum() > 0")), (Noisy, ("random", "randn"))])
def test_what_cannot_be_lowered_is_refused_with_its_line(kind: type[nn.Module], words: tuple[str, str]) -> None:
    with pytest.raises(LoweringError) as caught:
        Population([kind(), kind()])(torch.randn(2, 5))
    assert all(word in str(caught.value) for word in words)


def test_networks_of_different_architectures_are_refused_by_what_differs() -> None:
    def network(width: int = 3, slope: float = 1.0) -> nn.Module:
        made = nn.Sequential(nn.Linear(4, width), nn.Softplus(slope), nn.LayerNorm(width))
        made.note = torch.tensor(slope)
        return made

    with pytest.raises(ValueError, match=r"members 0 and 1 differ.*\(3, 4\) and .*\(5, 4\)"):
        Population([network(), network(5)])
    with pytest.raises(ValueError, match="note"):
        Population([network(), network(slope=2.0)])
    with pytest.raises(ValueError, match="LayerNorm and Identity"):
        Population([nn.Sequential(nn.LayerNorm(3)), nn.Sequential(nn.Identity())])
    shared = network()
    with pytest.raises(ValueError, match=r"share 0\.weight"):
        Population([shared, shared])
    with pytest.raises(ValueError, match="frozen"):
        Population([network(), network().requires_grad_(False)])
    with pytest.raises(TypeError, match="seeds"):
        Population(plain_networks.MLP)
    with pytest.raises(TypeError, match="members"):
        Population([])
    with pytest.raises(ValueError, match="2 members"):
        Population([network(), network()], seeds=[1])


def test_inputs_of_another_number_of_members_are_refused() -> None:
    population = Population(plain_networks.MLP, seeds=range(3))
    with pytest.raises(ValueError, match=r"\(4, 6\).*in_dims=None"):
        population(torch.randn(4, 6))
    with pytest.raises(ValueError, match="in_dims"):
        population(torch.randn(3, 4, 6), in_dims=(0, None))


def test_bad_settings_of_optimizers_are_refused_with_what_was_given() -> None:
    population = Population(plain_networks.MLP, seeds=range(3))
    for options, word in (
        ({"lr": -1.0}, "-1"),
        ({"lr": [0.1, 0.2]}, "3 members"),
        ({"lr": 0.1, "momentum": 1.0}, "momentum"),
        ({"lr": 0.1, "nesterov": True}, "momentum"),
        ({"lr": 0.1, "groups": [{"params": [nn.Parameter(torch.ones(2))]}]}, "another"),
        ({"lr": 0.1, "groups": [{"params": [], "rate": 1}]}, "rate"),
    ):
        with pytest.raises(ValueError, match=word):
            SGD(population, **options)
    with pytest.raises(RuntimeError, match="backward"):
        SGD(population, lr=0.1).step()
    other = SGD(Population(plain_networks.MLP, seeds=range(2)), lr=0.1)
    with pytest.raises(ValueError, match="another population"):
        SGD(population, lr=0.1).load_state_dict(other.state_dict())
