"""Find the local names of a function, and where they are bound."""

from __future__ import annotations

import ast
import functools
import types
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from hullo.surgery.rewrite.source import parse

_CHANGING = frozenset(
    name
    for kind in (list, dict, set)
    for name in vars(kind)
    if not hasattr(tuple, name) and not hasattr(frozenset, name)
) - {"keys", "values", "items", "get", "fromkeys"}

_KEEPING = frozenset(
    {"len", "zip", "enumerate", "reversed", "list", "tuple", "sum", "min", "max", "isinstance", "print"}
)
_DISPLAYS = (ast.List, ast.ListComp, ast.Dict, ast.DictComp, ast.Set, ast.SetComp)


@dataclass(frozen=True)
class LocalNames:
    """The local names of a function.

    Args:
        local: all of them.
        turns: those that loops bind.
        bindable: those that one place binds, or loops alone, to what no code changes afterwards.
        definitions: the expressions that assignments bind them to, for those that one place binds.
    """

    local: frozenset[str]
    turns: frozenset[str]
    bindable: frozenset[str]
    definitions: Mapping[str, ast.expr]


@functools.lru_cache(maxsize=1024)
def names_of(function: types.FunctionType) -> LocalNames:
    """Return the local names of a function.

    Raises:
        LookupError: its source code is unavailable.
    """
    tree = parse(function)
    loops = [node.target for node in ast.walk(tree) if isinstance(node, (ast.For, ast.comprehension))]
    turns = [name for target in loops for name in bindings(target)]
    every = bindings(tree)
    plain = Counter(every) - Counter(turns)
    changed = {thing.id for node in ast.walk(tree) if isinstance(thing := changed_by(node), ast.Name)}
    changed |= {name for node in ast.walk(tree) for name in _handed_on(node)} & _lists_in(tree)
    bindable = frozenset(name for name in every if plain[name] + (name in turns) == 1 and name not in changed)
    definitions = {
        node.targets[0].id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        if node.targets[0].id in bindable
    }
    return LocalNames(frozenset(every), frozenset(turns), bindable, definitions)


def changed_by(node: ast.AST) -> ast.expr | None:
    """Return the collection whose parts a piece of code changes, adds or takes away; None if it does none of it."""
    match node:
        case ast.Subscript(value=thing, ctx=ast.Store() | ast.Del()):
            return thing
        case ast.Call(func=ast.Attribute(value=thing, attr=name)) if name in _CHANGING:
            return thing
    return None


def _handed_on(node: ast.AST) -> list[str]:
    """Return the names that a call gives to something that may change what they stand for."""
    match node:
        case ast.Call(func=ast.Name(id=name)) if name in _KEEPING:
            return []
        case ast.Call(args=given, keywords=named):
            return [item.id for item in (*given, *(item.value for item in named)) if isinstance(item, ast.Name)]
    return []


def _lists_in(tree: ast.AST) -> set[str]:
    """Return the names that are bound to new lists, dicts or sets."""
    made = [node for node in ast.walk(tree) if isinstance(node, ast.Assign) and isinstance(node.value, _DISPLAYS)]
    return {target.id for node in made for target in node.targets if isinstance(target, ast.Name)}


def bindings(tree: ast.AST) -> list[str]:
    """Return the names that are given a value in a tree, once for each place."""
    found: list[str | None] = []
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name):
                found.append(name)
            case ast.alias(name=name, asname=other):
                found.append(other or name.partition(".")[0])
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.append(name if node is not tree else None)
            case ast.ExceptHandler(name=name) | ast.MatchAs(name=name) | ast.MatchStar(name=name):
                found.append(name)
            case ast.MatchMapping(rest=name):
                found.append(name)
    return [name for name in found if name is not None]
