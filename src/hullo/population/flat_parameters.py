"""Parameters of a population in one buffer, which one kernel updates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from hullo.population.optim import Optimizer


class FlatParameters:
    """Hold the parameters of a population, their state and their copies in one buffer each: one kernel updates all.

    The population's parameters become views of the buffer, in the memory order that suits their layers.
    """

    def __init__(self, optimizer: Optimizer, copies: torch.dtype | None) -> None:
        from hullo.population.kernels.flat_optim import Layout

        self.optimizer = optimizer
        population, parameters = optimizer.population, optimizer.parameters
        kinds = {f"stacked.{name}": kind for name, kind in population.layer_parameters().items()}
        self.layout = Layout([_ordered(p.detach(), kinds.get(name)) for name, p in parameters.items()])
        self.values = self.layout.buffer(torch.float32)
        self.state = [self.layout.buffer(torch.float32) for _ in optimizer.state_names]
        for parameter, view in zip(parameters.values(), self.layout.views(self.values), strict=True):
            parameter.data = view.copy_(parameter.detach())
        for kind, buffer in zip(optimizer.state_names, self.state, strict=True):
            views = dict(zip(parameters, self.layout.views(buffer), strict=True))
            for name, view in views.items():
                view.copy_(optimizer.state[kind][name])
            optimizer.state[kind] = views
        self.copies = None if copies is None else self.layout.buffer(copies)
        if self.copies is not None:
            views = dict(zip(parameters, self.layout.views(self.copies), strict=True))
            population.copies = {
                name.removeprefix("stacked."): view.requires_grad_() for name, view in views.items() if name in kinds
            }
            population.refresh_copies()

    def update(self, gradients: Mapping[str, Tensor], factor: Tensor | None, scale: Tensor | None) -> None:
        """Update all parameters that have gradients."""
        from hullo.population.kernels.flat_optim import update

        optimizer = self.optimizer
        if next(iter(optimizer.parameters.values())).data_ptr() != self.values.data_ptr():
            raise RuntimeError(
                "parameters are elsewhere than when the optimizer was made: they were moved, or another optimizer was "
                "made; make one optimizer, on the final device"
            )
        update(
            self.layout,
            self.values,
            self.state,
            [gradients.get(name) for name in optimizer.parameters],
            rates=optimizer.lr,
            decays=optimizer.weight_decay,
            own=(optimizer.lr * optimizer.lr_scales, optimizer.own_decays) if optimizer.has_groups else (),
            counts=optimizer.counts,
            rule=optimizer.rule(),
            factor=factor,
            scale=scale,
            copies=self.copies,
        )


def _ordered(parameter: Tensor, kind: type[nn.Module] | None) -> Tensor:
    """Return a parameter in the memory order that suits its layer."""
    if parameter.dim() == 5:  # the weights of K convolutions, channels last
        return parameter.flatten(0, 1).contiguous(memory_format=torch.channels_last).view(parameter.shape)
    if kind is nn.Linear and parameter.dim() == 3:  # (K, out, in), in the order that both passes read and write
        return parameter.mT.contiguous().mT
    return parameter.contiguous()
