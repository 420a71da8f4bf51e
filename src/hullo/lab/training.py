"""The training of a population: steps, evaluation, and one curve of everything a member.

Members share nothing but the time they take: each has its own loss, its own order of pictures and its own rate, and
one that diverges goes on beside the others without touching them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from hullo.lab import networks
from hullo.lab.data import Dataset
from hullo.lab.data.augment import draw_moves, draw_order, move, scale
from hullo.lab.networks.layers import by_member
from hullo.lab.recipes import RMSprop
from hullo.lab.specs import Spec

SHOWN = 250
"""Test pictures that are evaluated at once."""

CURVES = ("train_loss", "test_loss", "test_accuracy", "sound", "coefficients")
"""What is kept after each epoch, for each member: the mean loss over the epoch's steps, the loss and the accuracy in
percent on the test pictures, whether losses and weights are all finite, and the coefficients (layers, bases)."""


class Training:
    """A population on its way: what a checkpoint holds is `state_dict`, and from there training goes on to the bit.

    Args:
        specs: the members' specs; they may differ in activation, seed and learning rate.
        dataset: what they see, on the device where they train.

    Example:
        >>> from hullo.lab import data
        >>> from hullo.lab.specs import Spec
        >>> sample = data.load("fashion-mnist-sample")
        >>> spec = Spec("lenet5", "fashion-mnist-sample", "affine(identity,relu)", epochs=1, batch=50)
        >>> training = Training([spec], sample)
        >>> steps = training.advance()
        >>> next(steps), next(steps)
        (None, None)
        >>> training.epoch, training.step, training.steps
        (0, 2, 120)
    """

    def __init__(self, specs: Sequence[Spec], dataset: Dataset) -> None:
        first = specs[0]
        if others := [spec for spec in specs if spec.company != first.company]:
            raise ValueError(f"a population shares all but activations, seeds and rates: {first}; {others[0]}")
        self.specs, self.dataset = tuple(specs), dataset
        device = dataset.train_images.device
        self.network = networks.build(
            first.network,
            activation=[spec.activation for spec in specs],
            in_channels=dataset.train_images.shape[1],
            image_size=dataset.train_images.shape[-1],
            num_classes=len(dataset.classes),
            members=len(specs),
            seeds=[spec.seed for spec in specs],
        ).to(device)
        self.optimiser = RMSprop(
            self.network,
            lr=[spec.lr for spec in specs],
            decay=first.decay,
            coefficient_lr_scale=first.coefficient_lr_scale,
        )
        self.steps = -(-len(dataset.train_labels) // first.batch)
        self.epoch = self.step = 0
        self.seconds = 0.0
        self.total = torch.zeros(len(specs), dtype=torch.float64, device=device)
        self.start = self.network.coefficients.detach().cpu()
        self.curves: dict[str, Tensor] = {}

    def advance(self) -> Iterator[None]:
        """Train to the last epoch; whenever this yields, after each step and each epoch, the state is whole."""
        images, seeds, spec = self.dataset.train_images, self.network.seeds, self.specs[0]
        graphed = images.is_cuda and len(images) >= spec.batch
        learn: Callable[[Tensor, Tensor], None] = _Graph(self, spec.batch) if graphed else self._take_step
        while self.epoch < spec.epochs:
            self.network.train()
            order = draw_order(seeds, self.epoch, len(images))
            moves = draw_moves(seeds, self.epoch, order, images.shape[-2:])
            while self.step < self.steps:
                batch = slice(self.step * spec.batch, (self.step + 1) * spec.batch)
                learn(order[:, batch], moves[:, batch])
                self.step += 1
                yield
            self._end_epoch()
            yield

    def _take_step(self, order: Tensor, moves: Tensor) -> None:
        self.network.zero_grad()
        moved = move(self.dataset.train_images, order, moves)
        losses = self._losses(scale(_side_by_side(moved)), self.dataset.train_labels[order])[0].mean(1)
        losses.sum().backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()
        self.total += losses.detach() * order.shape[1]

    def _losses(self, pictures: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Each member's loss on each picture, (K, B), and its logits."""
        enabled = self.specs[0].precision == "bfloat16"
        with torch.autocast(pictures.device.type, torch.bfloat16, enabled=enabled):
            logits = self.network(pictures).float()
        losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
        return by_member(losses, self.network.members), logits

    @torch.no_grad()
    def _end_epoch(self) -> None:
        """Evaluate; add a point to every curve."""
        self.network.eval()
        loss, correct = torch.zeros_like(self.total), torch.zeros_like(self.total)
        for start in range(0, len(self.dataset.test_labels), SHOWN):
            labels = self.dataset.test_labels[start : start + SHOWN]
            images = self.dataset.test_images[start : start + SHOWN]
            pictures = scale(images.contiguous(memory_format=torch.channels_last))
            losses, logits = self._losses(pictures, labels.expand(self.network.members, -1))
            loss += losses.sum(1)
            correct += (logits.argmax(-1) == labels).sum(1)
        train_loss, loss = self.total / len(self.dataset.train_labels), loss / len(self.dataset.test_labels)
        finite = [by_member(p, self.network.members).flatten(1).isfinite().all(1) for p in self.network.parameters()]
        sound = torch.stack([*finite, train_loss.isfinite(), loss.isfinite()]).all(0)
        accuracy = 100 * correct / len(self.dataset.test_labels)
        points = train_loss, loss, accuracy, sound, self.network.coefficients
        for name, point in zip(CURVES, points, strict=True):
            known = self.curves.get(name, point.new_empty(0, *point.shape).cpu())
            self.curves[name] = torch.cat([known, point.cpu().unsqueeze(0)])
        self.total.zero_()
        self.epoch, self.step = self.epoch + 1, 0

    def state_dict(self) -> dict[str, Tensor]:
        """All that training goes on from, as tensors by name."""
        parts = {"network": self.network.state_dict(), "optimiser": self.optimiser.state_dict(), "curves": self.curves}
        state = {f"{part}.{name}": tensor for part, tensors in parts.items() for name, tensor in tensors.items()}
        position = torch.tensor([self.epoch, self.step, self.seconds], dtype=torch.float64)
        return state | {"total": self.total, "position": position}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a state that a training of the same specs has saved."""

        def part(prefix: str) -> dict[str, Tensor]:
            return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}

        self.network.load_state_dict(part("network."))
        self.optimiser.load_state_dict(part("optimiser."))
        self.curves = part("curves.")
        self.total.copy_(state["total"])
        self.epoch, self.step = map(int, state["position"][:2].tolist())
        self.seconds = state["position"][2].item()


def _side_by_side(moved: Tensor) -> Tensor:
    """Pictures (K, B, C, H, W) as (B, K*C, H, W), in memory with channels last, which convolutions are faster on."""
    return moved.permute(1, 3, 4, 0, 2).flatten(3).permute(0, 3, 1, 2)


class _Graph:
    """The step of a full batch as one CUDA graph; a smaller one, at the end of an epoch, is taken as it comes."""

    def __init__(self, training: Training, batch: int) -> None:
        members, device = training.network.members, training.total.device
        self.training = training
        self.order = torch.zeros(members, batch, dtype=torch.int64, device=device)
        self.moves = torch.zeros(members, batch, 3, dtype=torch.int16, device=device)
        training.network.train()
        before = {name: tensor.clone() for name, tensor in training.state_dict().items()}
        side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):  # libraries choose and set up their kernels before a capture
            for _ in range(3):
                training._take_step(self.order, self.moves)
        torch.cuda.current_stream(device).wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            training._take_step(self.order, self.moves)
        training.load_state_dict(before)

    def __call__(self, order: Tensor, moves: Tensor) -> None:
        if order.shape != self.order.shape:
            self.training._take_step(order, moves)
            return
        self.order.copy_(order)
        self.moves.copy_(moves)
        self.graph.replay()
