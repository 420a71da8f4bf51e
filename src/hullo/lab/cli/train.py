"""`hullo train` and `hullo reproduce`."""

from __future__ import annotations

import os
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hullo.lab.cli.common import (
    AddressOption,
    AugmentOption,
    BatchSizeOption,
    DataOption,
    DecayOption,
    DeviceOption,
    Engine,
    EngineOption,
    EpochsOption,
    EveryOption,
    GpusOption,
    ImageSizeOption,
    MembersOption,
    OptimizerOption,
    OutputOption,
    PrecisionOption,
    QuietOption,
    RateOption,
    ScaleOption,
    ScheduleOption,
    TensorBoardOption,
    ValSizeOption,
    console,
    report_errors,
    report_interruption,
    report_warnings,
    warn,
)
from hullo.lab.spec.paper import Column
from hullo.lab.spec.recipes import RECIPES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hullo.lab.run.loaders import Loader
    from hullo.lab.run.queue import RunQueue
    from hullo.lab.run.sources import Source
    from hullo.lab.spec import Spec
    from hullo.lab.spec.records import Record


def _run(
    queue: RunQueue,
    *,
    device: str | None,
    data_dir: Path | None,
    checkpoint_every: float,
    tensorboard_dir: Path | None,
    quiet: bool,
) -> list[Record]:
    from hullo.lab.distributed import join, local_device
    from hullo.lab.progress import Progress
    from hullo.lab.run.loaders import loader_key, open_loader
    from hullo.lab.run.local import LocalRunner
    from hullo.lab.run.tensorboard import TensorBoardLogger
    from hullo.lab.spec.environment import choose_device, device_name, environment

    with report_errors():
        chosen = choose_device(local_device(device))
        logger = TensorBoardLogger(tensorboard_dir) if tensorboard_dir else nullcontext()
    with report_interruption(queue.output), join(chosen) as world, logger as tensorboard:
        loaders = {key: open_loader(s, data_dir, chosen) for key, s in {loader_key(s): s for s in queue.specs}.items()}
        runner = LocalRunner(queue, loaders, environment(device_name(chosen)), checkpoint_every, tensorboard, world)
        _prepare(queue, loaders, tensorboard_dir, is_main=world.is_main)
        with Progress(console(), quiet=quiet or not world.is_main) as progress:
            records = runner.run(progress)
    if not world.is_main:
        raise typer.Exit
    return records


def _run_on_cluster(
    queue: RunQueue,
    sources: Sequence[Source],
    *,
    address: str | None,
    gpus: float | None,
    data_dir: Path | None,
    checkpoint_every: float,
    tensorboard_dir: Path | None,
    quiet: bool,
) -> list[Record]:
    import torch

    from hullo.lab.progress import Progress
    from hullo.lab.run.cluster import RayRunner, choose_gpus, connect
    from hullo.lab.run.loaders import loader_key, open_loader
    from hullo.lab.signals import install, unwinding

    with report_interruption(queue.output), unwinding(), ExitStack() as stack:
        with report_errors():
            stack.enter_context(connect(address))
            gpus = choose_gpus(gpus)
        install()  # Ray has installed its own signal handlers
        here = {loader_key(s): s for s in queue.specs if s.is_own_data}  # this machine may not have other data sets
        loaders = {key: open_loader(s, data_dir, torch.device("cpu")) for key, s in here.items()}
        _prepare(queue, loaders, tensorboard_dir)
        absolute = replace(queue, output=queue.output.absolute())
        runner = RayRunner(
            absolute,
            gpus,
            data_dir and data_dir.absolute(),
            [source.absolute() for source in sources],
            checkpoint_every,
            tensorboard_dir and tensorboard_dir.absolute(),
        )
        with Progress(console(), quiet=quiet) as progress:
            return runner.run(progress)


def _prepare(
    queue: RunQueue,
    loaders: Mapping[tuple[str, int, str], Loader],
    tensorboard_dir: Path | None,
    *,
    is_main: bool = True,
) -> None:
    """Make the directories of the results, and print warnings; raise a ValueError if results cannot be written."""
    from hullo.lab.files import make_directory
    from hullo.lab.run.local import describe_kept

    sentences = (*describe_kept(queue.specs, loaders), queue.records.describe_truncated()) if is_main else ()
    for sentence in filter(None, sentences):
        warn(sentence)
    if tensorboard_dir:
        make_directory(tensorboard_dir)
    queue.prepare_output()


