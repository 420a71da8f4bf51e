"""Fuse products hull(gate) * up, as in SwiGLU blocks, into one kernel each."""

from __future__ import annotations

import ast
import copy
import types
from collections import Counter
from collections.abc import Iterator

from torch import nn

from hullo.gating import GatedHull
from hullo.modules import Hull
from hullo.surgery.in_place import InPlace
from hullo.surgery.sites import named_hulls, put
from hullo.surgery.source import functions_in, method_of, own_functions, parse
from hullo.surgery.write import NewMethod, origin_of, rewritten


def fuse_gates(model: nn.Module) -> nn.Module:
    """Turn products with a hull, as in SwiGLU and GeGLU blocks, into :class:`hullo.GatedHull`.

    Call it after :func:`hullo.replace_activations`. In a forward that calls a hull once, as a factor of a product such
    as ``self.act_fn(self.gate_proj(x)) * self.up_proj(x)``, the product becomes
    ``self.act_fn(self.gate_proj(x), self.up_proj(x))``. The factor may be a variable that is used only there, as in
    T5's ``gelu = self.act(self.wi_0(x))``. The rest of the code does not change. A hull at ``mlp.act_fn``
    moves to ``mlp.act_fn.hull``. To load a checkpoint of such a model into a new one, call :func:`hullo.restore`, this
    function, then ``load_state_dict``.

    Args:
        model: changed in place.

    Returns:
        The model.

    Raises:
        ValueError: there is no such product.

    Example:
        >>> import torch, hullo
        >>> from transformers import LlamaConfig, LlamaModel
        >>> sizes = {"hidden_size": 8, "intermediate_size": 16, "num_attention_heads": 2, "vocab_size": 9}
        >>> model = LlamaModel(LlamaConfig(num_hidden_layers=1, num_key_value_heads=2, **sizes))
        >>> hullo.fuse_gates(hullo.replace_activations(model)).layers[0].mlp.act_fn
        GatedHull(
          (hull): AffineHull(identity=0, tanh=0, silu=1)
        )
    """
    named_hulls("fuse_gates", model)
    uses_of = Counter(
        id(module) for _, module in model.named_modules(remove_duplicate=False) if isinstance(module, Hull)
    )
    products = [
        (owner, name, text)
        for owner in model.modules()
        for name, child in owner._modules.items()
        if isinstance(child, Hull) and not isinstance(child, InPlace) and uses_of[id(child)] == 1
        for text in _with_gate(owner, name)
    ]
    if not products:
        raise ValueError(
            "no forward of the model contains a product with a hull that can be fused, such as self.act(gate) * up; "
            + _why_none(model, uses_of)
        )
    for owner, name, text in products:
        home, method_name, function = method_of(type(owner), type(owner).forward.__code__)  # type: ignore[misc]
        index = functions_in(vars(home)[method_name]).index(function)
        owner.__class__ = rewritten(owner, [NewMethod(origin_of(home), method_name, ((index, text),))])
        hull = owner._modules[name]
        put(owner, name, GatedHull(hull).train(hull.training))  # type: ignore[arg-type, union-attr]
    return model


def _why_none(model: nn.Module, uses_of: Counter[int]) -> str:
    """Return why a model has no product to fuse, and what to do."""
    if fused := sum(isinstance(module, GatedHull) for module in model.modules()):
        return f"{fused} are fused already"
    shared = next((name for name, hull in named_hulls("", model).items() if uses_of[id(hull)] > 1), None)
    if shared is not None:
        return f"the hull {shared} is shared by several sites, and only a hull at one site is fused: swap without share"
    return "call replace_activations first, or use hullo.GatedHull in your code"


