"""TensorBoard: the curves of a training, written as epochs end."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType
from typing import Any

from hullo.lab.run.training import Training
from hullo.lab.spec.activation import ActivationSpec
from hullo.lab.spec.run_spec import Spec


class TensorBoardLogger:
    """A directory for `tensorboard --logdir`, with a run for each member: losses, accuracy, coefficients by epoch."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ModuleNotFoundError as error:
            raise ValueError("TensorBoard is not installed; get it with: pip install tensorboard") from error
        self.folder, self._kind = folder, SummaryWriter
        self._writers: dict[Spec, Any] = {}

    def __enter__(self) -> TensorBoardLogger:
        default = self._usual = threading.excepthook

        def hook(failed: threading.ExceptHookArgs) -> None:
            if not issubclass(failed.exc_type, OSError):  # which TensorBoard's thread hands on to this one
                default(failed)

        threading.excepthook = hook
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            for writer in self._writers.values():
                writer.close()
        finally:
            threading.excepthook = self._usual

    def show(self, training: Training) -> None:
        """Add the epoch that has just ended."""
        curves, activations = training.curves, training.population.activations
        for k, spec in enumerate(training.specs):
            row = ActivationSpec.parse(spec.activation)
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
            # what a run that was killed has written beyond its last checkpoint is taken back
            self._writers[spec] = self._kind(str(folder), purge_step=epoch)
        return self._writers[spec]
