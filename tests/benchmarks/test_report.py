import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hullo.lab.bench import rows
from hullo.lab.spec.environment import environment

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))
SPEC = importlib.util.spec_from_file_location("report", ROOT / "benchmarks" / "report.py")
report = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(report)

ROW = rows.Row(
    **vars(environment("a machine", "abc")),
    kind="eager",
    shape="1024",
    dtype="float32",
    layout="contiguous",
    groups=1,
    activation="gelu",
    direction="forward",
    median_ms=2.0,
    p10_ms=1.0,
    p90_ms=3.0,
    repeats=9,
    floor_ms=1.6,
    held_bytes=4096,
)


@pytest.fixture
def folder(tmp_path):
    """GELU and a hull that takes 1.5 times as long: 3 ms forward, 6 ms backward, 9 ms both."""
    with rows.RowFile(tmp_path / "cpu.csv") as file:
        for shape, groups in (("1024", 1), ("8x2x8x8", 2)):
            for kind in ("eager", "graph", "overhead"):
                for name, scale in (("gelu", 1.0), ("hullo", 1.5)):
                    for direction, ms in (("forward", 2.0), ("backward", 4.0), ("both", 6.0)):
                        row = replace(ROW, kind=kind, shape=shape, groups=groups, activation=name, direction=direction)
                        file.add([replace(row, median_ms=ms * scale, kernels=len(direction) // 7)])
    return tmp_path


def test_the_documents_say_what_the_rows_say():
    for name in report.DOCUMENTS:
        text = (ROOT / name).read_text()
        assert "<!-- bench:" in text
        assert report.with_tables(text, ROOT / "benchmarks" / "results") == text


def test_other_documents_have_no_tables_that_would_go_stale():
    documents = [path for pattern in ("*.md", "docs/**/*.md", "benchmarks/*.md") for path in ROOT.glob(pattern)]
    marked = {str(path.relative_to(ROOT)) for path in documents if "<!-- bench:" in path.read_text()}
    assert marked == set(report.DOCUMENTS)


def test_readme_gives_the_cost_of_a_training_step_as_measured():
    measured = (ROOT / "benchmarks" / "results" / "resnet56_step.txt").read_text()
    lines = {words[0]: words for words in map(str.split, measured.splitlines()[1:])}
    hull, gelu = lines["affine(identity,relu,tanh)"], lines["gelu"]
    assert (
        f"takes {float(hull[3]):.2f} times as long as with ReLU and as much memory" in (ROOT / "README.md").read_text()
    )
    assert hull[-2] == gelu[-2]


@pytest.mark.parametrize(
    ("marker", "line"),
    [
        ("cpu", "| hull, hullo | 1.88 | 3.75 | 1.50 | 1.00 |"),
        ("cpu groups", "| 8x2x8x8 | 2 | contiguous | hull, hullo | 1.88 | 3.75 |"),
        ("cpu graph", "| 2^10 float32 | hull, hullo | 3000 | 1.50 | 6000 | 1.50 | 1 + 1 |"),
        ("cpu overhead", "| hull, hullo | 3000 | 1.50 | 6000 | 1.50 |"),
    ],
)
def test_a_marked_table_is_made_from_the_rows_once_and_for_all(marker, line, folder):
    made = report.with_tables(f"before\n<!-- bench:{marker} -->\nold\n<!-- /bench -->\nafter", folder)
    assert line in made.splitlines()
    assert "old" not in made
    assert made.startswith("before\n")
    assert made.endswith("\nafter")
    assert "a machine" in made
    assert report.with_tables(made, folder) == made


def test_a_table_without_its_rows_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"gpu\.csv"):
        report.with_tables("<!-- bench:gpu -->\n<!-- /bench -->", tmp_path)


@pytest.fixture
def peers(tmp_path):
    """hullo in a graph takes 1 ms, an eager loop 8 ms where there is one; "graph" takes 2 ms whatever K is."""
    where = vars(environment("a machine", "abc"))
    for members, others in (
        (1, {"eager loop": 8.0, "graph": 2.0, "vmap": 5.0}),
        (60, {"vmap": 1.5}),
        (8, {"vmap": 4.0}),
    ):
        cell = others | {"hullo": 0.1, "hullo, graph": 1.0}
        made = [
            report.peer_rows.PeerRow(**where, network="net", members=members, contender=name, ms=ms, mib=10 * ms)
            for name, ms in cell.items()
        ]
        report.peer_rows.add_peers(tmp_path / "population_peers.csv", made)
    return tmp_path


@pytest.mark.parametrize(
    ("table", "lines"),
    [
        (
            "factors",
            [
                "| net | 1 | 1.00 | 8.00 | 8.00 | graph | 2.00 | 2.00 | 10.0 | 20.0 |",
                "| net | 8 | 1.00 |  |  | graph | 2.00 | 2.00 | 10.0 | 20.0 |",
                "| net | 60 | 1.00 |  |  | vmap | 1.50 | 1.50 | 10.0 | 15.0 |",
            ],
        ),
        (
            "peers",
            ["| net | vmap | 5.00 | 4.00 | 1.50 | 50.0 | 40.0 | 15.0 |", "| net | graph | 2.00 |  |  | 20.0 |  |  |"],
        ),
    ],
)
def test_peers_are_compared_with_hullo_in_a_graph(table, lines, peers):
    made = report.with_tables(f"<!-- bench:population_peers {table} -->\n<!-- /bench -->", peers)
    assert all(line in made.splitlines() for line in lines), made
    assert "a machine" in made
