"""Kernels in which a member pays for its own bases alone.

Members of one call may have different activations. Where a program computes values of one member, its kernel is written
once for each kind of member, and a program takes the branch of its member: no thread waits for another, and a launch
serves all members. Members of one kind get the kernel without branches.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hullo.bases import Base
from hullo.kernels.codegen import formulas

Kind = tuple[tuple[int, ...], bool]
"""Positions of a member's bases among those of a call, and whether it learns coefficients."""


@dataclass(frozen=True, eq=False)
class Kinds:
    """Say of which kind each member is.

    Args:
        each: the kinds.
        numbers: the number of each member's kind, (members,).
    """

    each: tuple[Kind, ...]
    numbers: Tensor


def all_alike(bases: Sequence[object]) -> tuple[Kind, ...]:
    """Return the one kind of members that use all bases."""
    return ((tuple(range(len(bases))), True),)


def hull_parts(bases: Sequence[Base], kind: Kind, height: str, stride: str) -> dict[str, list[str]]:
    """Return the parts of kernels that compute hulls of images for members of a kind.

    Coefficients are those of each `group`, and EACH neighboring columns share them. Sums of dy times the bases have
    `height` rows; in memory the sums for a base are `stride` numbers behind those for the base before it.
    """
    own, learns = kind
    values, slopes = formulas(tuple(bases[i] for i in own))
    sums = {column: f"tl.sum(sum{i}, axis=0)[None, :]" for i, column in enumerate(own) if learns}
    nothing = "tl.zeros([1, COLUMNS // EACH], tl.float32)"
    row = f"tl.load(rows_ptr + group * {len(bases)} + %d).to(tl.float32)"
    added = range(len(sums))
    return {
        "COEFFICIENTS": [f"c{i} = spread({row % column}, EACH)" for i, column in enumerate(own)],
        "VALUES": values,
        "SLOPES": slopes,
        "COMBINED": [f"y = {' + '.join(f'c{i} * y{i}' for i in range(len(own)))}"],
        "SLOPE": [f"slope = {' + '.join(f'c{i} * s{i}' for i in range(len(own)))}"],
        "ZERO": [f"sum{i} = tl.zeros([{height}, COLUMNS // EACH], tl.float32)" for i in added],
        "ADD": [f"sum{i} += add_up(fold(dy * y{i}, {height}), EACH)" for i in added] or ["pass"],
        "STORE": [
            f"tl.store(to + {column} * {stride}, {sums.get(column, nothing)}, mask=some < CHANNELS)"
            for column in range(len(bases))
        ],
    }


def choose_kernels(
    make: Callable[..., dict[str, Any]], bases: tuple[Base, ...], dtype: torch.dtype, kinds: Kinds | None
) -> tuple[dict[str, Any], list[Tensor]]:
    """Return the kernels of bases, and what they ask for first: the numbers of the members' kinds."""
    return (make(bases, dtype), []) if kinds is None else (make(bases, dtype, kinds.each), [kinds.numbers])


def build_branches(texts: Sequence[str], label: str, dtype: torch.dtype, member: str, *helpers: Any) -> dict[str, Any]:
    """Return the kernels of a source, written for each kind of member.

    Of several kinds, the first argument of each kernel is the number of the kind of each member. `member` is the
    expression for the member of a program, in terms of the kernels' constants; `helpers` are functions that kernels
    call.
    """
    from hullo.kernels.triton import build

    known = {helper.__name__: helper for helper in helpers}
    if len(texts) == 1:
        return build(texts[0], label, dtype, **known)
    found = re.findall(r"^def (\w+)\((.*?)\):$", texts[0], re.M | re.S)
    text = ""
    for kind, own in enumerate(texts):
        text += re.sub(rf"\b({'|'.join(name for name, _ in found)})\(", rf"\1_{kind}(", own)
    for name, signature in found:
        if "_ptr" not in signature:
            continue  # a function that kernels call
        arguments = ", ".join(re.findall(r"(\w+)(?:: tl\.constexpr)?(?:,|$)", signature.strip()))
        text += (
            f"\n\n@triton.jit\ndef {name}(kinds_ptr, {signature.strip()}):\n    kind = tl.load(kinds_ptr + {member})\n"
        )
        text += "".join(f"    if kind == {kind}:\n        {name}_{kind}({arguments})\n" for kind in range(len(texts)))
    return build(text, label, dtype, **known)
