"""`hullo train` and `hullo reproduce`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hullo.lab.cli.common import (
    BatchOption,
    BfloatOption,
    DataOption,
    DeviceOption,
    EpochsOption,
    EveryOption,
    OutputOption,
    QuietOption,
    RateOption,
    ScaleOption,
    console,
    lasting,
    refusals,
)

if TYPE_CHECKING:
    from hullo.lab.records import Record
    from hullo.lab.specs import Spec


def _run(
    specs: list[Spec], *, device: str | None, data_dir: Path | None, output: Path, every: float, quiet: bool
) -> list[Record]:
    from hullo.lab import data as datasets
    from hullo.lab.bench.clocks import clock_for
    from hullo.lab.bench.rows import setting
    from hullo.lab.grid import Grid
    from hullo.lab.progress import Steps

    with refusals():
        clock = clock_for(device)
    with lasting(output):
        output.mkdir(parents=True, exist_ok=True)
        loaded = {name: datasets.load(name, data_dir, clock.device) for name in {spec.data for spec in specs}}
        grid = Grid(specs, loaded, output, setting(clock.device_name), every)
        with Steps(console(), quiet=quiet) as progress:
            return grid.run(progress)


def train(
    network: Annotated[str, typer.Argument(help="lenet5, kerasnet or resnet56.")],
    dataset: Annotated[str, typer.Argument(help="A data set; see hullo data list.")],
    activation: Annotated[str, typer.Option(help="A base, or a hull: 'convex(identity,relu)'.")] = "relu",
    seed: Annotated[int, typer.Option(help="Where weights start, and the order of pictures.")] = 0,
    epochs: EpochsOption = 50,
    batch: BatchOption = 32,
    lr: RateOption = 1e-4,
    coefficient_lr_scale: ScaleOption = 1.0,
    bfloat16: BfloatOption = False,
    device: DeviceOption = None,
    data_dir: DataOption = None,
    output: OutputOption = Path("runs"),
    checkpoint_every: EveryOption = 30.0,
    quiet: QuietOption = False,
) -> None:
    """Train one network; after a break the same command goes on."""
    from hullo.lab.specs import Spec

    with refusals():
        spec = Spec(
            network,
            dataset,
            activation,
            seed=seed,
            epochs=epochs,
            batch=batch,
            lr=lr,
            coefficient_lr_scale=coefficient_lr_scale,
            precision="bfloat16" if bfloat16 else "float32",
        )
    (record,) = _run([spec], device=device, data_dir=data_dir, output=output, every=checkpoint_every, quiet=quiet)
    typer.echo(f"{spec}: {record.ended}, test accuracy {record.accuracy:.2f} %")


def reproduce(
    columns: Annotated[
        list[str] | None,
        typer.Argument(help="Networks on data sets: lenet5/cifar10.", show_default="the paper's, without AlexNet's"),
    ] = None,
    rows: Annotated[
        list[str] | None, typer.Option(help="An activation; may be given several times.", show_default="the paper's")
    ] = None,
    seeds: Annotated[int, typer.Option(help="How many seeds, from 0 on.", min=1)] = 5,
    epochs: EpochsOption = 50,
    batch: BatchOption = 32,
    lr: RateOption = 1e-4,
    coefficient_lr_scale: ScaleOption = 1.0,
    bfloat16: BfloatOption = False,
    device: DeviceOption = None,
    data_dir: DataOption = None,
    output: OutputOption = Path("runs"),
    checkpoint_every: EveryOption = 30.0,
    quiet: QuietOption = False,
) -> None:
    """Train columns of the paper's table, all rows and seeds at once; after a break the same command goes on."""
    from hullo.lab.curves import draw_curves
    from hullo.lab.grid import DATA_COLUMNS, parse_column
    from hullo.lab.paper import ROWS
    from hullo.lab.specs import Spec
    from hullo.lab.summary import summarise

    with refusals():
        chosen = list(dict.fromkeys(map(parse_column, columns))) if columns else DATA_COLUMNS
        specs = [
            Spec(
                *column,
                row,
                seed=seed,
                epochs=epochs,
                batch=batch,
                lr=lr,
                coefficient_lr_scale=coefficient_lr_scale,
                precision="bfloat16" if bfloat16 else "float32",
            )
            for column in chosen
            for row in rows or ROWS
            for seed in range(seeds)
        ]
    records = _run(specs, device=device, data_dir=data_dir, output=output, every=checkpoint_every, quiet=quiet)
    for column in chosen:
        own = [record for record in records if record.spec.column == column]
        console().print(summarise(own))
        with lasting(output):
            picture = output / f"{column.network}-{column.data}.png"
            if draw_curves(own, picture):
                typer.echo(f"the learned activations: {picture}")
