"""`hullo bench`."""

from __future__ import annotations

import math
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from hullo.lab.cli.common import DeviceOption, QuietOption, console, refusals, writing


def bench(
    device: DeviceOption = None,
    sizes: Annotated[
        str | None,
        typer.Option(
            help="Elements, or shapes with groups of channels after a slash: 2^24,32x60x8x8/60.",
            show_default="what suits the device",
        ),
    ] = None,
    dtypes: Annotated[
        str | None, typer.Option(help="float32,bfloat16,float16,float64.", show_default="what suits the device")
    ] = None,
    activations: Annotated[
        str, typer.Option(help="Which to compare.")
    ] = "relu,gelu,prelu,plain,stacked,compiled,hullo,hullo6",
    repeats: Annotated[int, typer.Option(help="Times each is measured, in turn.")] = 30,
    budget: Annotated[
        float, typer.Option(help="Seconds after which the run ends, with fewer repeats.", show_default="none")
    ] = math.inf,
    output: Annotated[
        Path | None, typer.Option(help="A folder for the rows (CSV) and a chart (PNG).", show_default="none")
    ] = None,
    commit: Annotated[
        str | None, typer.Option(help="The commit to note in the rows.", show_default="the checkout's")
    ] = None,
    quiet: QuietOption = False,
) -> None:
    """Measure what activations cost, in time and memory, beside GELU and the speed of the memory."""
    from hullo.lab.bench.session import Session

    with refusals():
        session = Session.prepare(
            device=device,
            sizes=sizes,
            dtypes=dtypes,
            activations=activations,
            repeats=repeats,
            budget=budget,
            commit=commit,
            folder=output,
        )
    with writing(output) if output else nullcontext():
        session.run(console(), quiet=quiet)
