"""Trace a network by torch.export, or say what cannot be traced, and where."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import os
import re
import threading
import traceback
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager, redirect_stderr
from typing import Any
from unittest import mock

import torch
import torch.utils._pytree as pytree
from torch import fx, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from hullo.population.images import AugmentedImages

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in [^\n]+\n\s*(?P<code>[^\n]+)')
_HERE = os.path.dirname(os.path.dirname(__file__))
_OWN = os.path.dirname(_HERE)
_LOCK = threading.Lock()  # one network at a time is traced, since a trace sets options of PyTorch


class LoweringError(RuntimeError):
    """An operation cannot be computed for all members at once; the message names it and its line of source code."""


def export(
    network: nn.Module, assigned: Collection[str], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> torch.export.ExportedProgram:
    """Trace a network on example inputs; a LoweringError says what cannot be traced, and where.

    In the program, the network is the module "network". `assigned` has the names of buffers to which forward assigns.
    """
    try:
        with _LOCK, _silenced(), _traceable():
            return torch.export.export(_Root(network, assigned), args, kwargs, strict=False)
    except LoweringError:
        raise
    except Exception as error:
        text = str(error).strip() or type(error).__name__
        reason = (
            "its control flow depends on the values of tensors" if "data-dependent" in text else text.splitlines()[0]
        )
        raise LoweringError(
            f"cannot trace {type(network).__name__}: {reason}; a population needs networks that perform the same "
            "operations for every input of one shape, without derivatives, .data and packed sequences, and return "
            f"tensors{_line_of(error)}"
        ) from error


class _Root(nn.Module):
    """Return what a network returns, and write into its buffers what it assigns to them."""

    def __init__(self, network: nn.Module, assigned: Collection[str]) -> None:
        super().__init__()
        self.network = network
        self.assigned = [name.rpartition(".") for name in assigned]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        places = [(self.network.get_submodule(path)._buffers, leaf) for path, _, leaf in self.assigned]
        registered: list[Any] = [buffers[leaf] for buffers, leaf in places]
        for (buffers, leaf), old in zip(places, registered, strict=True):
            buffers[leaf] = old.clone()  # whoever reads it keeps the value
        output = self.network(*args, **kwargs)
        for (buffers, leaf), old in zip(places, registered, strict=True):
            old.copy_(buffers[leaf])
            buffers[leaf] = old
        register_dataclasses(output)
        return output


def call_once(network: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """Call a network, which may raise exceptions of its own, and return the names of buffers to which it assigns."""
    before = {name: dict(module._buffers) for name, module in network.named_modules()}
    network(*args, **kwargs)
    assigned = []
    for path, module in network.named_modules():
        for leaf, new in module._buffers.items():
            old, name = before.get(path, {}).get(leaf), f"{path}.{leaf}".removeprefix(".")
            if new is not None and (old is None or old.shape != new.shape):
                raise LoweringError(
                    f"the forward of {type(network).__name__} registers {name!r}, of shape {tuple(new.shape)}, which "
                    "members do not have; call the networks once before they join"
                )
            if new is not old:
                assigned.append(name)
    return assigned


def register_dataclasses(tree: Any) -> None:
    """Register the dataclasses in nested arguments or results as containers, which PyTorch treats as leaves."""
    for leaf in pytree.tree_leaves(tree):
        if dataclasses.is_dataclass(leaf) and not isinstance(leaf, (type, AugmentedImages)):
            torch.export.register_dataclass(type(leaf))
            register_dataclasses(leaf)


@contextmanager
def _silenced() -> Iterator[None]:
    """Suppress the log messages, warnings and output of PyTorch's tracer."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextmanager
def _traceable() -> Iterator[None]:
    """Let PyTorch's own modules look at no values: transformers not at masks, distributions not at parameters.

    Attention with and without dropout returns one layout, on which `contiguous` depends, so that networks of both have
    one graph. The fast path of transformers is one operator for a whole layer, which members would take in turn.
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    distribution = torch.distributions.Distribution
    validates = distribution._validate_args
    torch.backends.mha.set_fastpath_enabled(False)
    distribution.set_default_validate_args(False)
    is_causal = mock.patch.object(
        nn.modules.transformer, "_detect_is_causal_mask", lambda mask, is_causal=None, size=None: bool(is_causal)
    )
    try:
        with sdpa_kernel(SDPBackend.MATH), is_causal:
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        distribution.set_default_validate_args(validates)


def _line_of(error: Exception) -> str:
    """Return the line of the user's code that raised an exception, if known."""
    internal = (os.path.dirname(torch.__file__), _HERE)
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename.startswith("<rewritten ")
        or not (frame.filename.startswith((*internal, "<")) or frame.filename == contextlib.__file__)
    ]
    return f" (at {frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line})" if frames else ""


def source_of(node: fx.Node) -> str:
    """Return the line of source code of a node, if known."""
    frames = list(_FRAME.finditer(node.meta.get("stack_trace") or ""))
    if not frames:
        return ""
    users = [f for f in frames if not f["file"].startswith(_OWN) or f["file"].startswith(os.path.join(_OWN, "lab"))]
    last = (users or frames)[-1]
    return f"{last['file']}:{last['line']}: {last['code'].strip()}"


def at_source(node: fx.Node) -> str:
    """Return ' at ' and the line of source code of a node, for an error message; nothing if it is not known."""
    source = source_of(node)
    return f" at {source}" if source else ""
