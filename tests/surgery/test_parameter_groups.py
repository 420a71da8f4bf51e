"""Test parameter groups: coefficients have their own learning rate and no weight decay; each parameter occurs once."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hullo


def model() -> nn.Sequential:
    shared = nn.Linear(4, 4)
    act = hullo.AffineHull("identity", "relu", "tanh", groups=2)
    inner = nn.Sequential(shared, hullo.ConvexHull("relu", "tanh"), nn.BatchNorm1d(4))
    return nn.Sequential(nn.Linear(4, 4), act, inner, shared, act, nn.PReLU())  # one layer and one hull used twice


def test_every_parameter_is_in_exactly_one_group() -> None:
    network = model()
    groups = hullo.parameter_groups(network, lr=0.1)
    listed = [parameter for group in groups for parameter in group["params"]]
    assert len(listed) == len({id(parameter) for parameter in listed})
    assert {id(parameter) for parameter in listed} == {id(parameter) for parameter in network.parameters()}
    torch.optim.Adam(groups)


def test_coefficients_have_no_decay_and_their_own_rate() -> None:
    network = model()
    weights, vectors, coefficients = hullo.parameter_groups(network, lr=0.1, weight_decay=0.01, coefficient_lr_scale=3)
    assert {id(p) for p in coefficients["params"]} == {id(network[1].raw), id(network[2][1].raw)}
    assert {p.dim() for p in weights["params"]} == {2}
    assert {p.dim() for p in vectors["params"]} == {1}
    assert (weights["lr"], weights["weight_decay"]) == (0.1, 0.01)
    assert (vectors["lr"], vectors["weight_decay"]) == (0.1, 0.0)
    assert coefficients["lr"] == pytest.approx(0.3)
    assert coefficients["weight_decay"] == 0


def test_weight_decay_changes_weights_but_not_coefficients() -> None:
    network = nn.Sequential(nn.Linear(4, 4), hullo.AffineHull("relu", "tanh", init=[3.0, -2.0]))
    optimizer = torch.optim.SGD(hullo.parameter_groups(network, lr=0.1, weight_decay=0.5))
    weight, raw = network[0].weight.detach().clone(), network[1].raw.detach().clone()
    for parameter in network.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    torch.testing.assert_close(network[0].weight, 0.95 * weight)
    assert torch.equal(network[1].raw, raw)


@pytest.mark.parametrize("given", [None, 0.0, 0.2])
def test_optimizers_own_weight_decay_applies_unless_one_is_given(given: float | None) -> None:
    network = model()
    optimizer = torch.optim.AdamW(hullo.parameter_groups(network, lr=0.1, weight_decay=given), weight_decay=0.1)
    decays = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert decays[id(network[0].weight)] == (0.1 if given is None else given)
    assert decays[id(network[0].bias)] == (0.1 if given is None else 0.0)
    assert all(decays[id(parameter)] == 0.0 for parameter in hullo.coefficient_parameters(network))


def test_lr_scale_zero_freezes_coefficients() -> None:
    network = nn.Sequential(nn.Linear(4, 4), hullo.AffineHull("relu", "tanh"))
    optimizer = torch.optim.Adam(hullo.parameter_groups(network, lr=0.1, coefficient_lr_scale=0))
    before = network[1].raw.detach().clone()
    network(torch.randn(3, 4)).sum().backward()
    optimizer.step()
    assert torch.equal(network[1].raw, before)


def test_model_with_one_kind_of_parameter_has_one_group() -> None:
    assert [len(g["params"]) for g in hullo.parameter_groups(nn.Linear(2, 2), lr=0.1)] == [2]
    assert [len(g["params"]) for g in hullo.parameter_groups(hullo.AffineHull("relu"), lr=0.1)] == [1]


def test_learning_rate_in_the_place_of_groups_is_rejected() -> None:
    with pytest.raises(TypeError, match=r"groups=0\.001: give parameters.*lr=0\.001"):
        hullo.parameter_groups(nn.Linear(2, 2), 1e-3)  # type: ignore[arg-type]


def test_non_module_is_rejected_with_the_function_name() -> None:
    with pytest.raises(TypeError, match=r"parameter_groups takes a torch.nn.Module, not a generator; give the model"):
        hullo.parameter_groups(nn.Linear(2, 2).parameters(), lr=0.1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"summary takes a torch.nn.Module, not a str; give the model"):
        hullo.summary("x")  # type: ignore[arg-type]


def test_existing_groups_are_split() -> None:
    network = model()
    given = [
        {"params": list(network[:2].parameters()), "lr": 0.1, "weight_decay": 0.5, "betas": (0.5, 0.9)},
        {"params": list(network[2:].parameters()), "lr": 0.01},
    ]
    given[1]["params"] = [p for p in given[1]["params"] if p is not network[1].raw]
    before = [len(group["params"]) for group in given]
    groups = hullo.parameter_groups(network, given, coefficient_lr_scale=10)
    assert [len(group["params"]) for group in given] == before
    assert [(group["lr"], group.get("weight_decay")) for group in groups] == [
        (0.1, 0.5),
        (0.01, None),
        (1.0, 0.0),
        (0.1, 0.0),
    ]
    assert [id(p) for p in groups[2]["params"]] == [id(network[1].raw)]
    assert groups[2]["betas"] == (0.5, 0.9)
    optimizer = torch.optim.AdamW(groups)
    listed = [p for group in optimizer.param_groups for p in group["params"]]
    assert {id(p) for p in listed} == {id(p) for p in network.parameters()}


def test_plain_parameters_are_split() -> None:
    network = nn.Sequential(nn.Linear(4, 4), hullo.AffineHull("relu", "tanh"))
    others, coefficients = hullo.parameter_groups(network, network.parameters())
    assert [id(p) for p in others["params"]] == [id(p) for p in network[0].parameters()]
    assert coefficients["params"] == [network[1].raw]
    assert "lr" not in coefficients  # the optimizer's own
    torch.optim.SGD([others, coefficients], lr=0.1)


def test_missing_coefficients_are_reported_and_not_added() -> None:
    network = nn.Sequential(nn.Linear(4, 4), hullo.AffineHull("relu", "tanh", inner_scale="hull"))
    with pytest.warns(UserWarning, match=r"no coefficients, .*give model\.parameters\(\)"):
        (group,) = hullo.parameter_groups(network, network[0].parameters())
    assert [id(p) for p in group["params"]] == [id(p) for p in network[0].parameters()]
    network[1].requires_grad_(False)
    hullo.parameter_groups(network, network[0].parameters())


def test_parameters_of_a_part_have_the_coefficients_of_the_part() -> None:
    def part() -> nn.Sequential:
        return nn.Sequential(nn.Linear(4, 4), nn.Sequential(hullo.AffineHull("relu", "tanh")), nn.Linear(4, 4))

    network = nn.ModuleDict({"generator": part(), "discriminator": part()})
    for item in network.values():
        groups = hullo.parameter_groups(network, item.parameters(), lr=0.1)
        assert {id(p) for group in groups for p in group["params"]} == {id(p) for p in item.parameters()}


def test_lr_scale_needs_lr() -> None:
    network = nn.Sequential(nn.Linear(4, 4), hullo.AffineHull("relu", "tanh"))
    with pytest.raises(TypeError, match="coefficient_lr_scale=10: give lr"):
        hullo.parameter_groups(network, network.parameters(), coefficient_lr_scale=10)
    with pytest.raises(TypeError, match="needs lr"):
        hullo.parameter_groups(network)


def test_a_learning_rate_that_is_a_tensor_is_left_alone() -> None:
    rate, network = torch.tensor(1e-3), model()
    groups = hullo.parameter_groups(network, lr=rate, weight_decay=1e-2, coefficient_lr_scale=10)
    assert [round(float(group["lr"]), 6) for group in groups] == [0.001, 0.001, 0.01]
    own = [{"params": list(network.parameters()), "lr": rate}]
    assert [round(float(g["lr"]), 6) for g in hullo.parameter_groups(network, groups=own, coefficient_lr_scale=10)] == [
        0.001,
        0.01,
    ]
    assert float(rate) == pytest.approx(1e-3)


def test_named_parameters_keep_their_names() -> None:
    model = nn.Sequential(nn.Linear(4, 4), hullo.AffineHull("identity", "relu"), nn.Linear(4, 4))
    groups = hullo.parameter_groups(model, model.named_parameters(), lr=0.1, coefficient_lr_scale=10)
    optimizer = torch.optim.SGD(groups)
    found = {name: group["lr"] for group in optimizer.param_groups for name in group["param_names"]}
    assert sorted(found) == sorted(name for name, _ in model.named_parameters())
    assert [name for name, lr in found.items() if lr == 1.0] == [f"1.{model[1].raw_name}"]
