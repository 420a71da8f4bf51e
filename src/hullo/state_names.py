"""Names of raw parameters in a state_dict: they contain the parametrization and the bases of the hull.

``raw_recentred__identity__relu`` names a parametrization and bases; ``raw_recentred_dim_m1__identity__relu`` belongs to
a hull with several groups of channels in dimension -1. A name has no dots, since these separate modules in a
state_dict.
"""

from __future__ import annotations

import re

from hullo.bases import Base, get_base, list_bases

_TO_IDENTIFIER = str.maketrans("(,.-", "__pm", ")+")
_TO_NUMBER = str.maketrans("pm", ".-")
_PATTERN = re.compile(r"raw_([a-z][a-z0-9]*)(?:_dim_(m?\d+))?__(\w+)")


def write_raw_name(parametrization: str, bases: tuple[Base, ...], groups: int, channel_dim: int) -> str:
    """Return the name of a hull's raw parameters."""
    dim = f"_dim_{channel_dim}".replace("-", "m") if groups > 1 and channel_dim != 1 else ""
    return f"raw_{parametrization}{dim}__" + "__".join(item.name.translate(_TO_IDENTIFIER) for item in bases)


def read_raw_name(name: str) -> tuple[str, tuple[Base, ...], int] | None:
    """Return the parametrization, the bases and the channel dimension of a name; None for other names.

    Raises:
        ValueError: a base is unknown; your own must be added by :func:`hullo.add_base` first.
    """
    match = _PATTERN.fullmatch(name)
    if match is None:
        return None
    parametrization, dim, spelled = match.groups()
    return parametrization, tuple(map(_read_base, spelled.split("__"))), int((dim or "1").translate(_TO_NUMBER))


def _read_base(identifier: str) -> Base:
    families = [family for family in list_bases() if f"{identifier}_".startswith(f"{family}_")]
    if not families:
        raise ValueError(f"unknown base function {identifier!r}; if it is your own, call hullo.add_base first")
    family = max(families, key=len)
    numbers = identifier[len(family) + 1 :].translate(_TO_NUMBER)
    return get_base(f"{family}({numbers.replace('_', ',')})" if numbers else family)
