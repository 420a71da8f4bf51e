import csv
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from hullo.lab.spec.environment import environment

ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT / "benchmarks"), str(ROOT / "tools")]
import peer_rows  # noqa: E402
from activation_rows import ActivationRow  # noqa: E402
from blocks import make_table  # noqa: E402

ROW = ActivationRow(
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
    """Return a folder of rows: GELU, and a hull that takes 1.5 times as long (3, 6 and 9 ms)."""
    rows = []
    for shape, groups in (("1024", 1), ("8x2x8x8", 2)):
        for kind in ("eager", "overhead"):
            for name, scale in (("gelu", 1.0), ("hullo", 1.5)):
                for direction, ms in (("forward", 2.0), ("backward", 4.0), ("both", 6.0)):
                    row = replace(ROW, kind=kind, shape=shape, groups=groups, activation=name, direction=direction)
                    rows.append(replace(row, median_ms=ms * scale))
    with (tmp_path / "cpu.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(asdict(ROW)), lineterminator="\n")
        writer.writeheader()
        writer.writerows(map(asdict, rows))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("cost", "| hull, hullo | 1.88 | 3.75 | 1.50 | 1.00 |"),
        ("groups", "| 8x2x8x8 | 2 | contiguous | hull, hullo | 1.88 | 3.75 |"),
        ("overhead", "| hull, hullo | 3000 | 1.50 | 6000 | 1.50 |"),
    ],
)
def test_table_is_generated_from_rows(name, line, folder):
    made = make_table(f"bench-{name}", folder / "cpu.csv").splitlines()
    assert line in made
    assert "a machine" in made[-1]


@pytest.fixture
def peers(tmp_path):
    """Return a folder of rows: hullo in a graph takes 1 ms, an eager loop 8 ms for K = 1, "graph" 2 ms for any K."""
    where = vars(environment("a machine", "abc"))
    for members, others in (
        (1, {"eager loop": 8.0, "graph": 2.0, "vmap": 5.0}),
        (60, {"vmap": 1.5}),
        (8, {"vmap": 4.0}),
    ):
        cell = others | {"hullo": 0.1, "hullo, graph": 1.0}
        made = [
            peer_rows.PeerRow(**where, network="net", members=members, contender=name, ms=ms, mib=10 * ms)
            for name, ms in cell.items()
        ]
        peer_rows.add_peers(tmp_path / "population_peers.csv", made)
    return tmp_path


@pytest.mark.parametrize(
    ("table", "lines"),
    [
        (
            "peers-factors",
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
def test_peers_are_compared_with_hullo_in_a_cuda_graph(table, lines, peers):
    made = make_table(table, peers / "population_peers.csv")
    assert all(line in made.splitlines() for line in lines), made
    assert "a machine" in made


def test_rows_of_another_commit_are_marked_and_give_no_factor_over_a_loop(peers):
    where = vars(environment("a machine", "def"))
    rows = [
        peer_rows.PeerRow(**where, network="new", members=1, contender="hullo, graph", ms=1.0, mib=1.0, added=True),
        peer_rows.PeerRow(
            **vars(environment("a machine", "abc")), network="new", members=1, contender="vmap", ms=3.0, mib=1.0
        ),
        peer_rows.PeerRow(
            **vars(environment("a machine", "abc")), network="new", members=1, contender="eager loop", ms=9.0, mib=1.0
        ),
    ]
    path = peers / "population_peers.csv"
    peer_rows.add_peers(path, rows)
    assert peer_rows.read_peers(path)[-3:] == rows
    assert "| new | 1 | 1.00 |  |  | vmap † | 3.00 | 3.00 | 1.00 | 1.00 |" in make_table("peers-factors", path)
    assert "| new | hullo, graph | *1.00* |" in make_table("peers", path)
