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
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from typing import Any
from unittest import mock

import torch
import torch.utils._pytree as pytree
from torch import Tensor, fx, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from hullo.population.images import AugmentedImages

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in [^\n]+\n\s*(?P<code>[^\n]+)')
_HERE = os.path.dirname(os.path.dirname(__file__))
_OWN = os.path.dirname(_HERE)
_LOCK = threading.Lock()  # one network at a time is traced, since a trace sets options of PyTorch


class LoweringError(RuntimeError):
    """Report which operation of a network cannot be computed for all members at once, and its line of source code."""


def export(network: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.export.ExportedProgram:
    """Trace a network on example inputs; a LoweringError says what cannot be traced, and where.

    In the program, the network is the module "network". It returns what the network returns, and a dictionary of the
    tensors that forward assigns to buffers.
    """
    try:
        with _LOCK, _silenced(), _traceable():
            return torch.export.export(_Root(network), args, kwargs, strict=False)
    except LoweringError:
        raise
    except Exception as error:
        raise LoweringError(f"{_explain(network, error)}{_line_of(error)}") from error


class _Root(nn.Module):
    """Return what a network returns, and what it assigns to its buffers, which torch.export would refuse."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        before = dict(self.network.named_buffers(remove_duplicate=False))
        output, assigned = self.network(*args, **kwargs), dict[str, Tensor]()
        for name, new in list(self.network.named_buffers(remove_duplicate=False)):
            if (old := before.get(name)) is None or old.shape != new.shape:
                raise LoweringError(
                    f"the forward of {type(self.network).__name__} registers {name!r}, of shape {tuple(new.shape)}, "
                    "which members do not have; call the networks once before they join"
                )
            if new is not old:
                path, _, leaf = name.rpartition(".")
                self.network.get_submodule(path)._buffers[leaf] = old
                assigned[name] = new
        register_dataclasses(output)
        return output, assigned


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


def _explain(network: nn.Module, error: Exception) -> str:
    """Return why a network cannot be traced."""
    text = str(error)
    reason = next(iter(text.strip().splitlines()), type(error).__name__)
    if "data-dependent" in text:
        reason = "its control flow depends on the values of tensors"
    elif "fake tensor in the exported program constant" in text:
        reason = "it reads .data of a tensor, or a tensor that an earlier call has stored; use .detach(), and no_grad()"
    return (
        f"cannot trace {type(network).__name__}: {reason}; a population needs networks that perform the same "
        "operations for every input of one shape, and return tensors, perhaps in containers"
    )


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
