"""Compute gradients of weights beside the rest of a backward pass, on a second stream of a captured step.

Only the update reads a weight's gradient, so nothing else has to wait for it. A CUDA graph can run it beside the
kernels of the layers below, which are limited by memory while it is limited by latency. Steps that are not captured use
one stream: the host launches their kernels too late for any overlap.

Automatic differentiation knows of the second stream. `flatten` puts a node between a parameter and its convolution that
belongs to that stream, as the parameter's own node then does. Whatever else reads the gradient is made to wait for it,
and at the end of the backward pass the caller's stream waits for both.
"""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from hullo._compat import backward_pass_id

Compute = Callable[[], Tensor]


class Deferred:
    """Connect a convolution, which leaves its weights' gradient uncomputed, and the node that computes it."""

    def put(self, compute: Compute) -> None:
        """Leave a computation to the second stream. What it reads is complete on the current stream."""
        stream, ready = torch.cuda.current_stream(), torch.cuda.Event()
        work = _Pass.current()
        work.finish(1)
        ready.record()
        work.left[self] = _Work(compute, stream, ready)

    def run(self) -> Tensor | None:
        """Return the gradient, computed on the second stream; None where this backward pass left none."""
        work = _Pass.current()
        left = work.left.pop(self, None)
        if left is None:
            return None
        with torch.cuda.stream(_second_stream(left.stream.device)):
            _wait(torch.cuda.current_stream(), left.event)
            gradient = left.compute()
            done = torch.cuda.Event()
            done.record()
        work.running.append(left._replace(event=done))
        return gradient


def flatten(weight: Tensor) -> tuple[Tensor, Deferred | None]:
    """Return weights (K, outputs, ...) as (K * outputs, ...), and what can defer their gradient to the second stream.

    That is None in a step that is not captured, for what is no parameter, where the result would be a copy, and for
    parameters with hooks, which may change them or read what the other stream computes. The first use of a parameter
    decides to which stream its node belongs, so call this before any other.
    """
    is_view = weight.stride(0) == weight.shape[1] * weight.stride(1)
    is_hooked = weight._backward_hooks or weight._post_accumulate_grad_hooks
    is_parameter = weight.is_leaf and weight.requires_grad
    if not (is_parameter and is_view and not is_hooked and torch.is_grad_enabled() and _is_captured(weight)):
        return weight.flatten(0, 1), None
    deferred = Deferred()
    with torch.cuda.stream(_second_stream(weight.device)):
        flat: Tensor = _Flatten.apply(weight, deferred)
    return flat, deferred


def join(device: torch.device) -> None:
    """Have the current stream wait for the second one, if a capture has reached it; a capture must end on one stream.

    A backward pass does that itself unless it raises.
    """
    second = _second_stream(device)
    with torch.cuda.stream(second):
        is_reached = torch.cuda.is_current_stream_capturing()
    if is_reached:
        torch.cuda.current_stream(device).wait_stream(second)


def consume_join_flag() -> bool:
    """Return whether the next kernel may not start early, as it waits for more than the kernel before it."""
    global _joins
    joins, _joins = _joins, False
    return joins


class _Flatten(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, deferred: Deferred) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.deferred, ctx.shape = deferred, weight.shape
        return weight.view(-1, *weight.shape[2:])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, None]:
        gradient = ctx.deferred.run() if gradient is None else gradient
        return None if gradient is None else gradient.unflatten(0, ctx.shape[:2]), None


class _Work(NamedTuple):
    """Hold a computation, the stream that made what it reads, and the event after which the second stream may start.

    Once it runs, the event is its end. The first stream waits for that before the tensors are released;
    `Tensor.record_stream` would keep their memory until the end of the capture.
    """

    compute: Compute
    stream: torch.cuda.Stream
    event: torch.cuda.Event


class _Pass:
    """Hold what one backward pass has deferred. Only the pass keeps it alive: nothing is left after an error.

    A pass that ends is removed at once: on a GPU, a thread of automatic differentiation may hold it a little longer
    than `backward()` takes.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.left: dict[Deferred, _Work] = {}
        self.running: deque[_Work] = deque()

    @staticmethod
    def current() -> _Pass:
        number = backward_pass_id()
        found = _passes.get(number)
        if found is None:
            found = _passes[number] = _Pass(number)
            torch.autograd.Variable._execution_engine.queue_callback(found.end)
        return found

    def end(self) -> None:
        """Wait for all gradients, and forget what no gradient was asked for."""
        self.finish(0)
        self.left.clear()
        _passes.pop(self.number, None)

    def finish(self, rest: int) -> None:
        """Wait for all but the last few gradients, and release what they read."""
        while len(self.running) > rest:
            running = self.running.popleft()
            _wait(running.stream, running.event)


_passes: WeakValueDictionary[int, _Pass] = WeakValueDictionary()
_joins = False  # whether the next kernel depends on kernels of both streams


def _wait(stream: torch.cuda.Stream, event: torch.cuda.Event) -> None:
    global _joins
    stream.wait_event(event)
    _joins = True


def _is_captured(weight: Tensor) -> bool:
    return weight.is_cuda and torch.cuda.is_current_stream_capturing()


@functools.cache
def _second_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
