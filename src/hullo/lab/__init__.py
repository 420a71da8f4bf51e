"""The laboratory: compare activations, train networks and analyze the records."""

from importlib import import_module
from typing import Any

_MODULES = {"compare": "comparison", "load_network": "run.weights", "record": "recorder"}
__all__ = ["compare", "load_network", "record"]


def __getattr__(name: str) -> Any:
    """Import functions lazily: commands that only read records need no network."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"hullo.lab.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
