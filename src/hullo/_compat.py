"""Access to private state of PyTorch, in one place.

The context of a call of `combine` decides which implementation runs:

======================================================  ==============================================================
context                                                 implementation
======================================================  ==============================================================
none                                                    the kernel of the device, inside an autograd Function
torch.compile                                           plain operations, or a custom operator around a Triton kernel
torch.export, torch.jit.trace, torch.func, make_fx,     plain operations
forward-mode differentiation, dispatch modes
a tensor subclass with a dispatch of its own (DTensor)  the reference kernel, inside an autograd Function
======================================================  ==============================================================
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

_PRE_DISPATCH = torch._C.DispatchKey.PreDispatch
_count_modes = torch._C._len_torch_dispatch_stack
_is_key_included = torch._C._dispatch_tls_is_dispatch_key_included
ORDINARY = (Tensor, torch.nn.Parameter)

# Aliases instead of wrappers: torch.compile supports these functions, but not Python functions that call them.
are_transforms_active = torch._C._are_functorch_transforms_active
tracing_state = torch._C._get_tracing_state  # of torch.jit.trace, None without it
without_torch_function = torch._C.DisableTorchFunctionSubclass
copy_each = torch._foreach_copy_
add_to_each = torch._foreach_add_
backward_pass_id = torch._C._current_graph_task_id  # -1 outside of a backward pass
current_cuda_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", int)
current_cuda_stream: Callable[[int | None], int] = getattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 0)
empty_cuda: Callable[..., Tensor] = getattr(
    torch._C._dynamo.guards,
    "_empty_strided_cuda",
    lambda *args: torch.empty_strided(*args[:2], dtype=args[2], device="cuda"),
)  # given shape, strides and dtype, on the current device, in half the time of torch.empty_strided
has_onednn: bool = torch._C._has_mkldnn  # whether this build of PyTorch contains oneDNN


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory ran out; on a CPU only PyTorch's text says so."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "DefaultCPUAllocator: " in str(error)


@contextlib.contextmanager
def without_saved_tensor_hooks() -> Iterator[None]:
    """Save tensors for backward passes as they are, also where hooks are active, such as those of checkpointing."""
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is None:  # with hooks, there are no transforms
        yield
        return
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
        yield


def is_exporting() -> bool:
    """Return torch.compiler.is_exporting(), which in some versions is true for whatever is being compiled."""
    return torch.compiler._is_exporting_flag


def is_eager() -> bool:
    """Return whether no tracer, transform or dispatch mode is active.

    torch.compile cannot trace this function; check torch.compiler.is_compiling first.
    """
    return not (
        are_transforms_active()
        or _count_modes()
        or _is_key_included(_PRE_DISPATCH)
        or torch.autograd.forward_ad._current_level >= 0
        or tracing_state() is not None
    )


def is_plain(*tensors: Any) -> bool:
    """Return whether these are ordinary tensors in eager mode: no compiler, tracer, transform, mode or subclass."""
    if torch.compiler.is_compiling() or not is_eager():
        return False
    for tensor in tensors:  # noqa: SIM110  (a loop takes less time than all)
        if type(tensor) not in ORDINARY:
            return False
    return True


def is_batched(*gradients: Any) -> bool:
    """Return whether one of the gradients is a batch, by is_grads_batched or by torch.vmap of torch.autograd.grad."""
    functorch = torch._C._functorch
    return any(
        functorch.is_legacy_batchedtensor(item) or functorch.is_functorch_wrapped_tensor(item)
        for item in gradients
        if item is not None
    )


def wanted_gradients(node: Any, tensors: int) -> list[bool]:
    """Return which gradients of a Function's first inputs, all tensors, the backward pass under way asks for.

    `ctx.needs_input_grad` says which inputs require gradients; `torch.autograd.grad` asks for few of them.
    """
    sources = (source for source, _ in node.next_functions)
    return [
        needs and _is_wanted(source) for needs, source in zip(node.needs_input_grad[:tensors], sources, strict=False)
    ]


def _is_wanted(source: Any) -> bool:
    try:
        return bool(torch._C._will_engine_execute_node(source))
    except RuntimeError:  # for a leaf that torch.autograd.grad was asked for
        return True


def has_values(item: Any) -> bool:
    """Return whether a value is no tensor on the meta device, and no fake one."""
    return not (isinstance(item, Tensor) and (item.is_meta or hasattr(item, "fake_mode")))


def is_intercepted(*tensors: Tensor) -> bool:
    """Return whether a mode or subclass intercepts operations on these tensors, as a tracer does.

    Then their values must not be read: there may be none, and a graph would contain them as constants.
    """
    if _count_modes():
        return True
    return any(type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__ for tensor in tensors)


@contextlib.contextmanager
def quiet_vmap() -> Iterator[None]:
    """Switch off the warning that torch.vmap prints at every call of an operator for which it has no rule."""
    switch = torch._C._functorch._set_vmap_fallback_warning_enabled  # type: ignore[attr-defined]
    switch(False)
    try:
        yield
    finally:
        switch(True)


@contextlib.contextmanager
def real_tensors() -> Iterator[None]:
    """Create ordinary CPU tensors within the block, whatever modes are active.

    Use it for computations that need values, and for tensors that outlive the call.
    """
    with (
        _disable_current_modes(),
        torch.inference_mode(False),
        torch.device("cpu"),
        torch.autocast("cpu", enabled=False),
    ):
        yield


# Tensors that are sharded over processes (DTensor), handled without importing torch.distributed.


def is_sharded(tensor: Tensor) -> bool:
    """Return whether a tensor is a DTensor."""
    return hasattr(tensor, "full_tensor")


def gather(tensor: Tensor) -> Tensor:
    """Return the whole tensor. All processes of a DTensor have to call this."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def shard_like(values: Tensor, like: Tensor) -> Tensor:
    """Return values, which every process has, as a tensor that is sharded like `like`."""
    if not is_sharded(like):
        return values
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = like.device_mesh, like.placements  # type: ignore[attr-defined]
    return distribute_tensor(values.to(like.device, like.dtype), mesh, placements, src_data_rank=None)
