"""`hullo train` and `hullo reproduce`: the same command for one network and for many."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hullo.lab.cli.common import console, echo_finding, flag, resumable, warn
from hullo.lab.cli.settings import Engine, Where, combine_settings, with_options
from hullo.lab.spec.paper import Column
from hullo.lab.spec.recipes import RECIPES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hullo.lab.analysis.experiments import Experiment
    from hullo.lab.run.queue import RunQueue
    from hullo.lab.run.sources import Source
    from hullo.lab.spec.records import Record


@with_options
def train(
    network: Annotated[
        str,
        typer.Argument(metavar="NETWORK", help=f"{', '.join(RECIPES)}, or your own: my_network.py:Net."),
    ],
    dataset: Annotated[
        str,
        typer.Argument(
            metavar="DATA", help="A data set (hullo data list), or your own: a folder of images, .npz or .safetensors."
        ),
    ],
    activation: Annotated[
        list[str] | None,
        typer.Option(
            help="A base function such as relu, or a hull: 'affine(relu,tanh)'.",
            metavar="<str>",
            show_default="relu; your own network keeps its activations",
        ),
    ] = None,
    seed: Annotated[
        list[int] | None,
        typer.Option(
            help="Seed of the initial weights, the order of samples and dropout.", metavar="<int>", show_default="0"
        ),
    ] = None,
    *,
    settings: dict[str, list[Any] | None],
    where: Where,
    no_weights: Annotated[bool, flag("--no-weights", help="Do not save the trained network.")] = False,
) -> None:
    """Train one network. The same command resumes an interrupted run.

    An option that is given several times, as in --lr 0.1 --lr 0.01, trains every combination.
    """
    from hullo.lab.run.sources import Source

    sources = [Source(network, dataset, where.image_size)]
    _train(sources, activation, seed or [0], settings, where, weights=not no_weights)


@with_options
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
    *,
    settings: dict[str, list[Any] | None],
    where: Where,
    weights: Annotated[bool, flag("--weights", help="Save the trained networks.")] = False,
) -> None:
    """Train networks on data sets with all activations and seeds at once. The same command resumes interrupted runs.

    An option that is given several times, as in --lr 0.1 --lr 0.01, trains every combination.
    """
    from hullo.lab.run.sources import Source, split_experiment
    from hullo.lab.spec.paper import DATA_COLUMNS, ROWS

    names = [split_experiment(text) for text in experiments or map(str, DATA_COLUMNS)]
    sources = [Source(*name, where.image_size) for name in names]
    _train(sources, activation or list(ROWS), range(seeds), settings, where, weights=weights, paper=not activation)


def _train(
    sources: Sequence[Source],
    activations: list[str] | None,
    seeds: Sequence[int],
    settings: dict[str, list[Any] | None],
    where: Where,
    *,
    weights: bool,
    paper: bool = False,
) -> None:
    """Train every combination, and print the results; with `paper`, activations that the paper has for a column."""
    from hullo.lab.run.cluster import check_engine
    from hullo.lab.run.queue import RunQueue
    from hullo.lab.spec import Spec
    from hullo.lab.spec.paper import rows_of

    check_engine(where.engine, where.device, where.ray_address, where.gpus_per_task)
    columns = [source.open() for source in sources]
    specs = [
        Spec.default(*column, row, seed=seed, **chosen)
        for column in dict.fromkeys(columns)
        for row in (rows_of(column) if paper else activations or [default_activation(column)])
        for chosen in combine_settings(settings, column, where.data_dir)
        for seed in seeds
    ]
    queue = RunQueue(specs, where.output, where.members, weights)
    recorded = queue.records.find(queue.specs)
    with resumable(queue.output):
        records = (_run_on_cluster if where.engine is Engine.RAY else _run)(queue, sources, where)
    shown: list[Experiment] = []
    if len(records) == 1:
        _show_run(records[0])
    else:
        shown = _show_results(records, where.output)
    networks = {column: source.network for column, source in zip(columns, sources, strict=True)}
    for column, network in networks.items():
        runs = [record for record in records if record.spec.column == column]
        _show_network(runs, where.output, network, wanted=weights)
    if recorded:
        which = "This run was" if len(queue.specs) == 1 else f"{len(recorded)} of {len(queue.specs)} runs were"
        typer.echo(
            f"{which} already recorded in {queue.records.path}; change a setting, the seed or --output to train again."
        )
    echo_finding(shown)


def default_activation(column: Column) -> str:
    """Return the activation to train if none is given."""
    return "relu" if column.network in RECIPES else "own"


def _run(queue: RunQueue, _: Sequence[Source], where: Where) -> list[Record]:
    from hullo.lab.progress import Progress
    from hullo.lab.run.loaders import loader_key, open_loader
    from hullo.lab.run.local import LocalRunner
    from hullo.lab.spec.environment import choose_device, device_name, environment

    chosen = choose_device(where.device)
    with Progress(console(), quiet=where.quiet) as progress:
        loaders = {}
        for key, spec in {loader_key(spec): spec for spec in queue.specs}.items():
            progress.describe(f"loading {spec.column.without_hashes.data}")
            loaders[key] = open_loader(spec, where.data_dir, chosen)
        name = environment(device_name(chosen))
        runner = LocalRunner(queue, loaders, name, where.checkpoint_every)
        _prepare(queue)
        return runner.run(progress)


def _run_on_cluster(queue: RunQueue, sources: Sequence[Source], where: Where) -> list[Record]:
    import torch

    from hullo.lab.progress import Progress
    from hullo.lab.run.cluster import RayRunner, choose_gpus, connect
    from hullo.lab.run.loaders import loader_key, open_loader

    with connect(where.ray_address):
        gpus = choose_gpus(where.gpus_per_task)
        for spec in {loader_key(s): s for s in queue.specs if s.is_own_data}.values():  # others may be elsewhere
            open_loader(spec, where.data_dir, torch.device("cpu"))
        _prepare(queue)
        runner = RayRunner(
            replace(queue, output=queue.output.absolute()),
            gpus,
            where.data_dir and where.data_dir.absolute(),
            [source.absolute() for source in sources],
            where.checkpoint_every,
        )
        with Progress(console(), quiet=where.quiet) as progress:
            return runner.run(progress)


def _prepare(queue: RunQueue) -> None:
    """Make the directory of the results; raise a ValueError if results cannot be written."""
    if any(spec.lr == 0 for spec in queue.specs):
        warn("with a learning rate of 0, the weights do not change")
    queue.prepare_output()


def _show_run(record: Record) -> None:
    """Print the result of one run."""
    from hullo.lab.analysis.names import activation_label
    from hullo.lab.analysis.readings import CHOSEN, LAST, read_epoch

    spec = record.spec
    epoch = read_epoch(record, CHOSEN if record.val_accuracy else LAST, spec.epochs)
    name = f"{spec.column.without_hashes}, {activation_label(spec.activation)}, seed {spec.seed}"
    ended = "" if not record.diverged else f"{record.ended}; "
    found = f"test accuracy {record.test_accuracy[epoch - 1]:.2f} % after epoch {epoch} of {spec.epochs}"
    if record.val_accuracy:
        found += f", chosen for its {record.val_accuracy[epoch - 1]:.2f} % on held-out samples"
    typer.echo(f"{name}: {ended}{found}")


def _show_results(records: list[Record], output: Path) -> list[Experiment]:
    """Print the tables of runs, and draw what was learned."""
    from hullo.lab.analysis import experiments as analysis
    from hullo.lab.analysis.figures import draw_activations, drawing, save, stem
    from hullo.lab.analysis.tables.terminal import terminal_table

    shown = analysis.experiments(records, warn=warn)
    terminal = console()
    for experiment in shown:
        terminal.print(terminal_table(experiment), crop=False)
        with resumable(output), drawing():
            if figure := draw_activations(experiment):
                path, *_ = save(figure, output / f"{stem(experiment)}-activations")
                typer.echo(f"learned activations: {path}")
    return shown


def _show_network(runs: Sequence[Record], output: Path, network: str, *, wanted: bool) -> None:
    """Print how to load a network of a column, the best on held-out samples if there are any; test data choose none."""
    from hullo.lab.analysis.names import activation_label
    from hullo.lab.run.queue import weights_path

    if not (finished := [record for record in runs if not record.diverged or len(runs) == 1]):
        typer.echo(f"All runs of {runs[0].spec.column.without_hashes} diverged; a smaller --lr may help.")
        return
    best, which = finished[0], "saved network"
    if len(runs) > 1 and all(record.val_accuracy for record in finished):
        best, which = max(finished, key=lambda record: max(record.val_accuracy)), "best network on held-out samples"
    which += f" ({activation_label(best.spec.activation)}, seed {best.spec.seed})" if len(runs) > 1 else ""
    weights = weights_path(output, best.spec)
    if weights.exists():
        source = f", network={network!r}" if best.spec.is_own_network else ""
        typer.echo(f"{which}: hullo.lab.load_network({str(weights)!r}{source})")
    elif wanted:
        typer.echo(f"{which}: its weights were not saved in {weights.parent}; choose another --output to save them")
