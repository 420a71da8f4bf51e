"""A tensor for coefficients that raises an error when it is changed in place, since only a copy would change."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor

from hullo._compat import are_transforms_active, disabled_torch_function, is_intercepted

_ALLOWED = {"requires_grad_", "detach_", "retain_grad_", "rename_", "share_memory_"}


class ReadOnly(Tensor):
    """A tensor that cannot be changed in place; operations on it return ordinary tensors."""

    __torch_function__ = disabled_torch_function  # type: ignore[assignment]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.as_subclass(Tensor).__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return repr(self.as_subclass(Tensor))


def _refuse(self: Tensor, *args: Any, **kwargs: Any) -> NoReturn:
    raise TypeError(
        "coefficients are computed from the raw parameters of a hull and cannot be changed in place; assign all of "
        "them, as in hull.coefficients = [0.5, 0.5], or change a copy, hull.coefficients.clone()"
    )


for _name in dir(Tensor):
    if _name == "__setitem__" or (_name.endswith("_") and not _name.startswith("_") and _name not in _ALLOWED):
        setattr(ReadOnly, _name, _refuse)
    elif hasattr(Tensor, f"__i{_name[2:]}"):
        setattr(ReadOnly, f"__i{_name[2:]}", getattr(Tensor, _name))  # c *= 2 makes a new tensor: c = c * 2


def read_only(tensor: Tensor) -> Tensor:
    """Return a copy that cannot be changed in place; the tensor itself where code is traced."""
    if torch.compiler.is_compiling() or are_transforms_active() or is_intercepted(tensor):
        return tensor
    return tensor.clone().as_subclass(ReadOnly)
