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
"""The label of the original."""
HULL = "hull"
"""The name of the learned hull that starts as what it replaces, until that is known."""
DEFAULT = ("relu", "gelu", "silu", "prelu", HULL, "affine(identity,relu,tanh)")
Probe = Callable[[Population], object]
"""Runs a population; raises an exception if it does not compute what its members do."""
Edit = Callable[[nn.Module, Tensor | None, bool], object]
"""Replaces the activations of a network, given example inputs and whether to prove it."""
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
    group: int | None = 0  # None if no population can take the network
    structure: str = ""  # of the network, as PyTorch prints it

    def build(self, seed: int, example: Tensor | None, *, prove: bool = False) -> nn.Module:
        """Return the network, initialized from a seed; the weights are the same for all candidates."""
        network = self.make(seed)
        if self.edit is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # an optimizer is made later
                self.edit(network, example if prove or example is None else example[:2], prove)
        return network

    def plain(self, network: nn.Module) -> nn.Module:
        """Return a network of this candidate as it would be used: fixed activations are those of PyTorch."""
        return network if self.edit is None or self.row.kind != "fixed" else hullo.fold(network)

    @property
    def row(self) -> ActivationSpec:
        return ActivationSpec.parse(self.name)


def prepare(
    make: Callable[[int], nn.Module], given: Sequence[Any], example: Tensor | None, probe: Probe
) -> tuple[list[Candidate], list[str]]:
    """Return the candidates, the original first, and notes on those that are left out or trained apart.

    Candidates that cannot be applied, and those that the network already uses, are left out.
    """
    original = Candidate(ORIGINAL, ORIGINAL_LABEL, make)
    network = original.build(0, example)
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise ValueError("the network has no parameters to train")
    found, notes = {ORIGINAL: original}, []
    for item in given:
        candidate = original if item == ORIGINAL else _read(original, item)
        is_function = candidate.name.startswith(f"{ORIGINAL}:")
        if is_function and (count := sum(other.startswith(candidate.name) for other in found)):
            again = f"_{count + 1}"  # another function of the same name
            candidate = replace(candidate, name=candidate.name + again, label=candidate.label + again)
        if candidate.name in found:
            continue
        try:
            built = candidate.build(0, example, prove=True)
            if candidate.name == HULL:
                spelled = find_layers(built)[0]
                if not spelled:
                    raise ValueError("records cannot describe its hulls")
                candidate = replace(candidate, name=max(spelled, key=lambda text: len(spelled[text])))
        except (ValueError, RuntimeError, TypeError) as error:
            if is_out_of_memory(error):
                raise
            notes.append(f"{candidate.label} is not compared: {' '.join(str(error).split())}")
            continue
        if _count(built) == _count(network) and _agree(built, network, example):
            notes.append(f"{candidate.label} is not compared: the network already uses it")
        else:
            found.setdefault(candidate.name, replace(candidate, structure=str(built)))
    if len(found) == 1:
        reasons = dict.fromkeys(note.partition(" is not compared: ")[2] for note in notes)
        raise ValueError(f"no candidate is left to compare with the original: {'; '.join(reasons)}")
    return _group(list(found.values()), example, probe, notes), notes


def seeded(factory: Callable[[], nn.Module], example: Tensor | None) -> Callable[[int], nn.Module]:
    """Return a function that builds the user's network from a seed, without a change of the global random state."""
    if isinstance(factory, nn.Module) or not callable(factory):
        raise TypeError(
            f"network is {type(factory).__name__}; give a class, or a function without arguments that returns a "
            "module, since every seed needs a network of its own"
        )

    def make(seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = factory()
            if not isinstance(network, nn.Module):
                raise TypeError(f"the network function returned {type(network).__name__}; return an nn.Module")
            if example is not None and any(isinstance(module, LazyModuleMixin) for module in network.modules()):
                network(example)
        return network

    return make


def _read(original: Candidate, item: Any) -> Candidate:
    """Return the candidate of a name, a spelling or a function."""
    if item == HULL:
        return replace(original, name=HULL, label=HULL, edit=_replace_by(), scale=COEFFICIENT_LR_SCALE)
    if isinstance(item, str):
        row = ActivationSpec.parse(item)
        scale = 1.0 if row == PRELU or not row.learns else COEFFICIENT_LR_SCALE

        def apply(network: nn.Module, example: Tensor | None, prove: bool) -> None:
            apply_activation(network, row, example, compare=prove)

        return replace(original, name=str(row), label=str(row), edit=apply, scale=scale)
    if isinstance(item, type) and issubclass(item, nn.Module) and not issubclass(item, Hull):
        reading = read_module(item())
        if reading is not None and reading.known is not None:  # such as nn.Mish
            return _read(original, reading.known.name)
    if not callable(item):
        raise TypeError(
            f"candidate {item!r}: give a name such as 'gelu', a spelling, or a function that returns a hull"
        )
    label = re.sub(r"[^\w.-]", "_", getattr(item, "__name__", "candidate")).strip("_")
    edit = _replace_by(hull=item)
    return replace(original, name=f"{ORIGINAL}:{label}", label=label, edit=edit, scale=COEFFICIENT_LR_SCALE)


def _replace_by(**options: Any) -> Edit:
    return lambda network, example, prove: hullo.replace_activations(
        network, example_inputs=example, compare=prove, **options
    )


def _count(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad)


@torch.no_grad()
def _agree(one: nn.Module, two: nn.Module, example: Tensor | None) -> bool:
    """Return whether two networks compute the same."""
    if example is None:
        return False
    first, second = (network.eval()(example) for network in (one, two))
    return isinstance(first, Tensor) and torch.allclose(first, second, rtol=1e-4, atol=1e-6)


def _group(candidates: list[Candidate], example: Tensor | None, probe: Probe, notes: list[str]) -> list[Candidate]:
    """Return candidates with their groups: one for all if possible, else as few as come up in their order."""
    if not _why_apart(candidates, example, probe):
        return candidates
    groups: list[list[Candidate]] = []
    alone, found = {}, []
    for item in candidates:
        number = None
        if reason := _why_apart([item], example, probe):
            alone[item.label] = reason
        else:
            fitting = (i for i, group in enumerate(groups) if not _why_apart([*group, item], example, probe))
            number = next(fitting, len(groups))
            groups[number:] = groups[number:] or [[]]
            groups[number].append(item)
        found.append(replace(item, group=number))
    if len(groups) > 1:
        parts = (", ".join(item.label for item in group) for group in groups)
        notes.append(f"trained in {len(groups)} populations, since their structures differ: {'; '.join(parts)}")
    if alone:
        who = "all networks" if len(alone) == len(candidates) else ", ".join(alone)
        notes.append(f"trained one by one: {who}; {next(iter(alone.values()))}")
    return found


def _why_apart(candidates: Sequence[Candidate], example: Tensor | None, probe: Probe) -> str:
    """Return why no population can take these networks together; an empty string if one can."""
    try:
        probe(Population([item.build(seed, example) for seed, item in enumerate(candidates)]))
    except Exception as error:
        if is_out_of_memory(error):
            raise
        return " ".join(str(error).partition(";")[0].split())
    return ""
