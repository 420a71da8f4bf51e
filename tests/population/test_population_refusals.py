"""Refuse by name and line what a population cannot compute; list what is slow."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import plain_networks
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from trained_alone import ACTIVATIONS, inputs_of, make

from hullo.population import SGD, ContractError, LoweringError, Population


def test_explain_lists_vmapped_operations_with_lines(capfd: pytest.CaptureFixture[str]) -> None:
    class Sorting(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.sort(x, -1).values

    result = Population([Sorting(), Sorting()]).explain(torch.randn(2, 5))
    assert "aten.sort" in result
    assert "torch.sort(x, -1).values" in result
    Population([nn.Bilinear(2, 2, 1) for _ in range(2)])(torch.randn(2, 3, 2), torch.randn(2, 3, 2))
    assert "performance" not in capfd.readouterr().err  # PyTorch's warning at every call
    mlp = Population(make(plain_networks.MLP, ACTIVATIONS))
    assert "vmap" not in mlp.explain(inputs_of(plain_networks.MLP, len(mlp))[0])


def branch(network: nn.Module, x: Tensor) -> Tensor:
    return x if x.sum() > 0 else -x


def drop_alpha(network: nn.Module, x: Tensor) -> Tensor:
    return F.alpha_dropout(x, training=True)


def shuffle(network: nn.Module, x: Tensor) -> Tensor:
    return x[torch.randperm(len(x))]


def pack(network: nn.Module, x: Tensor) -> Tensor:
    packed = nn.utils.rnn.pack_padded_sequence(network.linear(x)[None], [len(x)], batch_first=True)
    return network.recurrent(packed)[1]


def derive(network: nn.Module, x: Tensor) -> Tensor:
    return torch.autograd.grad(network.act(network.linear(x.requires_grad_())).sum(), x, create_graph=True)[0]


class Calling(nn.Module):
    def __init__(self, function: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self.recurrent, self.act, self.function = nn.Linear(5, 5), nn.GRU(5, 5), nn.Tanh(), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (branch, ("values", "if x.sum() > 0")),
        (shuffle, ("random", "self.function(self, x)")),
        (drop_alpha, ("random", "self.function(self, x)")),
        (lambda network, x: network.linear(x.data), (".data", "cannot trace Calling")),
        (pack, ("packed", "return network.recurrent(packed)")),
        (derive, ("derivatives", "torch.autograd.grad(network.act")),
        (lambda network, x: torch.vmap(torch.dot)(network.linear(x), x), ("torch.vmap", "self.function(self, x)")),
    ],
)
def test_unsupported_operation_is_rejected_with_its_line(function: Any, words: tuple[str, str]) -> None:
    with pytest.raises(LoweringError) as caught:
        Population([Calling(function), Calling(function)])(torch.randn(2, 4, 5))
    assert all(word in str(caught.value) for word in words), caught.value


def test_a_shape_that_depends_on_values_is_refused() -> None:
    networks = [Calling(lambda network, x: network.linear(x)[torch.where(x[:, 0] > 0)]) for _ in range(2)]
    x = torch.ones(2, 4, 5)
    x[1, :2] = -1
    with pytest.raises(LoweringError, match=r"depends on values: \(4,\), \(2,\).*torch\.where\(mask"):
        Population(networks)(x)


def test_what_is_no_network_is_refused() -> None:
    with pytest.raises(TypeError, match=r"got 3"):
        Population(lambda: 3, seeds=range(2))  # type: ignore[arg-type, return-value]


class Unregistered(nn.Linear):
    def __init__(self) -> None:
        super().__init__(5, 5)
        self.layers = [nn.Linear(5, 5)]

    def forward(self, x: Tensor) -> Tensor:
        return self.layers[0](super().forward(x))  # type: ignore[no-any-return]


def test_layers_that_are_not_registered_are_refused() -> None:
    with pytest.raises(ValueError, match=r"layers is .*not registered: use nn\.ModuleList"):
        Population([Unregistered(), Unregistered()])(torch.randn(4, 5), in_dims=None)


class Momentum(nn.Module):
    """Let a second network follow the first."""

    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.one = nn.Sequential(nn.Linear(5, 5), act)
        self.other = copy.deepcopy(self.one).requires_grad_(False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            for own, average in zip(self.one.parameters(), self.other.parameters(), strict=True):
                average.mul_(0.9).add_(own, alpha=0.1)
        return self.one(x), self.other(x)


def test_averages_of_parameters_leave_none_of_an_activation_out() -> None:
    x, networks = torch.randn(4, 5), [Momentum(nn.ReLU()), Momentum(nn.Tanh())]
    population = Population(networks)
    with torch.no_grad():
        networks[1].one[0].bias.add_(1.0)
        population.stacked.get_parameter("one.0.bias")[1] += 1.0
    for _ in range(2):
        torch.testing.assert_close([y[1] for y in population(x, in_dims=None)], list(networks[1](x)))
    networks = [Momentum(nn.ReLU()), Momentum(nn.PReLU())]
    nn.init.constant_(networks[1].one[1].weight, 2.0)
    with pytest.raises(ContractError, match="member 1 alone differs"):
        Population(networks).check(x, in_dims=None)


def test_activations_of_complex_numbers_are_those_of_members_alone() -> None:
    x = torch.randn(2, 3, 5, dtype=torch.complex64)
    population = Population([nn.Sequential(nn.Flatten(), nn.Tanh()) for _ in range(2)])
    torch.testing.assert_close(population(x), x.tanh().flatten(2))


def test_inactive_random_operations_are_supported() -> None:
    population = Population([nn.Sequential(nn.RReLU(), nn.AlphaDropout(0.5)) for _ in range(2)]).eval()
    x = torch.randn(2, 5)
    torch.testing.assert_close(population(x), F.rrelu(x))


def test_exceptions_of_the_network_are_raised() -> None:
    def fail(network: nn.Module, x: Tensor) -> Tensor:
        raise KeyError("of the user")

    with pytest.raises(KeyError, match="of the user"):
        Population([Calling(fail)])(torch.randn(1, 4, 5))
    with pytest.raises(RuntimeError, match="4x6 and 5x5"):
        Population([nn.Linear(5, 5)])(torch.randn(1, 4, 6))
    embedding = Population([nn.Embedding(3, 2) for _ in range(2)])
    for token in (3, -1):
        with pytest.raises(IndexError):
            embedding(torch.tensor([[0], [token]]))


def test_only_recent_programs_are_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hullo.population.population.MAX_PROGRAMS", 2)
    population = Population([nn.Linear(3, 2)])
    read = []
    original = population._read_graph
    monkeypatch.setattr(population, "_read_graph", lambda *given: read.append(given[0][0]) or original(*given))
    for size in (1, 2, 1, 3, 1, 2):
        population(torch.randn(1, size, 3))
    assert [len(value.tensor[0]) for value in read] == [1, 2, 3, 2]


def test_an_import_does_not_load_the_compiler() -> None:
    code = "import sys, hullo.population; sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_torch_compile_runs_a_population_without_compiling_it() -> None:
    population, x = Population([nn.Linear(3, 2) for _ in range(2)]), torch.randn(2, 5, 3)
    compiled = torch.compile(population, backend="eager")(x)  # the first call, which traces a member
    assert torch.equal(compiled, population(x))
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"hullo\.population\.capture"):
        torch.compile(population, backend="eager", fullgraph=True)(x)


def test_a_function_needs_seeds_which_are_integers() -> None:
    with pytest.raises(TypeError, match="float"):
        Population([nn.Linear(2, 2), nn.Linear(2, 2)], seeds=[0.2, 0.7])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"needs seeds, such as seeds=range\(5\)"):
        Population(plain_networks.MLP)


def test_inputs_for_another_number_of_members_are_rejected() -> None:
    population = Population(plain_networks.MLP, seeds=range(3))
    with pytest.raises(ValueError, match=r"\(4, 6\).*in_dims=None"):
        population(torch.randn(4, 6))
    with pytest.raises(ValueError, match="in_dims"):
        population(torch.randn(3, 4, 6), in_dims=(0, None))


def test_bad_optimizer_settings_are_rejected_with_the_value() -> None:
    population = Population(plain_networks.MLP, seeds=range(3))
    for options, word in (
        ({"lr": -1.0}, "-1"),
        ({"lr": [0.1, 0.2]}, "3 members"),
        ({"lr": 0.1, "momentum": 1.0}, "momentum"),
        ({"lr": 0.1, "nesterov": True}, "momentum"),
        ({"lr": 0.1, "coefficient_lr_scale": -1.0}, "coefficient_lr_scale"),
        ({"lr": 0.1, "groups": [{"params": [nn.Parameter(torch.ones(3, 5))]}]}, r"Size\(\[3, 5\]\) in params"),
        ({"lr": 0.1, "groups": [{"params": ["0.weight"]}]}, "0.weight in params"),
        ({"lr": 0.1, "groups": [{"params": [], "rate": 1}]}, "rate.*params, and lr or weight_decay"),
        ({"lr": 0.0, "groups": [{"params": [], "lr": 1.0}]}, "an lr where"),
        ({"lr": 0.1, "groups": {"params": []}}, "'params'; give a list of dictionaries"),
    ):
        with pytest.raises(ValueError, match=word):
            SGD(population, **options)
    with pytest.raises(TypeError, match=r"takes.*generator"):
        SGD(population.parameters(), lr=0.1)
    with pytest.raises(RuntimeError, match="backward"):
        SGD(population, lr=0.1).step()
    population(torch.randn(3, 4, 6)).sum().backward()
    with pytest.raises(ValueError, match=r"\(2,\).*3 members"):
        SGD(population, lr=0.1, schedule=lambda updates: torch.ones(2)).step()
    other = SGD(Population(plain_networks.MLP, seeds=range(2)), lr=0.1)
    with pytest.raises(ValueError, match="another population"):
        SGD(population, lr=0.1).load_state_dict(other.state_dict())


def test_learning_rates_are_assigned_into_the_tensor_that_a_captured_step_reads() -> None:
    population = Population((nn.Linear(2, 1, bias=False) for _ in range(2)), seeds=range(2))
    optimizer = SGD(population, lr=0.1)
    rates, weight = optimizer.lr, population.stacked.weight
    optimizer.lr = [0.0, 2.0]
    before = weight.detach().clone()
    population(torch.ones(1, 2), in_dims=None).sum().backward()
    optimizer.step()
    assert optimizer.lr is rates
    torch.testing.assert_close(before - weight, torch.tensor([[[0.0, 0.0]], [[2.0, 2.0]]]))
    with pytest.raises(ValueError, match="-1"):
        optimizer.lr = -1
