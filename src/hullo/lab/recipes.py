"""Optimisers as the paper's frameworks define them, for populations: every member at its own rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from hullo.lab.networks.layers import by_member
from hullo.lab.networks.network import Network


class RMSprop:
    """RMSprop as in Keras 2, with a learning rate that falls with the number of updates.

        v <- rho v + (1 - rho) g^2
        w <- w - lr / (1 + decay * updates) * g / (sqrt(v) + epsilon)

    where `updates` counts those made before. Keras 3 adds epsilon under the root, PyTorch's rho is .99 by default.
    Rates and counters are tensors beside the parameters: a step says nothing to the host, so a CUDA graph can hold it.

    Args:
        network: the population whose parameters are moved, already on its device.
        lr: the learning rate of all members, or one for each.
        decay: how fast it falls.
        coefficient_lr_scale: the coefficients' learning rate is `lr` times this.
        rho: the share of v that stays at each update.
        epsilon: what keeps a step finite where gradients vanish.

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

    def __init__(
        self,
        network: Network,
        *,
        lr: float | Sequence[float] | Tensor = 1e-4,
        decay: float = 1e-6,
        coefficient_lr_scale: float = 1.0,
        rho: float = 0.9,
        epsilon: float = 1e-7,
    ) -> None:
        rates = torch.as_tensor(lr, dtype=torch.float32, device=network.seeds.device)
        if rates.dim() > 1 or rates.numel() not in (1, network.members) or not bool((rates >= 0).all()):
            wanted = f"one number that is not negative, or one for each of {network.members} members"
            raise ValueError(f"lr={lr!r}: give {wanted}")
        for name, value in (("decay", decay), ("coefficient_lr_scale", coefficient_lr_scale), ("epsilon", epsilon)):
            if not value >= 0:
                raise ValueError(f"{name}={value!r}: give a number that is not negative")
        if not 0 <= rho < 1:
            raise ValueError(f"rho={rho!r}: give a share from 0 to below 1")
        self.rates = rates.expand(network.members).clone()
        self.decay, self.coefficient_lr_scale, self.rho, self.epsilon = decay, coefficient_lr_scale, rho, epsilon
        self.updates = torch.zeros((), dtype=torch.int64, device=network.seeds.device)
        self.coefficients = network.activations.raw
        self.parameters = dict(network.named_parameters())
        self.squares = {name: torch.zeros_like(parameter) for name, parameter in self.parameters.items()}

    @torch.no_grad()
    def step(self) -> None:
        """Move every parameter once, along the gradient that it holds."""
        gradients = {name: p.grad for name, p in self.parameters.items() if p.grad is not None}
        if without := self.parameters.keys() - gradients.keys():
            named = ", ".join(sorted(without))
            raise RuntimeError(f"no gradient for {named}: call backward() on the members' losses first")
        rates = self.rates / (1 + self.decay * self.updates)
        scaled = rates * self.coefficient_lr_scale
        for name, parameter in self.parameters.items():
            own = scaled if parameter is self.coefficients else rates
            self._move(parameter, gradients[name], self.squares[name], own)
        self.updates += 1

    def _move(self, parameter: Tensor, gradient: Tensor, square: Tensor, rates: Tensor) -> None:
        square.mul_(self.rho).addcmul_(gradient, gradient, value=1 - self.rho)
        root = square.sqrt().add_(self.epsilon)
        update = by_member(torch.div(gradient, root, out=root), len(rates))
        by_member(parameter, len(rates)).addcmul_(update, rates.view(-1, *[1] * (update.dim() - 1)), value=-1)

    def state_dict(self) -> dict[str, Tensor]:
        """What a checkpoint needs beside the network, as tensors by name."""
        return {"updates": self.updates} | {f"squares.{name}": square for name, square in self.squares.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a state that an optimiser of the same population has saved; tensors are filled in place."""
        own = self.state_dict()
        shapes, given = ({(name, tuple(t.shape)) for name, t in items.items()} for items in (own, state))
        if shapes != given:
            raise ValueError(f"the state is that of another network; they differ in {sorted(shapes ^ given)}")
        for name, tensor in own.items():
            tensor.copy_(state[name])
