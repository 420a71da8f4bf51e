"""Base functions: what a base is, the catalogue, bases of your own, and bounds of their slopes."""

from hullo.bases import catalogue as catalogue  # registers its bases
from hullo.bases.base import (
    Base,
    Formula,
    Slope,
    all_bases,
    get_base,
    in_order,
    list_bases,
    make_member,
    real_line,
    resolve,
)
from hullo.bases.custom import add_base

__all__ = [
    "Base",
    "Formula",
    "Slope",
    "add_base",
    "all_bases",
    "get_base",
    "in_order",
    "list_bases",
    "make_member",
    "real_line",
    "resolve",
]
