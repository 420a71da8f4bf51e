"""The training of some trials: in a population, or of a single network that no population can take."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from hullo.lab.comparison.candidates import Candidate, Inputs
from hullo.lab.comparison.data import Arrays, Stream
from hullo.lab.comparison.decision import Trial
from hullo.lab.comparison.task import Task, measure
from hullo.lab.recorder import find_layers
from hullo.lab.run.local import read_coefficients
from hullo.lab.run.loop import Loop
from hullo.lab.run.training import make_optimizer
from hullo.lab.spec.records import learned_fields
from hullo.population import Population, capture
from hullo.surgery import parameter_groups

OPTIMIZERS: dict[str, tuple[Callable[..., torch.optim.Optimizer], dict[str, float]]] = {
    "adamw": (torch.optim.AdamW, {}),
    "adam": (torch.optim.Adam, {}),
    "sgd": (torch.optim.SGD, {"momentum": 0.9}),
    "rmsprop": (torch.optim.RMSprop, {"alpha": 0.9, "eps": 1e-7}),
}
"""The optimizers of single networks, with the settings of :func:`hullo.lab.run.training.make_optimizer`."""
Step = Callable[[Any, Any], Tensor]


@dataclass(frozen=True)
class Setup:
    """Hold the data, the task and the settings of all trials."""

    network: str  # its name
    data: Arrays | Stream  # on the device of all trials
    notes: Sequence[str]  # what a result says about the data and the candidates
    candidates: Mapping[str, Candidate]  # by name
    task: Task
    example: Inputs | None  # some inputs of a network; None if they are not known
    step: Step | None  # the user's function of a population and a batch that returns a loss per member
    batch_size: int
    optimizer: str
    weight_decay: float
    precision: str


class TrialLoop(Loop):
    """Train trials side by side; the learning rate falls along a cosine to zero.

    `examples` has the score of each test sample after the last epoch, (K, N), if the metric has such scores.
    """

    def __init__(self, trials: Sequence[Trial], setup: Setup, epochs: int) -> None:
        self.trials, self.task, self.user_step = tuple(trials), setup.task, setup.step
        chosen = [setup.candidates[trial.candidate] for trial in trials]
        members = [item.build(trial.seed, setup.example) for item, trial in zip(chosen, trials, strict=True)]
        is_single, device = chosen[0].group is None, setup.data.device
        population: Any
        loader: Any = setup.data
        if is_single:
            population = SingleNetwork(members[0].to(device), trials[0])
        else:
            population = Population(members, seeds=[trial.seed for trial in trials]).to(device)
        super().__init__(
            population,
            loader,
            epochs=epochs,
            batch_size=1 if setup.data.is_shared else setup.batch_size,
            precision=setup.precision,
            is_captured=not is_single,
        )
        self.optimizer = (_make_single_optimizer if is_single else make_optimizer)(
            population,
            setup.optimizer,
            lr=[trial.lr for trial in trials],
            weight_decay=[setup.weight_decay] * len(trials),
            coefficient_lr_scale=[item.scale for item in chosen],
            schedule=lambda done: (1 + torch.cos(math.pi * done / (self.steps * self.epochs))) / 2,
            copies=torch.bfloat16 if setup.precision == "bfloat16" else None,
        )
        self.points = [self._read_coefficients()]
        self.examples: Tensor | None = None
        self._score_batch = self._score if is_single else capture(self._score)
        limit = 1 if self.task.whole is None else None  # a few samples may not have a metric of the user's
        with torch.no_grad():  # the metric before training, on one batch, is that of epochs after a divergence
            population.eval()
            untrained = {name: self._evaluate(name, limit)[1] for name in ("val", "test")}
        self.untrained = {name: metric.nan_to_num(0.0, 0.0, 0.0) for name, metric in untrained.items()}

    def _losses(self, *loaded: Any) -> tuple[Tensor, Any]:
        """Return each member's losses, (K, B), and its outputs; of a batch that all share, (K, 1), its mean loss."""
        if not self.loader.is_shared:
            return self._apply(loaded, in_dims=0)
        losses, outputs = self._apply(loaded[0], in_dims=None)
        return losses.mean(1, keepdim=True), outputs

    def _apply(self, batch: Any, *, in_dims: int | None) -> tuple[Tensor, Tensor]:
        """Return each member's losses, (K, B), and its outputs; of a step of the user's, its loss."""
        if self.user_step is not None:
            losses = call_step(self.user_step, self.population, batch)[:, None]
            return losses, losses
        inputs, targets = batch
        outputs = self.population(inputs, in_dims=in_dims).float()
        aimed = targets.expand(len(outputs), *targets.shape) if in_dims is None else targets
        losses = self.task.losses(outputs.flatten(0, 1), aimed.flatten(0, 1))
        return losses.view(len(outputs), -1), outputs

    def _score(self, *batch: Tensor) -> tuple[Tensor, Tensor]:
        """Return each member's losses on a batch, and the score of each sample, or outputs for metric functions."""
        loaded = self.loader.load_eval(*batch)
        losses, outputs = self._apply(loaded, in_dims=None)
        if self.user_step is not None or self.task.whole is not None:
            return losses, outputs
        aimed = loaded[1].expand(len(outputs), *loaded[1].shape)
        scores = self.task.score(outputs.flatten(0, 1), aimed.flatten(0, 1), losses.flatten())
        return losses, scores.view(losses.shape)

    def _evaluate(self, name: str, limit: int | None = None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return each member's loss and metric on an evaluation set, (K), and the score of each sample, (K, N)."""
        whole, parts, targets = self.task.whole, [], []
        with self._autocast():
            for batch in islice(self.loader.eval_batches(name), limit):
                parts.append([part.clone() for part in self._score_batch(*batch)])
                if whole is not None:
                    targets.append(self.loader.load_eval(*batch)[1])
        losses, scores = (torch.cat(part, 1) for part in zip(*parts, strict=True))
        if whole is None:
            values = [*map(self.task.finish, scores.double().mean(1).tolist())]
            examples = scores if self.user_step is None else None
        else:
            aimed, examples = torch.cat(targets).cpu(), None
            values = [measure(whole, own, aimed) for own in scores.cpu()]
        return losses.double().mean(1), self.total.new_tensor(values), examples

    @torch.no_grad()
    def evaluate(self) -> dict[str, Tensor]:
        """Return the loss and the metric of each member, (K), and whether these and the weights are finite."""
        self.population.eval()
        points: dict[str, Tensor] = {}
        finite = [p.reshape(len(self.trials), -1).isfinite().all(1) for p in self.population.parameters()]
        for name in ("val", "test"):
            points[f"{name}_loss"], metric, self.examples = self._evaluate(name)
            points[f"{name}_metric"] = torch.where(metric.isfinite(), metric, self.untrained[name])
            finite += [metric.isfinite(), points[f"{name}_loss"].isfinite()]
        return points | {"finite": torch.stack(finite).all(0)}

    def _evaluate_members(self) -> dict[str, Tensor]:
        self.points.append(self._read_coefficients())
        points, loss = self.evaluate(), self.total / self.images
        return points | {"train_loss": loss, "finite": points["finite"] & loss.isfinite()}

    @property
    def val_scores(self) -> Tensor:
        return self.task.sign * self.curves["val_metric"]

    def _read_coefficients(self) -> Any:
        """Return the coefficients of all members, or of each layer of a single network."""
        if isinstance(self.population, SingleNetwork):
            return [layer.read() for layer in self.population.layers]
        return self.population.activations.coefficients.detach().cpu()

    def learned(self, k: int, candidate: Candidate) -> dict[str, Any]:
        """Return what a member learned, as fields of a record."""
        if isinstance(self.population, SingleNetwork):
            return learned_fields(candidate.row, (layer.name for layer in self.population.layers), self.points)
        return read_coefficients(self.population.activations, self.points, k, candidate.row)


def call_step(step: Step, population: Any, batch: Any) -> Tensor:
    """Return the losses of a step of the user's; raise a ValueError unless it is one for each member."""
    losses: Any = step(population, batch)
    if not isinstance(losses, Tensor) or losses.shape != (len(population),):
        found = f"shape {tuple(losses.shape)}" if isinstance(losses, Tensor) else type(losses).__name__
        raise ValueError(f"step returned {found}; return one loss for each of {len(population)} members")
    return losses


class SingleNetwork(nn.Module):
    """A network that a population cannot take, with the interface of a population of one.

    On a GPU it is compiled, with CUDA graphs where it allows them.
    """

    def __init__(self, network: nn.Module, trial: Trial) -> None:
        super().__init__()
        self.network = network
        self.layers = find_layers(network)[0].get(trial.candidate, [])
        self.seeds = torch.tensor([trial.seed], device=next(network.parameters()).device)
        if self.seeds.is_cuda:
            network.compile(mode="reduce-overhead")

    def __len__(self) -> int:
        return 1

    def __getitem__(self, k: int) -> nn.Module:
        return copy.deepcopy(self.network)

    def forward(self, *args: Any, in_dims: Any = 0) -> Tensor:
        """Return the network's output, with a dimension for the one member."""
        inputs = [arg[0] if in_dims == 0 else arg for arg in args]
        outputs: Tensor = self.network(*inputs)
        return outputs.unsqueeze(0)

    def state_dict(self) -> dict[str, Tensor]:  # type: ignore[override]
        return {name: tensor.unsqueeze(0) for name, tensor in self.network.state_dict().items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:  # type: ignore[override]
        self.network.load_state_dict({name: tensor[0] for name, tensor in state.items()})


def _make_single_optimizer(
    population: SingleNetwork, name: str, *, schedule: Callable[[Tensor], Tensor], copies: object, **settings: Any
) -> torch.optim.Optimizer:
    """Return an optimizer of PyTorch, given settings of the one member and the factor of its learning rates."""
    kind, options = OPTIMIZERS[name]
    groups = parameter_groups(population.network, **{key: value for key, (value,) in settings.items()})
    optimizer = kind(groups, **options)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: float(schedule(torch.tensor(done))))
    optimizer.register_step_post_hook(lambda *_: scheduler.step())
    return optimizer
