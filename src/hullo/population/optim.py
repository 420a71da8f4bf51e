"""Optimizers of populations: those of torch.optim, with learning rates, weight decay and clipping per member.

Each member is updated as `torch.optim` would update it alone. Learning rates and counters are tensors on the device of
the parameters: a step can be captured in a CUDA graph, and a schedule can change it afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from hullo.population import kernels
from hullo.population.flat_parameters import FlatParameters
from hullo.population.population import Population

if TYPE_CHECKING:
    from hullo.population.kernels.flat_optim import Rule

BLOCK = 2**18
"""Numbers of a parameter to update at once without a fused kernel: intermediate results then stay in a CPU's cache."""

Numbers = float | Sequence[float] | Tensor
Group = Mapping[str, Any]
Schedule = Callable[[Tensor], Tensor | float]


class _PerMember:
    """A setting of an optimizer with one number per member.

    An assignment writes into the same tensor, which a captured step reads.
    """

    def __set_name__(self, owner: type[Optimizer], name: str) -> None:
        self.name = name

    def __get__(self, optimizer: Optimizer, owner: type[Optimizer]) -> Tensor:
        numbers: Tensor = vars(optimizer)[self.name]
        return numbers

    def __set__(self, optimizer: Optimizer, given: Numbers) -> None:
        numbers = optimizer._numbers(self.name, given)
        vars(optimizer).setdefault(self.name, numbers).copy_(numbers)


