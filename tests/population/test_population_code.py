"""Test that a population does what the code of its networks does: with classes, lists, modes, caches and threads."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree
from torch import Tensor, nn

import hullo
from hullo.population import LoweringError, Population


def hull() -> nn.Module:
    return hullo.AffineHull("identity", "relu")


class Penalized(nn.Module):
    def __init__(self, act: nn.Module, penalty: Callable[[nn.Module], Any]) -> None:
        super().__init__()
        self.linear, self.act, self.penalty = nn.Linear(6, 6), act, penalty

    def forward(self, x: Tensor) -> Any:
        return self.act(self.linear(x)), self.penalty(self)


def all_parameters(network: nn.Module) -> Any:
    return sum(parameter.square().sum() for parameter in network.parameters())


@pytest.mark.parametrize(
    ("acts", "penalty"),
    [
        ([nn.PReLU, nn.PReLU], all_parameters),
        ([hull, hull], lambda network: network.act.coefficients.square().sum()),
    ],
)
def test_parameters_of_activations_are_not_silently_left_out(
    acts: Sequence[Callable[[], nn.Module]], penalty: Callable[[nn.Module], Any]
) -> None:
    with pytest.raises((LoweringError, AttributeError), match=r"population\.activations\.coefficients|no attribute"):
        Population([Penalized(act(), penalty) for act in acts])(torch.randn(3, 6), in_dims=None)


class Listed(nn.Module):
    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.linear, self.act = nn.Linear(6, 6), act
        self.layers = [self.linear, self.act]

    def forward(self, inputs: list[Tensor]) -> Tensor:
        x = inputs.pop()
        for layer in self.layers:
            x = layer(x)
        return x


def test_activations_in_lists_and_inputs_that_change_are_those_of_a_member() -> None:
    for acts in ([hull(), hullo.AffineHull("identity", "tanh")], [nn.LeakyReLU(0.1), nn.LeakyReLU(0.5)]):
        networks = [Listed(act) for act in acts]
        given = [torch.randn(4, 6), torch.randn(4, 6)]
        expected = torch.stack([network(list(given)) for network in networks])
        torch.testing.assert_close(Population(networks)(list(given), in_dims=None), expected)


def test_local_response_norms_of_shared_inputs_are_computed() -> None:
    x = torch.randn(2, 8, 5, 5, requires_grad=True)
    for make in (
        lambda: nn.LocalResponseNorm(5, alpha=1.0),
        lambda: nn.Sequential(nn.LocalResponseNorm(5, alpha=1.0), nn.Conv2d(8, 4, 3), nn.ReLU()),
    ):
        networks = [make(), make()]
        y, expected = Population(networks)(x, in_dims=None), torch.stack([network(x) for network in networks])
        torch.testing.assert_close(y, expected)
        gradients = [torch.autograd.grad(item.square().sum(), x)[0] for item in (y, expected)]
        torch.testing.assert_close(*gradients)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y = self.linear(x)
        return F.scaled_dot_product_attention(y, y, y, attn_mask=mask, dropout_p=0.1 if self.training else 0.0)


def test_attention_with_dropout_is_finite_where_all_is_masked() -> None:
    mask = torch.ones(2, 5, 5, dtype=torch.bool)
    mask[0] = False
    population = Population([Attention(), Attention()])
    for given in (mask, torch.zeros(2, 5, 5).masked_fill(~mask, -torch.inf)):
        y = population(torch.randn(2, 5, 8), given, in_dims=None)
        assert bool((y[:, 0] == 0).all())
        assert bool(y.isfinite().all())


class Options(nn.Module):
    """Attention with a rate at which nothing is dropped, to 16 bits, and other options."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__()
        self.linear, self.options = nn.Linear(8, 8), options

    def forward(self, x: Tensor, rate: float) -> Tensor:
        q = self.linear(x)
        k = q[:, :2] if "enable_gqa" in self.options else q.cos()
        return F.scaled_dot_product_attention(q, k, k.sin(), dropout_p=rate, **self.options)


