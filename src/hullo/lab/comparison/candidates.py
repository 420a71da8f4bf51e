"""The candidates: the original network, and with its activations replaced."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin

import hullo
from hullo._compat import is_out_of_memory
from hullo.lab.comparison.decision import ORIGINAL
from hullo.lab.networks.own_network import apply_activation
from hullo.lab.recorder import find_layers
from hullo.lab.spec.activation import PRELU, ActivationSpec
from hullo.modules import Hull
from hullo.population import Population
from hullo.recognition.probe import read_module

ORIGINAL_LABEL = "original"
HULL = "hull"
"""The name of the learned hull that starts as what it replaces, until that is known."""
DEFAULT = ("relu", "gelu", "silu", "prelu", HULL, "affine(identity,relu,tanh)")
Inputs = tuple[Tensor, ...]
"""Arguments of a network."""
Probe = Callable[[Population], object]
"""Runs a population; raises an exception if it does not compute what its members do."""
Edit = Callable[[nn.Module, Inputs | None, bool], object]
"""Replaces the activations of a network, given example inputs and whether to compare the networks on them."""
COEFFICIENT_LR_SCALE = 10.0
"""The recommended learning rate of coefficients, as a multiple of that of the weights."""


@dataclass(frozen=True)
class Candidate:
    """An activation for the network; those of one group can be in one population."""

    name: str  # as records spell it
    label: str  # as tables print it
    make: Callable[[int], nn.Module]  # builds the network from a seed
    edit: Edit | None = None  # None for the original
    scale: float = 1.0  # the learning rate of the coefficients, as a multiple of that of the weights
    group: str | None = ""  # None if no population can take the network
    structure: str = ""  # of the network, as PyTorch prints it

    def build(self, seed: int, example: Inputs | None, *, compare: bool = False) -> nn.Module:
        """Return the network, initialized from a seed; the weights are the same for all candidates."""
        network = self.make(seed)
        if self.edit is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # an optimizer is made later
                self.edit(network, example, compare)
        return network

    def plain(self, network: nn.Module) -> nn.Module:
        """Return a network of this candidate as it would be used: fixed activations are those of PyTorch."""
        return network if self.edit is None or self.row.kind != "fixed" else hullo.fold(network)

    @property
    def row(self) -> ActivationSpec:
        return ActivationSpec.parse(self.name)


def seeded(factory: Callable[[], nn.Module], example: Inputs | None) -> Callable[[int], nn.Module]:
    """Return a function that builds the user's network from a seed, without a change of the global random state."""
    if isinstance(factory, nn.Module) or not callable(factory):
        raise TypeError(
            f"network is {type(factory).__name__}; give a class, or a function without arguments that returns a "
            "module, since every seed needs a new network"
        )

    def make(seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = factory()
            if not isinstance(network, nn.Module):
                raise TypeError(f"the network function returned {type(network).__name__}; return an nn.Module")
            if example is not None and any(isinstance(module, LazyModuleMixin) for module in network.modules()):
                network(*example)
        return network

    return make


def prepare(
    make: Callable[[int], nn.Module], given: Sequence[Any], example: Inputs | None, probe: Probe
) -> tuple[list[Candidate], list[str]]:
    """Return the candidates, the original first, and notes on those that are left out or trained apart.

    Candidates that cannot be applied, and those that the network already uses, are left out.
    """
    original = Candidate(ORIGINAL, ORIGINAL_LABEL, make)
    network = original.build(0, example)
    found, reasons = {ORIGINAL: original}, {}
    for item in given:
        candidate = _read(original, item, list(found))
        if candidate.name in found:
            continue
        try:
            built = candidate.build(0, example, compare=True)
            if candidate.name == HULL:
                candidate = replace(candidate, name=_spell_hull(built))
            if _count(built) == _count(network) and _agree(built, network, example):
                raise ValueError("the network already uses it")
            found.setdefault(candidate.name, replace(candidate, structure=str(built)))
        except (ValueError, RuntimeError, TypeError) as error:
            if is_out_of_memory(error):
                raise
            reasons[candidate.label] = " ".join(str(error).split())
    if len(found) == 1:
        why = "; ".join(dict.fromkeys(reasons.values())) or "candidates is empty"
        raise ValueError(f"no candidate is left to compare with the original: {why}")
    candidates, notes = _group(list(found.values()), example, probe)
    return candidates, [f"{label} is not compared: {reason}" for label, reason in reasons.items()] + notes


def _read(original: Candidate, item: Any, names: Sequence[str]) -> Candidate:
    """Return the candidate of a name, a spelling, a module of PyTorch or a function, beside others of some names."""
    made = item() if isinstance(item, type) and issubclass(item, nn.Module) and not issubclass(item, Hull) else item
    if isinstance(made, nn.Module) and (reading := read_module(made)) is not None and reading.known is not None:
        item = reading.known.name  # such as nn.Mish
    if item == HULL:
        return replace(original, name=HULL, label=HULL, edit=_replace_by(), scale=COEFFICIENT_LR_SCALE)
    if isinstance(item, str):
        row = ActivationSpec.parse(item)
        scale = 1.0 if row == PRELU or not row.learns else COEFFICIENT_LR_SCALE

        def apply(network: nn.Module, example: Inputs | None, compare: bool) -> None:
            apply_activation(network, row, example, compare=compare)

        return replace(original, name=str(row), label=str(row), edit=apply, scale=scale)
    if not callable(item):
        raise TypeError(
            f"candidate {item!r}: give a name such as 'gelu', a spelling, or a function that returns a hull"
        )
    label = re.sub(r"[^\w.-]", "_", getattr(item, "__name__", "candidate")).strip("_")
    if same := sum(name.startswith(f"{ORIGINAL}:{label}") for name in names):
        label += f"_{same + 1}"
    edit = _replace_by(hull=item)
    return replace(original, name=f"{ORIGINAL}:{label}", label=label, edit=edit, scale=COEFFICIENT_LR_SCALE)


def _replace_by(**options: Any) -> Edit:
    return lambda network, example, compare: hullo.replace_activations(
        network, example_inputs=example, compare=compare, **options
    )


def _spell_hull(network: nn.Module) -> str:
    """Return the spelling of the hulls of a network; if there are several, of most layers."""
    spelled, _ = find_layers(network)
    if not spelled:
        raise ValueError("records cannot describe its hulls")
    return max(spelled, key=lambda text: len(spelled[text]))


def _count(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad)


@torch.no_grad()
def _agree(one: nn.Module, two: nn.Module, example: Inputs | None) -> bool:
    """Return whether two networks compute the same."""
    if example is None:
        return False
    first, second = (network.eval()(*example) for network in (one, two))
    return isinstance(first, Tensor) and torch.allclose(first, second, rtol=1e-4, atol=1e-6)


def _group(candidates: list[Candidate], example: Inputs | None, probe: Probe) -> tuple[list[Candidate], list[str]]:
    """Return candidates with their groups, and notes: one group if possible, else the original and the others.

    The original may differ from the others if it calls activations that they have as modules.
    """
    groups = {"all networks": candidates}
    reasons = {"all networks": _why_apart(candidates, example, probe)}
    if any(reasons.values()):
        groups = {ORIGINAL_LABEL: candidates[:1], "the others": candidates[1:]}
        reasons = {label: _why_apart(group, example, probe) for label, group in groups.items()}
    single = [label for label, reason in reasons.items() if reason]
    notes = ["trained in 2 populations, since their structures differ"] if len(groups) > 1 and not single else []
    if single:
        who = single[0] if len(single) == 1 else "all networks"
        notes.append(f"trained one by one: {who}; {reasons[single[0]]}")
    grouped = [
        replace(item, group=None if label in single else label) for label, group in groups.items() for item in group
    ]
    return grouped, notes


def _why_apart(candidates: Sequence[Candidate], example: Inputs | None, probe: Probe) -> str:
    """Return why no population can take these networks together; an empty string if one can."""
    try:
        probe(Population([item.build(seed, example) for seed, item in enumerate(candidates)]))
    except Exception as error:
        if is_out_of_memory(error):
            raise
        return " ".join(str(error).partition(";")[0].split())
    return ""
