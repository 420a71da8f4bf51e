"""What went wrong on the way, told apart from what was asked for wrongly."""

from __future__ import annotations


class RunError(ValueError):
    """What was asked for is valid, but could not be done: data are missing, the disk is full, the memory too small."""