@pytest.mark.parametrize(
    "options",
    [
        *({}, {"scale": 0.7}, {"is_causal": True}, {"enable_gqa": True}),
        *({"attn_mask": torch.randn(4, 1, 5).double()}, {"attn_mask": torch.eye(5).roll(1).bool()}),
    ],
    ids=["plain", "scale", "causal", "grouped", "mask", "visible"],
)
def test_attention_with_dropout_takes_the_options_of_attention(options: dict[str, Any]) -> None:
    networks, x = [Options(options).double() for _ in range(2)], torch.randn(3, 4, 5, 8).double()
    expected = torch.stack([network(x, 0.0) for network in networks])
    torch.testing.assert_close(Population(networks)(x, 1e-9, in_dims=None), expected, rtol=1e-7, atol=1e-7)


class Modes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.one(x) if torch.is_grad_enabled() else self.other(x)


def test_networks_may_ask_for_the_gradient_mode() -> None:
    networks, x = [Modes(), Modes()], torch.randn(4, 6)
    population = Population(networks)
    for _ in range(2):
        torch.testing.assert_close(population(x, in_dims=None), torch.stack([net(x) for net in networks]))
        with torch.no_grad():
            torch.testing.assert_close(population(x, in_dims=None), torch.stack([net(x) for net in networks]))
        with torch.inference_mode():
            torch.testing.assert_close(population(x, in_dims=None), torch.stack([net(x) for net in networks]))


class Teacher(nn.Module):
    """Multiply a value without a gradient first, then with one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.one, self.other = nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.first(x))
        with torch.no_grad():
            target = self.one(y)
        return (self.other(y) - target).square()


def test_a_value_that_was_cast_without_gradients_has_them_elsewhere() -> None:
    networks, x = [Teacher(), Teacher()], torch.randn(5, 6)
    population = Population(networks)
    with torch.autocast("cpu", torch.bfloat16):
        population(x, in_dims=None).sum().backward()
        for network in networks:
            network(x).sum().backward()
    for name, parameter in population.stacked.named_parameters():
        alone = [network.get_parameter(name).grad for network in networks]
        if parameter.grad is None:
            assert alone == [None, None]
        else:
            expected = torch.stack([own for own in alone if own is not None])
            assert (parameter.grad - expected).norm() < 0.03 * expected.norm(), name


@functools.cache
def causal_mask(size: int) -> Tensor:
    return torch.ones(size, size).tril()


class Cached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return causal_mask(len(x)) @ self.linear(x)


def test_caches_of_functions_hold_tensors_with_values() -> None:
    causal_mask.cache_clear()
    networks, x, state = [Cached(), Cached()], torch.randn(4, 6), torch.get_rng_state()
    population = Population(networks)
    y = population(x, in_dims=None)
    assert torch.get_rng_state().equal(state)
    torch.testing.assert_close(y, torch.stack([network(x) for network in networks]))
    assert type(causal_mask(4)) is Tensor
    torch.testing.assert_close(population.eval()(x, in_dims=None), y)


@pytest.mark.parametrize(
    "function",
    [
        lambda y: F.binary_cross_entropy_with_logits(y, y.detach().float().sigmoid()),
        lambda y: F.cross_entropy(y, y.argmax(-1), label_smoothing=0.1),
        lambda y: F.cosine_embedding_loss(y, y.cos(), torch.ones(len(y))),
        lambda y: torch.addmm(y[0].float(), y.float(), y.float().mT @ y.float()),
        lambda y: y.topk(2, -1),
    ],
)
def test_operators_that_vmap_takes_apart_have_the_types_of_autocast(function: Callable[..., Any]) -> None:
    class Network(nn.Linear):
        def forward(self, x: Tensor) -> Any:
            return function(super().forward(x))

    networks, x = [Network(4, 6) for _ in range(2)], torch.randn(2, 5, 4)
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = Population(networks)(x), [network(x[k]) for k, network in enumerate(networks)]
    for k in range(2):
        torch.testing.assert_close(pytree.tree_map(lambda item, k=k: item[k], found), expected[k])


class WithinAutocast(nn.Module):
    """Compute a part in float32 where the rest is in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast("cpu", torch.bfloat16):
            y = self.one(x)
            with torch.autocast("cpu", enabled=False):
                return y, self.other(y.float())


