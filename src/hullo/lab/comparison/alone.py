"""A single network that is trained like a population of one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hullo.lab.recorder import find_layers
from hullo.lab.run.local import Learned
from hullo.lab.spec.activation import ActivationSpec
from hullo.surgery import parameter_groups

_OPTIMIZERS: dict[str, tuple[Callable[..., torch.optim.Optimizer], dict[str, float]]] = {
    "adamw": (torch.optim.AdamW, {}),
    "adam": (torch.optim.Adam, {}),
    "sgd": (torch.optim.SGD, {"momentum": 0.9}),
    "rmsprop": (torch.optim.RMSprop, {"alpha": 0.9, "eps": 1e-7}),
}
"""The optimizers, with the settings of :func:`hullo.lab.run.training.make_optimizer`."""


class Alone(nn.Module):
    """A single network with the interface of a population, for what a population cannot take.

    On a GPU it is compiled, with CUDA graphs where the network allows them.
    """

    seeds: Tensor

    def __init__(self, network: nn.Module, seed: int, activation: str) -> None:
        super().__init__()
        self.network, self.first_sample = network, 0
        self.register_buffer("seeds", torch.tensor([seed]), persistent=False)
        self.layers = find_layers(network)[0].get(activation, [])
        vars(self)["_call"] = network  # not as a second submodule

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Alone:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.seeds.is_cuda:
            vars(self)["_call"] = torch.compile(self.network, mode="reduce-overhead")
        return self

    def __len__(self) -> int:
        return 1

    def __getitem__(self, k: int) -> nn.Module:
        return copy.deepcopy(self.network)

    def forward(self, *args: Any, in_dims: Any = 0) -> Tensor:
        """Return the network's output, with a dimension for the one member."""
        inputs = [arg[0] if in_dims == 0 else arg for arg in args]
        call: Callable[..., Tensor] = vars(self)["_call"]
        return call(*inputs).unsqueeze(0)

    def state_dict(self) -> dict[str, Tensor]:  # type: ignore[override]
        return {name: tensor.unsqueeze(0) for name, tensor in self.network.state_dict().items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:  # type: ignore[override]
        self.network.load_state_dict({name: tensor[0] for name, tensor in state.items()})

    def make_optimizer(
        self, name: str, schedule: Callable[[], Tensor], **settings: Sequence[float]
    ) -> torch.optim.Optimizer:
        """Return an optimizer of PyTorch, given settings of the one member and the factor of its learning rates."""
        kind, options = _OPTIMIZERS[name]
        own: dict[str, Any] = {key: value for key, (value,) in settings.items()}
        groups = parameter_groups(self.network, **own)
        optimizer = kind([{"initial_lr": group["lr"], **group} for group in groups], **options)

        def set_rates(*_: object) -> None:
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * float(schedule())

        optimizer.register_step_pre_hook(set_rates)
        return optimizer

    @property
    def coefficients(self) -> Tensor:
        """Return the coefficients of all layers in one row."""
        return torch.cat([torch.zeros(0), *(layer.read().flatten() for layer in self.layers)])[None]

    def learned(self, points: Sequence[Tensor], row: ActivationSpec) -> Learned:
        """Return what the network learned, given the coefficients by epoch."""
        if not row.learns:
            return Learned([], [], [])
        shapes = [layer.read().shape for layer in self.layers]
        parts = [point[0].split_with_sizes([shape.numel() for shape in shapes]) for point in points]
        by_epoch = [[rows.view(shape) for rows, shape in zip(part, shapes, strict=True)] for part in parts]
        return Learned.of(row, (layer.name for layer in self.layers), by_epoch)
