"""The user's own networks, loaded from Python files."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import linecache
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from hullo._compat import is_out_of_memory
from hullo.lab.spec.activation import ActivationSpec
from hullo.modules import HULLS, Hull, LinearHull
from hullo.surgery import replace_activations, summary

_IMPORTED: set[str] = set()  # modules of files beside users' networks


@dataclass(frozen=True)
class OwnNetwork:
    """A class or function in a user's file that builds a network.

    It is called with those of `activation`, `in_channels`, `image_size` and `num_classes` that it has arguments for.
    `activation` makes an activation, given its number of channels. A network that does not take it is made with its own
    activations, which are then replaced.

    Args:
        path: the file.
        attribute: the name of the class or function in it.
        name: its name in specs: file, attribute and eight digits of a hash of the file and of those that it imported
            from its own folder when it was opened.
        module: what the file defined.
    """

    path: Path
    attribute: str
    name: str
    module: ModuleType = field(repr=False)

    @classmethod
    def open(cls, text: str) -> OwnNetwork:
        """Open a network given as ``my_network.py:Net``."""
        file, _, attribute = text.rpartition(":") if ":" in text else (text, "", "")
        path = Path(file).absolute()
        if not path.is_file():
            raise ValueError(f"{file!r} is not a file; give your own network as my_network.py:Net")
        with explain(path, attribute):
            module, contents = _run(path)
        stem, digest = re.sub(r"[^\w.-]", "_", path.stem), hashlib.sha256(b"\0".join(contents)).hexdigest()
        network = cls(path, attribute, f"{stem}:{attribute}@{digest[:8]}", module)
        network.factory()  # raises an error if there is none
        return network

    def __reduce__(self) -> tuple[Callable[..., OwnNetwork], tuple[str, str]]:
        return _reopen, (f"{self.path}:{self.attribute}", self.name)  # other processes read the file themselves

    def factory(self) -> Callable[..., nn.Module]:
        """Return the class or function, from the content that the file had when it was opened."""
        factory: Callable[..., nn.Module] | None = getattr(self.module, self.attribute, None)
        if not callable(factory) or isinstance(factory, nn.Module):
            networks = [name for name, item in vars(self.module).items() if _may_build(item, self.module)]
            file, available = self.path.name, f"; available: {', '.join(networks)}" if networks else ""
            reason = f"has no class or function {self.attribute!r}" if self.attribute else f"needs a class: {file}:Net"
            raise ValueError(f"{file} {reason}{available}")
        return factory

    def build(self, activation: ActivationSpec, example: Tensor, seed: int, sizes: Mapping[str, int]) -> nn.Module:
        """Build the network from a seed, and replace its activations unless the activation is ``own``.

        Args:
            activation: the activations.
            example: a batch of samples.
            seed: seed of the initial weights; the global random state does not change.
            sizes: `in_channels`, `image_size` and `num_classes`.
        """
        factory, name = self.factory(), f"{self.attribute} of {self.path.name}"
        with self.explain(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            given = self._arguments(factory, activation, sizes)
            network = factory(**given)
            if not isinstance(network, nn.Module):
                raise ValueError(f"{name} returned {type(network).__name__}; must be an nn.Module")
            if not any(parameter.requires_grad for parameter in network.parameters()):
                raise ValueError(f"{name} has no parameters that require gradients")
            with torch.no_grad():
                network.eval()(example)  # lazy layers draw their weights
            network.train()
        if activation.kind != "own" and "activation" not in given:
            try:
                with self.explain():
                    apply_activation(network, activation, example)
            except ValueError as error:
                raise ValueError(
                    f"cannot replace the activations of {name} by {activation}: {error}; give the network an argument "
                    "`activation`, or train it as it is with --activation own"
                ) from error
        return network

    def describe_kept(self, network: nn.Module) -> str:
        """Return a sentence on the activations of a network that `build` did not replace, and why; perhaps empty."""
        kept = [] if "activation" in inspect.signature(self.factory()).parameters else summary(network).not_replaced
        sites = [f"{s.name or 'forward'} ({s.function}): {s.reason or 'often a gate or a probability'}" for s in kept]
        more = f"; and {len(sites) - 8} more" if len(sites) > 8 else ""
        return f"not replaced in {self.attribute} of {self.path.name}: {'; '.join(sites[:8])}{more}" if sites else ""

    def _arguments(
        self, factory: Callable[..., nn.Module], activation: ActivationSpec, sizes: Mapping[str, int]
    ) -> dict[str, Any]:
        parameters = inspect.signature(factory).parameters.values()
        named = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        given: dict[str, Any] = {name: size for name, size in sizes.items() if name in named and size > 0}
        if "activation" in named and activation.kind != "own":
            given["activation"] = activation.module
        needed = [p.name for p in parameters if p.default is p.empty and p.name in named and p.name not in given]
        if needed:
            passed = [f"{name}={size}" for name, size in sizes.items() if size > 0]
            passed += ["activation with hullo train --activation"] if "activation" in needed else []
            raise ValueError(
                f"{self.attribute} of {self.path.name} needs {', '.join(needed)}; hullo passes {', '.join(passed)} "
                "to arguments of these names: rename yours, or give them a default"
            )
        return given

    def explain(self) -> AbstractContextManager[None]:
        """Turn an error in the user's file into a ValueError that names its line."""
        return explain(self.path, self.attribute)


