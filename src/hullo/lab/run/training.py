"""Train a population: steps, evaluation, and the curves of each member.

Members are independent: each has its own loss, order of images and learning rate. A member that diverges does not
affect the others.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hullo.lab import networks
from hullo.lab.run.loaders import Loader
from hullo.lab.run.loop import Loop
from hullo.lab.spec.recipes import parse_schedule
from hullo.lab.spec.run_spec import Spec
from hullo.population import SGD, Adam, AdamW, AugmentedImages, Optimizer, Population, RMSprop, capture
from hullo.population.trace.export import LoweringError

MAX_UPDATES = 2**62
PROBABILITIES = "probabilities, as of a softmax; the loss expects logits: remove the softmax"


class Training(Loop):
    """The training of a population; after `load_state_dict` it continues bit for bit.

    `curves` holds a point per epoch and member: `train_loss`, the mean over the epoch's steps; `test_loss` and
    `test_accuracy`, in percent for each of the loader's `topk`; `val_loss` and `val_accuracy` if there is a validation
    set; `finite`, whether all losses and weights are finite; and `coefficients`.

    Args:
        specs: the members' specs; they may differ in activation, seed, learning rates and weight decay.
        loader: loads the images, on the device of the training.

    Example:
        >>> from hullo.lab import data
        >>> from hullo.lab.run.loaders import InMemoryLoader
        >>> from hullo.lab.spec.run_spec import Spec
        >>> sample = InMemoryLoader(data.load("fashion-mnist-sample"))
        >>> spec = Spec("lenet5", "fashion-mnist-sample", "affine(identity,relu)", epochs=1, batch_size=50)
        >>> training = Training([spec], sample)
        >>> steps = training.advance()
        >>> next(steps), next(steps)
        (None, None)
        >>> training.epoch, training.step, training.steps
        (0, 2, 120)
    """

    def __init__(self, specs: Sequence[Spec], loader: Loader) -> None:
        first = specs[0]
        self.specs, self.loader = tuple(specs), loader
        sizes = asdict(loader.task) | {"example": loader.example}
        members = [networks.build(first.network, activation=s.activation, seed=s.seed, **sizes) for s in specs]
        self.population = Population(members, seeds=[spec.seed for spec in specs]).to(loader.device)
        if first.is_own_network:
            self._check_network()
            kept = networks.OWN[first.network].describe_kept(members[0])
            if kept and first.activation != "own":
                warnings.warn(kept, stacklevel=2)
        super().__init__(
            self.population,
            loader,
            epochs=first.epochs,
            batch_size=first.batch_size,
            precision=first.precision,
            drop_last=first.recipe.drop_last,
        )
        self.optimizer = _optimizer(self.population, specs, self.steps)
        self.start = self.population.activations.coefficients.detach().cpu()
        self._score_batch = capture(self._score)

    @torch.no_grad()
    def _check_network(self) -> None:
        """Raise a ValueError if a user's network cannot be called with these samples or does not return logits."""
        example, count = self.loader.example.to(self.loader.device), self.loader.count
        size = min(self.specs[0].batch_size, count)
        batch = example[torch.arange(size, device=example.device) % len(example)]
        before = {name: tensor.clone() for name, tensor in self.population.state_dict().items()}
        try:
            self._check_call(example, training=False)
            self._check_call(batch, training=True)
            if rest := count % size:  # the last batch of an epoch
                self._check_call(batch[:rest], training=True)
        finally:
            self.population.load_state_dict(before)

    def _check_call(self, example: Tensor, *, training: bool) -> None:
        network, classes = networks.OWN[self.specs[0].network], self.loader.task.num_classes
        with network.explain():
            try:
                logits = self.population.train(training)(example, in_dims=None)
            except LoweringError as error:
                raise ValueError(str(error)) from error
        name, wanted = f"{network.attribute} of {network.path.name}", (len(example), classes)
        if not isinstance(logits, Tensor) or logits.shape[1:] != wanted:
            returned = f"shape {tuple(logits.shape[1:])}" if isinstance(logits, Tensor) else type(logits).__name__
            mode = "training" if training else "evaluation"
            raise ValueError(
                f"{name} returned {returned} for {len(example)} samples in {mode} mode; must be logits, {wanted}"
            )
        if not training and are_probabilities(logits):
            warnings.warn(f"{name} returns {PROBABILITIES}", stacklevel=2)

    def _losses(self, images: Tensor | AugmentedImages, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return each member's loss on each image, (K, B), and its logits."""
        logits = self.population(images, in_dims=0 if labels.dim() == 2 else None).float()
        losses = F.cross_entropy(logits.flatten(0, 1), labels.expand(logits.shape[:2]).flatten(), reduction="none")
        return losses.view(logits.shape[:2]), logits

    def _evaluate_members(self) -> dict[str, Tensor]:
        losses, accuracies = {"train": self.total / self.images}, {}
        for name in self.loader.eval_sizes:
            losses[name], accuracies[name] = self._evaluate(name)
        weights = [p.reshape(len(p), -1).isfinite().all(1) for p in self.population.parameters()]
        finite = torch.stack([*weights, *(loss.isfinite() for loss in losses.values())]).all(0)
        points = {f"{name}_loss": loss for name, loss in losses.items()}
        points |= {f"{name}_accuracy": accuracy for name, accuracy in accuracies.items()}
        return points | {"finite": finite, "coefficients": self.population.activations.coefficients}

    @property
    def val_scores(self) -> Tensor | None:
        return self.curves["val_accuracy"][:, :, 0] if "val" in self.loader.eval_sizes else None

    def _evaluate(self, name: str) -> tuple[Tensor, Tensor]:
        """Return each member's loss on an evaluation set, (K), and its top-k accuracies in percent, (K, len(topk))."""
        sums = self.total.new_zeros(1 + len(self.loader.topk), len(self.specs))
        with self._autocast():
            for batch in self.loader.eval_batches(name):
                sums += self._score_batch(*batch)
        sums = sums / self.loader.eval_sizes[name]
        return sums[0], 100 * sums[1:].T

    def _score(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return the sum of each member's losses on a batch and its hits among the top k, (1 + len(topk), K).

        An image with logits of which the loss is not finite, such as NaN, is no hit.
        """
        losses, logits = self._losses(images, labels)
        hits = logits.topk(min(max(self.loader.topk), logits.shape[-1]), -1).indices == labels[:, None]
        hits = (hits & losses.isfinite()[..., None]).sum(1)
        return torch.stack([losses.sum(1), *(hits[:, :top].sum(-1) for top in self.loader.topk)])


def are_probabilities(outputs: Tensor) -> bool:
    """Return whether outputs for several classes, in the last dimension, are probabilities rather than logits."""
    return outputs.shape[-1] > 1 and bool((outputs >= 0).all()) and bool(((outputs.sum(-1) - 1).abs() < 1e-3).all())


def _optimizer(population: Population, specs: Sequence[Spec], steps: int) -> Optimizer:
    """Return the optimizer; members may differ in learning rates, weight decay and the constant of the schedule."""
    first = specs[0]
    return make_optimizer(
        population,
        first.optimizer,
        lr=[spec.lr for spec in specs],
        weight_decay=[spec.weight_decay for spec in specs],
        coefficient_lr_scale=[spec.coefficient_lr_scale for spec in specs],
        bias_lr_scale=first.recipe.bias_lr_scale,
        schedule=_schedule(specs, steps, population.seeds.device),
        copies=torch.bfloat16 if first.precision == "bfloat16" else None,
    )


def make_optimizer(
    population: Population,
    name: str,
    *,
    lr: Sequence[float],
    weight_decay: Sequence[float],
    coefficient_lr_scale: Sequence[float],
    bias_lr_scale: float = 1.0,
    schedule: Callable[[Tensor], Tensor] | None = None,
    copies: torch.dtype | None = None,
) -> Optimizer:
    """Return an optimizer by name, with settings of each member.

    RMSprop has the constants of Keras, SGD a momentum of 0.9. Weight decay applies only to weights.
    """
    rates, decay, scale = (
        torch.tensor(numbers, dtype=torch.float64, device=population.seeds.device)
        for numbers in (lr, weight_decay, coefficient_lr_scale)
    )
    coefficients = set(population.activations.coefficient_parameters())
    parameters = {name: p for name, p in population.named_parameters() if p not in coefficients}
    biases = [p for name, p in parameters.items() if name.endswith("bias")]
    norms = {f"stacked.{name}" for name in population.layer_parameters((nn.LayerNorm, nn.RMSNorm))}
    others = [
        p
        for name, p in parameters.items()
        if not name.endswith("bias") and (p.dim() <= 2 or name in norms)  # (K, channels), or of a norm of images
    ]
    options: dict[str, Any] = {
        "lr": rates,
        "weight_decay": decay,
        "coefficient_lr_scale": scale,
        "schedule": schedule,
        "groups": [
            {"params": biases, "lr": bias_lr_scale * rates, "weight_decay": 0.0},
            {"params": others, "weight_decay": 0.0},
        ],
        "copies": copies,
    }
    if name == "rmsprop":
        return RMSprop(population, alpha=0.9, eps=1e-7, **options)
    if name == "sgd":
        return SGD(population, momentum=0.9, **options)
    return (Adam if name == "adam" else AdamW)(population, **options)


def _schedule(specs: Sequence[Spec], steps: int, device: torch.device) -> Callable[[Tensor], Tensor]:
    """Return the factor of the learning rates as a function of the number of updates, with `steps` per epoch."""
    kind, _ = parse_schedule(specs[0].schedule)
    numbers = [parse_schedule(spec.schedule)[1] for spec in specs]
    values = torch.tensor(numbers, dtype=torch.float64, device=device)
    if kind == "inverse":
        return lambda updates: (1 + values * updates).reciprocal()
    if kind == "step":
        every = (steps * values).round().clamp(1, MAX_UPDATES)
        return lambda updates: 0.1 ** (updates / every).floor()
    if kind == "cosine":
        return lambda updates: (1 + torch.cos(math.pi * updates / (steps * specs[0].epochs))) / 2
    return torch.ones_like
