"""The laboratory: compare activations, train networks and analyze the records."""

from typing import Any

__all__ = ["compare", "load_network", "record"]


def __getattr__(name: str) -> Any:
    """Import functions lazily: commands that only read records need no network."""
    if name == "compare":
        from hullo.lab.comparison import compare

        return compare
    if name == "load_network":
        from hullo.lab.run.weights import load_network

        return load_network
    if name == "record":
        from hullo.lab.recorder import record

        return record
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
