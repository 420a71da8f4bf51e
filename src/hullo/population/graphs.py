"""Capture training steps as CUDA graphs."""

from __future__ import annotations

import functools
import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from hullo.population.check import check_first_call
from hullo.population.kernels import choice
from hullo.population.kernels.side_stream import join
from hullo.population.population import Population

WARM_UP = 3  # steps before a capture, in which libraries choose and set up their kernels
MAX_GRAPHS = 8  # of one step: more kinds of inputs than these are not captured


def capture(step: Callable[..., Any], *stateful: Any, check: bool = True, tune: bool = False) -> Callable[..., Any]:
    """Return a function that takes a training step by replaying a CUDA graph; without a GPU, the step itself.

    Args:
        step: a function of tensors, which may be nested, or of nothing. It does the forward pass, the backward pass and
            the update, reads no tensor on the host, and returns tensors or nothing.
        stateful: the objects that the step changes, the population and the optimizer: a call that captures takes a few
            steps to warm up, then restores their state.
        check: whether to call :meth:`Population.check` on the inputs of the first step.
        tune: whether to choose the kernels of convolutions by measurement on this GPU, which takes a minute or so.

    A graph is captured at the first call, and for inputs of other shapes and types, in training and in evaluation mode,
    at their first call; a smaller last batch has its own graph. After eight graphs a warning says that further kinds of
    inputs run without one. The result of a call is overwritten by the next. Gradients of inputs are those that the step
    returns: a graph reads copies of its inputs.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from hullo.population import SGD, Population, capture
        >>> population = Population(lambda: nn.Linear(4, 1), seeds=range(8))
        >>> optimizer = SGD(population, lr=0.1)
        >>> def step(x, y):
        ...     losses = (population(x) - y).square().flatten(1).mean(1)
        ...     optimizer.zero_grad()
        ...     losses.sum().backward()
        ...     optimizer.step()
        ...     return losses.detach()
        >>> step = capture(step, population, optimizer)
        >>> step(torch.rand(8, 16, 4), torch.rand(8, 16, 1)).shape
        torch.Size([8])
    """
    return _Captured(step, stateful, check, tune)


class _Graph(NamedTuple):
    """Hold a CUDA graph, the tensors that it reads and those that it writes."""

    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    returned: Any


class _Captured:
    def __init__(self, step: Callable[..., Any], stateful: tuple[Any, ...], check: bool, tune: bool) -> None:
        self.step, self.stateful, self.tune = step, stateful, tune
        self.unchecked = [item for item in stateful if check and isinstance(item, Population)]
        self.graphs: dict[Any, _Graph] = {}
        self.pool: Any = None  # of the memory of all graphs, of which one runs at a time
        self.generations: list[int] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        inputs = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        device = next((x.device for x in inputs if x.is_cuda), self._device)
        if not _has_graphs(device):
            with self._checking():
                return self.step(*args, **kwargs)
        self._forget_old()
        key = (tuple(map(_kind, leaves)), str(spec), *self._modes(device))
        found = self.graphs.get(key)
        if found is None:
            if len(self.graphs) == MAX_GRAPHS:
                warnings.warn(
                    f"a captured step has {MAX_GRAPHS} graphs, one per kind of inputs; for inputs of shapes "
                    f"{[tuple(x.shape) for x in inputs]} and others it runs without one. Pad inputs to a few shapes, "
                    "and pass numbers that change as tensors",
                    stacklevel=2,
                )
                return self.step(*args, **kwargs)
            found = self._capture(leaves, spec, device)
            self._forget_old()  # a trace may change that, too
            self.graphs[key] = found
        with torch.no_grad():
            for captured, new in zip(found.inputs, inputs, strict=True):
                captured.copy_(new)
        found.graph.replay()
        return found.returned

    def _forget_old(self) -> None:
        """Forget graphs that read what is no longer there, such as members that were dropped."""
        generations = [getattr(item, "generation", 0) for item in self.stateful]
        if generations != self.generations and self.graphs:
            self.graphs, self.pool = {}, None
        self.generations = generations

    def _checking(self) -> AbstractContextManager[None]:
        """Check the populations on their inputs in the first step."""
        populations, self.unchecked = self.unchecked, []
        return check_first_call(populations)

    @functools.cached_property
    def _device(self) -> torch.device:
        """Return the device of the state that the step changes."""
        tensors = [tensor for item in self.stateful for tensor in item.state_dict().values()]
        return next((tensor.device for tensor in tensors if tensor.is_cuda), torch.device("cpu"))

    def _modes(self, device: torch.device) -> tuple[Any, ...]:
        """Return the modes on which the kernels of a step depend."""
        training = tuple(item.training for item in self.stateful if isinstance(item, nn.Module))
        autocast = torch.is_autocast_enabled(device.type) and torch.get_autocast_dtype(device.type)
        return training, torch.is_grad_enabled(), autocast

    def _capture(self, leaves: Sequence[Any], spec: Any, device: torch.device) -> _Graph:
        gc.collect()  # what a failed capture left refers to nodes of other streams
        copies = [  # on the device: a graph would keep what it reads from the host now
            leaf.detach().to(device, copy=True).requires_grad_(leaf.requires_grad) if isinstance(leaf, Tensor) else leaf
            for leaf in leaves
        ]
        args, kwargs = pytree.tree_unflatten(copies, spec)
        inputs = [leaf for leaf in copies if isinstance(leaf, Tensor)]

        def step() -> Any:
            torch.clear_autocast_cache()  # of weights as they were before the last step, if autocast is around the call
            for tensor in inputs:
                tensor.grad = None
            with self._checking():
                return self.step(*args, **kwargs)

        before = [{name: tensor.clone() for name, tensor in item.state_dict().items()} for item in self.stateful]
        self.pool = self.pool or torch.cuda.graph_pool_handle()
        try:
            with choice.tuning(self.tune):
                graph, returned = _record(step, device, self.pool)
        finally:
            torch.clear_autocast_cache()  # tensors of the graph
            for item, saved in zip(self.stateful, before, strict=True):
                item.load_state_dict(saved)
        return _Graph(graph, inputs, returned)


def _record(step: Callable[[], Any], device: torch.device, pool: Any) -> tuple[torch.cuda.CUDAGraph, Any]:
    """Return a CUDA graph of a step, and what the step returned in it."""
    side = _side_stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            step()
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with pause_collection(), torch.cuda.graph(graph, pool=pool, stream=side):
        try:
            returned = step()
        except BaseException:
            join(device)
            raise
    return graph, returned


def _has_graphs(device: torch.device) -> bool:
    return device.type == "cuda"


def _kind(leaf: Any) -> Any:
    """Return what a graph is captured for: the shape and type of a tensor, the type and value of a number."""
    if isinstance(leaf, Tensor):
        return leaf.shape, leaf.dtype, leaf.requires_grad
    if leaf is None or isinstance(leaf, (bool, int, float, str)):
        return repr(leaf)
    raise TypeError(f"a captured step takes tensors and numbers, not {type(leaf).__name__}: make it inside of the step")


@contextmanager
def pause_collection() -> Iterator[None]:
    """Collect garbage now and not within the block: a CUDA graph that is destroyed during a capture makes it fail."""
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@functools.cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream of all captures on a device: libraries keep memory for every stream that they have used.

    Its kernels come first: those that are deferred, see :mod:`hullo.population.kernels.side_stream`, fill what is idle.
    """
    return torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
