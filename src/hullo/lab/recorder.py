"""Record runs of any training loop, for `hullo table`, `hullo figures` and `hullo report`."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hullo._compat import is_sharded
from hullo.bases import in_order
from hullo.lab.files import make_directory
from hullo.lab.spec.activation import PRELU, ActivationSpec
from hullo.lab.spec.environment import choose_device, device_name, environment
from hullo.lab.spec.records import ACCURACY, Record, Records, learned_fields, make_record, round_number
from hullo.lab.spec.run_spec import SETTING, Spec
from hullo.modules import Hull
from hullo.parametrizations import BuiltInParametrization

LOSSES = ("train_loss", "test_loss", "val_loss")
ACCURACIES = ("test_accuracy", "test_top5", "val_accuracy")


@contextmanager
def record(
    model: Any,
    folder: str | Path = "runs",
    *,
    network: str,
    data: str,
    activation: str | None = None,
    metric: str = ACCURACY,
    lower_is_better: bool = False,
    seed: int = 0,
    overwrite: bool = False,
    **settings: str | float,
) -> Iterator[Run]:
    """Record a run of your own training loop for `hullo table`, `figures` and `report`.

    Call `log` of the :class:`Run` after every epoch. When the block ends, the record is appended to ``records.jsonl``
    in the folder; if an exception leaves the block, nothing is written. Several processes may write to one folder.

    Args:
        model: a PyTorch module or a Keras model; the coefficients of its hulls are recorded after every epoch.
        folder: directory of the records.
        network: a name for the architecture.
        data: a name for the data set.
        activation: by default that of the model's hulls. For a model without hulls, a name such as "relu", or "own" for
            a function that hullo does not know. For a model with several kinds of hulls, which of them to record.
        metric: what runs are compared by, if that is not the accuracy: "rmse" makes `log` take `test_rmse` and
            `val_rmse`.
        lower_is_better: whether lower values of that metric are better.
        seed: of this run; tables give means over seeds.
        overwrite: replace the record of the same run, if there is one.
        settings: numbers and words that distinguish runs, such as ``lr=1e-3, width=64``.

    Raises:
        FileExistsError: the folder has a record with the same network, data, activation, seed and settings.

    Example:
        >>> import torch, hullo, hullo.lab
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), hullo.AffineHull("identity", "relu"))
        >>> with hullo.lab.record(model, "runs", network="mlp", data="random", seed=1, lr=0.01) as run:
        ...     for epoch in range(2):
        ...         run.log(train_loss=0.7, test_accuracy=50.0)
        >>> from pathlib import Path
        >>> len(Path("runs/records.jsonl").read_text().splitlines())
        1
    """
    layers, reasons = find_layers(model)
    row = _choose_activation(layers, activation, reasons)
    if "epochs" in settings:
        raise ValueError("epochs: the number of epochs is the number of calls of log; leave it out")
    words = {name: f"{name}={value!s}" for name, value in sorted(settings.items())}  # short for NumPy's numbers
    for name, word in words.items():
        if not SETTING.fullmatch(word):
            raise ValueError(
                f"{name}={settings[name]!r}: must be a number, or a word of at most 100 letters without '='"
            )
    seed_number = int(seed) if isinstance(seed, Integral) else seed  # NumPy's integers, too
    spec = Spec(network, data, row, seed=seed_number, epochs=1, settings=" ".join(words.values()))
    make_directory(Path(folder))
    records = Records(Path(folder) / "records.jsonl")
    records.check_new(spec, overwrite=overwrite)
    if not metric.isidentifier() or metric in ("loss", "top5"):
        raise ValueError(f"metric={metric!r}: must be a Python identifier other than loss and top5, as in 'rmse'")
    run = Run(spec, layers.get(row, []), _device_of(model), metric, lower_is_better=lower_is_better)
    yield run
    finished = run.to_record()
    records.put(finished, overwrite=overwrite)
    run.is_over = True
    accuracies = [*finished.test_accuracy, *finished.val_accuracy]
    if 0 < (best := max(accuracies, default=0.0)) <= 1:  # after writing: it may be an error
        warnings.warn(f"the best accuracy is {best:g} percent; log 100 * accuracy if that is a fraction", stacklevel=3)


class Run:
    """A run that :func:`record` records."""

    def __init__(
        self,
        spec: Spec,
        layers: list[Layer],
        device: torch.device,
        metric: str = ACCURACY,
        *,
        lower_is_better: bool = False,
    ) -> None:
        self._spec, self._layers, self._device = spec, layers, device
        self._metric, self._lower_is_better = metric, lower_is_better
        self._compared = (f"test_{metric}", f"val_{metric}")
        self.is_over = False
        self._start = time.perf_counter()
        self._curves: dict[str, list[float]] = {}
        self._points = [[layer.read() for layer in layers]]
        if not all(bool(rows.isfinite().all()) for rows in self._points[0]):
            raise ValueError(f"the coefficients of {spec.activation} are not finite at the start; reset the hulls")

    def log(self, **metrics: float) -> None:
        """Add an epoch: its metrics, and the coefficients that the model has now.

        Args:
            metrics: `test_accuracy`, `val_accuracy` and `test_top5` in percent, or the metric that `record` was told
                of, such as `test_rmse`; `train_loss`, `test_loss` and `val_loss`. Either the test or the validation
                metric is needed, and all epochs have the same metrics. A loss may be NaN: the run has then diverged.
        """
        if self.is_over:
            raise ValueError("the record of this run is written; call log inside of the with block")
        available = (*(ACCURACIES if self._metric == ACCURACY else self._compared), *LOSSES)
        if unknown := [name for name in metrics if name not in available]:
            raise ValueError(f"unknown metric {unknown[0]!r}; available: {', '.join(available)}")
        if not set(self._compared) & metrics.keys() or (self._curves and self._curves.keys() != metrics.keys()):
            earlier = f", as in earlier epochs: {', '.join(self._curves)}" if self._curves else ""
            raise ValueError(f"got {', '.join(metrics) or 'no metrics'}; log {' or '.join(self._compared)}{earlier}")
        values = {name: _number(name, value) for name, value in metrics.items()}
        for name, value in values.items():
            self._curves.setdefault(name, []).append(value)
        self._points.append([layer.read() for layer in self._layers])

    def to_record(self) -> Record:
        """Return the record of the epochs that were logged."""
        epochs, row = len(self._points) - 1, self._spec.row
        if not epochs:
            raise ValueError("no epoch was logged, so nothing is recorded; call log after every epoch")
        scores = {name: [*map(round_number, self._curves.get(name, ()))] for name in (*ACCURACIES, *self._compared)}
        more: dict[str, Any] = scores
        if self._metric != ACCURACY:
            test, val = (scores.pop(name) for name in self._compared)
            more = scores | {"metric": self._metric, "lower_is_better": self._lower_is_better}
            more |= {"test_metric": test, "val_metric": val}
        return make_record(
            replace(self._spec, epochs=epochs),
            learned_fields(row, (layer.name for layer in self._layers), self._points),
            {name: self._curves.get(name, []) for name in LOSSES},
            members=1,
            seconds=time.perf_counter() - self._start,
            environment=environment(device_name(self._device)),
            **more,
        )


@dataclass(frozen=True)
class Layer:
    """A learned activation: its name, its spec, and a function that reads its coefficients, one row per group."""

    name: str
    spec: ActivationSpec
    read: Callable[[], Tensor]


def find_layers(model: Any) -> tuple[dict[str, list[Layer]], list[str]]:
    """Return the learned activations by their spelling, and reasons why others cannot be recorded.

    Layers with the same kind, bases and parametrization belong together. Their spelling names an initial base if all
    start as that base.
    """
    layers, reasons = [], []
    for name, hull, read in _named_hulls(model):
        if isinstance(hull, nn.PReLU):
            layers.append(Layer(name, PRELU, lambda own=hull: _prelu_rows(own)))  # type: ignore[misc]
        elif reason := _why_unrecordable(hull):
            reasons.append(f"{name} is {hull.spelling} with {reason}")
        elif len(hull.bases) > 1 or hull.raw.requires_grad:
            bases = in_order(hull.bases)
            spec = ActivationSpec(hull.kind, bases, hull.parametrization.name)
            order = [hull.bases.index(item) for item in bases]
            layers.append(Layer(name, spec, lambda read=read, order=order: _rows(read())[:, order]))  # type: ignore[misc]
    by_spec: dict[ActivationSpec, list[Layer]] = {}
    for layer in layers:
        by_spec.setdefault(layer.spec, []).append(layer)
    spelled: dict[str, list[Layer]] = {}
    for spec, group in by_spec.items():
        spelled.setdefault(str(_complete(spec, group)), []).extend(group)
    return spelled, reasons


def _named_hulls(model: Any) -> Iterator[tuple[str, Any, Callable[[], Hull]]]:
    """Yield the name of each hull, the hull in PyTorch, and a function that returns its current state."""
    keras = sys.modules.get("keras")
    if keras is not None and isinstance(model, keras.Model):
        from hullo.keras.models import named_hulls

        for name, layer in named_hulls(model):
            yield name, layer.to_torch().requires_grad_(layer.trainable), layer.to_torch
    elif isinstance(model, nn.Module):
        for name, module in model.named_modules():
            if isinstance(module, (Hull, nn.PReLU)):
                yield name or "the model", module, lambda module=module: module  # type: ignore[misc]
    else:
        raise TypeError(
            f"model must be a PyTorch module or a Keras model; got {model!r} of type {type(model).__name__}"
        )


def _why_unrecordable(hull: Hull) -> str:
    """Return why a record cannot describe a hull; an empty string if it can."""
    own = [item.name for item in hull.bases if not item.is_built_in]
    if own:
        return f"the base {own[0]}, which you added in this process"
    if not isinstance(hull.parametrization, BuiltInParametrization):
        return "a parametrization of your own"
    if is_sharded(hull.raw):
        return "coefficients that are sharded over processes"
    return "" if hull.inner_scale is None else "an inner scale"


def _complete(spec: ActivationSpec, layers: list[Layer]) -> ActivationSpec:
    """Return the spec of layers, completed by the base that all start as, if any, and by whether they have groups."""
    if spec == PRELU:
        return spec
    rows = torch.cat([layer.read() for layer in layers])
    starts = [item for i, item in enumerate(spec.bases) if bool((rows == torch.eye(len(spec.bases))[i]).all())]
    per = "channel" if len(rows) > len(layers) else "layer"
    try:
        return ActivationSpec.parse(str(replace(spec, per=per, init=starts[0] if starts else None)))
    except ValueError:  # this parametrization cannot start there, such as a saturated softmax
        return replace(spec, per=per)


def _rows(hull: Hull) -> Tensor:
    return hull.coefficients.detach().double().cpu().reshape(hull.groups, -1)


def _prelu_rows(module: nn.PReLU) -> Tensor:
    slopes = module.weight.detach().double().cpu()
    return torch.stack([slopes, 1 - slopes], dim=1)


def _choose_activation(layers: Mapping[str, list[Layer]], activation: str | None, reasons: list[str]) -> str:
    """Return the activation to record."""
    available = ", ".join(layers) or "no hulls that can be recorded"
    hint = "; ".join([f"the model has {available}", *reasons])
    if activation is None:
        if len(layers) != 1:
            raise ValueError(f"activation must be given, as in 'relu', or 'own' if it has no name: {hint}")
        return next(iter(layers))
    row = ActivationSpec.parse(activation)
    if str(row) not in layers and (row.learns or (layers and row.kind != "own")):
        raise ValueError(f"activation={activation!r} is not what the model has: {hint}")
    return str(row)


def _number(name: str, value: Any) -> float:
    try:
        number = float(value.detach() if isinstance(value, Tensor) else value) if not isinstance(value, str) else None
    except (TypeError, ValueError, RuntimeError):
        number = None
    if number is None or (name in ACCURACIES and not 0 <= number <= 100):
        raise ValueError(f"{name}={value!r}: must be a number{', from 0 to 100 percent' * (name in ACCURACIES)}")
    return number


def _device_of(model: Any) -> torch.device:
    """Return the device of a PyTorch model's first parameter; for others, the default device."""
    first = next(iter(model.parameters()), None) if isinstance(model, nn.Module) else None
    return choose_device(None) if first is None else first.device