def _with_gate(owner: nn.Module, name: str) -> Iterator[str]:
    """Yield the text of a module's forward with a fused product, if it has exactly one with the hull of this name."""
    function = type(owner).forward
    is_plain = isinstance(function, types.FunctionType) and functions_in(function) == [function]
    if "forward" in vars(owner) or not is_plain:
        return
    try:
        tree = copy.deepcopy(parse(function))
    except LookupError:
        return
    others = {other.__code__.co_name: other for other in reversed(own_functions(type(owner))) if other is not function}
    if any(name in other.__code__.co_names for key, other in others.items() if key not in ("forward", "__init__")):
        return
    owner_name = tree.args.args[0].arg if tree.args.args else ""
    uses = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr == name]
    editor = _Gate(name, owner_name)
    editor.move_into_product(tree.body)
    tree = editor.visit(tree)
    if len(uses) == 1 and editor.count == 1:
        yield ast.unparse(ast.fix_missing_locations(tree))


class _Gate(ast.NodeTransformer):
    """Rewrite ``self.act(a) * b`` as ``self.act(a, b)``, and ``b * self.act(a)`` likewise if b is a name."""

    def __init__(self, name: str, owner: str) -> None:
        self._owner, self._callee, self.count = owner, f"{owner}.{name}", 0

    def move_into_product(self, body: list[ast.stmt]) -> None:
        """Rewrite ``v = self.act(a)`` as ``v = a``, and the product ``v * b`` as ``self.act(v) * b``.

        Only if v is used nowhere else, and nothing in between can change a.
        """
        for i, made in enumerate(body):
            if not (
                isinstance(made, ast.Assign) and self._is_call(made.value) and isinstance(made.targets[0], ast.Name)
            ):
                continue
            call, variable = made.value, made.targets[0].id
            assert isinstance(call, ast.Call)  # noqa: S101
            end = next((j for j in range(i + 1, len(body)) if variable in variables_in(body[j])), i)
            product = _only_product(body[end], variable)
            is_used_later = any(variable in variables_in(item) for item in body[end + 1 :])
            if len(made.targets) > 1 or product is None or (is_used_later and variable not in _assigned(body[end])):
                continue
            argument = call.args[0]
            is_new = isinstance(argument, ast.Call) and ast.unparse(argument.func).startswith(f"{self._owner}.")
            held = set() if is_new else variables_in(argument) - {variable}
            if all(isinstance(item, _SIMPLE) and held.isdisjoint(variables_in(item)) for item in body[i + 1 : end + 1]):
                other = product.right if _is_name(product.left, variable) else product.left
                product.left, product.right = ast.Call(call.func, [ast.Name(variable, ast.Load())], []), other
                made.value = argument
                return

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.op, ast.Mult):
            for call, other in ((node.left, node.right), (node.right, node.left)):
                if self._is_call(call) and (call is node.left or isinstance(other, ast.Name)):
                    assert isinstance(call, ast.Call)  # noqa: S101
                    self.count += 1
                    return ast.Call(call.func, [call.args[0], other], [])
        return node

    def _is_call(self, node: ast.expr) -> bool:
        is_plain = isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords
        return is_plain and not isinstance(node.args[0], ast.Starred) and ast.unparse(node.func) == self._callee  # type: ignore[attr-defined]


def variables_in(tree: ast.AST) -> set[str]:
    """Return the names of variables in a tree."""
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


_SIMPLE = (ast.Assign, ast.Return, ast.Expr)
_INNER = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)


def _assigned(statement: ast.stmt) -> set[str]:
    """Return the variables that an assignment sets."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _only_product(statement: ast.stmt, name: str) -> ast.BinOp | None:
    """Return the product in a simple statement that has a variable as a factor, if it is the only use of it."""
    nodes = list(ast.walk(statement))
    products = [node for node in nodes if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)]
    found = [node for node in products if _is_name(node.left, name) or _is_name(node.right, name)]
    is_simple = isinstance(statement, _SIMPLE) and not any(isinstance(node, _INNER) for node in nodes)
    uses = sum(_is_name(node, name) for node in nodes)
    return found[0] if is_simple and found and uses == 1 else None
