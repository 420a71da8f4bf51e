"""Errors of the laboratory: a ValueError is a usage error, a RunError a failure at run time."""

from __future__ import annotations


class RunError(ValueError):
    """Raised when a valid request fails: data are missing, the disk is full, memory is too small."""
