"""Optimisers as the paper's frameworks define them, for populations: every member at its own rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from hullo.lab import kernels
from hullo.lab.networks.layers import by_member
from hullo.lab.networks.network import Network

if TYPE_CHECKING:
    from hullo.lab.kernels.flat import Rule

Numbers = float | Sequence[float] | Tensor


def per_member(name: str, given: Numbers, network: Network) -> Tensor:
    """Numbers that are not negative, one a member, beside the network's parameters; one number is all members'."""
    numbers = torch.as_tensor(given, dtype=torch.float32, device=network.seeds.device)
    if numbers.dim() > 1 or numbers.numel() not in (1, network.members) or not bool((numbers >= 0).all()):
        wanted = f"one number that is not negative, or one for each of {network.members} members"
        raise ValueError(f"{name}={given!r}: give {wanted}")
    return numbers.expand(network.members).clone()


class Optimiser:
    """What optimisers of populations share: rates, a counter of updates, and a tensor of memory beside each parameter.

    Rates and counters are tensors beside the parameters: a step says nothing to the host, so a CUDA graph can hold it.
    """

    remembered: ClassVar[str]
    """What the memory holds."""

    bias_lr_scale: ClassVar[float] = 1.0
    """What rates are multiplied with for biases."""

    leaves: dict[str, Tensor]
    """What the network computes with, by the parameters' names, and what has gradients: the parameters themselves, or
    copies in lower precision that follow them."""

    def __init__(self, network: Network, lr: Numbers, coefficient_lr_scale: Numbers, copies: torch.dtype) -> None:
        self.rates = per_member("lr", lr, network)
        coefficients = per_member("coefficient_lr_scale", coefficient_lr_scale, network)
        self.updates = torch.zeros((), dtype=torch.int64, device=network.seeds.device)
        self.activations = network.activations
        self.parameters = dict(network.named_parameters())
        alike = torch.ones_like(self.rates)
        self.scales = {name: self.bias_lr_scale * alike if is_bias(name) else alike for name in self.parameters}
        self.scales |= {name: coefficients for name, p in self.parameters.items() if p is self.activations.raw}
        self.memory = {name: torch.zeros_like(parameter) for name, parameter in self.parameters.items()}
        self.leaves = dict(self.parameters)
        served = all(map(kernels.serve, self.parameters.values()))
        self._flat = _Flat(self, network.members, copies) if served else None

    @property
    def has_copies(self) -> bool:
        """Whether some leaves are not the parameters themselves."""
        return any(leaf is not self.parameters[name] for name, leaf in self.leaves.items())

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for leaf in self.leaves.values():
            leaf.grad = None

    def gradients(self) -> dict[str, Tensor]:
        """The gradient of every leaf."""
        found = {name: leaf.grad for name, leaf in self.leaves.items() if leaf.grad is not None}
        if without := self.leaves.keys() - found.keys():
            named = ", ".join(sorted(without))
            raise RuntimeError(f"no gradient for {named}: call backward() on the members' losses first")
        return found

    @torch.no_grad()
    def step(self) -> None:
        """Move every parameter once, along the gradient that it holds."""
        gradients = self.gradients()
        for name in gradients:
            if self.parameters[name] is self.activations.raw:
                gradients[name] = self.activations.feasible_gradient(gradients[name])
        if self._flat is None:
            rates = self.current_rates()
            for name, gradient in gradients.items():
                self.move(name, gradient, rates * self.scales[name])
        else:
            self.move_all(self._flat, list(gradients.values()))
        self.updates += 1

    def current_rates(self) -> Tensor:
        """The members' learning rates after so many updates."""
        raise NotImplementedError

    def move(self, name: str, gradient: Tensor, rates: Tensor) -> None:
        """Move one parameter at the members' rates."""
        raise NotImplementedError

    def move_all(self, flat: _Flat, gradients: Sequence[Tensor]) -> None:
        """Move all parameters at once, on a GPU."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Tensor]:
        """What a checkpoint needs beside the network, as tensors by name."""
        return {"updates": self.updates} | {f"{self.remembered}.{name}": tensor for name, tensor in self.memory.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a state that an optimiser of the same population has saved; tensors are filled in place."""
        own = self.state_dict()
        shapes, given = ({(name, tuple(t.shape)) for name, t in items.items()} for items in (own, state))
        if shapes != given:
            raise ValueError(f"the state is that of another network; they differ in {sorted(shapes ^ given)}")
        for name, tensor in own.items():
            tensor.copy_(state[name])
        if self._flat is not None:
            self._flat.copy()


