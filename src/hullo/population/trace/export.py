"""Trace a network by torch.export, and raise an error for what its graph would silently omit."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import logging
import os
import re
import threading
import traceback
import types
import warnings
from collections import OrderedDict, defaultdict, deque
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, fx, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from hullo._compat import buffer_hooks, is_fake
from hullo.population.images import AugmentedImages
from hullo.population.trace.functions import functions_of, reached_from
from hullo.population.trace.state import CONTAINERS, PLAIN, attributes, class_numbers, forwards, random_states
from hullo.population.trace.watched import plain, watched

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in [^\n]+\n\s*(?P<code>[^\n]+)')
_HERE = os.path.dirname(os.path.dirname(__file__))
_OWN = os.path.dirname(_HERE)
LOCK = threading.RLock()  # one network at a time is traced, or called while hooks on buffers are there
_MISSING = object()


class LoweringError(RuntimeError):
    """Report which operation of a network cannot be computed for all members at once, and its line of source code."""


def export(
    network: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], assigned: Collection[str] = ()
) -> torch.export.ExportedProgram:
    """Trace a network on example inputs; a LoweringError says what cannot be traced, and where.

    `assigned` are the buffers to which forward assigns other tensors: the graph copies these at its end.
    """
    with LOCK:
        numbers = class_numbers(network)
        try:
            program, changed = _trace(network, args, kwargs, assigned)
            if changed:
                _check_next_call(network, args, kwargs, assigned, changed, program)
        finally:
            for (kind, name), value in numbers.items():
                if vars(kind).get(name) is not value:
                    setattr(kind, name, value)
    return program


def _check_next_call(
    network: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    assigned: Collection[str],
    changed: dict[tuple[Any, str], Any],
    program: torch.export.ExportedProgram,
) -> None:
    """Raise an error if attributes that a network has changed would change the result of its next call, or of a later
    one: numbers that change again and are compared, and containers that grow."""
    made: list[Tensor] = []
    lengths = {key: len(value) for key, value in changed.items() if isinstance(value, CONTAINERS)}
    read: dict[tuple[Any, str], list[str]] = {key: [] for key in changed}
    for (module, name), value in changed.items():
        if isinstance(value, Tensor):  # from the trace, without values
            value = torch.zeros(value.shape, dtype=value.dtype, device=value.device)
            made.append(value)
        setattr(module, name, watched(value, read[module, name]))
    try:
        program_again, changed_again = _trace(network, args, kwargs, assigned)
        again, constants = program_again.graph_module.code, {id(item) for item in program_again.constants.values()}
    except LoweringError:
        again, constants, changed_again = "", set(), {}
    finally:
        for module, name in changed:
            setattr(module, name, plain(getattr(module, name)))
    later = [
        name
        for (module, name), value in changed_again.items()
        if read.get((module, name))
        or (isinstance(value, CONTAINERS) and len(value) > lengths.get((module, name), len(value)))
    ]
    if again != program.graph_module.code or not constants.isdisjoint(map(id, made)):
        names = ", ".join(sorted({f"self.{name}" for _, name in changed}))
        raise LoweringError(
            f"the forward of {type(network).__name__} changes {names}, and its next call would compute something else; "
            "register a buffer and change that in place. If it is a cache, call the networks once before they join, or "
            "evaluate them one by one, as population[0].eval()"
        )
    if later:
        names = ", ".join(sorted({f"self.{name}" for name in later}))
        raise LoweringError(
            f"the forward of {type(network).__name__} changes {names} in every call, and a later call may depend on it;"
            " register a buffer and change that in place, or keep such a log outside of forward"
        )


def _trace(
    network: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], assigned: Collection[str]
) -> tuple[torch.export.ExportedProgram, dict[tuple[Any, str], Any]]:
    """Return the exported network, and the attributes that its forward has changed, with their new values."""
    before, changed = attributes(network), dict[tuple[Any, str], Any]()

    def record_changes(module: nn.Module, inputs: Any, output: Any) -> None:
        register_dataclasses(output)
        for key, now in attributes(network).items():
            earlier = before.get(key, _MISSING)
            if now is not earlier and not (isinstance(now, PLAIN) and type(now) is type(earlier) and now == earlier):
                changed[key] = getattr(*key)

    states = random_states(network)
    with _assignable(network, assigned):
        hook = network.register_forward_hook(record_changes)
        try:
            program = _call_export(network, args, kwargs)
        finally:
            hook.remove()
    if random_states(network) != states:
        raise LoweringError(
            f"the forward of {type(network).__name__} draws random numbers of Python or NumPy, which would be the same "
            "in every step; pass them as an input"
        )
    _check_kept(network)
    return program, changed


def _call_export(network: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.export.ExportedProgram:
    """Call torch.export; raise a LoweringError for any exception."""
    try:
        with _silenced(), _traceable():
            return torch.export.export(network, args, kwargs, strict=False)
    except LoweringError as error:
        raise LoweringError(f"{error}{_line_of(error)}") from None
    except Exception as error:
        raise LoweringError(f"{_explain(network, error)}{_line_of(error)}") from error


@contextmanager
def _assignable(network: nn.Module, names: Collection[str]) -> Iterator[None]:
    """Let forward assign tensors to buffers: it reads and assigns a copy, which is written back at the end of forward.

    So whatever read the buffer before the assignment keeps the old value. torch.export does this only for the buffers
    of the root module, by a hook that is called at each assignment; that hook is removed while forward runs.
    """
    places = [(network.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]) for name in names]
    buffers: list[Tensor] = []
    before, during = dict(buffer_hooks), dict[int, Any]()  # the hooks without and with that of torch.export

    def begin(module: nn.Module, inputs: Any) -> None:
        during.update(buffer_hooks)
        buffer_hooks.clear()
        buffers[:] = [owner.get_buffer(leaf) for owner, leaf in places]
        for (owner, leaf), buffer in zip(places, buffers, strict=True):
            owner._buffers[leaf] = buffer.clone()

    def end(module: nn.Module, inputs: Any, output: Any) -> None:
        buffer_hooks.update(during)  # torch.export removes its own
        for (owner, leaf), buffer in zip(places, buffers, strict=True):
            buffer.copy_(owner.get_buffer(leaf))
            owner._buffers[leaf] = buffer

    if not places:
        yield
        return
    hooks = [network.register_forward_pre_hook(begin, prepend=True), network.register_forward_hook(end)]
    try:
        yield
    finally:
        buffer_hooks.clear()
        buffer_hooks.update(before)
        for hook in hooks:
            hook.remove()


def _check_kept(network: nn.Module) -> None:
    """Raise an error if a value of the trace was kept outside of the network, as hooks do with features."""
    for function in (*functions_of(network), *forwards(network)):
        if any(_holds_traced(item, set()) for item in reached_from(function)):
            raise LoweringError(
                f"a value is kept outside of {type(network).__name__} by {getattr(function, '__qualname__', function)}"
                f"{_definition(function)}, where members have none; return it from forward, or let a module keep it in "
                "a buffer"
            )


def _holds_traced(item: Any, seen: set[int]) -> bool:
    """Return whether an object is, or contains, a tensor of a trace."""
    if isinstance(item, Tensor):
        return is_fake(item)
    if id(item) in seen or isinstance(item, (nn.Module, type, types.ModuleType)):
        return False
    seen.add(id(item))
    if type(item) in (dict, OrderedDict, defaultdict):
        return any(_holds_traced(value, seen) for value in item.values())
    if type(item) in (list, tuple, set, deque):
        return any(_holds_traced(value, seen) for value in item)
    held = getattr(item, "__dict__", {}).values()
    return any(_holds_traced(value, seen) for value in held if isinstance(value, (Tensor, list, dict, deque)))


def _definition(function: Any) -> str:
    """Return the file and line of a function, if known."""
    code = getattr(function, "__code__", None)
    return "" if code is None else f" ({code.co_filename}:{code.co_firstlineno})"


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
    """Raise an error for derivatives that a forward pass defines or computes, which a trace would silently omit.

    And let neither PyTorch's transformers look at the values of a mask, to find out whether it is causal, nor its
    distributions at those of their parameters. Attention with and without dropout returns one layout, on which
    `contiguous` depends, so that networks of both have one graph. Other threads keep what PyTorch does.
    """
    thread = threading.get_ident()

    def replace(owner: Any, name: str, replacement: Any) -> None:
        original = vars(owner)[name]
        function = original.__func__ if isinstance(original, classmethod) else original

        @functools.wraps(function)
        def choose(*args: Any, **kwargs: Any) -> Any:
            return (replacement if threading.get_ident() == thread else function)(*args, **kwargs)

        setattr(owner, name, classmethod(choose) if isinstance(original, classmethod) else choose)
        stack.callback(setattr, owner, name, original)

    def apply(function: Any, *args: Any, **kwargs: Any) -> Any:
        if function.__module__.startswith("torch._library"):  # part of an operator, which the graph contains
            return original_apply.__get__(None, function)(*args, **kwargs)
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

    def seed(*args: Any, **kwargs: Any) -> Any:
        raise LoweringError(
            "forward seeds the random numbers of PyTorch, and members have their own; draw fixed numbers once, for a "
            "buffer, or give them as an input"
        )

    def enter(context: torch.inference_mode) -> None:
        if context.mode:
            raise LoweringError("forward enters torch.inference_mode, which is not in its graph; use torch.no_grad")
        original_enter(context)

    def initialize(
        distribution: Any, batch_shape: Any = (), event_shape: Any = (), validate_args: bool | None = None
    ) -> None:
        original_init(distribution, torch.Size(batch_shape), torch.Size(event_shape), validate_args=False)

    original_apply, original_enter = vars(torch.autograd.Function)["apply"], torch.inference_mode.__enter__
    original_init = torch.distributions.Distribution.__init__
    with sdpa_kernel(SDPBackend.MATH), ExitStack() as stack:
        replace(torch.autograd.Function, "apply", apply)
        replace(torch.autograd, "_engine_run_backward", differentiate)
        replace(Tensor, "register_hook", hook)
        replace(torch.inference_mode, "__enter__", enter)
        for name in ("manual_seed", "seed"):
            replace(torch, name, seed)
            replace(torch.random, name, seed)
        replace(
            nn.modules.transformer, "_detect_is_causal_mask", lambda mask, is_causal=None, size=None: bool(is_causal)
        )
        replace(torch.distributions.Distribution, "__init__", initialize)
        # the fast path is one operator for a whole layer, which members would take in turn
        replace(torch.backends.mha, "get_fastpath_enabled", lambda: False)
        yield


def _explain(network: nn.Module, error: Exception) -> str:
    """Return why a network cannot be traced."""
    text = str(error)
    reason = text.strip().splitlines()[0] if text.strip() else type(error).__name__
    if "data-dependent" in text:
        reason = "its control flow depends on the values of tensors"
    elif "fake tensor in the exported program constant" in text:
        reason = "it reads .data of a tensor, or a tensor that an earlier call has stored; use .detach(), and no_grad()"
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
