"""What a population refuses."""

from __future__ import annotations


class LoweringError(RuntimeError):
    """Say which operation of a network cannot be computed for all members at once, and where it is in the source."""
