"""The paper's results: top-1 accuracy in percent for each activation on each network and data set.

Manessi and Rozza, "Learning Combinations of Activation Functions", ICPR 2018. A cell that the paper leaves empty is
None.
"""

from __future__ import annotations

from typing import NamedTuple


class Column(NamedTuple):
    """A column of the table: a network and a data set, written as ``kerasnet/cifar10``."""

    network: str
    data: str

    def __str__(self) -> str:
        return f"{self.network}/{self.data}"

    @property
    def without_hashes(self) -> Column:
        """Return the names alone: ``my_network:Net/images`` for ``my_network:Net@1f2e3d4c/images@1f2e3d4c``."""
        return Column(*(name.partition("@")[0] for name in self))


DATA_COLUMNS = (
    Column("lenet5", "fashion-mnist"),
    Column("kerasnet", "fashion-mnist"),
    Column("lenet5", "cifar10"),
    Column("kerasnet", "cifar10"),
    Column("resnet56", "cifar10"),
)
"""The columns whose data sets can be fetched."""

ALEXNET = Column("alexnet", "ilsvrc2012")
COLUMNS = (*DATA_COLUMNS, ALEXNET)

QUOTED_GAINS = {COLUMNS[0]: 0.69, COLUMNS[3]: 4.59, ALEXNET: 3.01}
"""The gains over standard activations that the paper's text claims, in points: smallest, largest, and AlexNet's."""

_TABLE: dict[str, tuple[float | None, ...]] = {
    "identity": (90.50, 90.51, 75.27, 75.23, 42.60, None),
    "relu": (91.06, 90.79, 80.37, 79.97, 89.18, 56.75),
    "tanh": (92.33, 93.43, 78.96, 82.86, 82.65, None),
    "leaky_relu": (91.03, 91.13, 80.94, 80.07, 89.38, 57.03),
    "convex(identity,relu)": (91.87, 92.39, 80.94, 84.74, 90.51, 57.54),
    "convex(identity,tanh)": (92.36, 93.64, 79.45, 78.53, 86.46, None),
    "convex(relu,tanh)": (92.56, 92.04, 80.21, 84.80, 88.31, 58.13),
    "convex(identity,relu,tanh)": (92.21, 92.94, 80.48, 85.21, 89.60, 56.55),
    "affine(identity,relu)": (92.83, 93.37, 80.52, 84.93, 88.92, 58.48),
    "affine(identity,tanh)": (92.65, 94.41, 78.97, 86.05, 82.97, None),
    "affine(relu,tanh)": (93.02, 93.48, 81.23, 84.83, 89.44, 60.04),
    "affine(identity,relu,tanh)": (92.80, 94.41, 80.13, 87.45, 88.62, 57.20),
}

ROWS = tuple(_TABLE)
"""The activations in the table's order: four fixed ones, then the hulls of their bases."""


def accuracy(row: str, column: Column) -> float | None:
    """Return the accuracy in percent that the paper reports, or None if it reports none.

    >>> from hullo.lab.spec import paper
    >>> paper.accuracy("affine(identity,relu,tanh)", paper.Column("kerasnet", "cifar10"))
    87.45
    """
    if row not in ROWS or column not in COLUMNS:
        raise ValueError(f"no cell {row!r}, {str(column)!r} in the paper's table")
    return _TABLE[row][COLUMNS.index(column)]


def rows_of(column: Column) -> tuple[str, ...]:
    """Return the activations that the paper has for a column, and all for columns of your own.

    >>> len(rows_of(ALEXNET)), len(rows_of(Column("my_network", "images")))
    (8, 12)
    """
    return tuple(row for row in ROWS if column not in COLUMNS or accuracy(row, column) is not None)


def parse_column(text: str) -> Column:
    """Parse a column such as ``kerasnet/cifar10``.

    >>> parse_column("lenet5/cifar10").network
    'lenet5'
    """
    network, _, data = text.partition("/")
    if not network or not data:
        columns = ", ".join(map(str, DATA_COLUMNS))
        raise ValueError(
            f"invalid column {text!r}: must be network/data; the paper's are {columns}; your own is as in "
            "my_network.py:Net/images to train it, and my_network:Net/images in tables"
        )
    return Column(network, data)
