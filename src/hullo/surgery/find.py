"""Find the sites of a model: by running it on example inputs, or without any, its modules alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from hullo.modules import Hull
from hullo.recognition.known import Reading
from hullo.recognition.probe import read_module
from hullo.recognition.table import name_of
from hullo.surgery.observe import SCRIPTED
from hullo.surgery.prove import Comparison
from hullo.surgery.sites import Planner, Site, Slot, group_calls
from hullo.surgery.source import Position, activation_calls, count_calls, own_functions
from hullo.surgery.state import Inputs

NOT_RUN = "it did not run on example_inputs, or ran in another thread"
NO_INPUTS = "example_inputs= finds calls of functions"


def default_inputs(model: nn.Module) -> Inputs | None:
    """Return the example inputs that a model of transformers or timm knows; None for others."""
    library = {cls.__module__.partition(".")[0] for cls in type(model).__mro__}
    try:
        if "transformers" in library and hasattr(model, "dummy_inputs"):
            given = model.dummy_inputs
            return dict(given) if isinstance(given, dict) and model.main_input_name in given else None
        settings = getattr(model, "pretrained_cfg", None) or getattr(model, "default_cfg", None)
        if "timm" in library and isinstance(settings, dict) and "input_size" in settings:
            first = next(model.parameters())
            generator = torch.Generator().manual_seed(0)
            return torch.randn(2, *settings["input_size"], generator=generator).to(first)
    except (StopIteration, AttributeError, NotImplementedError, TypeError):
        return None
    return None


def observed_sites(model: nn.Module, comparison: Comparison) -> list[Site]:
    """Return the sites of the calls that a run has observed, and what did not run."""
    sites = Planner(model, group_calls(comparison.calls)).sites()
    return [*sites, *_idle_modules(model, comparison.ran), *_mentions(model, comparison.seen, NOT_RUN)]


def _modules(model: nn.Module, ran: Collection[int] = ()) -> Iterator[Site]:
    """Yield the sites of modules that are activations, by all their names; not of those whose ids are in `ran`."""
    inside: set[int] = set()  # of activations, and those themselves
    taken: set[tuple[int, str]] = set()
    for name, module in model.named_modules(remove_duplicate=False):
        parent_name, _, own_name = name.rpartition(".")
        parent = model.get_submodule(parent_name)
        if id(parent) in inside:
            inside.add(id(module))
            continue
        if not name or id(module) in ran or isinstance(parent, (Hull, ParametrizationList)):
            continue
        is_scripted = isinstance(module, torch.jit.ScriptModule)
        reading = Reading(None, SCRIPTED) if is_scripted else read_module(module)
        if reading is not None:
            inside.add(id(module))
            function = reading.known.spelling if reading.known else type(module).__name__
            if (id(parent), own_name) not in taken:  # a parent may have several names
                yield Site(name, function, module, "", reading.reason, reading, (), [Slot(parent, own_name)])
            taken.add((id(parent), own_name))


def _idle_modules(model: nn.Module, ran: set[int]) -> Iterator[Site]:
    found: dict[int, Site] = {}
    for site in _modules(model, ran):
        reason = SCRIPTED if site.reason == SCRIPTED else NOT_RUN
        found.setdefault(id(site.module), Site(site.name, site.function, site.module, "", reason))
    yield from found.values()


def _mentions(model: nn.Module, seen: set[tuple[str, Position]], reason: str) -> Iterator[Site]:
    """Yield the calls of activation functions that the source of a model mentions, other than those in `seen`.

    Those in modules that are activations themselves do not count.
    """
    first: dict[type, tuple[str, nn.Module]] = {}
    for name, module in model.named_modules():
        first.setdefault(type(module), (name, module))
    for kind, (name, module) in first.items():
        if kind.__module__.startswith("torch.") or isinstance(module, Hull) or read_module(module) is not None:
            continue
        for method in own_functions(kind):
            if method.__name__ == "__init__":
                continue  # functions made there run elsewhere
            for function, at, place in activation_calls(method):
                if (method.__code__.co_filename, at) not in seen:
                    yield Site(name, function, None, place, reason)


def module_sites(model: nn.Module) -> list[Site]:
    """Return the sites of modules, and the mentioned calls of functions, of a model that does not run."""
    sites = list(_modules(model))
    inside = {id(part) for site in sites for part in site.module.modules()}  # type: ignore[union-attr]
    for name, module in model.named_modules():  # functions such as nn.TransformerEncoderLayer.activation
        values = () if id(module) in inside else vars(module).values()
        held = [name_of(value) for value in values if not isinstance(value, (Tensor, nn.Module))]
        sites += [Site(name, function, None, "", NO_INPUTS) for function in held if function]
    return [*sites, *_mentions(model, set(), NO_INPUTS)]


def count_mentions(sites: Iterable[Site]) -> str:
    """Return which functions the source of a model calls how often, as in ``3 of relu, 1 of gelu``."""
    counts = Counter(site.function for site in sites if site.reason == NO_INPUTS)
    return ", ".join(f"{count} of {name}" for name, count in counts.most_common())


def called_twice(sites: Iterable[Site]) -> list[str]:
    """Return the names of modules that the source of the module around them calls in several places."""
    return [
        site.name for site in sites if site.slots and count_calls(type(site.slots[0].parent), site.slots[0].name) > 1
    ]
