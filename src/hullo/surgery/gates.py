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
from hullo.surgery.sites import named_hulls
from hullo.surgery.source import functions_in, method_of, own_functions, parse
from hullo.surgery.write import NewMethod, origin_of, rewritten


def fuse_gates(model: nn.Module) -> nn.Module:
    """Turn products with a hull, as in SwiGLU and GeGLU blocks, into :class:`hullo.GatedHull`.

    Call it after :func:`hullo.replace_activations`. In a forward that calls a hull once, as a factor of a product such
    as ``self.act_fn(self.gate_proj(x)) * self.up_proj(x)``, the product becomes
    ``self.act_fn(self.gate_proj(x), self.up_proj(x))``. The rest of the code does not change. A hull at
    ``mlp.act_fn`` moves to ``mlp.act_fn.hull``. To load a checkpoint of such a model into a new one, call
    :func:`hullo.restore`, this function, then ``load_state_dict``.

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
        if isinstance(child, Hull) and uses_of[id(child)] == 1
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
        owner._modules[name] = GatedHull(hull).train(hull.training)  # type: ignore[arg-type, union-attr]
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
    editor = _Gate(f"{owner_name}.{name}")
    tree = editor.visit(tree)
    if len(uses) == 1 and editor.count == 1:
        yield ast.unparse(ast.fix_missing_locations(tree))


class _Gate(ast.NodeTransformer):
    """Rewrite ``self.act(a) * b`` as ``self.act(a, b)``, and ``b * self.act(a)`` likewise if b is a name."""

    def __init__(self, callee: str) -> None:
        self._callee, self.count = callee, 0

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
