"""Options for the settings of runs: one table for `hullo train` and `hullo reproduce`."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from hullo.lab.spec.paper import Column
from hullo.lab.spec.run_spec import SETTING_TYPES

SETTINGS = {
    "epochs": ("Number of epochs.", "50; AlexNet: 90; your own: 20"),
    "batch_size": ("Samples per batch.", "32; AlexNet: 256; your own: 64"),
    "optimizer": ("rmsprop, sgd, adam or adamw.", "rmsprop; AlexNet: sgd; your own: adam"),
    "lr": ("The learning rate.", "0.0001; AlexNet: 0.01; your own: 0.001"),
    "schedule": (
        "Learning rate schedule: constant; cosine, to 0 in the last epoch; inverse:D, lr / (1 + D * updates); step:N, "
        "divided by 10 every N epochs.",
        "inverse:1e-06; AlexNet: step:EPOCHS/4.5; your own: constant",
    ),
    "weight_decay": ("Weight decay of weights.", "0; AlexNet: 0.0005"),
    "coefficient_lr_scale": ("Learning rate of the coefficients, as a multiple of --lr.", "1"),
    "augment": (
        "Augmentation of training images: none, flip, shift:F, or flip,shift:F.",
        "flip,shift:0.1; your own: none",
    ),
    "precision": ("float32, or bfloat16: mixed precision by autocast.", "float32"),
    "val_size": ("Number or fraction of training samples to hold out for validation, as in 5000 or 0.1.", "0"),
}
"""The fields of a spec that have options: their help and their defaults, as help shows them."""


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the parameter `settings` of a command by one option per setting; repeated options form a grid."""
    signature = inspect.signature(command, eval_str=True)
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        parameters += _options() if parameter.name == "settings" else [parameter]

    def wrapper(**given: Any) -> None:
        settings = {name: given.pop(name) for name in SETTINGS}
        command(**given, settings=settings)

    wrapper.__name__, wrapper.__doc__ = command.__name__, command.__doc__
    wrapper.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return wrapper


def _options() -> Iterator[inspect.Parameter]:
    for name, (text, default) in SETTINGS.items():
        kind = str if name == "val_size" else SETTING_TYPES[name]
        values: Any = list[kind] | None  # type: ignore[valid-type]
        option = typer.Option(help=text, show_default=default, metavar=f"<{kind.__name__}>")
        annotation: Any = Annotated[values, option]
        yield inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=annotation)


def combine_settings(
    settings: dict[str, list[Any] | None], column: Column, data_dir: Path | None
) -> Iterator[dict[str, Any]]:
    """Yield every combination of the given values; a fraction of held-out samples becomes their number."""
    given = {name: list(dict.fromkeys(values)) for name, values in settings.items() if values}
    for values in itertools.product(*given.values()):
        chosen = dict(zip(given, values, strict=True))
        if "val_size" in chosen:
            chosen["val_size"] = _count_held_out(chosen["val_size"], column, data_dir)
        yield chosen


def _count_held_out(text: str, column: Column, data_dir: Path | None) -> int:
    if text.isdecimal():
        return int(text)
    try:
        fraction = float(text)
    except ValueError:
        fraction = -1.0
    if not 0 <= fraction < 1:
        raise ValueError(f"--val-size {text}: must be a number of samples, or a fraction below 1, as in 5000 or 0.1")
    from hullo.lab import data

    return round(fraction * len(data.load(column.data, data_dir).train_labels)) if fraction else 0
