"""The training of some runs: in a population, or of a single network that no population can take."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hullo.lab.comparison.alone import Alone, AloneOptimizer
from hullo.lab.comparison.candidates import Candidate
from hullo.lab.comparison.decision import Arm
from hullo.lab.comparison.task import Task
from hullo.lab.run.local import Learned, read_coefficients
from hullo.lab.run.loop import Loop
from hullo.lab.run.training import make_optimizer
from hullo.population import Population, capture

OPTIMIZERS = ("adamw", "adam", "sgd", "rmsprop")
Step = Callable[[Any, Any], Tensor]


@dataclass(frozen=True)
class Settings:
    """How every run is trained."""

    epochs: int
    batch_size: int
    optimizer: str = "adamw"
    weight_decay: float = 0.01
    precision: str = "float32"


class Trial(Loop):
    """Train runs side by side; remember each member's weights after the epoch that was best on validation data.

    The learning rate falls along a cosine to zero.

    Args:
        arms: the runs.
        candidates: their candidates by name.
        loader: loads the data.
        task: loss and metric.
        settings: how to train.
        example: some inputs of a network.
        step: the user's function of a population and a batch that returns a loss per member.
    """

    def __init__(
        self,
        arms: Sequence[Arm],
        candidates: Mapping[str, Candidate],
        loader: Any,
        task: Task,
        settings: Settings,
        example: Tensor | None,
        step: Step | None = None,
    ) -> None:
        self.arms, self.task, self.user_step = tuple(arms), task, step
        members = [candidates[arm.candidate].build(arm.seed, example) for arm in arms]
        chosen = [candidates[arm.candidate] for arm in arms]
        is_alone = bool(chosen[0].alone)
        seeds = [arm.seed for arm in arms]
        population: Any = (
            Alone(members[0], seeds[0], arms[0].candidate) if is_alone else Population(members, seeds=seeds)
        )
        super().__init__(
            population.to(loader.device),
            loader,
            epochs=settings.epochs,
            batch_size=1 if loader.is_shared else settings.batch_size,
            precision=settings.precision,
            is_captured=not is_alone,
        )
        updates = self.steps * self.epochs

        def schedule(done: Tensor) -> Tensor:
            return (1 + torch.cos(math.pi * done / updates)) / 2

        options: dict[str, Any] = {
            "lr": [arm.lr for arm in arms],
            "weight_decay": [settings.weight_decay] * len(arms),
            "coefficient_lr_scale": [candidate.scale for candidate in chosen],
            "schedule": schedule,
        }
        if is_alone:
            self.optimizer = AloneOptimizer(population, settings.optimizer, **options)
        else:
            copies = torch.bfloat16 if settings.precision == "bfloat16" else None
            self.optimizer = make_optimizer(population, settings.optimizer, **options, copies=copies)
        self.start = self._coefficients()
        self.best = {name: tensor.detach().clone() for name, tensor in population.state_dict().items()}
        self.best_value = torch.full((len(arms),), -math.inf, dtype=torch.float64)
        self.examples: Tensor | None = None  # the score of each test sample after the best epoch, (K, N)
        self._score_batch = self._score if is_alone else capture(self._score)
        self.untrained = self._scores_of_untrained()

    def _losses(self, inputs: Any, targets: Any) -> tuple[Tensor, Any]:
        count = len(self.arms)
        is_shared = self.loader.is_shared or not self.population.training
        outputs = self._forward(inputs, in_dims=None if is_shared else 0)
        if not isinstance(outputs, Tensor):
            raise ValueError(
                f"the network returned {type(outputs).__name__}; return a tensor, or give a step of your own"
            )
        outputs = outputs.float() if outputs.is_floating_point() else outputs
        aimed = targets.expand(count, *targets.shape) if is_shared else targets
        losses = self.task.losses(outputs.flatten(0, 1), aimed.flatten(0, 1)).view(count, -1)
        return losses, outputs

    def _take_step(self, *batch: Tensor) -> None:
        if self.user_step is None and not self.loader.is_shared:
            super()._take_step(*batch)
            return
        self.optimizer.zero_grad()
        with self._autocast():
            losses = self._batch_losses(batch)
        losses.sum().backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.total += losses.detach()

    def _batch_losses(self, batch: Sequence[Tensor]) -> Tensor:
        """Return each member's mean loss on a batch that all share, (K)."""
        loaded = self.loader.load_batch(*batch)
        if self.user_step is None:
            return self._losses(*loaded)[0].mean(1)
        losses = self.user_step(self.population, loaded)
        if not isinstance(losses, Tensor) or losses.shape != (len(self.arms),):
            found = f"shape {tuple(losses.shape)}" if isinstance(losses, Tensor) else type(losses).__name__
            raise ValueError(f"step returned {found}; return one loss for each of {len(self.arms)} members")
        return losses

    def _score(self, *batch: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return each member's losses on a batch, the score of each sample, and outputs for metric functions."""
        if self.user_step is not None:
            losses = self._batch_losses(batch)[:, None]
            return losses, losses, losses
        inputs, targets = self.loader.load_eval(*batch)
        losses, outputs = self._losses(inputs, targets)
        metric = self.task.metric
        if metric.examples is None:
            return losses, losses, outputs
        flat = outputs.flatten(0, 1), targets.expand(len(self.arms), *targets.shape).flatten(0, 1)
        return losses, metric.examples(*flat, losses.flatten()).view(losses.shape), losses

    def _evaluate(self, name: str) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return each member's loss and metric on an evaluation set, (K), and the score of each sample, (K, N)."""
        metric, parts, targets = self.task.metric, [], []
        with self._autocast():
            for batch in self.loader.eval_batches(name):
                parts.append([part.clone() for part in self._score_batch(*batch)])
                if metric.whole is not None:
                    targets.append(self.loader.load_eval(*batch)[1])
        losses, examples, outputs = (torch.cat(part, 1) for part in zip(*parts, strict=True))
        if metric.whole is not None:
            values = [float(metric.whole(own, torch.cat(targets))) for own in outputs]
            return losses.double().mean(1), self.total.new_tensor(values), None
        values = [metric.finish(value) for value in examples.double().mean(1).tolist()]
        return losses.double().mean(1), self.total.new_tensor(values), examples

    @torch.no_grad()
    def _scores_of_untrained(self) -> dict[str, Tensor]:
        """Return the metric of the networks before training, which epochs count as in which a run has diverged."""
        self.population.eval()
        return {name: self._evaluate(name)[1].nan_to_num(0.0, 0.0, 0.0) for name in ("val", "test")}

    @torch.no_grad()
    def evaluate(self) -> dict[str, Tensor]:
        """Return what an epoch would add to the curves; the training goes on as before."""
        self.population.eval()
        points = self._evaluate_members()
        self.population.train()
        return points

    def _evaluate_members(self) -> dict[str, Tensor]:
        points = {"train_loss": self.total / self.images}
        for name in ("val", "test"):
            points[f"{name}_loss"], metric, examples = self._evaluate(name)
            points[f"{name}_metric"] = torch.where(metric.isfinite(), metric, self.untrained[name])
            points[f"{name}_finite"] = metric.isfinite()
        weights = [p.reshape(len(self.arms), -1).isfinite().all(1) for p in self.population.parameters()]
        losses = [points.pop(f"{name}_finite") for name in ("val", "test")]
        losses += [points[f"{name}_loss"].isfinite() for name in ("train", "val", "test")]
        points["finite"] = torch.stack([*weights, *losses]).all(0)
        self._remember(points, examples)
        return points | {"coefficients": self._coefficients()}

    def _remember(self, points: Mapping[str, Tensor], examples: Tensor | None) -> None:
        """Keep the weights of members that are better on validation data than ever before."""
        value = self.task.metric.sign * points["val_metric"]
        better = (value > self.best_value.to(value)) & points["finite"]
        self.best_value = torch.where(better.cpu(), value.cpu(), self.best_value)
        for name, tensor in self.population.state_dict().items():
            if tensor.shape[:1] == (len(self.arms),) and not isinstance(self.population, Alone):
                self.best[name][better] = tensor[better]
            elif bool(better.any()):
                self.best[name].copy_(tensor)
        if examples is not None:
            kept = examples if self.examples is None else self.examples.to(examples)
            self.examples = torch.where(better[:, None], examples, kept)

    def _coefficients(self) -> Tensor:
        """Return the coefficients of all members, on the CPU."""
        if isinstance(self.population, Alone):
            return self.population.coefficients
        coefficients: Tensor = self.population.activations.coefficients.detach().cpu()
        return coefficients

    def learned(self, k: int, candidate: Candidate) -> Learned:
        """Return what a member learned, as records have it."""
        points = (self.start, *self.curves["coefficients"])
        if isinstance(self.population, Alone):
            return self.population.learned(points, candidate.row)
        return read_coefficients(self.population.activations, points, k, candidate.row)

    def network(self, k: int) -> nn.Module:
        """Return a member, a plain module, after the epoch that was best on validation data."""
        now = {name: tensor.clone() for name, tensor in self.population.state_dict().items()}
        self.population.load_state_dict(self.best)
        member: nn.Module = self.population[k]
        self.population.load_state_dict(now)
        return member

    def state_dict(self) -> dict[str, Tensor]:
        state = super().state_dict() | {f"best.{name}": tensor for name, tensor in self.best.items()}
        state["best_value"] = self.best_value
        return state if self.examples is None else state | {"examples": self.examples}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        super().load_state_dict(state)
        for name, tensor in self.best.items():
            tensor.copy_(state[f"best.{name}"])
        self.best_value = state["best_value"].clone()
        self.examples = state.get("examples")
