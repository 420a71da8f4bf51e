"""The options of `hullo train` and `hullo reproduce`: the settings of runs, and where they are trained."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from hullo.lab.cli.common import DataOption, DeviceOption, ImageSizeOption, QuietOption
from hullo.lab.spec.paper import Column
from hullo.lab.spec.run_spec import SETTING_TYPES, Spec


class Engine(StrEnum):
    """Choose where populations are trained: one after the other in this process, or as tasks on a Ray cluster."""

    LOCAL = "local"
    RAY = "ray"


EngineOption = Annotated[Engine, typer.Option(help="Train in this process, or on a Ray cluster.")]


@dataclass(frozen=True)
class Where:
    """Hold the device and the folders of runs; each field is an option."""

    image_size: ImageSizeOption = None
    members: Annotated[
        int | None,
        typer.Option(
            help="Largest number of networks in a population.",
            min=1,
            metavar="<int>",
            show_default="as many as fit into memory",
        ),
    ] = None
    engine: EngineOption = Engine.LOCAL
    ray_address: Annotated[
        str | None,
        typer.Option(
            help="The Ray cluster: host:port, or auto.", show_default="RAY_ADDRESS, else a new cluster on this machine"
        ),
    ] = None
    gpus_per_task: Annotated[
        float | None,
        typer.Option(
            help="GPUs per population on a Ray cluster, from 0 to 1.",
            min=0,
            max=1,
            metavar="<float>",
            show_default="1 if there are any",
        ),
    ] = None
    device: DeviceOption = None
    data_dir: DataOption = None
    output: Annotated[Path, typer.Option(help="Directory of the records; runs with a record are not repeated.")] = Path(
        "runs"
    )
    checkpoint_every: Annotated[float, typer.Option(help="Seconds between checkpoints.", min=0, metavar="<float>")] = (
        30.0
    )
    quiet: QuietOption = False


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the parameters `settings` and `where` of a command by options; repeated settings form a grid."""
    signature = inspect.signature(command, eval_str=True)
    settings, where = _setting_options(), _where_options()
    options = {"settings": settings, "where": where}
    parameters = [option for p in signature.parameters.values() for option in options.get(p.name, [p])]

    def wrapper(**given: Any) -> None:
        chosen, places = ({option.name: given.pop(option.name) for option in part} for part in (settings, where))
        command(**given, settings=chosen, where=Where(**places))

    wrapper.__name__, wrapper.__doc__ = command.__name__, command.__doc__
    wrapper.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return wrapper


def _where_options() -> list[inspect.Parameter]:
    kinds = get_type_hints(Where, include_extras=True)
    return [_option(item.name, item.default, kinds[item.name]) for item in fields(Where)]


def _setting_options() -> list[inspect.Parameter]:
    options = []
    for item in fields(Spec):
        if item.metadata:
            kind: Any = str if item.name == "val_size" else SETTING_TYPES[item.name]
            option = typer.Option(**item.metadata, metavar=f"<{kind.__name__}>")
            options.append(_option(item.name, None, Annotated[list[kind] | None, option]))
    return options


def _option(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


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
