"""Fuse products hull(gate) * up, as in SwiGLU blocks, into one kernel each."""

from __future__ import annotations

import ast
import copy
from collections import Counter
from typing import Any

from torch import nn

from hullo.gating import GatedHull
from hullo.modules import Hull
from hullo.surgery.sites import named_hulls
from hullo.surgery.source import functions_in, method_of, own_functions, parse
from hullo.surgery.write import NewMethod, origin_of, rewrite


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
    uses = Counter(id(module) for _, module in model.named_modules(remove_duplicate=False) if isinstance(module, Hull))
    fused = 0
    for owner in list(model.modules()):
        for name, child in list(owner._modules.items()):
            if isinstance(child, Hull) and uses[id(child)] == 1:
                fused += _fuse(owner, name, child)
    if not fused:
        raise ValueError(
            "no forward of the model contains a product with a hull that can be fused, such as self.act(gate) * up: "
            "call replace_activations first, without share, or use hullo.GatedHull in your code"
        )
    return model


def _fuse(owner: nn.Module, name: str, hull: Hull) -> bool:
    """Fuse the product with a hull in the forward of a module; return False if that is not the hull's only use."""
    function: Any = type(owner).forward
    if "forward" in vars(owner) or functions_in(function) != [function]:
        return False
    try:
        nodes = [node for method in own_functions(type(owner)) for node in ast.walk(parse(method))]
    except LookupError:
        return False
    mentions = [node for node in nodes if isinstance(node, ast.Attribute) and node.attr == name]
    editor = _Gate(f"{function.__code__.co_varnames[0]}.{name}")
    tree = editor.visit(copy.deepcopy(parse(function)))
    if sum(isinstance(node.ctx, ast.Load) for node in mentions) != 1 or editor.count != 1:
        return False
    home, method_name, _ = method_of(type(owner), function.__code__)  # type: ignore[misc]
    text = ast.unparse(ast.fix_missing_locations(tree))
    rewrite(owner, [NewMethod(origin_of(home), method_name, 0, text)])
    owner._modules[name] = GatedHull(hull).train(hull.training)
    return True


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
