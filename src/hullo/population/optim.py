"""Optimizers of populations: those of torch.optim, with learning rates, weight decay and clipping per member.

Each member is updated as `torch.optim` would update it alone. Learning rates and counters are tensors on the device of
the parameters: a step can be captured in a CUDA graph, and an assignment or a schedule still changes its rates.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Container, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from hullo.population import kernels
from hullo.population.flat_parameters import FlatParameters
from hullo.population.population import Population
from hullo.population.schedules import Numbers, Schedule

if TYPE_CHECKING:
    from hullo.population.kernels.flat_optim import Rule

BLOCK = 2**18
"""Numbers of a parameter to update at once without a fused kernel: intermediate results then stay in a CPU's cache."""

Group = Mapping[str, Any]
_GROUP_KEYS = {"params", "lr", "weight_decay"}


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
    """The base class of optimizers for populations, which update each member with its own settings.

    Args:
        population: the population to update, on its final device.
        lr: the learning rate, one number or one per member.
        weight_decay: the weight decay, one number or one per member.
        max_norm: clip each member's gradients to this norm, as `torch.nn.utils.clip_grad_norm_` does; one number, one
            per member, or None.
        coefficient_lr_scale: the learning rate of coefficients and inner scales as a multiple of `lr`, one number or
            one per member. Coefficients have no weight decay. The slopes of `nn.PReLU` are no coefficients.
        schedule: a function from the number of updates so far, a tensor, to the factor of the learning rates, one
            number or one per member, such as those of :mod:`hullo.population.schedules`. Alternatively, assign to
            `optimizer.lr` during training.
        groups: parameters with other settings: dictionaries with "params", a list of the population's parameters, and
            "lr" and "weight_decay" or one of these. An assignment to `optimizer.lr` changes the rates of all groups by
            the same factor.
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
        coefficient_lr_scale: Numbers = 1.0,
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
        self.schedule = schedule
        self.updates = torch.zeros((), dtype=torch.float64, device=population.seeds.device)
        self.parameters, self._frozen = self._split_parameters()
        self.counts = self.updates.new_zeros(len(self.parameters))  # updates of each parameter, for Adam
        self.lr_scales = torch.ones(len(self.parameters), *self.lr.shape).to(self.lr)  # multiples of `lr`
        self.own_decays = torch.full_like(self.lr_scales, torch.nan)  # NaN stands for `weight_decay`
        self.has_groups = False
        scale = self._numbers("coefficient_lr_scale", coefficient_lr_scale)
        self._set(population.activations.coefficient_parameters(), scale, torch.zeros_like(scale))
        for group in groups:
            self._read_group(group)
        self.state = {
            state: {name: torch.zeros_like(p) for name, p in self.parameters.items()} for state in self.state_names
        }
        self._kept: Tensor | None = None  # the members that remain of those that `schedule` knows
        self._copies = copies
        self._flat = self._make_flat()
        population.optimizers.append(weakref.ref(self))

    def _split_parameters(self) -> tuple[dict[str, nn.Parameter], dict[str, nn.Parameter]]:
        """Return the parameters that are trained, and those that are frozen, by name."""
        named = list(self.population.named_parameters())
        trained = {name: p for name, p in named if p.requires_grad}
        return trained, {name: p for name, p in named if not p.requires_grad}

    def _make_flat(self) -> FlatParameters | None:
        """Return the buffers of the fused kernel, where there is one."""
        trained = self.parameters.values()
        is_fused = bool(trained) and all(kernels.support(p) and p.dtype == torch.float32 for p in trained)
        return FlatParameters(self, self._copies) if is_fused else None

    def _numbers(self, name: str, given: Numbers) -> Tensor:
        """Return a setting as one number per member."""
        members = len(self.population)
        numbers = torch.as_tensor(given, dtype=torch.float64, device=self.population.seeds.device)
        if numbers.dim() > 1 or numbers.numel() not in (1, members) or not bool((numbers >= 0).all()):
            raise ValueError(
                f"{name}={given!r}: give a number that is not negative, or one for each of {members} members"
            )
        return numbers.expand(members).clone()

    def _read_group(self, group: Group) -> None:
        """Read the learning rate and the weight decay of the parameters in a group."""
        if not isinstance(group, Mapping) or "params" not in group or not group.keys() <= _GROUP_KEYS:
            given = sorted(group) if isinstance(group, Mapping) else repr(group)
            raise ValueError(f"groups has {given}; give a list of dictionaries with params, and lr or weight_decay")
        settings = {key: self._numbers(key, value) for key, value in group.items() if key != "params"}
        scale = None
        if "lr" in settings:
            own, lr = settings["lr"], self.lr
            if bool(((lr == 0) & (own != 0)).any()):
                raise ValueError("a group has an lr where the optimizer's, of which it is a multiple, is 0")
            scale = torch.where(own == lr, 1.0, own / lr)
        self._set(group["params"], scale, settings.get("weight_decay"))

    def _set(self, parameters: Tensor | Iterable[Tensor], scale: Tensor | None, decay: Tensor | None) -> None:
        """Set the multiple of the learning rate, and the weight decay, of some parameters."""
        positions = {id(p): i for i, p in enumerate(self.parameters.values())}
        untrained = {id(item) for item in (*self._frozen.values(), *self.population.buffers())}
        for parameter in [parameters] if isinstance(parameters, Tensor) else parameters:
            position = positions.get(id(parameter))
            if position is not None:
                self.has_groups = True
                if scale is not None:
                    self.lr_scales[position] = scale
                if decay is not None:
                    self.own_decays[position] = decay
            elif id(parameter) not in untrained:  # such as coefficients, where no member has a hull
                shape = getattr(parameter, "shape", parameter)
                raise ValueError(f"a group has {shape} in params; give parameters of this population")

    @property
    def generation(self) -> int:
        """Return how often members of the population were dropped."""
        return self.population.generation

    @property
    def leaves(self) -> dict[str, Tensor]:
        """Return the tensors with gradients, by the parameters' names: parameters, or copies in lower precision."""
        copies = self.population.copies
        return {name: copies.get(name.removeprefix("stacked."), p) for name, p in self.parameters.items()}

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set all gradients to None, or to zero."""
        for leaf in self.leaves.values():
            leaf.grad = None if set_to_none or leaf.grad is None else torch.zeros_like(leaf.grad)

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
        rates = self.lr * self.lr_scales * (1.0 if factor is None else factor)
        decays = torch.where(self.own_decays.isnan(), self.weight_decay, self.own_decays)
        for i, (name, parameter) in enumerate(self.parameters.items()):
            if name not in gradients:
                continue
            own = (
                parameter.detach(),
                gradients[name].resolve_conj(),
                *(self.state[kind][name] for kind in self.state_names),
            )
            changed, gradient, *state = map(torch.view_as_real, own) if parameter.is_complex() else own
            settings = [_per_member(item, changed) for item in (rates[i], decays[i])]
            each = max(1, BLOCK * len(changed) // max(1, changed.numel()))
            blocks = (torch.split(item, each) for item in (changed, gradient, *settings, *state))
            for block, part, lr, decay, *states in zip(*blocks, strict=True):
                self.update(block, part, lr, decay, self.counts[i], *states)

    def _factor(self, scheduled: Tensor | float) -> Tensor:
        """Return the factor of the learning rates that a schedule returned, as a tensor."""
        factor = scheduled if isinstance(scheduled, Tensor) else self.updates.new_full((), scheduled)
        if self._kept is not None and factor.numel() > 1:
            factor = factor[self._kept]
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

    @torch.no_grad()
    def _keep(self, members: Tensor) -> None:
        """Keep some members; :meth:`Population.keep` calls this after it has changed the parameters."""
        before = list(self.parameters)
        self.parameters, self._frozen = self._split_parameters()
        rows = [before.index(name) for name in self.parameters]
        self.counts, self.lr_scales, self.own_decays = (
            self.counts[rows],
            self.lr_scales[rows][:, members],
            self.own_decays[rows][:, members],
        )
        for name in ("lr", "weight_decay"):
            vars(self)[name] = vars(self)[name][members]
        self.max_norm = None if self.max_norm is None else self.max_norm[members]
        self.state = {
            kind: {name: tensors[name][members] for name in self.parameters} for kind, tensors in self.state.items()
        }
        self._kept = members if self._kept is None else self._kept[members]
        self._flat = self._make_flat()


class SGD(Optimizer):
    """:class:`torch.optim.SGD` for the members of a population, with momentum, Nesterov momentum and weight decay."""

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
    """:class:`torch.optim.RMSprop` for the members of a population, without momentum."""

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
    """:class:`torch.optim.Adam` for the members of a population."""

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
    """:class:`torch.optim.AdamW` for the members of a population, with decoupled weight decay."""

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
