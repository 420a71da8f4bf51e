"""`hullo bench`."""

from __future__ import annotations

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
    repeats: Annotated[int, typer.Option(help="Measurements per activation, interleaved.", min=1)] = 30,
    output: Annotated[
        Path | None, typer.Option(help="Directory for the results (CSV) and a chart (PNG).", show_default="none")
    ] = None,
    quiet: QuietOption = False,
) -> None:
    """Benchmark activations: time and memory, compared with GELU and the memory bandwidth."""
    from hullo.lab.bench.cases import CONTENDERS, DTYPES, make_cases, parse_names, parse_sizes
    from hullo.lab.bench.clocks import clock_for
    from hullo.lab.bench.measure import Bench
    from hullo.lab.bench.results import Measurement, draw_chart, terminal_tables, write_rows
    from hullo.lab.files import make_directory
    from hullo.lab.progress import Progress
    from hullo.lab.spec.environment import environment

    with report_errors():
        clock = clock_for(device)
        cases = make_cases(
            parse_sizes(clock.default_sizes if sizes is None else sizes),
            parse_names(clock.default_dtypes if dtypes is None else dtypes, DTYPES, "dtype"),
        )
        names = parse_names(activations, CONTENDERS, "activation")
        if output:
            make_directory(output)
    rows: list[Measurement] = []
    with (
        report_write_errors(output) if output else nullcontext(),
        Progress(console(), quiet=quiet) as progress,
    ):
        for part in Bench(clock, environment(clock.device_name), names, repeats, progress).run(cases):
            rows += part
            if output:
                write_rows(output / f"{clock.file_stem}.csv", rows)
            for table in terminal_tables(part):
                console().print(table)
        if output and any(row.kind == "eager" for row in rows):
            draw_chart(rows, output / f"{clock.file_stem}.png")
