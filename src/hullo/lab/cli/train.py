"""`hullo train` and `hullo reproduce`."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hullo.lab.cli.common import (
    AddressOption,
    BatchOption,
    BfloatOption,
    BoardOption,
    DataOption,
    DecayOption,
    DeviceOption,
    Engine,
    EngineOption,
    EpochsOption,
    EveryOption,
    GpusOption,
    MembersOption,
    OutputOption,
    QuietOption,
    RateOption,
    ScaleOption,
    ValSizeOption,
    console,
    lasting,
    refusals,
)

if TYPE_CHECKING:
    from hullo.lab.run.queue import RunQueue
    from hullo.lab.spec.records import Record


def _run(
    queue: RunQueue,
    *,
    device: str | None,
    data_dir: Path | None,
    every: float,
    board: Path | None,
    quiet: bool,
) -> list[Record]:
    from hullo.lab.distributed import join, own_device
    from hullo.lab.files import make_folder
    from hullo.lab.progress import Progress
    from hullo.lab.run.loaders import open_loader
    from hullo.lab.run.local import LocalRunner
    from hullo.lab.run.tensorboard import TensorBoardLogger
    from hullo.lab.spec.environment import choose_device, device_name, environment

    with refusals():
        found = choose_device(own_device(device))
        watched = TensorBoardLogger(board) if board else nullcontext()
    with lasting(queue.output), join(found) as world, watched as watcher:
        wanted = {(spec.data, spec.val_size) for spec in queue.specs}
        loaders = {key: open_loader(*key, data_dir, found) for key in wanted}
        grid = LocalRunner(queue, loaders, environment(device_name(found)), every, watcher, world)
        for folder in filter(None, (queue.output, board)):
            make_folder(folder)
        with Progress(console(), quiet=quiet or not world.is_main) as progress:
            records = grid.run(progress)
    if not world.is_main:
        raise typer.Exit
    return records


def _run_on_cluster(
    queue: RunQueue,
    *,
    address: str | None,
    gpus: float | None,
    data_dir: Path | None,
    every: float,
    board: Path | None,
    quiet: bool,
) -> list[Record]:
    from hullo._signals import install, unwinding
    from hullo.lab.files import make_folder
    from hullo.lab.progress import Progress
    from hullo.lab.run.cluster import RayRunner, choose_gpus, connect

    with lasting(queue.output), unwinding(), ExitStack() as stack:
        with refusals():
            stack.enter_context(connect(address))
            gpus = choose_gpus(gpus)
        install()  # Ray has put handlers of its own in place
        for folder in filter(None, (queue.output, board)):
            make_folder(folder)
        elsewhere = replace(queue, output=queue.output.absolute())
        cluster = RayRunner(elsewhere, gpus, data_dir and data_dir.absolute(), every, board and board.absolute())
        with Progress(console(), quiet=quiet) as progress:
            return cluster.run(progress)


def train(
    network: Annotated[str, typer.Argument(help="lenet5, kerasnet, resnet56 or alexnet.")],
    dataset: Annotated[str, typer.Argument(help="A data set; see hullo data list.")],
    activation: Annotated[str, typer.Option(help="A base, or a hull: 'convex(identity,relu)'.")] = "relu",
    seed: Annotated[int, typer.Option(help="Where weights start, and the order of pictures.")] = 0,
    epochs: EpochsOption = None,
    batch: BatchOption = None,
    lr: RateOption = None,
    decay: DecayOption = None,
    coefficient_lr_scale: ScaleOption = 1.0,
    val_size: ValSizeOption = 0,
    bfloat16: BfloatOption = False,
    device: DeviceOption = None,
    data_dir: DataOption = None,
    output: OutputOption = Path("runs"),
    checkpoint_every: EveryOption = 30.0,
    tensorboard: BoardOption = None,
    no_weights: Annotated[bool, typer.Option("--no-weights", help="Do not save the trained network.")] = False,
    quiet: QuietOption = False,
) -> None:
    """Train one network; after a break the same command goes on."""
    from hullo.lab.run.queue import RunQueue
    from hullo.lab.run.weights import FOLDER
    from hullo.lab.spec.run_spec import Spec

    with refusals():
        spec = Spec.default(
            network,
            dataset,
            activation,
            seed=seed,
            epochs=epochs,
            batch=batch,
            lr=lr,
            decay=decay,
            coefficient_lr_scale=coefficient_lr_scale,
            precision="bfloat16" if bfloat16 else "float32",
            val_size=val_size,
        )
    (record,) = _run(
        RunQueue([spec], output, weights=not no_weights),
        device=device,
        data_dir=data_dir,
        every=checkpoint_every,
        board=tensorboard,
        quiet=quiet,
    )
    reached = [f"test accuracy {record.accuracy:.2f} %"]
    reached += [f"accuracy on held-out images {last:.2f} %" for last in record.val_accuracy[-1:]]
    typer.echo(f"{spec}: {record.ended}, {', '.join(reached)}")
    weights = output / FOLDER / f"{spec.id}.safetensors"
    if weights.exists():
        typer.echo(f"the trained network: {weights}; hullo.lab.run.weights.load_network loads it")


def reproduce(
    columns: Annotated[
        list[str] | None,
        typer.Argument(help="Networks on data sets: lenet5/cifar10.", show_default="the paper's, without AlexNet's"),
    ] = None,
    rows: Annotated[
        list[str] | None,
        typer.Option(
            help="An activation; may be given several times. Beside the paper's twelve, 'prelu' and 'leaky_relu(0.3)', "
            "Keras's defaults, are worth a comparison; any base or hull will do.",
            show_default="the paper's",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="How many seeds, from 0 on.", min=1)] = 5,
    epochs: EpochsOption = None,
    batch: BatchOption = None,
    lr: RateOption = None,
    decay: DecayOption = None,
    coefficient_lr_scale: Annotated[
        list[float] | None,
        typer.Option(
            help="The coefficients' learning rate, as a multiple of the others'; may be given several times.",
            show_default="1",
        ),
    ] = None,
    val_size: ValSizeOption = 0,
    bfloat16: BfloatOption = False,
    members: MembersOption = None,
    engine: EngineOption = Engine.LOCAL,
    ray_address: AddressOption = None,
    gpus_per_task: GpusOption = None,
    device: DeviceOption = None,
    data_dir: DataOption = None,
    output: OutputOption = Path("runs"),
    checkpoint_every: EveryOption = 30.0,
    tensorboard: BoardOption = None,
    weights: Annotated[bool, typer.Option("--weights", help="Save the trained networks.")] = False,
    quiet: QuietOption = False,
) -> None:
    """Train columns of the paper's table, all rows and seeds at once; after a break the same command goes on."""
    from hullo.lab.analysis.experiments import experiments
    from hullo.lab.analysis.figures import draw_activations, drawing, save, stem
    from hullo.lab.analysis.tables.terminal import terminal_table
    from hullo.lab.run.queue import RunQueue
    from hullo.lab.spec.paper import DATA_COLUMNS, ROWS, parse_column
    from hullo.lab.spec.run_spec import Spec

    with refusals():
        if engine is Engine.RAY and device:
            raise ValueError(f"--device {device} goes with --engine local; with ray, --gpus-per-task 0 means CPUs")
        if engine is Engine.LOCAL and (ray_address or gpus_per_task is not None):
            raise ValueError("--ray-address and --gpus-per-task go with --engine ray")
        chosen = list(dict.fromkeys(map(parse_column, columns))) if columns else DATA_COLUMNS
        specs = [
            Spec.default(
                *column,
                row,
                seed=seed,
                epochs=epochs,
                batch=batch,
                lr=lr,
                decay=decay,
                coefficient_lr_scale=scale,
                precision="bfloat16" if bfloat16 else "float32",
                val_size=val_size,
            )
            for column in chosen
            for row in rows or ROWS
            for scale in coefficient_lr_scale or [1.0]
            for seed in range(seeds)
        ]
    queue = RunQueue(specs, output, members, weights)
    if engine is Engine.RAY:
        records = _run_on_cluster(
            queue,
            address=ray_address,
            gpus=gpus_per_task,
            data_dir=data_dir,
            every=checkpoint_every,
            board=tensorboard,
            quiet=quiet,
        )
    else:
        records = _run(queue, device=device, data_dir=data_dir, every=checkpoint_every, board=tensorboard, quiet=quiet)
    with refusals():
        shown = experiments(records)
    for experiment in shown:
        console().print(terminal_table(experiment))
        with lasting(output), drawing():
            if figure := draw_activations(experiment):
                picture, _ = save(figure, output / f"{stem(experiment.name)}-activations")
                typer.echo(f"the learned activations: {picture}")
