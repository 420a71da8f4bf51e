"""hull(gate) * up: the gated blocks of language models, SwiGLU and GeGLU with a learned function.

The fused kernel makes one pass over memory each way. Only the gate, up and the raw parameters are saved for the
backward pass, no more tensors than for a plain product.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from hullo._compat import is_batched, is_plain
from hullo.functional import apply, backward, check_tensors
from hullo.kernels import CombineSpec, choose, load
from hullo.modules import Hull


class GatedHull(nn.Module):
    r"""A gated unit with a learned activation: hull(gate) * up, as SwiGLU has with SiLU and GeGLU with GELU.

    For ordinary tensors of the same shape and dtype, the forward pass is one kernel, and so is the backward pass.
    Otherwise it is a hull and a product.

    Args:
        hull: the function of the gate.

    Example:
        >>> import torch, hullo
        >>> act = hullo.GatedHull(hullo.AffineHull("identity", "relu", "tanh", init="relu"))
        >>> act(torch.tensor([1.0, 2.0]), torch.tensor([5.0, 3.0])).tolist()
        [5.0, 6.0]
    """

    def __init__(self, hull: Hull) -> None:
        super().__init__()
        if not isinstance(hull, Hull):
            raise TypeError(f"hull is a {type(hull).__name__}; give GatedHull a hull such as hullo.AffineHull(...)")
        self.hull = hull

    def forward(self, gate: Tensor, up: Tensor) -> Tensor:
        hull = self.hull
        y: Tensor
        if is_plain(gate, up) and _are_alike(gate, up) and _is_alone(hull) and is_plain(raw := hull.kernel_input()):
            check_tensors(gate, raw, hull.spec)
            y = _apply_directly(gate, up, raw, hull.spec, choose(gate, hull.spec, None))  # type: ignore[no-untyped-call]
        else:
            y = hull(gate) * up
        return y


def _is_alone(hull: Hull) -> bool:
    """Return whether a call of the hull is a call of its kernel: no hooks, no scales, and no forward of a subclass."""
    hooks = hull._forward_hooks or hull._forward_pre_hooks or hull._backward_hooks or hull._backward_pre_hooks
    return not hooks and hull.inner_scale is None and type(hull).forward is Hull.forward


def _are_alike(gate: Tensor, up: Tensor) -> bool:
    """Return whether both are dense tensors of one shape, type and device; a nested gate is refused later."""
    are_dense = all(item.layout is torch.strided and not item.is_nested for item in (gate, up))
    return are_dense and gate.shape == up.shape and gate.dtype == up.dtype and gate.device == up.device


def named_callers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the name of every hull, and the module to hook for its input: the hull, or the GatedHull around it."""
    gated = {id(module.hull): module for module in model.modules() if isinstance(module, GatedHull)}
    for name, module in model.named_modules():
        if isinstance(module, Hull):
            yield name, gated.get(id(module), module)


class _Gated(torch.autograd.Function):
    """Multiply with a gate; save only the gate, up and raw parameters, and recompute the bases in the backward pass."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, raw: Tensor, spec: CombineSpec, kernel: str) -> Tensor:
        ctx.spec, ctx.kernel = spec, kernel
        ctx.save_for_backward(gate, up, raw)
        if kernel == "triton":
            from hullo.kernels import triton

            return triton.gated_forward(gate, up, raw, spec)
        return load(kernel).forward(gate, raw, spec).mul_(up)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        gate, up, raw = ctx.saved_tensors
        if ctx.kernel == "triton" and not torch.is_grad_enabled() and not is_batched(gradient):
            from hullo.kernels import triton

            return *triton.gated_backward(gradient, gate, up, raw, ctx.spec), None, None
        dup = gradient * apply(gate, raw, ctx.spec, backend=ctx.kernel)
        dgate, draw = backward(gradient * up, gate, raw, ctx.spec, ctx.kernel)
        return dgate, dup, draw, None, None


# Function.apply without its Python part, which serves transforms of torch.func
_apply_directly = super(torch.autograd.Function, _Gated).apply