class RMSprop(Optimiser):
    """RMSprop as in Keras 2, with a learning rate that falls with the number of updates.

        v <- rho v + (1 - rho) g^2
        w <- w - lr / (1 + decay * updates) * g / (sqrt(v) + epsilon)

    where `updates` counts those made before. Keras 3 adds epsilon under the root, PyTorch's rho is .99 by default.

    Args:
        network: the population whose parameters are moved, already on its device.
        lr: the learning rate of all members, or one for each.
        decay: how fast it falls.
        coefficient_lr_scale: the coefficients' learning rate is `lr` times this, one number or one for each member.
        rho: the share of v that stays at each update.
        epsilon: what keeps a step finite where gradients vanish.
        copies: the type of what products are computed with, torch.bfloat16 for copies of weights and biases. They are
            kept on a GPU alone, where one kernel moves all parameters and writes their copies.

    Example:
        >>> import torch
        >>> from hullo.lab import networks, recipes
        >>> network = networks.build("lenet5", activation="relu")
        >>> optimiser = recipes.RMSprop(network)
        >>> network(torch.rand(4, 3, 32, 32)).square().mean().backward()
        >>> optimiser.step()
        >>> int(optimiser.updates)
        1
    """

    remembered = "squares"

    def __init__(
        self,
        network: Network,
        *,
        lr: Numbers = 1e-4,
        decay: float = 1e-6,
        coefficient_lr_scale: Numbers = 1.0,
        rho: float = 0.9,
        epsilon: float = 1e-7,
        copies: torch.dtype = torch.float32,
    ) -> None:
        for name, value in (("decay", decay), ("epsilon", epsilon)):
            _check(name, value, value >= 0, "a number that is not negative")
        _check("rho", rho, 0 <= rho < 1, "a share from 0 to below 1")
        self.decay, self.rho, self.epsilon = decay, rho, epsilon
        super().__init__(network, lr, coefficient_lr_scale, copies)

    def current_rates(self) -> Tensor:
        return self.rates / (1 + self.decay * self.updates)

    def move(self, name: str, gradient: Tensor, rates: Tensor) -> None:
        parameter, square = self.parameters[name], self.memory[name]
        square.mul_(self.rho).addcmul_(gradient, gradient, value=1 - self.rho)
        root = square.sqrt().add_(self.epsilon)
        update = by_member(torch.div(gradient, root, out=root), len(rates))
        by_member(parameter, len(rates)).addcmul_(update, _beside(rates, update), value=-1)

    def move_all(self, flat: _Flat, gradients: Sequence[Tensor]) -> None:
        from hullo.lab.kernels.rmsprop import rule

        flat.move(gradients, self.rates, rule(self.updates, decay=self.decay, rho=self.rho, epsilon=self.epsilon))


