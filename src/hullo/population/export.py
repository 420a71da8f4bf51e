"""Trace a network by torch.export, and raise an error for what its graph would silently omit."""

from __future__ import annotations

import dataclasses
import io
import logging
import os
import random
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from hullo.population.images import AugmentedImages
from hullo.population.sites import BOOKKEEPING

_MISSING = object()
_PLAIN = (bool, int, float, complex, str, bytes)


class LoweringError(RuntimeError):
    """Report which operation of a network cannot be computed for all members at once, and its line of source code."""


def export(network: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.export.ExportedProgram:
    """Trace a network on example inputs; a LoweringError says what cannot be traced, and where."""
    program, changed = _trace(network, args, kwargs)
    if changed:
        _check_next_call(network, args, kwargs, changed, program)
    return program


def _check_next_call(
    network: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    changed: dict[tuple[nn.Module, str], Any],
    program: torch.export.ExportedProgram,
) -> None:
    """Raise an error if attributes that a network has changed would change the result of its next call."""
    for (module, name), value in changed.items():
        tensor = isinstance(value, Tensor)  # from the trace, without values
        setattr(module, name, torch.zeros(value.shape, dtype=value.dtype, device=value.device) if tensor else value)
    try:
        again = _trace(network, args, kwargs)[0].graph_module.code
    except LoweringError:
        again = ""
    if again != program.graph_module.code:
        names = ", ".join(sorted({f"self.{name}" for _, name in changed}))
        raise LoweringError(
            f"the forward of {type(network).__name__} changes {names}, and its next call would compute something else; "
            "register a buffer and change that in place"
        )


def _trace(
    network: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[torch.export.ExportedProgram, dict[tuple[nn.Module, str], Any]]:
    """Return the exported network, and the attributes that its forward has changed, with their new values."""
    before, changed = _attributes(network), dict[tuple[nn.Module, str], Any]()

    def record_changes(module: nn.Module, inputs: Any, output: Any) -> None:
        register_dataclasses(output)
        for key, now in _attributes(network).items():
            earlier = before.get(key, _MISSING)
            if now is not earlier and not (isinstance(now, _PLAIN) and type(now) is type(earlier) and now == earlier):
                changed[key] = getattr(*key)

    hook = network.register_forward_hook(record_changes)
    states = _random_states()
    try:
        with _silenced(), _traceable():
            program = torch.export.export(network, args, kwargs, strict=False)
    except LoweringError as error:
        raise LoweringError(f"{error}{_line_of(error)}") from None
    except Exception as error:
        raise LoweringError(f"{_explain(network, error)}{_line_of(error)}") from error
    finally:
        hook.remove()
    if _random_states() != states:
        raise LoweringError(
            f"the forward of {type(network).__name__} draws random numbers of Python or NumPy, which would be the same "
            "in every step; pass them as an input"
        )
    return program, changed


def register_dataclasses(tree: Any) -> None:
    """Register the dataclasses in nested arguments or results as containers, which PyTorch treats as leaves."""
    for leaf in pytree.tree_leaves(tree):
        if dataclasses.is_dataclass(leaf) and not isinstance(leaf, (type, AugmentedImages)):
            torch.export.register_dataclass(type(leaf))
            register_dataclasses(leaf)


def _attributes(network: nn.Module) -> dict[tuple[nn.Module, str], Any]:
    """Return the unregistered attributes of all modules; of lists and dictionaries, their lengths."""
    return {
        (module, name): len(value) if isinstance(value, (list, dict, set)) else value
        for module in network.modules()
        for name, value in vars(module).items()
        if name not in BOOKKEEPING
    }


def _random_states() -> list[Any]:
    numpy = sys.modules.get("numpy")
    return [random.getstate(), None if numpy is None else str(numpy.random.get_state(legacy=False))]


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
    """Raise an error for derivatives that a forward pass defines or computes, which a trace would silently omit.

    And do not let PyTorch's transformers look at the values of a mask to find out whether it is causal. Attention with
    and without dropout returns one layout, on which `contiguous` depends, so that networks of both have one graph.
    """

    def apply(function: Any, *args: Any, **kwargs: Any) -> Any:
        if function.__module__.startswith("torch._library"):  # part of an operator, which the graph contains
            return original.__get__(None, function)(*args, **kwargs)
        raise LoweringError(
            f"forward calls {function.__name__}, a torch.autograd.Function, whose derivative is not in its graph; write"
            " it in terms of detach(), and checkpoint with use_reentrant=False"
        )

    def differentiate(*args: Any, **kwargs: Any) -> Any:
        raise LoweringError(
            "forward differentiates, which is not in its graph; take derivatives of population(x) outside of the "
            "networks, by torch.autograd.grad with create_graph=True"
        )

    def hook(*args: Any, **kwargs: Any) -> Any:
        raise LoweringError("forward registers a hook, which is not in its graph; write what it does as operations")

    original = vars(torch.autograd.Function)["apply"]
    with sdpa_kernel(SDPBackend.MATH), ExitStack() as stack:
        for owner, name, replacement in (
            (torch.autograd.Function, "apply", classmethod(apply)),
            (torch.autograd, "_engine_run_backward", differentiate),
            (Tensor, "register_hook", hook),
            (nn.modules.transformer, "_detect_is_causal_mask", lambda mask, is_causal=None, size=None: bool(is_causal)),
        ):
            stack.callback(setattr, owner, name, vars(owner)[name])
            setattr(owner, name, replacement)
        yield


def _explain(network: nn.Module, error: Exception) -> str:
    """Return why a network cannot be traced."""
    text = str(error)
    reason = text.strip().splitlines()[0] if text.strip() else type(error).__name__
    if "data-dependent" in text:
        reason = "its control flow depends on the values of tensors"
    elif "not a known type" in text:
        reason = f"{reason.partition(', which')[0]}; return tensors in a tuple, list, dictionary or dataclass"
    elif any(frame.filename.endswith("eager_transforms.py") for frame in traceback.extract_tb(error.__traceback__)):
        reason = "its forward calls torch.func; take derivatives of population(x) outside of the networks"
    return (
        f"cannot trace {type(network).__name__}: {reason}; a population needs networks that perform the same "
        "operations for every input of one shape"
    )


def _line_of(error: Exception) -> str:
    """Return the line of the user's code that raised an exception, if known."""
    internal = (os.path.dirname(torch.__file__), os.path.dirname(__file__))
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename.startswith("<rewritten ") or not frame.filename.startswith((*internal, "<"))
    ]
    return f" (at {frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line})" if frames else ""
