"""The laboratory: compare activations, train networks and analyze the records."""

from importlib import import_module
from typing import Any

_MODULES = {"compare": "comparison", "load_network": "run.weights", "record": "recorder"}
__all__ = ["compare", "load_network", "record"]


def __getattr__(name: str) -> Any:
    """Import functions lazily: commands that only read records need no network."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"hullo.lab.{_MODULES[name]}"), name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"hullo.lab.{name} needs {error.name}: run pip install '.[lab]' in a clone of hullo", name=error.name
        ) from error


def __dir__() -> list[str]:
    return __all__
