"""Access to private state of PyTorch, in one place.

The context of a call of `combine` decides which implementation runs:

======================================================  ==============================================================
context                                                 implementation
======================================================  ==============================================================
nothing                                                 the kernel of the device, inside an autograd Function
torch.func transforms                                   the same, inside a Function with a rule for vmap
forward-mode differentiation, functionalize             plain operations
torch.compile                                           plain operations, or a custom operator around a Triton kernel
torch.export, torch.jit.trace                           plain operations
a dispatch mode (make_fx, FakeTensorMode, counters)     the reference kernel, inside an autograd Function
a tensor subclass with a dispatch of its own (DTensor)  the reference kernel, inside an autograd Function
======================================================  ==============================================================
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch._ops import _len_torch_dispatch_stack_pre_dispatch
from torch.utils._python_dispatch import _disable_current_modes

_PRE_DISPATCH = torch._C.DispatchKey.PreDispatch
_count_modes = torch._C._len_torch_dispatch_stack
_is_key_included = torch._C._dispatch_tls_is_dispatch_key_included
_forward_ad = torch.autograd.forward_ad

# Functions of PyTorch under names of our own: the compiler knows them, and would not know wrappers of them.
are_transforms_active = torch._C._are_functorch_transforms_active
tracing_state = torch._C._get_tracing_state  # of torch.jit.trace, None without it
is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor  # also by a transform that has ended
is_legacy_batched = torch._C._functorch.is_legacy_batchedtensor  # by is_grads_batched of torch.autograd.grad
keeps_graph = torch._C._autograd._get_current_graph_task_keep_graph  # of the backward pass under way
disabled_torch_function = torch._C._disabled_torch_function_impl
copy_each = torch._foreach_copy_
current_cuda_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", int)
current_cuda_stream: Callable[[int | None], int] = getattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 0)
is_left_aligned = torch._nested_tensor_from_mask_left_aligned


def is_exporting() -> bool:
    """Return torch.compiler.is_exporting(), which in some versions is true for whatever is being compiled."""
    return torch.compiler._is_exporting_flag


def is_forward_mode() -> bool:
    """Return whether a call is inside forward-mode differentiation."""
    return torch.autograd.forward_ad._current_level >= 0


def needs_plain_operations() -> bool:
    """Return whether autograd Functions cannot serve: in forward mode, functionalize, and make_fx before dispatch."""
    if is_forward_mode():
        return True
    if torch.compiler.is_compiling():  # a compiler takes Functions apart itself, and cannot read what follows
        return False
    if _len_torch_dispatch_stack_pre_dispatch():  # type: ignore[no-untyped-call]
        return True
    functionalize = torch._C._functorch.TransformType.Functionalize
    stack = torch._C._functorch.get_interpreter_stack()
    return stack is not None and any(level.key() == functionalize for level in stack)


def is_eager() -> bool:
    """Return whether operations run as they are written: no tracer, transform or mode is active. Compilers cannot read
    this function; ask torch.compiler.is_compiling first."""
    return not (
        are_transforms_active()
        or _count_modes()
        or _is_key_included(_PRE_DISPATCH)
        or _forward_ad._current_level >= 0
        or tracing_state() is not None
    )


def is_intercepted(*tensors: Tensor) -> bool:
    """Return whether somebody watches or replaces operations on these tensors, such as a tracer.

    Then their numbers must not be read: there may be none, and a graph would hold them as constants.
    """
    if _count_modes():
        return True
    return any(type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__ for tensor in tensors)


def storage_uses(tensor: Tensor) -> int:
    """Return how many tensors and handles share the memory of a tensor, this call's handle included."""
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)


@contextlib.contextmanager
def real_tensors() -> Iterator[None]:
    """Make ordinary CPU tensors with numbers, whatever modes surround the call.

    For numerical questions, which need numbers, and for whatever outlives the call.
    """
    with (
        _disable_current_modes(),
        torch.inference_mode(False),
        torch.device("cpu"),
        torch.autocast("cpu", enabled=False),
    ):
        yield
