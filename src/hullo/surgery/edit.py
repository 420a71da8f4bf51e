"""Put hulls into a model: as children in the place of activations, and by changing the expressions that call them."""

from __future__ import annotations

import ast
import copy
import types
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from hullo.modules import Hull
from hullo.surgery.observe import Call
from hullo.surgery.sites import Site, Slot, input_of
from hullo.surgery.source import Method, call_at, functions_in, parse
from hullo.surgery.write import NewMethod, origin_of, rewrite

_HOOKS = [name for name in vars(nn.Identity()) if name.startswith(("_forward_", "_backward_", "_is_full_backward"))]


def swap(model: nn.Module, sites: Sequence[Site], hulls: Mapping[str, Hull]) -> None:
    """Put hulls into a model. An error may leave it half changed: the caller restores it with `Snapshot`.

    A module that is called by several expressions becomes several children; those without a hull are the module itself.

     Args:
         model: the model.
         sites: all its sites.
         hulls: the hulls, by the names of their sites.
    """
    taken = {id(site.module) for site in sites if site.name in hulls and site.module is not None}
    affected = [site for site in sites if site.slots and (site.name in hulls or id(site.module) in taken)]
    for site in affected:
        if site.slots[0].key and site.name not in hulls and site.module is None:
            raise ValueError(f"where must select all sites of the loop of {site.name}, or none")
    for owner, methods in _new_methods(affected):
        rewrite(owner, methods)
    hooked: set[int] = set()
    for site in affected:
        hull = hulls.get(site.name)
        if hull is not None:
            _prepare(hull, site, first=id(site.module) not in hooked)
            hooked.add(id(site.module))
        for slot in site.slots:
            slot.put(hull or site.module)  # type: ignore[arg-type]  # a module of which other calls get hulls
    _disable_fast_paths(model)


def _disable_fast_paths(model: nn.Module) -> None:
    """Disable the fused path and the nested tensors of encoders with hulls."""
    for module in model.modules():
        if any(isinstance(part, Hull) for part in module.modules()):
            if isinstance(module, nn.TransformerEncoder):
                module.use_nested_tensor = False
            elif isinstance(module, nn.TransformerEncoderLayer):
                module.activation_relu_or_gelu = 0


def _new_methods(sites: Sequence[Site]) -> Iterator[tuple[nn.Module, list[NewMethod]]]:
    """Yield the modules whose code changes, with their rewritten methods."""
    changes: dict[nn.Module, dict[Method, list[tuple[Call, Slot]]]] = defaultdict(lambda: defaultdict(list))
    for site in sites:
        for call in site.edited:
            assert call.owner is not None and call.method is not None  # noqa: S101, PT018
            changes[call.owner][call.method].append((call, site.slots[0]))
    for owner, methods in changes.items():
        yield (
            owner,
            [
                NewMethod(origin_of(home), name, functions_in(vars(home)[name]).index(function), _edit(function, calls))
                for (home, name, function), calls in methods.items()
            ],
        )


def _edit(function: types.FunctionType, calls: Sequence[tuple[Call, Slot]]) -> str:
    """Return the text of a function in which calls go to the hulls at slots."""
    tree = copy.deepcopy(parse(function))
    innermost: dict[str, ast.FunctionDef] = {}  # in which turns are counted, by the name of the list that does
    nodes: list[Any] = [call_at(tree, call.position) for call, _ in calls]  # checked by the planner
    for node, (call, slot) in zip(nodes, calls, strict=True):
        callee = f"{function.__code__.co_varnames[0]}.{slot.name}"
        if slot.key:
            turns = f"turns_of_{slot.name}"
            callee += f".at({turns})"
            around = [part for part in ast.walk(tree) if isinstance(part, ast.FunctionDef) and node in ast.walk(part)]
            innermost[turns] = around[-1]
        x = input_of(node, call.argument)
        for statement in ast.walk(tree):
            if isinstance(statement, ast.Expr) and statement.value is node and isinstance(x, ast.Name):
                statement.value = ast.NamedExpr(ast.Name(x.id, ast.Store()), node)  # it overwrote its input
        node.args, node.keywords = [x], []
        node.func = ast.parse(callee, mode="eval").body
    for turns, part in innermost.items():
        part.body.insert(0, ast.parse(f"{turns} = []").body[0])
    return ast.unparse(tree)


def _prepare(hull: Hull, site: Site, first: bool) -> None:
    """Give a hull the mode and the hooks of the activation at its site."""
    places = list(dict.fromkeys(call.place for call in site.calls)) if site.place else []
    called = f" in {' and '.join(places)}" if places else ""
    vars(hull)["replaced"] = type(site.module).__name__ if site.module else site.function + called
    source = site.module or site.slots[0].parent
    hull.train(source.training)
    if site.module is not None:
        transfer_hooks(hull, site.module, copies=not first)


def transfer_hooks(new: nn.Module, old: nn.Module, copies: bool = False) -> None:
    """Give a module the hooks of another: the same dictionaries, whose handles remain valid, or copies."""
    for name in _HOOKS:
        hooks = getattr(old, name)
        setattr(new, name, copy.copy(hooks) if copies else hooks)
