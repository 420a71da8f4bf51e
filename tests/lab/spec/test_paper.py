"""Test that the paper's table is complete and spelled canonically."""

from __future__ import annotations

import pytest

from hullo.lab import networks
from hullo.lab.spec import paper
from hullo.lab.spec.activation import ActivationSpec


def best(column: paper.Column) -> set[str]:
    cells = {row: paper.accuracy(row, column) or 0.0 for row in paper.ROWS}
    return {row for row, value in cells.items() if value == max(cells.values())}


def test_table_has_12_rows_6_columns_and_4_empty_cells() -> None:
    cells = [paper.accuracy(row, column) for row in paper.ROWS for column in paper.COLUMNS]
    assert (len(paper.ROWS), len(paper.COLUMNS), cells.count(None)) == (12, 6, 4)


def test_column_sums_match_the_paper() -> None:
    sums = [sum(paper.accuracy(row, column) or 0.0 for row in paper.ROWS) for column in paper.COLUMNS]
    assert [round(total, 2) for total in sums] == [1105.22, 1112.54, 957.47, 994.67, 1008.64, 461.72]


def test_row_sums_match_the_paper() -> None:
    sums = [sum(paper.accuracy(row, column) or 0.0 for column in paper.COLUMNS) for row in paper.ROWS]
    printed = [374.11, 488.12, 430.23, 489.58, 497.99, 430.44, 496.05, 496.99, 499.05, 435.05, 502.04, 500.61]
    assert [round(total, 2) for total in sums] == printed


def test_best_cell_of_every_column_is_a_hull() -> None:
    assert all(row.startswith(("convex", "affine")) for column in paper.COLUMNS for row in best(column))


def test_rows_have_canonical_names() -> None:
    assert [str(ActivationSpec.parse(row)) for row in paper.ROWS] == list(paper.ROWS)


def test_networks_of_all_columns_can_be_built() -> None:
    assert {column.network for column in paper.COLUMNS} <= set(networks.NETWORKS)


def test_unknown_cell_is_rejected() -> None:
    with pytest.raises(ValueError, match="no cell 'gelu', 'lenet5/cifar10'"):
        paper.accuracy("gelu", paper.Column("lenet5", "cifar10"))
