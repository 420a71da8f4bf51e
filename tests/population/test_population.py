"""Members of a population compute and train as the same networks do alone, in plain PyTorch."""

from __future__ import annotations

import plain_networks
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from trained_alone import ACTIVATIONS, OPTIMIZERS, assert_equal_states, inputs_of, make, train, train_alone

import hullo
from hullo.population import SGD, Adam, AdamW, LoweringError, Population


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("MLP", name) for name in OPTIMIZERS),
        ("ResNet", "rmsprop"),
        ("GPT", "adam"),
        ("ViT", "adamw"),
        ("UNet", "sgd"),
    ],
)
def test_members_train_as_they_do_alone(kind: str, name: str) -> None:
    network = getattr(plain_networks, kind)
    members = make(network, ACTIVATIONS)
    own, plain, options = OPTIMIZERS[name]
    batches = inputs_of(network, len(members))
    population = Population(members)
    losses = train(population, own(population, **options), batches)
    for k, member in enumerate(members):
        loss = train_alone(member, plain(hullo.parameter_groups(member, lr=options["lr"]), **options), batches[:, k])
        torch.testing.assert_close(losses[k], loss, rtol=0, atol=1e-10)
        assert type(population[k]) is network
        assert_equal_states(population[k], member)
    population.eval()
    x = batches[0]
    for k, member in enumerate(members):
        torch.testing.assert_close(population(x)[k], member.eval()(x[k]), rtol=0, atol=1e-10)


def test_transformers_network_trains_as_it_does_alone() -> None:
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
    plain = [torch.optim.AdamW(hullo.parameter_groups(member, lr=1e-2), eps=1e-4) for member in members]
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


def test_transformers_decoders_need_no_settings() -> None:
    transformers = pytest.importorskip("transformers")
    size = {
        "d_model": 16,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "vocab_size": 23,
        "pad_token_id": 0,
        "dropout": 0.0,
    }
    heads = {f"{part}_{name}": 2 for part in ("encoder", "decoder") for name in ("attention_heads", "ffn_dim")}
    config = transformers.BartConfig(**size, **heads)  # returns a cache
    members = [transformers.BartForConditionalGeneration(config).double() for _ in range(2)]
    population = Population(members)
    tokens, labels = torch.randint(1, 23, (2, 3, 6)), torch.randint(1, 23, (2, 3, 4))
    found = population(input_ids=tokens, labels=labels).loss
    expected = torch.stack([m(input_ids=tokens[k], labels=labels[k]).loss for k, m in enumerate(members)])
    torch.testing.assert_close(found, expected)
    assert population[0].config.use_cache
    small = transformers.GPT2Config(vocab_size=23, n_positions=8, n_embd=16, n_layer=1, n_head=2)
    decoders = Population([transformers.GPT2LMHeadModel(small) for _ in range(2)])
    assert decoders(input_ids=tokens).logits.shape == (2, 3, 6, 23)  # without labels, BART returns a cache, too
    assert population[0].model.encoder.layerdrop == config.encoder_layerdrop == 0
    members[0].model.encoder.layerdrop = members[1].model.encoder.layerdrop = 0.1
    with pytest.raises(LoweringError, match=r"values.*layerdrop"):
        Population(members)(input_ids=tokens, labels=labels)


class Settings(nn.Module):
    """A network that has settings of its own by the names of those of transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.config, self.use_cache = Settings, True

    def forward(self, x: Tensor) -> Tensor:
        return x * (2 if self.use_cache else 3)


def test_settings_of_other_networks_are_theirs() -> None:
    assert Population([Settings(), Settings()])(torch.ones(1), in_dims=None).tolist() == [[2], [2]]


class Waves(nn.Module):
    """Complex weights, as those of Fourier layers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, dtype=torch.complex128))

    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.irfft(torch.fft.rfft(x) * self.weight, n=8)


class Conjugated(Waves):
    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.irfft(torch.fft.rfft(x) * self.weight.conj(), n=8)


def test_conjugated_gradients_are_resolved() -> None:
    member, x = Conjugated(), torch.randn(1, 3, 8, dtype=torch.float64)
    population = Population([member])
    optimizer, plain = SGD(population, lr=0.1), torch.optim.SGD(member.parameters(), lr=0.1)
    population(x).square().sum().backward()
    member(x[0]).square().sum().backward()
    optimizer.step()
    plain.step()
    torch.testing.assert_close(population[0].weight, member.weight)


@pytest.mark.parametrize("name", ["SGD", "RMSprop", "Adam", "AdamW"])
def test_complex_parameters_are_updated_as_by_torch(name: str) -> None:
    members, x = [Waves() for _ in range(2)], torch.randn(2, 3, 8, dtype=torch.float64)
    population = Population(members)
    optimizer = getattr(hullo.population, name)(population, lr=0.1, weight_decay=0.1, max_norm=1.0)
    for _ in range(5):
        optimizer.zero_grad()
        population(x).square().sum().backward()
        optimizer.step()
    for k, member in enumerate(members):
        plain = getattr(torch.optim, name)(member.parameters(), lr=0.1, weight_decay=0.1)
        for _ in range(5):
            plain.zero_grad()
            member(x[k]).square().sum().backward()
            nn.utils.clip_grad_norm_(member.parameters(), 1.0)
            plain.step()
        torch.testing.assert_close(population[k].weight, member.weight, rtol=1e-10, atol=1e-12)


