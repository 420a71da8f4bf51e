"""K networks of one architecture, computed as one."""

from __future__ import annotations

import itertools
import operator
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.utils._pytree as pytree
from torch import Tensor, fx, nn

from hullo._compat import backward_pass_id
from hullo.population import checkpoint
from hullo.population.activations import Activations
from hullo.population.check import Report, check_population
from hullo.population.images import AugmentedImages, ImagesValue
from hullo.population.members import (
    aliases_of,
    compare,
    empty_copy,
    filled_copy,
    make_members,
    tensors_of,
)
from hullo.population.program import Program
from hullo.population.rules import Context
from hullo.population.trace.export import register_dataclasses
from hullo.population.trace.graph import Graph
from hullo.population.trace.members import read_members
from hullo.population.values import Value

if TYPE_CHECKING:
    from hullo.population.optim import Optimizer

MAX_PROGRAMS = 64
"""The largest number of cached graphs: one for each combination of input shapes and training modes."""


class Population(nn.Module):
    """K networks of one architecture, computed as one.

    ``population(x)`` equals ``torch.stack([member(x[k]) for k, member in enumerate(members)])``, up to rounding and
    apart from random numbers such as those of dropout, and so do its gradients. Members never influence each other.
    They may differ in their weights, activations and dropout rates. Parameters and buffers are stacked, with the
    members in the first dimension.

    The contract: a member's forward computes outputs from inputs, parameters and buffers. It may change buffers. It
    draws random numbers from torch. :meth:`check` finds out whether members keep it.

    Args:
        members: networks of one architecture, which are copied; or a function without arguments that returns one.
        seeds: seeds of the members' dropout, 0, 1, ... by default. With a function, it is called after
            ``torch.manual_seed(seed)`` for each member.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from hullo.population import Population
        >>> population = Population(lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), seeds=range(3))
        >>> x = torch.rand(3, 5, 4)                 # 5 samples for each of 3 members
        >>> population(x).shape
        torch.Size([3, 5, 2])
        >>> population(x[0], in_dims=None).shape    # the same samples for all members
        torch.Size([3, 5, 2])
        >>> population[1]
        Sequential(
          (0): Linear(in_features=4, out_features=8, bias=True)
          (1): ReLU()
          (2): Linear(in_features=8, out_features=2, bias=True)
        )
    """

    seeds: Tensor
    steps: Tensor
    surgery_hint: ClassVar[str] = "call it on the networks before they join, or on population[k]"

    def __init__(
        self,
        members: Iterable[nn.Module] | Callable[[], nn.Module],
        *,
        seeds: Iterable[int] | None = None,
    ) -> None:
        super().__init__()
        if callable(members) and not isinstance(members, nn.Module):
            if seeds is None:
                raise TypeError("a function that returns a network needs seeds, such as seeds=range(5)")
            networks = make_members(members, seeds := list(map(operator.index, seeds)))
        else:
            is_network = isinstance(members, nn.Module) and not isinstance(members, (nn.ModuleList, Population))
            networks = list(members) if isinstance(members, Iterable) and not is_network else []
        if not networks or not all(isinstance(item, nn.Module) for item in networks):
            given = next((item for item in networks if not isinstance(item, nn.Module)), members)
            raise TypeError(f"members must be a list of networks, or a function that returns one; got {given!r:.100}")
        networks = [getattr(network, "_orig_mod", network) for network in networks]  # of torch.compile
        seeds = list(map(operator.index, range(len(networks)) if seeds is None else seeds))
        if len(seeds) != len(networks):
            raise ValueError(f"{len(networks)} members need as many seeds, got {len(seeds)}")
        sites, self._kinds = compare(networks)
        self._empty = [empty_copy(network) for network in networks]
        self._aliases = aliases_of(networks[0])
        self._programs: dict[Any, Program] = {}  # the most recently used one last
        self.copies: dict[str, Tensor] = {}  # copies of parameters in lower precision, made by an optimizer
        self.optimizers: list[weakref.ref[Optimizer]] = []  # which follow when members are dropped
        self._generation = 0
        self.numbers = list(range(len(networks)))  # of the members, among those that the population was made of
        self.register_load_state_dict_post_hook(_follow_state)  # type: ignore[no-untyped-call]
        self.first_sample = 0  # index of the first sample of a batch that is part of a larger one
        tensors = [tensors_of(network, sites) for network in networks]
        self.stacked = nn.Module()
        for name, first in tensors[0].items():
            stacked = torch.stack([member[name].detach() for member in tensors])
            is_parameter = isinstance(first, nn.Parameter)
            _register(self.stacked, name, nn.Parameter(stacked, first.requires_grad) if is_parameter else stacked)
        self._changed: set[str] = set()  # the buffers that a forward pass changes
        self._constant: dict[str, Tensor] = {}  # the others, when they were compared
        self._versions: list[tuple[int, int]] = []  # of these: which tensor it was, and how often it was written
        self._equal: set[str] = set()  # those of them that were equal in all members
        own = [*networks[0].parameters(), *networks[0].buffers()]
        is_wide = any(tensor.dtype in (torch.float64, torch.complex128) for tensor in own)
        wide = torch.float64 if is_wide else torch.float32
        self.activations = Activations(sites, len(networks), wide)
        self.register_buffer("seeds", torch.tensor(seeds, dtype=torch.int64))
        self.register_buffer("steps", torch.zeros(len(networks), dtype=torch.int64))
        self.to(next((tensor.device for tensor in own if tensor.is_floating_point()), "cpu"))
        self.train(networks[0].training)
        for module, original in zip(self._empty[0].modules(), networks[0].modules(), strict=True):
            module.training = original.training

    def __len__(self) -> int:
        """Return the number of members."""
        return len(self._empty)

    def __getitem__(self, k: int) -> nn.Module:
        """Return a copy of member k: a network of the original class, with its current weights."""
        k = self._read_index(k)
        stacked = self._stacked()
        tensors = {name: tensor[k] for name, tensor in stacked.items()}
        is_learned = {name: tensor.requires_grad for name, tensor in stacked.items()}
        for name, values, learned in self.activations.member_tensors(k):
            tensors[name], is_learned[name] = values, learned
        empty = self._empty[k]
        for name, tensor in (*empty.named_parameters(), *empty.named_buffers()):
            tensors[name] = tensors[name].reshape(tensor.shape)
        member = filled_copy(empty, tensors)
        for name, parameter in member.named_parameters():
            parameter.requires_grad_(is_learned[name])
        self._take_modes(member)
        return member

    def _take_modes(self, member: nn.Module) -> None:
        """Set the modules of a member to the modes of the first member's, in which the population computes."""
        modes = {path: module.training for path, module in self._empty[0].named_modules()}
        for path, module in member.named_modules():
            module.training = modes.get(path, self.training)

    def _read_index(self, k: int) -> int:
        """Return the number of a member, which may be given from the end."""
        k = operator.index(k)
        if not -len(self) <= k < len(self):
            raise IndexError(f"member {k} of a population of {len(self)}")
        return k % len(self)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Population:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._generation += 1  # tensors may be elsewhere now
        return self

    @property
    def generation(self) -> int:
        """Return how often something changed that a captured step does not follow: members, memory, equal buffers."""
        self._find_equal_buffers()
        return self._generation

    def __getstate__(self) -> dict[str, Any]:
        # programs hold tensors without values, and are traced again; copies follow the optimizer of this population
        return self.__dict__ | {"_programs": {}, "copies": {}, "optimizers": []}

    def __iter__(self) -> Iterator[nn.Module]:
        return (self[k] for k in range(len(self)))

    def keep(self, members: Iterable[int]) -> None:
        """Keep some members, in the given order, and drop the others: `population[0]` is then the first of these.

        The others continue their training. Optimizers of the population follow, and a captured step is
        captured again. Make optimizers of torch.optim again: the parameters are new.

        Example:
            >>> from torch import nn
            >>> from hullo.population import SGD, Population
            >>> population = Population(lambda: nn.Linear(4, 2), seeds=range(5))
            >>> optimizer = SGD(population, lr=[0.1, 0.2, 0.3, 0.4, 0.5])
            >>> population.keep([0, 3])
            >>> len(population), optimizer.lr
            (2, tensor([0.1000, 0.4000], dtype=torch.float64))
        """
        kept = [self._read_index(k) for k in members]
        if not kept or len(set(kept)) < len(kept):
            raise ValueError(f"keep({kept}): give the numbers of the members to keep, each once, and at least one")
        at = torch.tensor(kept, device=self.seeds.device)
        with torch.inference_mode(False), torch.no_grad():
            self.activations.keep(kept)
            for name, tensor in self._stacked().items():
                part: Tensor = tensor.detach()[at]
                if isinstance(tensor, nn.Parameter):
                    part = nn.Parameter(part, requires_grad=tensor.requires_grad)
                _register(self.stacked, name, part)
            self.seeds, self.steps = self.seeds[at], self.steps[at]
        self._take_modes(self._empty[kept[0]])
        self._empty, self._kinds = [self._empty[k] for k in kept], [self._kinds[k] for k in kept]
        self._programs, self.copies = {}, {}
        self._generation += 1
        self.numbers = [self.numbers[k] for k in kept]
        for reference in self.optimizers:
            if (optimizer := reference()) is not None:
                optimizer._keep(at)

    def refresh_copies(self) -> None:
        """Write the parameters to their copies in lower precision, after other code has changed them in place.

        A population does that itself when it loads a state.
        """
        with torch.no_grad():
            for name, copied in self.copies.items():
                copied.copy_(self.stacked.get_parameter(name))

    def train(self, mode: bool = True) -> Population:
        """Set training mode, or evaluation mode, as for any module."""
        super().train(mode)
        self._empty[0].train(mode)
        return self

    def forward(self, *args: Any, in_dims: Any = 0, **kwargs: Any) -> Any:
        """Return the members' outputs, stacked in the first dimension, nested as a network returns them.

        Args:
            args, kwargs: the arguments of one network, for all members.
            in_dims: as in :func:`torch.vmap`: the dimension of each positional argument that indexes the members, None
                if they share it; one number or None for all arguments, or a tuple. Keyword arguments have dimension 0
                if a tuple is given. Do not forget None for a shared batch: one whose size happens to be K would be
                split, one sample for each member.
        """
        if torch.compiler.is_compiling():  # a decorator would import the compiler
            # the message of the error with fullgraph=True
            torch._dynamo.graph_break(msg="torch.compile does not compile a population; use hullo.population.capture")
            return torch.compiler.disable(self.forward)(*args, in_dims=in_dims, **kwargs)  # type: ignore[no-untyped-call]
        return self._run(*self._wrap(args, kwargs, in_dims))

    def _run(self, values: Sequence[Any], spec: Any, observe: Callable[[fx.Node, Any], None] | None = None) -> Any:
        """Compute the outputs from the leaves and the structure of the arguments."""
        program, tensors = self._program(values, spec)
        if self.training and backward_pass_id() < 0:  # a backward pass computes a step again
            self.steps.add_(1)
        # a copy where something is drawn: the backward pass may follow other forward passes
        steps = self.steps.clone() if self.training and program.numbers else self.steps
        context = Context(len(self), self.seeds, steps, 0, self.first_sample)
        with torch.cuda.device_of(self.seeds):  # type: ignore[no-untyped-call]  # for kernels
            return program.run(context, tensors, values, observe)

    def coefficient_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of coefficients and inner scales, as :func:`hullo.coefficient_parameters` does."""
        return self.activations.coefficient_parameters()

    def layer_parameters(
        self, kinds: tuple[type[nn.Module], ...] = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
    ) -> dict[str, type[nn.Module]]:
        """Return the parameters of layers of some classes by name, with the class of their layer.

        By default these are the weights and biases of linear and convolutional layers.
        """
        classes = {}
        for path, module in self._empty[0].named_modules():
            if type(module) in kinds:
                for name, _ in module.named_parameters(path, recurse=False):
                    classes[self._aliases[name]] = type(module)
        return classes

    def explain(self, *args: Any, in_dims: Any = 0, **kwargs: Any) -> str:
        """Run the population on example inputs and return how its operations are computed; change no state.

        The last line has the memory per member: of parameters, and of what a backward pass of these inputs needs.
        """
        program, _ = self._program(*self._wrap(args, kwargs, in_dims))
        own = [*self.parameters(), *self.buffers(), *self.copies.values()]
        given = [item for item in pytree.tree_leaves((args, kwargs)) if isinstance(item, Tensor)]
        saved: list[Tensor] = []

        def keep(tensor: Tensor) -> Tensor:
            saved.append(tensor.detach())
            return tensor

        with self._keeping_state():
            with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
                output = self(*args, in_dims=in_dims, **kwargs)
            kept = _count_bytes([*saved, *own, *given]) - _count_bytes([*own, *given])
            del output  # until here, no tensor has the memory of another
        sizes = [f"{size / len(self) / 1024:,.1f} KiB" for size in (_count_bytes(self.parameters()), kept)]
        return f"{program.explain()}\nmemory per member: {sizes[0]} of parameters, {sizes[1]} for a backward pass"

    def save(self, path: str | os.PathLike[str], optimizer: Optimizer | None = None) -> None:
        """Save the state of all members, and of an optimizer, in a file.

        Example:
            >>> import tempfile
            >>> from torch import nn
            >>> from hullo.population import SGD, Population
            >>> path = tempfile.mkdtemp() + "/run.pt"
            >>> population = Population(lambda: nn.Linear(4, 2), seeds=range(5))
            >>> optimizer = SGD(population, lr=0.1)
            >>> population.keep([0, 3])
            >>> population.save(path, optimizer)
            >>> again = Population(lambda: nn.Linear(4, 2), seeds=range(5))
            >>> again.load(path, SGD(again, lr=0.1))
            >>> again.numbers
            [0, 3]
        """
        checkpoint.save(path, self, optimizer)

    def load(self, path: str | os.PathLike[str], optimizer: Optimizer | None = None) -> None:
        """Load the state that `save` saved, into a population of the same networks; dropped members are dropped."""
        checkpoint.load(path, self, optimizer)

    def check(self, *args: Any, in_dims: Any = 0, **kwargs: Any) -> Report:
        """Compare some members alone with the population on example inputs; change no state.

        Outputs, gradients and buffers are compared over two successive calls, in training and in evaluation mode,
        without autocast. The lone members get the random numbers of the population, so dropout is compared, too. A
        :class:`hullo.population.ContractError` names what differs, by how much, and the first module that does.

        Example:
            >>> import torch
            >>> from torch import nn
            >>> from hullo.population import Population
            >>> population = Population(lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5)), seeds=range(3))
            >>> population.check(torch.rand(3, 5, 4)).members
            [0, 2]
            >>> class Counting(nn.Linear):
            ...     calls = 0
            ...     def forward(self, x):
            ...         self.calls += 1
            ...         return super().forward(x) * self.calls
            >>> Population(lambda: Counting(4, 8), seeds=range(3)).check(torch.rand(3, 5, 4))
            Traceback (most recent call last):
                ...
            hullo.population.check.ContractError: member 0 alone differs from the population, call 2 in training mode...
        """
        return check_population(self, args, kwargs, in_dims)

    @contextmanager
    def _keeping_state(self) -> Iterator[None]:
        """Restore the parameters and buffers that are changed within the block."""
        saved = [(tensor, tensor.detach().clone()) for tensor in (*self.parameters(), *self.buffers())]
        try:
            yield
        finally:
            with torch.no_grad():
                for tensor, before in saved:
                    if not tensor.equal(before):
                        tensor.copy_(before)

    def _wrap(self, args: tuple[Any, ...], kwargs: dict[str, Any], in_dims: Any) -> tuple[list[Any], Any]:
        """Return the leaves of nested arguments, with a value for each tensor, and the spec of their nesting."""
        if not all(isinstance(dim, int | None) for dim in (in_dims if isinstance(in_dims, tuple) else (in_dims,))):
            raise TypeError(f"in_dims={in_dims!r}: give a number or None, or a tuple of these, one per argument")
        if isinstance(in_dims, tuple):
            if len(in_dims) != len(args):
                raise ValueError(f"in_dims={in_dims} for {len(args)} arguments; give one entry per argument")
            dims, named = in_dims, 0
        else:
            dims, named = (in_dims,) * len(args), in_dims
        register_dataclasses((args, kwargs))
        leaves, spec = pytree.tree_flatten((args, kwargs))
        leaf_dims = [dim for arg, dim in zip(args, dims, strict=True) for _ in pytree.tree_leaves(arg)]
        leaf_dims += [named] * (len(leaves) - len(leaf_dims))
        return [self._wrap_leaf(leaf, dim) for leaf, dim in zip(leaves, leaf_dims, strict=True)], spec

    def _wrap_leaf(self, item: Any, dim: int | None) -> Any:
        if isinstance(item, AugmentedImages):
            if len(item.index) != len(self):
                raise ValueError(
                    f"index of shape {tuple(item.index.shape)}: give a row for each of {len(self)} members"
                )
            return ImagesValue(item) if item.is_plain else Value(item.tensor(), 0)
        if not isinstance(item, Tensor):
            return item
        if dim is not None and (not -item.dim() <= dim < item.dim() or item.shape[dim] != len(self)):
            raise ValueError(
                f"an input of shape {tuple(item.shape)} has no dimension {dim} of {len(self)} members; "
                "pass in_dims=None for an input that all members share"
            )
        return Value(item, None if dim is None else dim % item.dim())

    def _program(self, leaves: Sequence[Any], spec: Any) -> tuple[Program, dict[str, Value]]:
        """Return the program for inputs of these shapes, traced on first use, and its parameters and buffers."""
        kinds = tuple(
            (item.shape, item.dtype, item.device) if isinstance(item, Value) else repr(item) for item in leaves
        )
        modes = tuple(module.training for module in self._empty[0].modules())
        placement = tuple((p.dtype, p.device) for p in itertools.islice(self.stacked.parameters(), 1))
        key = (kinds, placement, str(spec), modes, torch.is_grad_enabled())
        program = self._programs.pop(key, None)
        if program is None:
            graph = self._read_graph(leaves, spec)
            program = Program(graph, self.activations)
            self._changed |= {self._aliases[name] for name in graph.written}
            if len(self._programs) == MAX_PROGRAMS:
                del self._programs[next(iter(self._programs))]
        self._programs[key] = program
        equal = self._find_equal_buffers()
        values = {
            name: Value(tensor[0]) if name in equal else Value(self.copies.get(name, tensor), 0)
            for name, tensor in self._stacked().items()
        }
        return program, {name: values[alias] for name, alias in self._aliases.items() if alias in values}

    def _read_graph(self, leaves: Sequence[Any], spec: Any) -> Graph:
        """Return the graph of the members for example inputs; raise the networks' own exceptions."""
        examples = [self._in_own_precision(item).select(0) if isinstance(item, Value) else item for item in leaves]
        return read_members(self.__getitem__, self.activations.sites, self._kinds, self.seeds.device, examples, spec)

    def _in_own_precision(self, value: Value) -> Value:
        """Return an input; under autocast in the networks' dtype, since autocast is off in a trace."""
        if value.dtype.is_floating_point and torch.is_autocast_enabled(value.device.type):
            dtype = next((p.dtype for p in self.stacked.parameters() if p.is_floating_point()), value.dtype)
            return Value(value.tensor.to(dtype), value.dim)
        return value

    def _stacked(self) -> dict[str, Tensor]:
        """Return the parameters and buffers by name, (K, ...)."""
        return {**dict(self.stacked.named_parameters()), **dict(self.stacked.named_buffers())}

    def _find_equal_buffers(self) -> set[str]:
        """Return the buffers that are equal in all members: what they determine is computed once.

        Those that a forward pass changes are not among them. The others are compared again when other code has written
        to them, perhaps to those of one member alone.
        """
        constant = {name: item for name, item in self.stacked.named_buffers() if name not in self._changed}
        versions = [(id(item), _version(item)) for item in constant.values()]
        if versions != self._versions:
            equal = {name for name, item in constant.items() if bool((item == item[:1]).all())}
            self._generation += equal != self._equal
            self._constant, self._versions, self._equal = constant, versions, equal
        return self._equal

    def extra_repr(self) -> str:
        return f"{len(self)} x {type(self._empty[0]).__name__}"


def _follow_state(population: Population, keys: object) -> None:
    population.refresh_copies()


def _count_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the memory of tensors in bytes; what they share counts once."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


def _version(tensor: Tensor) -> int:
    """Return how often a tensor was written in place; those of inference mode do not count that."""
    return 0 if tensor.is_inference() else tensor._version


def _register(root: nn.Module, name: str, tensor: Tensor) -> None:
    """Register a parameter or buffer under a name with dots; create the modules in between."""
    *path, leaf = name.split(".")
    for part in path:
        if part not in root._modules:
            root.add_module(part, nn.Module())
        root = root.get_submodule(part)
    if isinstance(tensor, nn.Parameter):
        root.register_parameter(leaf, tensor)
    else:
        root.register_buffer(leaf, tensor)