class SGD(Optimiser):
    """Stochastic gradient descent with momentum as in Caffe, at a learning rate that falls in steps.

        v <- momentum v + rate * (g + weight_decay w)
        w <- w - v,    rate = lr * gamma^floor(updates / every)

    where `updates` counts those made before. Biases move at twice the rate and do not decay; coefficients do not decay
    either. The rate is part of v, so what was gathered at a higher rate is spent after it has fallen; in PyTorch's SGD
    it falls for that as well.

    Args:
        network: the population whose parameters are moved, already on its device.
        lr: the learning rate of all members, or one for each.
        gamma: what it is multiplied with at each step.
        every: how many updates are made at one rate; the default is for batches of 256 of ILSVRC-2012.
        coefficient_lr_scale: the coefficients' learning rate is `lr` times this, one number or one for each member.
        momentum: the share of v that stays at each update.
        weight_decay: the share of a weight that is added to its gradient.
        copies: as for :class:`RMSprop`.

    Example:
        >>> import torch
        >>> from hullo.lab import networks, recipes
        >>> network = networks.build("lenet5", activation="relu")
        >>> optimiser = recipes.SGD(network, every=1)
        >>> for _ in range(3):
        ...     network(torch.rand(4, 3, 32, 32)).square().mean().backward()
        ...     optimiser.step()
        >>> optimiser.current_rates()
        tensor([1.0000e-05])
    """

    remembered = "velocities"
    bias_lr_scale = 2.0

    def __init__(
        self,
        network: Network,
        *,
        lr: Numbers = 0.01,
        gamma: float = 0.1,
        every: int = 100_000,
        coefficient_lr_scale: Numbers = 1.0,
        momentum: float = 0.9,
        weight_decay: float = 5e-4,
        copies: torch.dtype = torch.float32,
    ) -> None:
        for name, value in (("gamma", gamma), ("weight_decay", weight_decay)):
            _check(name, value, value >= 0, "a number that is not negative")
        _check("every", every, isinstance(every, int) and every >= 1, "a whole number of at least one")
        _check("momentum", momentum, 0 <= momentum < 1, "a share from 0 to below 1")
        self.gamma, self.every, self.momentum, self.weight_decay = gamma, every, momentum, weight_decay
        super().__init__(network, lr, coefficient_lr_scale, copies)
        self._decays = self.rates.new_tensor([self.decay(name) for name in self.parameters])

    def current_rates(self) -> Tensor:
        return self.rates * self.gamma ** (self.updates // self.every).double()

    def decay(self, name: str) -> float:
        """The share of a parameter that is added to its gradient."""
        return 0.0 if is_bias(name) or self.parameters[name] is self.activations.raw else self.weight_decay

    def move(self, name: str, gradient: Tensor, rates: Tensor) -> None:
        parameter, velocity = self.parameters[name], by_member(self.memory[name], len(rates))
        beside = _beside(rates, velocity)
        velocity.mul_(self.momentum).addcmul_(by_member(gradient, len(rates)), beside)
        if decay := self.decay(name):
            velocity.addcmul_(by_member(parameter, len(rates)), beside, value=decay)
        parameter.sub_(self.memory[name])

    def move_all(self, flat: _Flat, gradients: Sequence[Tensor]) -> None:
        from hullo.lab.kernels.sgd import rule

        flat.move(gradients, self.current_rates(), rule(self._decays, momentum=self.momentum))


class _Flat:
    """The parameters of a population one after the other in one buffer, memory and copies too: one kernel moves all.

    The network's parameters become views of the buffer; convolutions' weights lie there with channels last.
    """

    def __init__(self, optimiser: Optimiser, members: int, copies: torch.dtype) -> None:
        from hullo.lab.kernels.flat import Layout

        ordered = {name: _channels_last(p.detach()) for name, p in optimiser.parameters.items()}
        self.layout = Layout(list(ordered.values()), members)
        self.values, self.memory = self.layout.buffer(torch.float32), self.layout.buffer(torch.float32)
        self.copies = self.layout.buffer(copies) if copies != torch.float32 else None
        self.scales = torch.stack(list(optimiser.scales.values()))
        for parameter, view in zip(optimiser.parameters.values(), self.layout.views(self.values), strict=True):
            parameter.data = view.copy_(parameter.detach())
        optimiser.memory = dict(zip(ordered, self.layout.views(self.memory), strict=True))
        if self.copies is not None:
            for name, view in zip(ordered, self.layout.views(self.copies), strict=True):
                if name.endswith(("weight", "bias")):
                    optimiser.leaves[name] = view.requires_grad_()
            self.copy()

    def move(self, gradients: Sequence[Tensor], rates: Tensor, rule: Rule) -> None:
        """Move all parameters once by a rule, at the members' rates."""
        from hullo.lab.kernels.flat import move

        buffers = self.layout, self.values, self.memory
        move(*buffers, gradients, rates=rates, scales=self.scales, rule=rule, copies=self.copies)

    @torch.no_grad()
    def copy(self) -> None:
        """Make the copies anew, after the parameters were set."""
        if self.copies is not None:
            self.copies.copy_(self.values)


def is_bias(name: str) -> bool:
    """Whether a parameter of this name is a bias."""
    return name.endswith("bias")


def _channels_last(parameter: Tensor) -> Tensor:
    return parameter.contiguous(memory_format=torch.channels_last if parameter.dim() == 4 else torch.contiguous_format)


def _check(name: str, value: object, valid: bool, wanted: str) -> None:
    if not valid:
        raise ValueError(f"{name}={value!r}: give {wanted}")


def _beside(rates: Tensor, split: Tensor) -> Tensor:
    """One rate a member, shaped to be multiplied with a tensor whose first dimension is the members'."""
    return rates.view(-1, *[1] * (split.dim() - 1))