def test_lr_decay_schedule_and_clipping_are_per_member() -> None:
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
        self.first, self.second, self.rate = nn.Dropout2d(rate / 2), nn.Dropout(rate), rate
        self.out = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(self.linear(self.first(F.relu(self.conv(x))).flatten(1)))
        y = F.dropout(y, self.rate / 3, self.training).view(-1, 2, 2, 2).transpose(1, 2)  # two heads
        y = F.scaled_dot_product_attention(y, y, y, dropout_p=self.rate / 4 * self.training)
        return self.out(y.transpose(1, 2).contiguous().view(-1, 8))


class Noisy(nn.Module):
    """Random numbers of other kinds: stochastic depth and noise."""

    def __init__(self, rate: float = 0.5) -> None:
        super().__init__()
        self.linear, self.out, self.rate = nn.Linear(3 * 64, 8), nn.Linear(8, 2), rate
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.linear(x.flatten(1)))
        kept = y.new_empty(len(y), 1).bernoulli_(1 - self.rate).div_(1 - self.rate)
        noise = torch.rand(y.shape, dtype=y.dtype) + torch.empty_like(y).normal_(std=0.1) - torch.randn_like(y)
        return self.out(F.gumbel_softmax(y * kept) + y * (self.rate + torch.rand_like(y)).floor() + noise * self.rate)


@pytest.mark.parametrize(
    ("network", "rates"), [(Dropping, [0.5, 0.5, 0.5]), (Dropping, [0, 0.5, 0.9]), (Noisy, [0.2, 0.5, 0.9])]
)
def test_random_numbers_are_independent_of_other_members(network: type, rates: list[float]) -> None:
    members = [network(rate).double() for rate in rates]
    batches = inputs_of(Dropping, 3)
    together = Population(members, seeds=[4, 7, 9])
    train(together, SGD(together, lr=0.1), batches)
    for k, seed in enumerate([4, 7, 9]):
        alone = Population([members[k]], seeds=[seed])
        train(alone, SGD(alone, lr=0.1), batches[:, k : k + 1])
        assert_equal_states(together[k], alone[0])
    other = Population([members[2]], seeds=[5])
    train(other, SGD(other, lr=0.1), batches[:, 2:])
    assert not torch.allclose(other[0].linear.weight, together[2].linear.weight)  # type: ignore[arg-type, union-attr]
    assert not any(module.training for module in together.eval()[2].modules())


def test_dropout_is_independent_of_the_class_of_an_activation() -> None:
    class Swish(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * torch.sigmoid(x)

    members = [nn.Sequential(nn.Linear(6, 8), act, nn.Dropout()) for act in (Swish(), nn.ReLU())]
    x = torch.randn(2, 4, 6)
    torch.testing.assert_close(Population(members)(x)[:1], Population(members[:1])(x[:1]))


def test_dropout_has_its_rate_and_mean_and_stops_in_evaluation() -> None:
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
    actual = Population(members)(x, in_dims=None if shared else 0)
    expected = torch.stack([member(x if shared else x[k]) for k, member in enumerate(members)])
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)


def test_nan_member_does_not_change_the_others() -> None:
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
    for k, (sound, others) in enumerate(zip(*states, strict=True)):
        for name, tensor in sound.items():
            assert tensor.equal(others[name]) == (k != 2 or not tensor.is_floating_point()), (k, name)


def test_overflowing_base_does_not_affect_members_without_it() -> None:
    members = [nn.Sequential(act) for act in (hullo.ConicHull("relu", "relu3"), nn.ReLU())]
    y = Population(members)(torch.full((2, 1), 1e15))
    assert y[0].isinf().all()
    assert y[1].equal(torch.full((1,), 1e15))


class Counting(nn.Module):
    """Counts its calls in buffers: one that nothing reads, one that is read, one with a view, one written twice."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.again = nn.Linear(3, 3), nn.BatchNorm1d(3), nn.BatchNorm1d(3)
        for name in ("unread", "read", "viewed", "twice"):
            self.register_buffer(name, torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.unread += 2
        self.read += 1
        shown = self.viewed.view(1)
        self.viewed += 1
        self.twice += 1
        self.twice += 3
        y = self.again(self.norm(self.linear(x))) * self.read + shown
        return y.mean(0, keepdim=True) + y.mean([0, -1]) + y.mean((), dtype=torch.float64)


def test_counters_and_means_are_those_of_a_member_alone() -> None:
    members = make(lambda _: Counting(), ACTIVATIONS[:3])
    batches = torch.randn(3, 3, 5, 3, dtype=torch.float64)
    population = Population(members)
    train(population, SGD(population, lr=0.01), batches)
    for k, member in enumerate(members):
        train_alone(member, torch.optim.SGD(member.parameters(), lr=0.01), batches[:, k])
        assert_equal_states(population[k], member)
