"""Packages import in one direction: the library, then populations and Keras layers, then the laboratory."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import hullo

ROOT = Path(hullo.__file__).parent
ENGINE = ("hullo.population", "hullo.lab.run", "hullo.lab.networks", "hullo.lab.data")
FORBIDDEN = {
    "hullo": ("hullo.population", "hullo.keras", "hullo.lab"),
    "hullo.population": ("hullo.keras", "hullo.lab"),
    "hullo.keras": ("hullo.population", "hullo.lab"),
    "hullo.lab.spec": (*ENGINE, "hullo.lab.analysis", "hullo.lab.cli"),
    "hullo.lab.data": ("hullo.lab.run", "hullo.lab.networks", "hullo.lab.analysis", "hullo.lab.cli"),
    "hullo.lab.networks": (
        "hullo.population",
        "hullo.lab.run",
        "hullo.lab.data",
        "hullo.lab.analysis",
        "hullo.lab.cli",
    ),
    "hullo.lab.run": ("hullo.lab.analysis", "hullo.lab.cli", "hullo.lab.comparison"),
    "hullo.lab.analysis": (*ENGINE, "hullo.lab.cli", "hullo.lab.comparison"),
    "hullo.lab.comparison": ("hullo.lab.cli",),
}
"""Packages that a package must not import, neither at the top of a file nor inside a function."""
START = ("hullo.__main__",)


def modules(package: str) -> Iterator[tuple[str, Path]]:
    """Yield the modules of a package; of the library, those that are in no other package."""
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        inside = name == package or name.startswith(f"{package}.")
        others = FORBIDDEN["hullo"] if package == "hullo" else ()
        if inside and name not in START and not any(name == o or name.startswith(f"{o}.") for o in others):
            yield name, path


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("package", FORBIDDEN)
def test_packages_import_only_lower_layers(package: str) -> None:
    result = [
        f"{name} imports {other}"
        for name, path in modules(package)
        for other in imported(path)
        if any(other == forbidden or other.startswith(f"{forbidden}.") for forbidden in FORBIDDEN[package])
    ]
    assert not result
    assert list(modules(package))
