"""The laboratory: training, benchmarks and analysis with the library."""

from typing import Any

__all__ = ["load_network"]


def __getattr__(name: str) -> Any:
    """Import `load_network` lazily: commands that only read records need no network."""
    if name == "load_network":
        from hullo.lab.run.weights import load_network

        return load_network
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
