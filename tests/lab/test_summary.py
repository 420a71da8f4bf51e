"""The table says what was reached, by how many runs, beside what the paper reports, and what sets them apart."""

from __future__ import annotations

from dataclasses import replace

from rich.console import Console
from test_records import RECORD

from hullo.lab.records import Record
from hullo.lab.summary import summarise


def shown(*records: Record) -> str:
    console = Console(width=120)
    with console.capture() as capture:
        console.print(summarise(records))
    return capture.get()


def test_seeds_are_averaged_and_their_range_and_divergence_shown() -> None:
    runs = [
        replace(RECORD, spec=replace(RECORD.spec, seed=seed), accuracy=accuracy, ended=ended)
        for seed, (accuracy, ended) in enumerate(
            [(80.0, "finished"), (85.0, "finished"), (10.5, "diverged in epoch 2")]
        )
    ]
    (line,) = (line for line in shown(*runs).splitlines() if "convex(identity,tanh)" in line)
    assert line.split() == ["convex(identity,tanh)", "58.50", "10.50", "to", "85.00", "3", "1", "92.36"]


def test_a_sample_is_not_passed_off_as_the_whole() -> None:
    said = " ".join(shown(RECORD).split())
    assert "after 2 epochs" in said
    assert "A short run on a sample: the paper's networks saw all of fashion-mnist, for longer." in said
    whole = replace(RECORD, spec=replace(RECORD.spec, data="fashion-mnist"))
    assert "sample" not in shown(whole)


def test_another_rate_of_the_coefficients_is_said() -> None:
    said = " ".join(shown(replace(RECORD, spec=replace(RECORD.spec, coefficient_lr_scale=10.0))).split())
    assert "Coefficients learned at 10 times the learning rate of the weights." in said


def test_an_activation_that_the_paper_has_not_has_no_figure_of_it() -> None:
    (line,) = (
        line
        for line in shown(replace(RECORD, spec=replace(RECORD.spec, activation="gelu"))).splitlines()
        if line.split()[:1] == ["gelu"]
    )
    assert line.split() == ["gelu", "51.50", "1"]
