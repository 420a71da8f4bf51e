"""Every format says the same, is well formed, and takes no text for markup."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from pages.course import drift_tables
from pages.speed import paces, speed_table
from rich.console import Console

from hullo.lab.analysis.experiments import SETTINGS, experiments
from hullo.lab.analysis.tables import markdown
from hullo.lab.analysis.tables.csv import csv_table
from hullo.lab.analysis.tables.format import provenance
from hullo.lab.analysis.tables.terminal import terminal_table
from hullo.lab.spec import paper
from hullo.lab.spec.environment import Environment
from hullo.lab.spec.records import Record
from made_records import make_record, make_records

RUNS = make_records({"relu": [79.0, 80.0, 81.0], "leaky_relu": [80.0] * 3, "affine(identity,tanh)": [84.5, 85.5, 86.5]})
RUNS += make_records({"relu": [91.0], "affine(identity,tanh)": [92.0]}, column="lenet5/fashion-mnist")


def shown(runs: list[Record], width: int = 100) -> list[str]:
    console = Console(width=width, force_terminal=False)
    with console.capture() as capture:
        for experiment in experiments(runs):
            console.print(terminal_table(experiment), crop=False)
    return [line.rstrip() for line in capture.get().splitlines()]


def parsed(text: str) -> list[list[list[str]]]:
    """Return the tables of a Markdown document as a reader sees them: rows of cells, as plain text."""
    tables: list[list[list[str]]] = []
    inside = False
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type == "table_open":
            tables.append([])
        elif token.type == "tr_open":
            tables[-1].append([])
        inside = inside or token.type in ("th_open", "td_open")
        if inside and token.type == "inline":
            tables[-1][-1].append("".join(part.content for part in token.children or []))
            inside = False
    return tables


def test_the_terminal_shows_a_block_a_column_within_a_hundred_characters() -> None:
    lines = shown(RUNS)
    assert max(map(len, lines)) <= 100
    assert lines[0] == "kerasnet/cifar10, 1 epoch: test accuracy in %, last epoch"
    assert "lenet5/fashion-mnist, 1 epoch: test accuracy in %, last epoch" in lines  # wider than its table
    assert [line.split() for line in lines if "affine" in line] == [
        ["affine(identity,tanh)", "85.50", "±", "2.48", "+5.50", "±", "0.00", "86.05", "-0.55", "3"],
        ["affine(identity,tanh)", "92.00", "+1.00", "92.65", "-0.65", "1"],
    ]
    (relu,) = (line.split() for line in lines if line.split()[:2] == ["relu", "80.00"])
    assert relu == ["relu", "80.00", "±", "2.48", "79.97", "+0.03", "3"]


def test_the_whole_table_of_the_paper_fits_the_terminal() -> None:
    runs = [
        make_record(row, [88.88, 77.77 + seed], column=str(column), seed=seed, ended="diverged in epoch 2")
        for column in paper.COLUMNS[:5]
        for row in paper.ROWS
        for seed in range(5)
    ]
    lines = shown(runs)
    assert max(map(len, lines)) <= 100
    first = [line.split() for line in lines if "±" in line]
    assert sorted(words[0] for words in first) == sorted(5 * paper.ROWS)


@pytest.mark.parametrize("width", [80, 40, 10])
def test_nothing_is_cut_in_a_narrow_terminal(width: int) -> None:
    runs = [make_record(row, [77.77 + seed], seed=seed) for row in paper.ROWS for seed in range(5)]
    lines = [line for line in shown(runs, width) if "±" in line]
    assert [line.split()[0] for line in lines] == list(paper.ROWS)
    assert lines == [line for line in shown(runs) if "±" in line]


def test_columns_without_entries_are_left_out() -> None:
    runs = make_records({"relu": [80.0, 81.0]}, column="lenet5/images@01234567")
    head = ["activation", "accuracy", "seeds"]
    assert shown(runs)[1].split() == head
    assert parsed(markdown.markdown_table(experiments(runs)))[1][0] == head


def test_fewer_pairs_than_seeds_are_stated() -> None:
    runs = make_records({"relu": [80.0], "tanh": [81.0, 82.0]})
    (line,) = (line for line in shown(runs) if line.split()[:1] == ["tanh"])
    assert line.endswith(" 2 1 of the seeds with relu")


def test_markdown_is_a_glance_then_details() -> None:
    glance, first, second = parsed(markdown.markdown_table(experiments(RUNS)))
    assert glance[0][2].startswith("lenet5/<br>fashion-mnist<br>")
    assert glance[1:] == [
        ["relu", "80.0 ± 2.5<br>(80.0)", "91.0<br>(91.1)"],
        ["leaky_relu", "80.0 ± 0.0<br>(80.1)", "(91.0)"],
        ["affine(identity,tanh)", "85.5 ± 2.5<br>(86.0)", "92.0<br>(92.7)"],
    ]
    assert first[3][:3] == ["affine(identity,tanh)", "85.50 ± 2.48", "+5.50 ± 0.00"]
    assert second[2] == ["affine(identity,tanh)", "92.00", "+1.00", "92.65", "-0.65", "1"]


def test_the_best_of_each_column_is_bold_ours_and_the_papers() -> None:
    best = {"kerasnet/fashion-mnist": ["tanh"], "resnet56/cifar10": ["relu", "leaky_relu"]}
    runs = [
        make_record(row, [90.0 if row in rows else 80.0], column=column)
        for column, rows in best.items()
        for row in paper.ROWS
    ]
    lines = markdown.overview_table(experiments(runs)).splitlines()[2:14]
    ours = [
        [row for row, line in zip(paper.ROWS, lines, strict=True) if "**90.0**" in line.split("|")[n]] for n in (2, 3)
    ]
    theirs = [[row for row, line in zip(paper.ROWS, lines, strict=True) if ")**" in line.split("|")[n]] for n in (2, 3)]
    assert ours == list(best.values())
    assert theirs == [["affine(identity,tanh)", "affine(identity,relu,tanh)"], ["convex(identity,relu)"]]


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))  # Markdown has no character 0
def test_text_is_text_in_markdown(text: str) -> None:
    ((head, line),) = parsed(markdown.grid(["a", "b"], [[markdown.escape(text), "end"]]))
    assert (head, line) == (["a", "b"], [" ".join(text.split()), "end"])


def test_hostile_machines_do_no_harm() -> None:
    hostile = Environment("a|b `c` <b> **d**", 1, "3", "2", "", "0", "_e_")
    text = markdown.overview_table(experiments([make_record("relu", [80.0], environment=hostile)]))
    rendered = MarkdownIt("commonmark").enable("table").render(text)
    assert "a|b `c` &lt;b&gt; **d**, 1 CPU threads" in rendered
    assert "(_e_)" in rendered


def test_csv_has_every_number_as_it_is() -> None:
    lines = list(csv.DictReader(io.StringIO(csv_table(experiments(RUNS)))))
    assert len(lines) == 5
    (line,) = (line for line in lines if (line["data"], line["activation"]) == ("cifar10", "affine(identity,tanh)"))
    cell = experiments(RUNS)[0].cells["affine(identity,tanh)"]
    assert (float(line["mean"]), float(line["half_interval"])) == (cell.accuracy.mean, cell.accuracy.half)
    assert (line["relu_pairs"], line["relu_difference"], line["relu_half_interval"]) == ("3", "5.5", "0.0")
    assert float(line["paper_difference"]) == cell.over_published
    assert (line["epoch"], line["reading"], line["images"]) == ("1", "last", "test")
    assert (line["seeds"], line["best"]) == ("3", "1")
    assert all(line[name] == str(RUNS[0].spec.to_dict().get(name, "")) for name in SETTINGS)
    (relu,) = (line for line in lines if (line["data"], line["activation"]) == ("fashion-mnist", "relu"))
    assert (relu["half_interval"], relu["relu_difference"]) == ("", "")


def test_the_time_of_a_population_counts_once() -> None:
    wide = make_records({"relu": [80.0, 81.0], "tanh": [82.0, 83.0]}, members=4, seconds=8.0)
    (pace,) = paces(wide)
    assert (pace.populations, pace.seconds, pace.network_epochs_a_second) == (1, 8.0, 0.5)
    assert paces(wide[:3]) == [pace]  # the fourth was trained too
    alone = [
        make_record("relu", [80.0] * 6, seed=seed, seconds=seconds) for seed, seconds in enumerate((2.0, 2.0, 4.0))
    ]
    (pace,) = paces(alone)
    assert (pace.populations, pace.seconds, pace.network_epochs_a_second) == (3, 8.0, 18 / 8)
    ((head, *lines),) = parsed(speed_table(wide + alone, {}))
    assert len(lines) == 2
    assert dict(zip(head, lines[1], strict=True))["device time"] == "0:00:08"
    assert lines[1][:4] == ["kerasnet/cifar10<br>a machine, float32, batch 32", "6", "1", "3"]


def test_populations_that_are_not_alike_are_not_added_up() -> None:
    runs = make_records({"relu": [80.0]}) + make_records({"relu": [80.0]}, column="lenet5/fashion-mnist")
    runs += make_records({"relu": [80.0]}, precision="bfloat16") + make_records({"tanh": [80.0]}, batch_size=64)
    found = paces(runs)
    assert len(found) == 4
    assert [str(pace.column) for pace in found] == ["kerasnet/cifar10"] * 3 + ["lenet5/fashion-mnist"]


def test_the_hours_of_a_column_are_those_of_a_network_times_sixty() -> None:
    wide = make_records({"relu": [80.0, 81.0], "tanh": [82.0, 83.0]}, members=4, seconds=18.0)
    alone = make_records({"convex(identity,relu)": [80.0]}, members=1, seconds=20.0)
    (_, *lines) = parsed(speed_table(alone + wide, {}))[0]
    assert [line[-1] for line in lines] == [f"{60 * seconds / 3600:.3g}" for seconds in (20, 4.5)]


def test_moves_are_counted_from_the_start_and_corners_at_the_end() -> None:
    hull = "affine(identity,tanh)"
    paths = [
        [[[0.5, 0.5], [0.5, 0.5]], [[0.6, 0.4], [0.5, 0.5]], [[0.0, 1.0], [1.5, -0.5]]],
        [[[0.5, 0.5], [0.5, 0.5]], [[0.5, 0.5], [0.9, 0.1]], [[0.005, 0.995], [-0.02, 1.02]]],
    ]
    runs = [
        replace(make_record(hull, [50.0, 60.0], seed=seed), coefficients=path, bases=["identity", "tanh"])
        for seed, path in enumerate(paths)
    ]
    lost = replace(runs[0], spec=replace(runs[0].spec, seed=2), ended="diverged in epoch 1")
    ((head, line),) = parsed(drift_tables(experiments([*runs, lost, make_record("relu", [50.0, 60.0])])))
    assert head == ["after epoch", "1", "1", "1", "2", "layers at a corner"]
    assert line == [hull, *["0.12"] * 3, f"{(0.5 + 1.0 + 0.495 + 0.52) / 4:.2f}", "2 of 4"]
    assert drift_tables(experiments([make_record("relu", [50.0])])) == ""


def test_the_papers_figures_are_explained_where_they_are() -> None:
    unknown = make_records({"gelu": [80.0]})
    assert "in brackets the paper's" in markdown.overview_table(experiments(RUNS))
    assert "brackets" not in markdown.overview_table(experiments(unknown))


def test_commits_of_otherwise_equal_runs_are_listed_together() -> None:
    environments = [Environment("a GPU", 1, "3.11", "2.13", "", "0.1", commit) for commit in ("b2", "a1", "")]
    environments.append(Environment("another", 1, "3.11", "2.13", "", "0.1", "a1"))
    runs = [make_record("relu", [50.0], seed=seed, environment=where) for seed, where in enumerate(environments)]
    shared = "1 CPU threads, Python 3.11, torch 2.13, hullo 0.1"
    assert provenance(runs) == f"Runs made with a GPU, {shared} (a1, b2); another, {shared} (a1)."
    assert provenance(runs[2:3]) == f"Runs made with a GPU, {shared}."
