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
from hullo.lab.spec.records import round_numbers, spell_module
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

    @property
    def coefficients(self) -> Tensor:
        """Return the coefficients of all layers in one row."""
        return torch.cat([torch.zeros(0), *(layer.read().flatten() for layer in self.layers)])[None]

    def learned(self, points: Sequence[Tensor], row: ActivationSpec) -> Learned:
        """Return what the network learned, as records have it, given the coefficients by epoch."""
        if not row.learns:
            return Learned([], [], [])
        shapes = [layer.read().shape for layer in self.layers]
        parts = [point[0].split_with_sizes([shape.numel() for shape in shapes]) for point in points]
        by_epoch = [[rows.view(shape) for rows, shape in zip(part, shapes, strict=True)] for part in parts]
        means = [[round_numbers(rows.mean(0).tolist()) for rows in point] for point in by_epoch]
        channels = [[*map(round_numbers, rows.tolist())] for rows in by_epoch[-1]] if row.per == "channel" else []
        return Learned(means, channels, [spell_module(layer.name) for layer in self.layers])


class AloneOptimizer:
    """An optimizer of PyTorch for a single network, with the interface of those of populations."""

    def __init__(
        self,
        alone: Alone,
        name: str,
        *,
        lr: Sequence[float],
        weight_decay: Sequence[float],
        coefficient_lr_scale: Sequence[float],
        schedule: Callable[[Tensor], Tensor],
    ) -> None:
        groups = parameter_groups(
            alone.network, lr=lr[0], weight_decay=weight_decay[0], coefficient_lr_scale=coefficient_lr_scale[0]
        )
        kind, options = _OPTIMIZERS[name]
        self.inner: torch.optim.Optimizer = kind(groups, lr=lr[0], **options)
        self.rates = [group["lr"] for group in self.inner.param_groups]
        self.updates, self.schedule = torch.zeros((), dtype=torch.float64), schedule

    def zero_grad(self) -> None:
        self.inner.zero_grad()

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter."""
        factor = float(self.schedule(self.updates))
        for group, rate in zip(self.inner.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor
        self.updates += 1
        self.inner.step()

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state as tensors by name; before the first step there are none of parameters."""
        tensors = {
            f"{number}.{name}": value
            for number, parameter in enumerate(self._parameters())
            for name, value in self.inner.state.get(parameter, {}).items()
            if isinstance(value, Tensor)
        }
        return {"updates": self.updates, **tensors}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load a state; what it does not have is zero, as before the first step."""
        self.updates.copy_(state["updates"])
        for number, parameter in enumerate(self._parameters()):
            own = {name.split(".", 1)[1]: value for name, value in state.items() if name.startswith(f"{number}.")}
            known = self.inner.state[parameter]
            for name, value in known.items():
                if isinstance(value, Tensor) and name not in own:
                    value.zero_()
            for name, value in own.items():
                if isinstance(known.get(name), Tensor):
                    known[name].copy_(value)
                else:
                    known[name] = value.clone()

    def _parameters(self) -> list[nn.Parameter]:
        return [parameter for group in self.inner.param_groups for parameter in group["params"]]
