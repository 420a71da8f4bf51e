"""Compute the edits to the code of a model that redirect calls to hulls."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import nn

from hullo.surgery.rewrite.findings import Body, Call
from hullo.surgery.rewrite.source import Position, position
from hullo.surgery.rewrite.write import Edits, NewMethod, rewritten
from hullo.surgery.sites import Names, Site
from hullo.surgery.state import customizes_copying


def changed_classes(sites: Iterable[Site], all_sites: Iterable[Site]) -> list[tuple[nn.Module, type[nn.Module]]]:
    """Return the modules that need another class, which redirects calls to hulls, each with that class.

    Args:
        sites: the sites that get hulls.
        all_sites: all sites of the model.

    Raises:
        ValueError: only some of the hulls of a loop are among the sites.
    """
    counts = Counter(call.at for site in all_sites for call in site.calls)
    nodes: dict[tuple[int, Position], list[tuple[Site, Call]]] = defaultdict(list)
    owners: dict[int, tuple[nn.Module, dict[str, NewMethod]]] = {}
    for site in sites:
        slot: Any = site.slot
        if slot.name in vars(slot.parent) or customizes_copying(slot.parent):
            owners[id(slot.parent)] = (slot.parent, {})
        for call in site.calls:
            nodes[call.at].append((site, call))
    edits: dict[Body, Edits] = defaultdict(Edits)
    for at, pairs in nodes.items():
        if len(pairs) < counts[at]:
            raise ValueError(f"{pairs[0][0].name} is one of several hulls of a loop; choose all of them, or none")
        _change_call(edits[pairs[0][1].body], pairs)
    for owner, methods in _Writer({body: change for body, change in edits.items() if change.callees}).methods():
        owners[id(owner)] = (owner, methods)
    return [(owner, rewritten(owner, methods)) for owner, methods in owners.values()]


def _change_call(change: Edits, pairs: Sequence[tuple[Site, Call]]) -> None:
    """Make one call expression call the hulls of its sites, one per iteration if there are several."""
    call = pairs[0][1]
    callees = {other.key: _callee(site, other) for site, other in pairs}
    if set(callees.values()) == {ast.unparse(call.callee_node)} and call.plain:
        return
    if len(set(callees.values())) > 1:
        counters = [(target, f"iteration_{target[0]}_{target[1]}") for target, _ in call.iterations]
        change.counters |= dict(counters)
        index = f'f"{"_".join(f"{{{name}}}" for _, name in counters)}"'
        stems = {_callee(site, other, without_key=True) for site, other in pairs}
        by_key = all(site.slot is not None and site.slot.key == other.key for site, other in pairs)
        table = ", ".join(f"{key!r}: {text}" for key, text in callees.items())
        callee = f"{stems.pop()}[{index}]" if len(stems) == 1 and by_key else f"{{{table}}}[{index}]"
    else:
        (callee,) = set(callees.values())
    change.callees[position(call.callee_node)] = callee
    if call.input_node is not None:
        change.inputs[position(call.node)] = position(call.input_node)


def _callee(site: Site, call: Call, without_key: bool = False) -> str:
    """Return the expression for the hull of a site."""
    slot: Any = site.slot
    named = ast.unparse(call.callee_node) if slot.reused else f"{call.body.self_name}.{slot.name}"
    return f"{named}[{slot.key!r}]" if slot.key and not without_key else named


class _Writer:
    """Write the text of changed methods.

    A method that forward calls in several places may need a different text for each. The first one keeps its name.
    Others, and those called with super(), get a new name, unless their text equals that of an earlier one; their caller
    is changed to use it.
    """

    def __init__(self, edits: Mapping[Body, Edits]) -> None:
        self._edits = edits
        self._texts: dict[Body, str | None] = {}
        self._names: dict[Body, str | None] = {}
        self._free: dict[int, Names] = {}

    def methods(self) -> list[tuple[nn.Module, dict[str, NewMethod]]]:
        """Return the changed methods of each module."""
        for root in self._roots():
            self._name(root)
        changed: dict[int, tuple[nn.Module, dict[str, NewMethod]]] = {}
        for body, name in self._names.items():
            if name is not None and (name != body.name or self._text(body) is not None):
                text = self._changes(body).applied_to(body.function, name)
                _, methods = changed.setdefault(id(body.owner), (body.owner, {}))
                methods[name] = NewMethod(name, body.cls, body.origin, text)
        return list(changed.values())

    def _roots(self) -> list[Body]:
        """Return the entry points whose code leads to a changed method, or to another call of it."""
        roots: dict[Body, None] = {}
        pending = list(self._edits)
        while pending:
            body = pending.pop()
            root = next(item for item in body.chain() if item.caller is None)
            if root not in roots:
                roots[root] = None
                pending += [sibling for part in root.tree() for sibling in part.siblings]
        return list(roots)

    def _changes(self, body: Body) -> Edits:
        """Return the edits to a body, including the new names of the methods that it calls."""
        own = self._edits.get(body, Edits())
        change = Edits(dict(own.callees), own.inputs, own.counters)
        for callee in body.callees:
            name = self._name(callee)
            if name is not None and callee.caller is not None and (name != callee.name or callee.by_super):
                change.callees[callee.caller[1]] = f"{body.self_name}.{name}"
        return change

    def _text(self, body: Body) -> str | None:
        """Return the text of a changed body; None if it does not change."""
        if body not in self._texts:
            change = self._changes(body)
            self._texts[body] = change.applied_to(body.function, body.name) if change.callees else None
        return self._texts[body]

    def _name(self, body: Body) -> str | None:
        """Return the name of the method for a body; None for one that is called with super() and does not change."""
        if body not in self._names:
            text = self._text(body)
            before = body.siblings[: body.siblings.index(body)]
            before = [item for item in before if item.name == body.name and self._name(item) is not None]
            same_text = [self._name(item) for item in before if self._text(item) == text]
            first = not before and not body.by_super
            is_unchanged = text is None and not any(
                self._name(item) == body.name and self._text(item) for item in before
            )
            if first or (is_unchanged and not body.by_super):
                self._names[body] = body.name
            elif is_unchanged:
                self._names[body] = None
            elif same_text:
                self._names[body] = same_text[0]
            else:
                names = self._free.setdefault(id(body.owner), Names(body.owner))
                self._names[body] = names.take(body.name, 2)
        return self._names[body]