class Optimizer:
    """Update the members of a population; the base class of all optimizers.

    Args:
        population: the population to update, on its final device.
        lr: the learning rate, one number or one per member.
        weight_decay: the weight decay, one number or one per member.
        max_norm: clip each member's gradients to this norm, as `torch.nn.utils.clip_grad_norm_` does; one number, one
            per member, or None.
        schedule: a function from the number of updates so far, a tensor, to the factor of the learning rates, one
            number or one per member. Alternatively, assign to `optimizer.lr` during training.
        groups: parameters with other settings: dictionaries with "params", a list of the population's parameters, and
            any of "lr" and "weight_decay".
        copies: also store the weights and biases of linear and convolutional layers in this dtype, torch.bfloat16, for
            forward passes under :class:`torch.autocast`. Only on a GPU, where one kernel updates all parameters and
            writes their copies.
    """

    state_names: ClassVar[tuple[str, ...]] = ()
    lr, weight_decay = _PerMember(), _PerMember()

    def __init__(
        self,
        population: Population,
        lr: Numbers,
        *,
        weight_decay: Numbers = 0.0,
        max_norm: Numbers | None = None,
        schedule: Schedule | None = None,
        groups: Iterable[Group] = (),
        copies: torch.dtype | None = None,
    ) -> None:
        if not isinstance(population, Population):
            raise TypeError(
                f"this optimizer takes a hullo.population.Population, not parameters; got {type(population).__name__}"
            )
        self.population = population
        self.lr = lr
        self.weight_decay = weight_decay
        self.max_norm = None if max_norm is None else self._numbers("max_norm", max_norm)
        if schedule is not None and not callable(schedule):
            raise TypeError(f"schedule={schedule!r}: give a function from the number of updates to a factor")
        self.schedule = schedule
        self.updates = torch.zeros((), dtype=torch.float64, device=population.seeds.device)
        self.parameters = {name: p for name, p in population.named_parameters() if p.requires_grad}
        self._frozen = {name: p for name, p in population.named_parameters() if not p.requires_grad}
        self.counts = self.updates.new_zeros(len(self.parameters))  # updates of each parameter, for Adam
        self.groups = self._read_groups(groups)
        self.state = {
            state: {name: torch.zeros_like(p) for name, p in self.parameters.items()} for state in self.state_names
        }
        trained = self.parameters.values()
        is_fused = bool(trained) and all(kernels.support(p) and p.is_floating_point() for p in trained)
        self._flat = FlatParameters(self, copies) if is_fused else None

    def _numbers(self, name: str, given: Numbers) -> Tensor:
        """Return a setting as one number per member."""
        members = len(self.population)
        try:
            numbers = torch.as_tensor(given, dtype=torch.float64, device=self.population.seeds.device)
        except (TypeError, ValueError, RuntimeError):
            numbers = self.population.seeds.new_empty(0)
        if numbers.dim() > 1 or numbers.numel() not in (1, members) or not bool((numbers >= 0).all()):
            raise ValueError(
                f"{name}={given!r}: give a number that is not negative, or one for each of {members} members"
            )
        return numbers.expand(members).clone()

    def _read_groups(self, groups: Iterable[Group]) -> dict[str, dict[str, Tensor]]:
        """Return the settings of parameters in groups, by name."""
        names = {id(p): name for name, p in self.parameters.items()}
        by_name: dict[str, dict[str, Tensor]] = {}
        if isinstance(groups, Mapping):
            raise TypeError("groups is a dictionary; give a list of dictionaries")
        for group in groups:
            if not isinstance(group, Mapping):
                raise TypeError(f"a group is a {type(group).__name__}; give dictionaries with params and settings")
            if "params" not in group:
                raise ValueError(f"a group has no params, only {sorted(group)}; give a list of parameters")
            if unknown := group.keys() - {"params", "lr", "weight_decay"}:
                raise ValueError(f"a group has params, lr and weight_decay; got {sorted(unknown)}")
            settings = {key: self._numbers(key, value) for key, value in group.items() if key != "params"}
            params = [group["params"]] if isinstance(group["params"], nn.Parameter) else list(group["params"])
            for parameter in params:
                if not isinstance(parameter, Tensor):
                    raise TypeError(f"a group has {parameter!r} in params; give parameters, not their names")
                if id(parameter) not in names:
                    raise ValueError(f"a group has a parameter of shape {tuple(parameter.shape)} of another network")
                by_name[names[id(parameter)]] = settings
        return by_name

    @property
    def leaves(self) -> dict[str, Tensor]:
        """Return the tensors with gradients, by the parameters' names: parameters, or copies in lower precision."""
        copies = self.population.copies
        return {name: copies.get(name.removeprefix("stacked."), p) for name, p in self.parameters.items()}

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set all gradients to None, or to zero."""
        for leaf in self.leaves.values():
            if set_to_none:
                leaf.grad = None
            elif leaf.grad is not None:
                leaf.grad = torch.zeros_like(leaf.grad)

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter that has a gradient."""
        activations = self.population.activations
        if thawed := [name for name, p in self._frozen.items() if p.requires_grad]:
            raise RuntimeError(
                f"{thawed[0]} was frozen when the optimizer was made, and is not now; make the optimizer after "
                "requires_grad_(True)"
            )
        gradients = {name: leaf.grad for name, leaf in self.leaves.items() if leaf.grad is not None}
        if not gradients:
            raise RuntimeError("no parameter has a gradient: call losses.sum().backward() before a step")
        scale = None if self.max_norm is None else self._clip(gradients)
        if self._flat is None and scale is not None:
            gradients = {name: gradient * _per_member(scale, gradient) for name, gradient in gradients.items()}
        for name, gradient in gradients.items():
            if self.parameters[name] is activations.raw:
                gradients[name] = activations.feasible_gradient(gradient)
        factor = None if self.schedule is None else self._factor(self.schedule(self.updates))
        self.updates += 1
        self.count(gradients.keys())
        if self._flat is not None:
            self._flat.update(gradients, factor, scale)
            return
        for count, (name, parameter) in zip(self.counts, self.parameters.items(), strict=True):
            if name not in gradients:
                continue
            group = self.groups.get(name, {})
            lr = group.get("lr", self.lr) * (1.0 if factor is None else factor)
            gradient = gradients[name].resolve_conj()
            own = (parameter.detach(), gradient, *(self.state[kind][name] for kind in self.state_names))
            changed, gradient, *state = map(torch.view_as_real, own) if parameter.is_complex() else own
            settings = [_per_member(item, changed) for item in (lr, group.get("weight_decay", self.weight_decay))]
            each = max(1, BLOCK * len(changed) // max(1, changed.numel()))
            blocks = (torch.split(item, each) for item in (changed, gradient, *settings, *state))
            for block, part, rates, decays, *states in zip(*blocks, strict=True):
                self.update(block, part, rates, decays, count, *states)

    def _factor(self, scheduled: Tensor | float) -> Tensor:
        """Return the factor of the learning rates that a schedule returned, as a tensor."""
        factor = scheduled if isinstance(scheduled, Tensor) else self.updates.new_full((), scheduled)
        if factor.shape not in ((), (1,), self.lr.shape):
            raise ValueError(
                f"schedule returned a tensor of shape {tuple(factor.shape)}; return a number, or one for each of "
                f"{len(self.population)} members"
            )
        return factor

    def count(self, updated: Container[str]) -> None:
        """Count the updates of each parameter in `updated`, if the update rule depends on them."""

    def rule(self) -> Rule:
        """Return the update rule of the fused kernel."""
        raise NotImplementedError

    def update(
        self, parameter: Tensor, gradient: Tensor, lr: Tensor, decay: Tensor, count: Tensor, *state: Tensor
    ) -> None:
        """Update a parameter of some members in place; `count` is the number of its updates, this one included."""
        raise NotImplementedError

    def _clip(self, gradients: Mapping[str, Tensor]) -> Tensor:
        """Return the factor of each member's gradients that limits their norm to `max_norm`."""
        norms = [gradient.reshape(len(gradient), -1).norm(dim=1).double() for gradient in gradients.values()]
        total = torch.stack(norms).norm(dim=0)
        assert self.max_norm is not None  # noqa: S101
        scale: Tensor = (self.max_norm / (total + 1e-6)).clamp_max(1.0)
        return scale

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state to save in a checkpoint besides the population, as tensors by name."""
        state = {f"{kind}.{name}": tensor for kind, tensors in self.state.items() for name, tensor in tensors.items()}
        return state | {"updates": self.updates, "lr": self.lr, "weight_decay": self.weight_decay}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load the state of an optimizer of the same population, in place."""
        own = self.state_dict()
        shapes, given = ({(name, tuple(t.shape)) for name, t in items.items()} for items in (own, state))
        if shapes != given:
            raise ValueError(f"the state is of another population or optimizer; they differ in {min(shapes ^ given)}")
        for name, tensor in own.items():
            tensor.copy_(state[name])
        self.refresh_copies()

    def refresh_copies(self) -> None:
        """Update the copies after the parameters were changed by other code."""
        if self._flat is not None:
            self._flat.refresh_copies()


class SGD(Optimizer):
    """Update as :class:`torch.optim.SGD` does, with momentum, Nesterov momentum and weight decay."""

    state_names = ("momentum",)

    def __init__(
        self, population: Population, lr: Numbers, *, momentum: float = 0.0, nesterov: bool = False, **settings: Any
    ) -> None:
        _check("momentum", momentum, 0 <= momentum < 1, "a number from 0 to below 1")
        if nesterov and not momentum:
            raise ValueError("nesterov=True needs a momentum above 0")
        self.momentum, self.nesterov = momentum, nesterov
        super().__init__(population, lr=lr, **settings)

    def update(
        self, parameter: Tensor, gradient: Tensor, lr: Tensor, decay: Tensor, count: Tensor, *state: Tensor
    ) -> None:
        gradient = torch.addcmul(gradient, parameter, decay)
        if self.momentum:
            (velocity,) = state
            velocity.mul_(self.momentum).add_(gradient)
            gradient = gradient.add(velocity, alpha=self.momentum) if self.nesterov else velocity
        parameter.addcmul_(gradient, lr, value=-1)

    def rule(self) -> Rule:
        from hullo.population.kernels.flat_optim import Rule, sgd

        return Rule(sgd, (self.momentum, float(self.nesterov)))


class RMSprop(Optimizer):
    """Update as :class:`torch.optim.RMSprop` does, without momentum."""

    state_names = ("square",)

    def __init__(
        self, population: Population, lr: Numbers, *, alpha: float = 0.99, eps: float = 1e-8, **settings: Any
    ) -> None:
        _check("alpha", alpha, 0 <= alpha < 1, "a number from 0 to below 1")
        _check("eps", eps, eps >= 0, "a number that is not negative")
        self.alpha, self.eps = alpha, eps
        super().__init__(population, lr=lr, **settings)

    def update(
        self, parameter: Tensor, gradient: Tensor, lr: Tensor, decay: Tensor, count: Tensor, *state: Tensor
    ) -> None:
        (square,) = state
        gradient = torch.addcmul(gradient, parameter, decay)
        square.mul_(self.alpha).addcmul_(gradient, gradient, value=1 - self.alpha)
        parameter.addcmul_(gradient / square.sqrt().add_(self.eps), lr, value=-1)

    def rule(self) -> Rule:
        from hullo.population.kernels.flat_optim import Rule, rmsprop

        return Rule(rmsprop, (self.alpha, 1 - self.alpha, self.eps))


class Adam(Optimizer):
    """Update as :class:`torch.optim.Adam` does."""

    state_names = ("mean", "square")
    decoupled: ClassVar[bool] = False

    def __init__(
        self,
        population: Population,
        lr: Numbers = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        **settings: Any,
    ) -> None:
        _check("betas", betas, all(0 <= beta < 1 for beta in betas), "two numbers from 0 to below 1")
        _check("eps", eps, eps >= 0, "a number that is not negative")
        self.betas, self.eps = betas, eps
        self._increments: dict[tuple[bool, ...], Tensor] = {}  # of the counts, by which parameters have gradients
        super().__init__(population, lr=lr, **settings)

    def update(
        self, parameter: Tensor, gradient: Tensor, lr: Tensor, decay: Tensor, count: Tensor, *state: Tensor
    ) -> None:
        mean, square = state
        first, second = self.betas
        if self.decoupled:
            parameter.mul_(1 - lr * decay)
        else:
            gradient = torch.addcmul(gradient, parameter, decay)
        mean.lerp_(gradient, 1 - first)
        square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        root = square.sqrt().div_((1 - second**count).sqrt().to(square.dtype)).add_(self.eps)
        parameter.addcmul_(mean / root, lr / (1 - first**count).to(lr.dtype), value=-1)

    def rule(self) -> Rule:
        from hullo.population.kernels.flat_optim import Rule, adam

        first, second = self.betas
        logs = (math.log(beta) if beta else -math.inf for beta in self.betas)
        return Rule(adam, (*logs, 1 - first, second, 1 - second, float(self.decoupled), self.eps))

    def count(self, updated: Container[str]) -> None:
        present = tuple(name in updated for name in self.parameters)
        if present not in self._increments:
            self._increments[present] = torch.tensor(present, dtype=torch.float64).to(self.counts.device)
        self.counts += self._increments[present]

    def state_dict(self) -> dict[str, Tensor]:
        return super().state_dict() | {"counts": self.counts}


class AdamW(Adam):
    """Update as :class:`torch.optim.AdamW` does, with decoupled weight decay."""

    decoupled = True

    def __init__(
        self, population: Population, lr: Numbers = 1e-3, *, weight_decay: Numbers = 1e-2, **settings: Any
    ) -> None:
        super().__init__(population, lr=lr, weight_decay=weight_decay, **settings)


def _per_member(numbers: Tensor, tensor: Tensor) -> Tensor:
    """Return one number per member in a shape that broadcasts with a tensor of shape (K, ...)."""
    return numbers.to(tensor.dtype).view(-1, *[1] * (tensor.dim() - 1))


def _check(name: str, value: object, is_valid: bool, valid: str) -> None:
    if not is_valid:
        raise ValueError(f"{name}={value!r}: give {valid}")
