"""Define the exception for networks that a population cannot compute."""

from __future__ import annotations


class LoweringError(RuntimeError):
    """Report which operation of a network cannot be computed for all members at once, and its line of source code."""
