"""Log the curves of a training to TensorBoard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hullo.lab.run.training import Training
from hullo.lab.spec.run_spec import Spec


class TensorBoardLogger:
    """Logs losses, accuracy and coefficients of each member per epoch, for `tensorboard --logdir`."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ModuleNotFoundError as error:
            raise ValueError("TensorBoard is not installed; install it with: pip install tensorboard") from error
        self.folder, self._writer_class = folder, SummaryWriter
        self._writers: dict[Spec, Any] = {}

    def __enter__(self) -> TensorBoardLogger:
        return self

    def __exit__(self, *_: object) -> None:
        for writer in self._writers.values():
            writer.close()

    def log_epoch(self, training: Training) -> None:
        """Log the last epoch of a training."""
        curves, activations = training.curves, training.population.activations
        for k, spec in enumerate(training.specs):
            row = spec.row
            writer = self._writer(spec, training.epoch)
            points = {name: curve[-1, k] for name, curve in curves.items() if name.endswith("_loss")}
            points |= {name: curve[-1, k, 0] for name, curve in curves.items() if name.endswith("_accuracy")}
            layers = activations.split(k, curves["coefficients"][-1, k]) if row.learns else ()
            for layer, channels in enumerate(layers, 1):
                means = zip(row.bases, channels.mean(0), strict=True)
                points |= {f"coefficients/{layer}/{item.name}": mean for item, mean in means}
            for name, point in points.items():
                writer.add_scalar(name, point, training.epoch)
            writer.flush()

    def _writer(self, spec: Spec, epoch: int) -> Any:
        if spec not in self._writers:
            folder = self.folder / f"{spec.network}-{spec.data}" / spec.activation / f"seed {spec.seed} {spec.id}"
            # purge_step hides what a killed run wrote after its last checkpoint
            self._writers[spec] = self._writer_class(str(folder), purge_step=epoch)
        return self._writers[spec]
