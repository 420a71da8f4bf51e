"""Networks and data of a comparison from files: a class in Python, folders of images, arrays, and tables in CSV."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from hullo.lab.comparison.data import Arrays, read_arrays
from hullo.lab.data.own_data import read_parts
from hullo.lab.data.release import DataError
from hullo.lab.networks import OwnNetwork
from hullo.lab.spec.activation import ActivationSpec

MAX_CLASSES = 20
"""Targets with more different whole numbers are regressed."""
MAX_WORDS = 50
"""Columns with more different words are names or texts."""
MISSING = ("", "na", "nan", "null", "?")
DELIMITERS = ",;\t"


def open_network(source: str, data: Arrays) -> Callable[[], nn.Module]:
    """Return a function that builds a network of a user's file: ``my_network.py:Net``.

    It is called with those of `in_channels`, `image_size` and `num_classes` that it has arguments for; with targets of
    regression, `num_classes` is how many numbers there are.
    """
    own, (example, targets) = OwnNetwork.open(source), data.first
    side = example.shape[-1] if example.dim() == 4 and example.shape[-1] == example.shape[-2] else 0
    outputs = targets[0].numel() if targets.is_floating_point() else 1 + int(data.targets.max())
    sizes = {"in_channels": example.shape[1], "image_size": side, "num_classes": outputs}

    def build() -> nn.Module:
        return own.build(ActivationSpec.parse("own"), example, int(torch.initial_seed()), sizes)

    build.__name__ = f"{own.path.stem}.{own.attribute}"
    return build


def open_files(
    path: str | Path, *, target: str | None = None, image_size: int | None = None, regress: bool = False
) -> Arrays:
    """Return the data of a folder of images, a file of arrays, or a CSV file; parts that are missing are split off."""
    path = Path(path)
    if path.suffix.lower() in (".csv", ".tsv"):
        return read_csv(path, target, regress=regress)
    if target is not None:
        raise ValueError(f"--target {target} is only for CSV files; got {path}")
    parts, _ = read_parts(path, image_size)
    return read_arrays(parts["train"], parts.get("val"), parts.get("test"), _spell_name(path))


def _spell_name(path: Path) -> str:
    resolved = path.resolve()
    return re.sub(r"[^\w.-]", "_", resolved.name if path.is_dir() else resolved.stem) or "data"


def read_csv(path: Path, target: str | None = None, *, regress: bool = False) -> Arrays:
    r"""Read a table with a header: numbers are standardized, words become one column each, rows with missing values are
    left out.

    The column to predict is the last one, or `target`. Words, and few different whole numbers, are classes; other
    numbers are regressed, standardized for training; errors are in their own units. Means and deviations are those of
    the training rows.

    >>> from tempfile import TemporaryDirectory
    >>> lines = [f"{i},{'north' if i % 2 else 'south'},{i / 7}" for i in range(40)]
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "plants.csv")
    ...     _ = path.write_text("\n".join(["height,place,price", *lines]))
    ...     data = read_csv(path)
    >>> data.parts["train"][0].shape, data.target
    (torch.Size([27, 3]), 'price')
    """
    header, rows = _read_rows(path)
    name = header[-1] if target is None else target
    if name not in header:
        raise DataError(f"{path} has no column {name!r}; it has {', '.join(header[:20])}")
    complete = [row for row in rows if not any(cell.strip().lower() in MISSING for cell in row)]
    if not complete:
        raise DataError(f"{path}: none of {len(rows)} rows has all values; fill or remove columns that lack them")
    columns = dict(zip(header, map(_read_column, zip(*complete, strict=True)), strict=True))
    targets = _read_targets(columns.pop(name), f"{path}, column {name!r}", regress=regress)
    texts = [column for column, values in columns.items() if not isinstance(values, Tensor) and _is_text(values)]
    features = [_encode(values) for column, values in columns.items() if column not in texts]
    if not features:
        raise DataError(f"{path} has only the column {name!r}; give others: numbers, or at most {MAX_WORDS} words")
    data = read_arrays((torch.cat(features, 1), targets), None, None, _spell_name(path))
    data.target = name
    if gaps := len(rows) - len(complete):
        data.notes.append(f"{gaps:,} rows with missing values are left out")
    if texts:
        data.notes.append(f"columns left out, with more than {MAX_WORDS} different words: {', '.join(texts)}")
    return _standardize(data)


def _read_rows(path: Path) -> tuple[list[str], list[list[str]]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            first = file.readline()
            file.seek(0)
            lines = [line for line in csv.reader(file, delimiter=max(DELIMITERS, key=first.count)) if line]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as a CSV file: {getattr(error, 'strerror', None) or error}") from None
    if len(lines) < 2:
        raise DataError(f"{path} has {len(lines)} lines; give a header and a line per sample")
    header, rows = [cell.strip() for cell in lines[0]], lines[1:]
    if len(set(header)) < len(header) or all(re.fullmatch(r"[-+]?[\d.]+(e[-+]?\d+)?", cell) for cell in header):
        raise DataError(f"{path}: the first line must name the columns, each differently; it begins {header[:3]}")
    if odd := next((number for number, row in enumerate(rows, 2) if len(row) != len(header)), None):
        raise DataError(f"{path}, line {odd}: {len(rows[odd - 2])} cells, but {len(header)} columns")
    return header, rows


def _read_column(cells: Sequence[str]) -> Tensor | Sequence[str]:
    """Return a column as numbers, or as words if they are none."""
    try:
        return torch.tensor([float(cell) for cell in cells], dtype=torch.float64)
    except ValueError:
        return cells


def _is_text(words: Sequence[str]) -> bool:
    """Return whether words are names or texts rather than kinds."""
    return len(set(words)) > MAX_WORDS


def _encode(values: Tensor | Sequence[str]) -> Tensor:
    """Return a column of features: numbers as they are, words as a column each."""
    if isinstance(values, Tensor):
        return values[:, None]
    words = sorted(set(values))
    return torch.tensor([[float(value == word) for word in words] for value in values], dtype=torch.float64)


def _read_targets(values: Tensor | Sequence[str], where: str, *, regress: bool) -> Tensor:
    """Return the targets: classes as whole numbers, or numbers to regress as floats."""
    if not isinstance(values, Tensor):
        words = sorted(set(values))
        if regress or _is_text(values):
            reason = "mse and mae need numbers" if regress else f"give at most {MAX_WORDS} classes"
            raise DataError(f"{where}: {len(words):,} different words, such as {words[0]!r}; {reason}")
        return torch.tensor([words.index(value) for value in values])
    found = torch.unique(values)
    if not regress and len(found) <= MAX_CLASSES and bool((found == found.round()).all()):
        return torch.searchsorted(found, values)
    return values[:, None]


def _standardize(data: Arrays) -> Arrays:
    """Scale features, and targets of regression, by means and deviations of the training rows."""
    x, y = data.parts["train"]
    shift, scale = x.mean(0), x.std(0)
    scale[scale <= 1e-6 * x.abs().amax(0)] = 1.0  # what is constant in training rows may differ in others
    is_regression = y.is_floating_point()
    mean, data.scale = (float(y.mean()), float(y.std()) or 1.0) if is_regression else (0.0, 1.0)
    for name, (inputs, targets) in data.parts.items():
        data.parts[name] = (inputs - shift) / scale, (targets - mean) / data.scale if is_regression else targets
    return data
