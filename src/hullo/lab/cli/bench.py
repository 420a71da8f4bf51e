"""`hullo bench`."""

from __future__ import annotations

import math
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from hullo.lab.cli.common import DeviceOption, QuietOption, console, report_errors, report_write_errors


def bench(
    device: DeviceOption = None,
    sizes: Annotated[
        str | None,
        typer.Option(
            help="Elements, or shapes with groups of channels after a slash: 2^24,32x60x8x8/60.",
            show_default="by device",
        ),
    ] = None,
    dtypes: Annotated[
        str | None, typer.Option(help="float32,bfloat16,float16,float64.", show_default="by device")
    ] = None,
    activations: Annotated[
        str,
        typer.Option(
            help="Activations to compare, separated by commas.",
            show_default="relu, gelu, prelu, plain, stacked, compiled, hullo and hullo6",
        ),
    ] = "relu,gelu,prelu,plain,stacked,compiled,hullo,hullo6",
    repeats: Annotated[int, typer.Option(help="Measurements per activation, interleaved.")] = 30,
    budget: Annotated[
        float, typer.Option(help="Time limit in seconds; reduces the repeats.", show_default="none")
    ] = math.inf,
    output: Annotated[
        Path | None, typer.Option(help="Directory for the results (CSV) and a chart (PNG).", show_default="none")
    ] = None,
    commit: Annotated[
        str | None, typer.Option(help="Commit to record with the results.", show_default="the checkout's")
    ] = None,
    quiet: QuietOption = False,
) -> None:
    """Benchmark activations: time and memory, compared with GELU and the memory bandwidth."""
    from hullo.lab.bench.session import Session

    with report_errors():
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
    with report_write_errors(output) if output else nullcontext():
        session.run(console(), quiet=quiet)