def test_autocast_may_be_off_in_a_part_of_where_it_is_on() -> None:
    members, x = [WithinAutocast() for _ in range(2)], torch.randn(4, 3)
    found = Population(members)(x, in_dims=None)
    for k, member in enumerate(members):
        torch.testing.assert_close(tuple(item[k] for item in found), member(x))


def test_lowest_number_of_a_type_fills_masks_under_autocast() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            y = self.linear(x)
            return y.masked_fill(x > 0, torch.finfo(y.dtype).min).softmax(-1)

    networks, x = [Masked(), Masked()], torch.randn(4, 6)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(
            Population(networks)(x, in_dims=None), torch.stack([net(x) for net in networks]), rtol=0.05, atol=1e-3
        )


def test_distributions_are_sampled_without_validation() -> None:
    class Sampling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            return torch.distributions.Normal(self.linear(x), 0.1).rsample()

    networks, x, validates = (
        [Sampling(), Sampling()],
        torch.randn(4, 6),
        torch.distributions.Distribution._validate_args,
    )
    y = Population(networks)(x, in_dims=None)
    assert 0 < (y - torch.stack([network.linear(x) for network in networks])).abs().max() < 1
    assert torch.distributions.Distribution._validate_args == validates


def test_embedding_bags_with_sparse_gradients_get_dense_ones() -> None:
    networks = [nn.EmbeddingBag(9, 4, sparse=True) for _ in range(2)]
    tokens = torch.randint(9, (3, 5))
    population = Population(networks)
    population(tokens, in_dims=None).square().sum().backward()
    for network, gradient in zip(networks, population.stacked.weight.grad, strict=True):
        network(tokens).square().sum().backward()
        torch.testing.assert_close(gradient, network.weight.grad.to_dense())


def test_derivatives_of_torch_func_follow_a_first_call() -> None:
    networks = [nn.Sequential(nn.Linear(6, 6), nn.PReLU(), nn.Linear(6, 3)).double() for _ in range(2)]
    population, x = Population(networks).eval(), torch.randn(4, 6).double()
    call = functools.partial(population, in_dims=None)
    with pytest.raises(LoweringError, match=r"inside of torch\.func"):
        torch.func.jacrev(call)(x)
    call(x)
    expected = torch.stack([torch.func.jacrev(network)(x) for network in networks])
    torch.testing.assert_close(torch.func.jacrev(call)(x), expected)


@pytest.mark.parametrize("gather", [nn.ModuleList, lambda nets: dict(enumerate(nets)).values(), Population, iter])
def test_members_come_from_any_collection(gather: Callable[[list[nn.Module]], Any]) -> None:
    networks, x = [nn.Linear(3, 2), nn.Linear(3, 2)], torch.randn(4, 3)
    torch.testing.assert_close(
        Population(gather(networks))(x, in_dims=None), torch.stack([network(x) for network in networks])
    )


def test_one_network_is_not_taken_for_its_layers() -> None:
    assert isinstance(Population([nn.Linear(3, 3)])[torch.tensor(0)], nn.Linear)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="members must be a list"):
        Population(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)))


def test_one_network_at_a_time_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    inside: list[int] = []
    met, export = threading.Event(), torch.export.export
    results: dict[int, Any] = {}

    def wait_and_export(*args: Any, **kwargs: Any) -> Any:
        inside.append(1)
        met.set() if len(inside) > 1 else met.wait(0.3)  # for the other thread, which a lock keeps out
        try:
            assert len(inside) == 1
            return export(*args, **kwargs)
        finally:
            inside.pop()

    def call(number: int) -> None:
        try:
            networks, x = [nn.Linear(6, 6).double() for _ in range(2)], torch.randn(4, 6).double()
            y = Population(networks)(x, in_dims=None)
            results[number] = (y - torch.stack([nn.Linear.forward(net, x) for net in networks])).abs().max().item()
        except BaseException as error:
            results[number] = error

    monkeypatch.setattr(torch.export, "export", wait_and_export)
    threads = [threading.Thread(target=call, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: pytest.approx(0, abs=1e-12) for number in range(2)}
