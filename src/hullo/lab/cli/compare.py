"""`hullo compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hullo.lab.cli.common import DeviceOption, ImageSizeOption, QuietOption, console, resumable
from hullo.lab.cli.settings import Engine, EngineOption


def compare(
    network: Annotated[str, typer.Argument(metavar="NETWORK", help="A class, or a function: my_network.py:Net.")],
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="A folder of images, a CSV file, or arrays in .npz or .safetensors.")
    ],
    minutes: Annotated[float, typer.Option(help="The budget; more minutes extend an earlier comparison.")] = 10.0,
    worth: Annotated[
        float | None,
        typer.Option(
            help="The smallest gain that would make you change the activation, in units of the metric.",
            show_default="0.3 points of accuracy, or 1 % of the original's best score",
        ),
    ] = None,
    candidate: Annotated[
        list[str] | None,
        typer.Option(
            help="An activation to compare with the original network: any base or hull; may be given several times.",
            show_default="relu, gelu, silu, prelu, a hull that starts as what it replaces, and the paper's",
        ),
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="The column of a CSV file to predict.", show_default="the last")
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(help="cross_entropy, bce, mse or mae.", show_default="cross_entropy for classes, else mse"),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(help="accuracy, loss, rmse or mae.", show_default="accuracy, or rmse"),
    ] = None,
    optimizer: Annotated[str, typer.Option(help="adamw, adam, sgd or rmsprop.")] = "adamw",
    weight_decay: Annotated[float, typer.Option(help="Weight decay of weights.")] = 0.01,
    lr: Annotated[
        list[float] | None,
        typer.Option(
            help="A learning rate of the grid; may be given several times.",
            show_default="0.001, 0.003, 0.01; with sgd 0.01, 0.03, 0.1",
        ),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(help="Epochs of every run.", min=1, show_default="as many as fit, at most 20")
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Samples per batch.", min=1)] = 64,
    seeds: Annotated[
        int | None,
        typer.Option(help="The most fresh seeds for the confirmation.", min=2, show_default="as many as fit"),
    ] = None,
    image_size: ImageSizeOption = None,
    precision: Annotated[str, typer.Option(help="float32, or bfloat16: mixed precision by autocast.")] = "float32",
    engine: EngineOption = Engine.LOCAL,
    device: DeviceOption = None,
    output: Annotated[Path, typer.Option(help="Directory of records and weights.")] = Path("runs"),
    quiet: QuietOption = False,
) -> None:
    """Find out which activation to use in your network, and how sure that is. The same command resumes and extends."""
    if not quiet:
        typer.echo(f"hullo: reading {data}", err=True)
    from hullo.lab.comparison import compare as run
    from hullo.lab.comparison.candidates import DEFAULT
    from hullo.lab.comparison.files import open_files, open_network

    with resumable(output):
        opened = open_files(data, target=target, image_size=image_size, regress=loss in ("mse", "mae"))
        result = run(
            open_network(network, opened),
            opened,
            minutes=minutes,
            worth=worth,
            candidates=candidate or DEFAULT,
            loss=loss,
            metric=metric,
            optimizer=optimizer,
            weight_decay=weight_decay,
            lr=lr or None,
            epochs=epochs,
            batch_size=batch_size,
            seeds=seeds,
            precision=precision,
            engine=engine,
            device=device,
            output=output,
            quiet=quiet,
        )
    typer.echo(f"records and weights: {result.folder}\na page: hullo report {result.folder}\n")
    console().print(str(result), soft_wrap=True, highlight=False, markup=False)