def train(
    network: Annotated[
        str,
        typer.Argument(metavar="NETWORK", help=f"{', '.join(RECIPES)}, or a network of your own: my_network.py:Net."),
    ],
    dataset: Annotated[
        str,
        typer.Argument(
            metavar="DATA", help="A data set (hullo data list), or your own: a folder of images, .npz or .safetensors."
        ),
    ],
    activation: Annotated[
        str | None,
        typer.Option(
            help="A base function such as relu, or a hull: 'affine(relu,tanh)'.",
            show_default="relu; a network of your own keeps its activations",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the initial weights, the order of samples and dropout.")] = 0,
    epochs: EpochsOption = None,
    batch_size: BatchSizeOption = None,
    optimizer: OptimizerOption = None,
    lr: RateOption = None,
    schedule: ScheduleOption = None,
    weight_decay: DecayOption = None,
    coefficient_lr_scale: ScaleOption = 1.0,
    augment: AugmentOption = None,
    image_size: ImageSizeOption = None,
    val_size: ValSizeOption = 0,
    precision: PrecisionOption = "float32",
    device: DeviceOption = None,
    data_dir: DataOption = None,
    output: OutputOption = Path("runs"),
    checkpoint_every: EveryOption = 30.0,
    tensorboard: TensorBoardOption = None,
    no_weights: Annotated[bool, typer.Option("--no-weights", help="Do not save the trained network.")] = False,
    quiet: QuietOption = False,
) -> None:
    """Train one network. The same command resumes an interrupted run; with more --epochs it extends a finished one."""
    from hullo.lab.run.queue import RunQueue
    from hullo.lab.run.sources import Source
    from hullo.lab.spec import Spec

    with report_errors(), report_warnings():
        column = Source(network, dataset, image_size).open()
        spec = Spec.default(
            *column,
            default_activation(column) if activation is None else activation,
            seed=seed,
            epochs=epochs,
            batch_size=batch_size,
            optimizer=optimizer,
            lr=lr,
            schedule=schedule,
            weight_decay=weight_decay,
            coefficient_lr_scale=coefficient_lr_scale,
            augment=augment,
            precision=precision,
            val_size=val_size,
        )
    queue = RunQueue([spec], output, weights=not no_weights)
    earlier = _describe_recorded(queue)
    (record,) = _run(
        queue,
        device=device,
        data_dir=data_dir,
        checkpoint_every=checkpoint_every,
        tensorboard_dir=tensorboard,
        quiet=quiet,
    )
    results = [f"test accuracy {record.accuracy:.2f} %"]
    results += [f"accuracy on held-out samples {last:.2f} %" for last in record.val_accuracy[-1:]]
    typer.echo(f"{spec}: {record.ended}, {', '.join(results)}")
    if earlier:
        typer.echo(earlier)
    _echo_weights("the trained network", spec, output, network, wanted=not no_weights)


def _describe_recorded(queue: RunQueue) -> str:
    """Return a sentence on the runs that are not trained because they have a record; empty if there are none."""
    with report_errors():
        recorded = {record.spec for record in queue.records.read()}.intersection(queue.specs)
    if not recorded:
        return ""
    which = "this run was" if len(queue.specs) == 1 else f"{len(recorded)} of {len(queue.specs)} runs were"
    again = "change a setting, the seed or --output to train again"
    return f"{which} trained earlier, with a record in {queue.records.path}; {again}"


def _echo_weights(what: str, spec: Spec, output: Path, network: str, *, wanted: bool) -> None:
    """Print how to load the network of a run, if it was saved; if it was `wanted` and was not, say so."""
    from hullo.lab.run.queue import weights_path

    weights = weights_path(output, spec)
    if weights.exists():
        source = f", network={network!r}" if spec.is_own_network else ""
        typer.echo(f"load {what} with hullo.lab.load_network({str(weights)!r}{source})")
    elif wanted:
        typer.echo(f"there are no weights of {what} in {weights.parent}; to save them, choose another --output")


def default_activation(column: Column) -> str:
    """Return the activation to train if none is given."""
    return "relu" if column.network in RECIPES else "own"


def reproduce(
    experiments: Annotated[
        list[str] | None,
        typer.Argument(
            help="Networks and data sets: lenet5/cifar10, or your own: my_network.py:Net/images.",
            show_default="the paper's, without AlexNet's",
        ),
    ] = None,
    activation: Annotated[
        list[str] | None,
        typer.Option(
            help="An activation: any base or hull; may be given several times. Besides the paper's twelve, consider "
            "'prelu' and 'leaky_relu(0.3)', Keras's defaults.",
            show_default="the paper's",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Number of seeds, starting from 0.", min=1)] = 5,
    epochs: EpochsOption = None,
    batch_size: BatchSizeOption = None,
    optimizer: OptimizerOption = None,
    lr: RateOption = None,
    schedule: ScheduleOption = None,
    weight_decay: DecayOption = None,
    coefficient_lr_scale: Annotated[
        list[float] | None,
        typer.Option(
            help="Learning rate of the coefficients, as a multiple of --lr; may be given several times.",
            show_default="1",
        ),
    ] = None,
    augment: AugmentOption = None,
    image_size: ImageSizeOption = None,
    val_size: ValSizeOption = 0,
    precision: PrecisionOption = "float32",
    members: MembersOption = None,
    engine: EngineOption = Engine.LOCAL,
    ray_address: AddressOption = None,
    gpus_per_task: GpusOption = None,
    device: DeviceOption = None,
    data_dir: DataOption = None,
    output: OutputOption = Path("runs"),
    checkpoint_every: EveryOption = 30.0,
    tensorboard: TensorBoardOption = None,
    weights: Annotated[bool, typer.Option("--weights", help="Save the trained networks.")] = False,
    quiet: QuietOption = False,
) -> None:
    """Train networks on data sets with all activations and seeds at once. The same command resumes interrupted runs."""
    from hullo.lab.run.queue import RunQueue
    from hullo.lab.run.sources import Source, split_experiment
    from hullo.lab.spec import Spec
    from hullo.lab.spec.paper import DATA_COLUMNS, rows_of

    with report_errors(), report_warnings():
        if engine is Engine.RAY and device:
            raise ValueError(f"--device {device} needs --engine local; with ray, --gpus-per-task 0 means CPUs")
        if engine is Engine.LOCAL and (ray_address or gpus_per_task is not None):
            raise ValueError("--ray-address and --gpus-per-task need --engine ray")
        sources = [Source(*split_experiment(text), image_size) for text in experiments or ()]
        columns = [source.open() for source in sources]
        specs = [
            Spec.default(
                *column,
                row,
                seed=seed,
                epochs=epochs,
                batch_size=batch_size,
                optimizer=optimizer,
                lr=lr,
                schedule=schedule,
                weight_decay=weight_decay,
                coefficient_lr_scale=scale,
                augment=augment,
                precision=precision,
                val_size=val_size,
            )
            for column in dict.fromkeys(columns) or DATA_COLUMNS
            for row in activation or rows_of(column)
            for scale in coefficient_lr_scale or [1.0]
            for seed in range(seeds)
        ]
    queue = RunQueue(specs, output, members, weights)
    earlier = _describe_recorded(queue)
    if engine is Engine.RAY:
        records = _run_on_cluster(
            queue,
            sources,
            address=ray_address,
            gpus=gpus_per_task,
            data_dir=data_dir,
            checkpoint_every=checkpoint_every,
            tensorboard_dir=tensorboard,
            quiet=quiet,
        )
    else:
        records = _run(
            queue,
            device=device,
            data_dir=data_dir,
            checkpoint_every=checkpoint_every,
            tensorboard_dir=tensorboard,
            quiet=quiet,
        )
    networks = {column: source.network for column, source in zip(columns, sources, strict=True)}
    _show_results(records, output, networks, weights)
    if earlier:
        typer.echo(earlier)


def _show_results(records: list[Record], output: Path, networks: dict[Column, str], weights: bool) -> None:
    """Print the tables of runs and how to load the best network of each column; draw what was learned."""
    from hullo.lab.analysis import experiments as analysis
    from hullo.lab.analysis.figures import draw_activations, drawing, save, stem
    from hullo.lab.analysis.tables.terminal import terminal_table

    with report_errors():
        shown = analysis.experiments(records, warn=warn)
    terminal, is_writable = console(), os.access(output, os.W_OK | os.X_OK)
    for experiment in shown:
        terminal.print(terminal_table(experiment, terminal.width), crop=False)
        with report_interruption(output), drawing():
            if is_writable and (figure := draw_activations(experiment)):
                path, *_ = save(figure, output / f"{stem(experiment.name)}-activations")
                typer.echo(f"learned activations: {path}")
    if not is_writable:
        typer.echo(f"note: learned activations are not drawn: {output} is read-only", err=True)
    for column in dict.fromkeys(record.spec.column for record in records):
        runs = [record for record in records if record.spec.column == column and not record.diverged]
        if not runs:
            typer.echo(f"all runs of {column} diverged; a smaller --lr may help")
            continue
        best = max(runs, key=lambda record: (record.val_accuracy or record.test_accuracy)[-1])
        what = f"the best network after the last epoch, {best.spec.activation} with seed {best.spec.seed},"
        _echo_weights(what, best.spec, output, networks.get(column, ""), wanted=weights)