def _reopen(text: str, name: str) -> OwnNetwork:
    """Open a network in another process, perhaps on another machine."""
    network = OwnNetwork.open(text)
    if network.name != name:
        raise ValueError(f"{text} differs here: {network.name}; share the file between all machines")
    return network


@contextmanager
def explain(path: Path, attribute: str) -> Iterator[None]:
    """Turn an error in a user's file into a ValueError that names its line."""
    try:
        yield
    except SyntaxError as error:
        raise ValueError(f"{error.filename or path}, line {error.lineno}: {error.msg}") from error
    except (Exception, SystemExit) as error:
        if is_out_of_memory(error):
            raise
        frames = traceback.extract_tb(error.__traceback__)
        places = [f"{path}, line {f.lineno}" for f in frames if f.filename == str(path)]
        if not places:  # in a method that was rewritten to replace activations
            places = [f"{path}, in {f.line!r}" for f in frames if f" of {path}, " in f.filename]
        if isinstance(error, ValueError) and (not places or str(path) in str(error)):
            raise
        place = places[-1] if places else f"{attribute} of {path}"
        raise ValueError(f"{place}: {type(error).__name__}: {' '.join(str(error).split())}") from error


def _run(path: Path) -> tuple[ModuleType, list[bytes]]:
    """Run a file as an import would, and return its module, its content and those of the files imported beside it.

    Files beside it are imported anew: another network may have imported others of the same names, or older versions.
    """
    content, folder = path.read_bytes(), str(path.parent)
    for name in _IMPORTED:
        sys.modules.pop(name, None)
    importlib.invalidate_caches()
    module = ModuleType(re.sub(r"\W", "_", f"hullo_own_{path.stem}_{hashlib.sha256(content).hexdigest()[:8]}"))
    module.__file__, module.__package__ = str(path), ""
    lines = content.decode(errors="replace").splitlines(keepends=True)
    linecache.cache[str(path)] = (len(content), None, lines, str(path))
    sys.modules[module.__name__] = module  # pickling looks classes up there
    sys.path.insert(0, folder)
    try:
        exec(compile(content, str(path), "exec", dont_inherit=True), vars(module))  # noqa: S102  (the user's own file)
    except BaseException:
        del sys.modules[module.__name__]
        raise
    finally:
        sys.path.remove(folder)
        beside = _files_beside(folder)
        _IMPORTED.update(beside)
    return module, [content, *(file.read_bytes() for file in sorted(filter(None, beside.values())))]


def _files_beside(folder: str) -> dict[str, Path | None]:
    """Return the imported modules whose files are in a folder, with these files; a folder without one has None."""
    found: dict[str, Path | None] = {}
    for name, module in list(sys.modules.items()):
        place, file = f"{folder}/{name.replace('.', '/')}", getattr(module, "__file__", None)
        if file in (f"{place}.py", f"{place}/__init__.py"):
            found[name] = Path(file)
        elif file is None and place in getattr(module, "__path__", ()):
            found[name] = None
    return found


def _may_build(item: object, module: ModuleType) -> bool:
    """Return whether an object of a file is a class of networks or a function that is defined there."""
    is_factory = isinstance(item, FunctionType) or (isinstance(item, type) and issubclass(item, nn.Module))
    return is_factory and item.__module__ == module.__name__


def apply_activation(
    network: nn.Module, activation: ActivationSpec, example: Tensor | tuple[Tensor, ...] | None, *, compare: bool = True
) -> None:
    """Replace every activation of a network; a fixed one becomes a frozen hull of one base."""
    replace_activations(
        network,
        hull=HULLS[activation.kind] if activation.learns else LinearHull,
        bases=list(activation.bases),
        init=activation.initial_coefficients,
        parametrization=activation.parametrization if activation.learns else None,
        groups="channels" if activation.per == "channel" else 1,
        example_inputs=example,
        compare=compare,
    )
    if not activation.learns:
        for module in network.modules():
            if isinstance(module, Hull):
                module.requires_grad_(False)
