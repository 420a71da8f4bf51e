"""Read the code of a module from its entry points: forward, and other methods that may be called."""

from __future__ import annotations

import inspect
from collections.abc import Set
from typing import Any

import torch
from torch import nn

from hullo.surgery.rewrite.branches import Key
from hullo.surgery.rewrite.bytecode import code_of, mentions_activation
from hullo.surgery.rewrite.findings import Findings, Skipped
from hullo.surgery.rewrite.reader import Reader, body_of
from hullo.surgery.rewrite.source import method, methods, position
from hullo.surgery.rewrite.values import Assigned

ENTRY: Key = ("entry",)  # the decision which entry point is called


def read_forward(owner: nn.Module, assigned: Assigned) -> Findings:
    """Find the activations that a module's forward calls.

    Args:
        owner: the module.
        assigned: attributes that code of the model assigns.
    """
    findings, mro = Findings(), type(owner).__mro__
    try:
        if "forward" in vars(owner):
            raise LookupError("it is set on the module itself, not in its class")
        if isinstance(owner, torch.fx.GraphModule):
            raise LookupError("it is generated from a traced graph; replace before tracing")
        idle = ""
        for name in ("__call__", "_wrapped_call_impl", "_call_impl", "forward"):  # each may call the next by its name
            home, _, function = method(mro, name)
            if home is not nn.Module and inspect.unwrap(function) not in findings.seen:
                idle = "" if (id(owner), "forward") in findings.entered else idle
                body = body_of(owner, mro, name, assigned)
                Reader(findings, body, findings.seen, assigned, {ENTRY: id(owner)}, idle).read()
                idle = f"{name} does not call it"
    except LookupError as error:
        wrapper = vars(owner).get("forward", method(mro, "forward")[2])
        forward = inspect.unwrap(wrapper)
        findings = Findings(unread=f"the code of {type(owner).__qualname__}.forward cannot be changed: {error}")
        if code_of(forward) is None or any(_mentions_by_methods(owner, item) for item in (wrapper, forward)):
            where = f"{type(owner).__qualname__}.forward"
            findings.skipped.append(Skipped(where, "calls of functions", str(error)))
    return findings


def _mentions_by_methods(owner: nn.Module, thing: Any) -> bool:
    """Return whether code, or a method of the module that it names, names an activation."""
    function = code_of(thing)
    names = function.__code__.co_names if function is not None else ()
    methods_named = [inspect.getattr_static(type(owner), name, None) for name in names if name != "forward"]
    return any(mentions_activation(item) for item in (thing, *methods_named))


def _names_used(owner: nn.Module, function: Any) -> set[str]:
    """Return the names in the code of a method and of the methods that it names."""
    code = code_of(inspect.unwrap(function))
    names = set(code.__code__.co_names) if code is not None else set()
    helpers = [code_of(inspect.getattr_static(type(owner), name, None)) for name in names]
    return names.union(*(item.__code__.co_names for item in helpers if item is not None))


def read_other_methods(
    owner: nn.Module, findings: Findings, entered: Set[tuple[int, str]], names: Set[str], assigned: Assigned
) -> None:
    """Read the methods that forward does not call: they may call the same activations, and must still work.

    Args:
        owner: the module.
        findings: the findings in its forward, which are extended.
        entered: the methods that other modules call, as id of the module and name.
        names: the attribute names of activations in the model.
        assigned: attributes that code of the model assigns.
    """
    recorded = {(call.body.function, position(call.node)) for call in findings.calls}
    relevant = {call.body.name for call in findings.calls} | names
    for name, function in methods(type(owner)):
        if inspect.unwrap(function) in findings.seen or findings.unread:
            continue
        idle = "" if (id(owner), name) in entered else f"forward does not call {name}"
        if idle and relevant.isdisjoint(_names_used(owner, function)) and not _mentions_by_methods(owner, function):
            continue
        extra = Findings()
        try:
            body = body_of(owner, type(owner).__mro__, name, assigned)
            Reader(extra, body, findings.seen, assigned, {ENTRY: (id(owner), name)}, idle).read()
        except LookupError as error:
            plain = inspect.unwrap(function)
            findings.unreadable |= set(plain.__code__.co_names)
            if mentions_activation(plain):
                findings.skipped.append(Skipped(plain.__qualname__, "an activation", str(error)))
            continue
        findings.visits |= extra.visits
        findings.recursive |= extra.recursive
        findings.unreadable |= extra.unreadable
        if not idle:
            findings.skipped += extra.skipped
            findings.parts += extra.parts
            findings.tied += extra.tied
            findings.tested += extra.tested
            findings.walked += extra.walked
            findings.exact |= extra.exact
            findings.modes |= extra.modes
        for call in extra.calls:
            if not idle or call.attribute is not None or (call.body.function, position(call.node)) in recorded:
                findings.calls.append(call)
            elif call.reading is not None and call.reading.known:
                findings.skipped.append(Skipped(call.place, call.reading.known.name, idle))
