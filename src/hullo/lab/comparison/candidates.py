"""The candidates: the network as it is, and with its activations replaced."""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

import hullo
from hullo._compat import is_out_of_memory
from hullo.lab.networks.own import apply_activation
from hullo.lab.recorder import find_layers
from hullo.lab.spec.activation import PRELU, ActivationSpec
from hullo.population import Population

ORIGINAL, HULL = "own", "hull"
"""The names of the network as it is, and of the learned hull that starts as what it replaces."""
DEFAULT = ("relu", "gelu", "silu", "prelu", HULL, "affine(identity,relu,tanh)")
COEFFICIENT_LR_SCALE = 10.0
"""The recommended learning rate of coefficients, as a multiple of that of the weights."""

Make = Callable[[int], nn.Module]
Edit = Callable[[nn.Module, Tensor | None], None]


@dataclass(frozen=True)
class Candidate:
    """An activation for the network.

    Args:
        name: as records spell it.
        make: builds the network from a seed.
        edit: replaces its activations; None for the network as it is.
        scale: learning rate of the coefficients, as a multiple of that of the weights.
        alone: why a population cannot take the network; empty if it can.
        group: candidates of one group can be in one population.
        label: as tables print it.
    """

    name: str
    make: Make
    edit: Edit | None = None
    scale: float = 1.0
    alone: str = ""
    group: str = ""
    label: str = ""

    def build(self, seed: int, example: Tensor | None) -> nn.Module:
        """Return the network, initialized from a seed; the weights are the same for all candidates."""
        network = self.make(seed)
        if self.edit is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # an optimizer is made later
                self.edit(network, example)
        return network

    def build_plain(self, seed: int, example: Tensor | None) -> nn.Module:
        """Return the network as it would be used: fixed activations are those of PyTorch."""
        return self.plain(self.build(seed, example))

    def plain(self, network: nn.Module) -> nn.Module:
        """Return a network of this candidate with fixed activations as those of PyTorch."""
        return network if self.edit is None or self.row.kind != "fixed" else hullo.fold(network)

    @property
    def row(self) -> ActivationSpec:
        return ActivationSpec.parse(self.name)


def make_from(factory: Callable[[], nn.Module], example: Tensor | None) -> Make:
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
            if (
                any(isinstance(module, nn.modules.lazy.LazyModuleMixin) for module in network.modules())
                and example is not None
            ):
                network(example)
        return network

    return make


def prepare(
    make: Make, given: Sequence[Any] | Mapping[str, Any], example: Tensor | None
) -> tuple[list[Candidate], list[str]]:
    """Return the candidates, the network as it is first, and notes on those that are left out.

    Candidates that cannot be applied, and fixed ones that the network has already, are left out.

    Args:
        make: builds the network from a seed.
        given: names and spellings of activations, and functions of a :class:`hullo.surgery.Site` that return a hull; in
            a mapping, by name.
        example: some inputs.
    """
    original = Candidate(ORIGINAL, make, label="as it is")
    network = original.build(0, example)
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise ValueError("the network has no parameters to train")
    found, notes = [original], []
    items = given.items() if isinstance(given, Mapping) else [(None, item) for item in given]
    for name, item in items:
        if item == ORIGINAL:
            continue
        candidate = _read(make, name, item)
        try:
            built = candidate.build(0, example)
        except (ValueError, RuntimeError, TypeError) as error:
            if is_out_of_memory(error):
                raise
            notes.append(f"{candidate.name} is left out: {' '.join(str(error).split())}")
            continue
        if candidate.name == HULL:
            spelled = find_layers(built)[0]
            if not spelled:
                notes.append(f"{HULL} is left out: records cannot describe its hulls")
                continue
            name = max(spelled, key=lambda text: len(spelled[text]))
            candidate = replace(candidate, name=name, label=name)
        if any(candidate.name == other.name for other in found):
            continue
        if _learns_nothing(candidate, built, network) and _agree(built, network, example):
            notes.append(f"{candidate.name} is left out: the network has it already")
            continue
        found.append(candidate)
    if len(found) == 1:
        raise ValueError(f"no candidate is left to compare with the network as it is: {'; '.join(notes)}")
    return _group(found, example), notes


def _group(candidates: list[Candidate], example: Tensor | None) -> list[Candidate]:
    """Return candidates with what can be in one population: all, all but the original, or none with others."""
    if not _why_alone(candidates, example):
        return candidates
    original, *others = candidates
    original = replace(original, group=ORIGINAL, alone=_why_alone([original], example))
    if _why_alone(others, example):
        others = [replace(item, alone=_why_alone([item], example)) for item in others]
    return [original, *others]


def _read(make: Make, name: str | None, item: Any) -> Candidate:
    """Return the candidate of a name, a spelling or a function."""
    if item == HULL:
        return Candidate(HULL, make, _start_alike, COEFFICIENT_LR_SCALE)
    if isinstance(item, str):
        row = ActivationSpec.parse(item)
        scale = 1.0 if row == PRELU or not row.learns else COEFFICIENT_LR_SCALE
        return Candidate(
            str(row), make, lambda network, example: apply_activation(network, row, example), scale, label=str(row)
        )
    if not callable(item):
        raise TypeError(
            f"candidate {item!r}: give a name such as 'gelu', a spelling, or a function that returns a hull"
        )
    label = re.sub(r"[^\w.-]", "_", str(name or getattr(item, "__name__", "candidate")))

    def edit(network: nn.Module, example: Tensor | None) -> None:
        hullo.replace_activations(network, hull=item, example_inputs=example)

    return Candidate(f"{ORIGINAL}:{label}", make, edit, COEFFICIENT_LR_SCALE, label=label)


def _start_alike(network: nn.Module, example: Tensor | None) -> None:
    hullo.replace_activations(network, example_inputs=example)


def _learns_nothing(candidate: Candidate, built: nn.Module, network: nn.Module) -> bool:
    """Return whether a candidate has as many parameters to train as the network as it is."""
    one, two = (sum(p.numel() for p in module.parameters() if p.requires_grad) for module in (built, network))
    return one == two


@torch.no_grad()
def _agree(one: nn.Module, two: nn.Module, example: Tensor | None) -> bool:
    """Return whether two networks compute the same."""
    if example is None:
        return False
    first, second = (network.eval()(example) for network in (one, two))
    return isinstance(first, Tensor) and torch.allclose(first, second, rtol=1e-4, atol=1e-6)


def _why_alone(candidates: Sequence[Candidate], example: Tensor | None) -> str:
    """Return why a population cannot take networks; an empty string if it can."""
    try:
        population = Population([item.build(seed, example) for seed, item in enumerate(candidates)])
        if example is None:  # a step of the user's runs it
            return ""
        outputs = population.train()(example, in_dims=None)
        outputs.float().square().sum().backward()
        with torch.no_grad():
            population.eval()(example, in_dims=None)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        return " ".join(str(error).split())[:200]
    return ""


def fingerprint(network: nn.Module, example: Tensor | None) -> str:
    """Return a digest of a network: of its initial weights, and of what it computes for example inputs."""
    digest = hashlib.sha256()
    for name, tensor in network.state_dict().items():
        if isinstance(tensor, Tensor):
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.double().sum().item():.6g}".encode())
    if example is not None:
        with torch.no_grad():
            output = network.eval()(example)
        if isinstance(output, Tensor):
            digest.update(f"{output.double().abs().sum().item():.4g}".encode())
    return digest.hexdigest()
