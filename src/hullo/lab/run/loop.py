"""The training loop of a population: steps, epochs, curves, and a state to continue from."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from threading import Event
from typing import Any, Protocol

import torch
from torch import Tensor

from hullo.population import capture

Batch = tuple[Tensor, ...]


class Batches(Protocol):
    """Interface of what a loop trains on: `batches` yields tensors, `load_batch` turns them into inputs and targets.

    `load_batch` can be captured in a CUDA graph.
    """

    device: torch.device
    count: int  # training samples per epoch

    def batches(self, seeds: Tensor, epoch: int, size: int, start: int) -> Iterator[Batch]:
        """Yield the batches of an epoch, `size` samples each, starting with batch `start`."""

    def load_batch(self, *batch: Tensor) -> tuple[Any, Any]:
        """Return the inputs and the targets of a batch."""


class Loop:
    """Train a population for some epochs; after `load_state_dict` it continues bit for bit.

    A subclass says how losses are computed and what is evaluated after an epoch. `curves` holds a point per epoch and
    member.

    Args:
        population: the networks, on the device of the loader.
        loader: loads the batches.
        epochs: number of epochs.
        batch_size: samples per batch.
        precision: "float32", or "bfloat16" for mixed precision by autocast.
        drop_last: leave out the samples of an epoch that do not fill a batch.
        is_captured: whether a step on a GPU is a CUDA graph.
    """

    def __init__(
        self,
        population: Any,
        loader: Batches,
        *,
        epochs: int,
        batch_size: int,
        precision: str = "float32",
        drop_last: bool = False,
        is_captured: bool = True,
    ) -> None:
        self.population = population
        self.optimizer: Any = None  # made once the number of steps is known
        self.loader: Any = loader
        self.epochs, self.batch_size, self.precision = epochs, batch_size, precision
        self.is_captured = is_captured and loader.count >= batch_size
        self.images = loader.count  # per epoch
        if drop_last and loader.count >= batch_size:
            self.images -= loader.count % batch_size
        self.steps = -(-self.images // batch_size)
        self.epoch = self.step = 0
        self.seconds = 0.0
        self.total = torch.zeros(len(population), dtype=torch.float64, device=loader.device)
        self.curves: dict[str, Tensor] = {}

    def advance(self) -> Iterator[None]:
        """Train to the last epoch; yield after each step and each epoch, when the state can be saved."""
        take_step: Callable[..., None] = capture(self._take_step, self) if self.is_captured else self._take_step
        while self.epoch < self.epochs:
            self.population.train()
            seeds = self.population.seeds
            batches = self.loader.batches(seeds, self.epoch, self.batch_size, self.step)
            for batch in islice(batches, self.steps - self.step):
                take_step(*batch)
                self.step += 1
                yield
            self._end_epoch()
            yield

    def run(self, stop: Event, save: Callable[[], None], every: float) -> Iterator[float]:
        """Train to the last epoch; yield the time after each step and each epoch.

        Save every so many seconds, and before the KeyboardInterrupt that a request to stop becomes.
        """
        last = saved = time.monotonic()
        for _ in self.advance():
            now = time.monotonic()
            self.seconds += now - last
            last = now
            yield now
            if stop.is_set() or now - saved >= every:
                save()
                last = saved = time.monotonic()
            if stop.is_set():
                raise KeyboardInterrupt

    def _take_step(self, *batch: Tensor) -> None:
        """Take a step on the mean loss of a batch."""
        self.optimizer.zero_grad()
        with self._autocast():
            losses = self._losses(*self.loader.load_batch(*batch))[0]
        losses.backward(torch.full_like(losses, 1 / losses.shape[1]))  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.total += losses.detach().sum(1)

    def _autocast(self) -> torch.autocast:
        """Return the autocast context of loading samples and of forward passes.

        It caches no weights: a CUDA graph would go on to read what was cached when it was captured.
        """
        enabled = self.precision == "bfloat16"
        return torch.autocast(self.loader.device.type, torch.bfloat16, enabled=enabled, cache_enabled=False)

    def _losses(self, inputs: Any, targets: Any) -> tuple[Tensor, Any]:
        """Return each member's loss on each sample, (K, B), and its outputs."""
        raise NotImplementedError

    def _evaluate_members(self) -> dict[str, Tensor]:
        """Return a point for every curve, with the members in the first dimension."""
        raise NotImplementedError

    @property
    def val_scores(self) -> Tensor | None:
        """Return what members score on validation data after each epoch, higher is better; None without such data."""
        raise NotImplementedError

    @torch.no_grad()
    def _end_epoch(self) -> None:
        """Evaluate, and add a point to every curve."""
        self.population.eval()
        for name, point in self._evaluate_members().items():
            curve = self.curves.get(name, point.new_empty(0, *point.shape).cpu())
            self.curves[name] = torch.cat([curve, point.cpu().unsqueeze(0)])
        self.total.zero_()
        self.epoch, self.step = self.epoch + 1, 0

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state of the training as tensors by name."""
        parts = {
            "population": self.population.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "curves": self.curves,
        }
        state = {f"{part}.{name}": tensor for part, tensors in parts.items() for name, tensor in tensors.items()}
        position = torch.tensor([self.epoch, self.step, self.seconds], dtype=torch.float64)
        return state | {"total": self.total, "position": position}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load the state of a training of the same members."""

        def part(prefix: str) -> dict[str, Tensor]:
            return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}

        self.population.load_state_dict(part("population."))
        self.optimizer.load_state_dict(part("optimizer."))
        self.curves = part("curves.")
        self.total.copy_(state["total"])
        self.epoch, self.step = map(int, state["position"][:2].tolist())
        self.seconds = state["position"][2].item()
