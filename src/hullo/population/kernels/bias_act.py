"""Bias and activation after the products of a population's linear layers, and their derivatives of every order.

    y = F(z),    z = x + bias,    F = combine(., rows, bases)

for features (members, rows, columns), each member with its own bias and coefficients. One pass forward, one backward;
only x is kept. A derivative of a derivative is one pass, too: all are sums over terms

    F^(n)(z) t_i t_j ...

with tensors t, whose derivatives are such sums again, and a kernel computes those that a pass asks for, from z. A
program takes COLUMNS of a member, ROWS of its rows at a time, and keeps the sums for the gradients of biases and
coefficients in registers; :func:`hullo.population.kernels.linear.column_sums` adds up those of several programs in a
fixed order.
"""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton  # type: ignore[import-untyped]
from torch import Tensor

from hullo._compat import wanted_gradients
from hullo.bases import Base
from hullo.kernels.codegen import Translator, derivative_name, fill, levels
from hullo.population.kernels import processors
from hullo.population.kernels.kinds import Kind, Kinds, all_alike, build_branches
from hullo.population.kernels.linear import column_sums

SIZE, LEAST_TILES, PROGRAMS = 2048, 4, 32
"""Entries of a tile; in passes that add up, the tiles of a program and the programs for each multiprocessor."""

PLAIN = -1
"""In the place of an order: the term has no derivative of F as a factor."""

Z = -1
"""In the place of a tensor's number: z."""

Term = tuple[int, tuple[int, ...]]
"""The order n of the derivative, and the numbers of the tensors that it is multiplied with, each at most once."""
Sum = tuple[Term, ...]


def highest_order(sums: Sequence[Sum]) -> int:
    """Return the highest order of a derivative in some sums."""
    return max((order for terms in sums for order, _ in terms), default=PLAIN)


def contract(sums: Sequence[Sum], gradients: Sequence[int | None]) -> Sum:
    """Return the inner product of some sums and their gradients, the tensors of the given numbers; None is zero."""
    return tuple(
        (order, (*factors, number))
        for terms, number in zip(sums, gradients, strict=True)
        if number is not None
        for order, factors in terms
    )


def with_function(terms: Sum) -> Sum:
    """Return the terms of a sum that have F or a derivative of it as a factor."""
    return tuple(term for term in terms if term[0] != PLAIN)


def derive(terms: Sum, tensor: int) -> Sum:
    """Return the derivative of a sum with respect to a tensor, or to z."""
    if tensor == Z:
        return tuple((order + 1, factors) for order, factors in with_function(terms))
    return tuple(
        (order, tuple(number for number in factors if number != tensor))
        for order, factors in terms
        if tensor in factors
    )


def as_tensor(terms: Sum) -> int | None:
    """Return the number of the tensor that a sum is, if it is one."""
    match terms:
        case ((order, (number,)),) if order == PLAIN:
            return number
    return None


def combine_biased(
    x: Tensor, bias: Tensor | None, rows: Tensor, bases: tuple[Base, ...], kinds: Kinds | None = None
) -> Tensor:
    """Return the activation of x + bias, which can be differentiated any number of times.

    Args:
        x: features, (members, rows, columns).
        bias: (members, columns), if there is one.
        rows: coefficients, N for all members or a row of N for each.
        bases: the N base functions; each has a formula.
        kinds: which bases each member uses, if they differ. Coefficients of others have no effect; those of kinds that
            learn none have a gradient of zero.
    """
    call = _Call(bases, kinds, bias is not None, (_VALUE,))
    y: Tensor = _Combine.apply(x, rows, *(() if bias is None else (bias,)), call)[0]
    return y


_VALUE: Sum = ((0, ()),)


class _Call(NamedTuple):
    """Hold what a call computes besides tensors: sums over F^(n)(z) and the tensors after x, rows and bias."""

    bases: tuple[Base, ...]
    kinds: Kinds | None
    has_bias: bool
    sums: tuple[Sum, ...]


class _Combine(torch.autograd.Function):
    """Compute sums over derivatives, whose gradients are sums of the same form.

    The last result has the values of x and stands for z: derivatives of this function read it in the place of x and
    bias, so that the parts of the gradient of z come together here, where the kernel adds them up.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Tensor, *given: Any) -> tuple[Tensor, ...]:
        *others, call = given
        same, *tensors = (item.contiguous() for item in (x, rows, *others))
        same = same.detach()
        ctx.save_for_backward(same, *tensors)
        ctx.set_materialize_grads(False)
        ctx.call = call
        outputs, _, _ = _compute(call, [same, *tensors])
        return *outputs, same

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        call, saved = ctx.call, ctx.saved_tensors
        wants_x, wants_rows, *wants = wanted_gradients(ctx, len(saved))
        wants_bias = call.has_bias and wants.pop(0)
        same, rows, *others = saved
        biases = [others.pop(0).detach()] if call.has_bias else []
        factors = [*others, *(item.contiguous() for item in gradients if item is not None)]
        numbers = iter(range(len(others), len(factors)))
        *of_sums, of_z = (None if item is None else next(numbers) for item in gradients)
        total = contract(call.sums, of_sums)
        wanted = {place: derive(total, place) for place in range(len(others)) if wants[place]}
        if wants_x or wants_bias:
            wanted = {Z: derive(total, Z) + (() if of_z is None else ((PLAIN, (of_z,)),))} | wanted
        known = {place: as_tensor(terms) for place, terms in wanted.items()}
        found = {place: factors[number] for place, number in known.items() if number is not None}
        places = [place for place, terms in wanted.items() if terms and place not in found]
        again, of_bases = call._replace(sums=tuple(wanted[place] for place in places)), with_function(total)
        tensors, of_bases = [same, rows, *biases, *factors], of_bases if wants_rows else ()
        if torch.is_grad_enabled():  # the gradients are differentiated, too
            outputs: Sequence[Tensor] = _Combine.apply(*tensors, again)[:-1] if places else ()
            dbias, drows = None, _differentiable_drows(call, tensors, of_bases) if of_bases else None
        else:
            outputs, dbias, drows = _compute(again, tensors, wants_bias and Z in places, of_bases)
        found |= dict(zip(places, outputs, strict=True))
        if wants_bias and dbias is None and Z in found:
            dbias = found[Z].sum(1)
        of_bias = [None if dbias is None else dbias.to(biases[0].dtype)] if call.has_bias else []
        return found.get(Z), drows, *of_bias, *(found.get(place) for place in range(len(others))), None


def _differentiable_drows(call: _Call, tensors: Sequence[Tensor], total: Sum) -> Tensor:
    """Return the gradients of the coefficients, by a pass for each base."""
    x, rows, *others = tensors
    parts = []
    for i, base in enumerate(call.bases):
        one = _Call((base,), None, call.has_bias, (total,))
        part = _Combine.apply(x, rows.new_ones(1), *others, one)[0].float().sum((1, 2))
        if call.kinds is not None:
            learns = torch.zeros_like(call.kinds.numbers, dtype=torch.bool)
            for kind, (own, learned) in enumerate(call.kinds.each):
                if learned and i in own:
                    learns |= call.kinds.numbers == kind
            part = part.where(learns, 0.0)
        parts.append(part if rows.dim() == 2 else part.sum())
    return torch.stack(parts, -1).to(rows.dtype)


def _compute(
    call: _Call, tensors: Sequence[Tensor], of_bias: bool = False, of_bases: Sum = ()
) -> tuple[list[Tensor], Tensor | None, Tensor | None]:
    """Return the sums of a call, the first of them added up for the bias, and another one, for each base."""
    x, rows = tensors[:2]
    bias, factors = (tensors[2], tensors[3:]) if call.has_bias else (None, tensors[2:])
    members, height, columns = x.shape
    outputs = [torch.empty_like(x) for _ in call.sums]
    each = all_alike(call.bases) if call.kinds is None else call.kinds.each
    work = _Work(call.bases, each, len(factors), call.sums, of_bias, of_bases)
    if not (outputs or work.parts):
        return outputs, None, None
    across = min(128, triton.next_power_of_2(columns))
    size = SIZE if len(factors) + len(outputs) < 3 and len(call.bases) < 4 else SIZE // 2  # registers are few
    down = min(size // across, triton.next_power_of_2(height))
    splits, lanes = triton.cdiv(height, down), triton.cdiv(columns, across)
    sizes, partial, last, grid = [height, columns], [], False, (lanes * splits, 1, members)
    if work.parts:
        tiles, most = splits, PROGRAMS * processors(x) // (lanes * members)
        splits = max(1, min(tiles // LEAST_TILES, most))
        last = splits == work.parts == 1  # what is written are the sums themselves
        dtype = bias.dtype if last and bias is not None else torch.float32
        partial = [torch.empty(members, splits, work.parts, columns, dtype=dtype, device=x.device)]
        sizes.append(tiles)
        grid = (lanes, splits, members)
    _kernel(work, x.dtype)[grid](
        *([] if call.kinds is None else [call.kinds.numbers]), x, bias, rows, *factors,
        *outputs, *partial, *sizes, EACH=rows.dim() == 2, BIAS=bias is not None, ROWS=down, COLUMNS=across,
        num_warps=4,
    )  # fmt: skip
    if not work.parts:
        return outputs, None, None
    added = partial[0].view(-1, members, columns) if last else column_sums(partial[0], torch.float32)
    drows = added[of_bias:].sum(2).mT if of_bases else None
    if drows is not None and rows.dim() == 1:
        drows = drows.sum(0)
    return outputs, added[0] if of_bias else None, drows


class _Work(NamedTuple):
    """Describe a kernel.

    Args:
        bases: all base functions.
        kinds: the kinds of members.
        factors: the number of tensors.
        sums: of products of derivatives and tensors.
        of_bias: whether the first sum is added up over rows.
        of_bases: a sum that is added up over rows for each base in the place of F.
    """

    bases: tuple[Base, ...]
    kinds: tuple[Kind, ...]
    factors: int
    sums: tuple[Sum, ...]
    of_bias: bool
    of_bases: Sum

    @property
    def parts(self) -> int:
        """Return how many numbers are added up for each column."""
        return self.of_bias + len(self.bases) * bool(self.of_bases)


@functools.cache
def _kernel(work: _Work, dtype: torch.dtype) -> Any:
    """Return the kernel of some work."""
    names = ["x", "bias", "rows", *(f"t{j}" for j in range(work.factors))]
    names += [*(f"o{k}" for k in range(len(work.sums))), *(["partial"] if work.parts else [])]
    pointers = ", ".join(f"{name}_ptr" for name in names)
    texts = [
        fill(_ADDING if work.parts else _ELEMENTWISE, {"POINTERS": [f"{pointers},"], **_parts(work, own, learns)})
        for own, learns in work.kinds
    ]
    return build_branches(texts, f"biased{work!r} on {dtype}", dtype, "tl.program_id(2)")["combine"]


def _parts(work: _Work, own: tuple[int, ...], learns: bool) -> dict[str, list[str]]:
    """Return the parts of a kernel for members of one kind."""
    numbers, of_bases = range(len(own)), work.of_bases if learns else ()
    read = (*work.sums, of_bases)
    used = sorted({number for terms in read for _, factors in terms for number in factors})
    bases, highest = tuple(work.bases[i] for i in own), highest_order(read)
    derivatives = levels(bases, 0, highest + 1, Translator(), factored=False)
    added = {work.of_bias + column: f"sum{i}" for i, column in enumerate(own) if of_bases}
    added |= {0: "total"} if work.of_bias else {}
    return {
        "COLUMNS": _COLUMNS.strip().splitlines()
        + [f"c{i} = tl.load(rows_ptr + row * {len(work.bases)} + {at}).to(tl.float32)" for i, at in enumerate(own)],
        "TILE": _TILE.strip().splitlines()
        + [f"t{j} = tl.load(t{j}_ptr + at, mask=inside, other=0.0).to(tl.float32)" for j in used]
        + [line for lines, _ in derivatives for line in lines]
        + [
            f"f{n} = {' + '.join(f'c{i} * {derivative_name(n, i)}' for i in numbers)}"
            for n in sorted({n for terms in work.sums for n, _ in with_function(terms)})
        ]
        + [f"o{k} = {_write(terms)}" for k, terms in enumerate(work.sums)]
        + [f"tl.store(o{k}_ptr + at, o{k}.to(o{k}_ptr.dtype.element_ty), mask=inside)" for k in range(len(work.sums))],
        "ZERO": [f"{name} = tl.zeros([ROWS, COLUMNS], tl.float32)" for name in added.values()],
        "ADD": [f"sum{i} += {_write(of_bases, i)}" for i in numbers if of_bases]
        + ["total += tl.where(inside, o0, 0.0)"] * work.of_bias,
        "STORE": [f"to = partial_ptr + (member * splits + split) * {work.parts} * columns + column"]
        + [
            f"tl.store(to + {part} * columns, {_total(added.get(part))}.to(partial_ptr.dtype.element_ty), mask=known)"
            for part in range(work.parts)
        ],
    }


def _write(terms: Sum, base: int | None = None) -> str:
    """Return a sum as text; of F, or of one base in its place."""
    products = []
    for order, factors in terms:
        functions = [] if order == PLAIN else [f"f{order}" if base is None else derivative_name(order, base)]
        products.append(" * ".join([*(f"t{j}" for j in factors), *functions]))
    return " + ".join(products)


def _total(name: str | None) -> str:
    return "tl.zeros([1, COLUMNS], tl.float32)" if name is None else f"tl.sum({name}, axis=0)[None, :]"


_ELEMENTWISE = """
@triton.jit
def combine(
    $POINTERS
    height, columns, EACH: tl.constexpr, BIAS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):
    lanes = tl.cdiv(columns, COLUMNS)
    lane, tile = tl.program_id(0) % lanes, tl.program_id(0) // lanes
    $COLUMNS
    $TILE
"""

_ADDING = """
@triton.jit
def combine(
    $POINTERS
    height, columns, tiles, EACH: tl.constexpr, BIAS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):
    lane, split, splits = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    $COLUMNS
    $ZERO
    for tile in range(split, tiles, splits):
        $TILE
        $ADD
    $STORE
"""

# Done once per program: its columns and their numbers.
_COLUMNS = """
member = tl.program_id(2).to(tl.int64)
row = member if EACH else 0
column = lane * COLUMNS + tl.arange(0, COLUMNS)[None, :]
known = column < columns
if BIAS:
    bias = tl.load(bias_ptr + member * columns + column, mask=known, other=0.0).to(tl.float32)
"""

# Done for each tile.
_TILE = """
down = tile * ROWS + tl.arange(0, ROWS)[:, None]
inside = known & (down < height)
at = (member * height + down) * columns + column
x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
if BIAS:
    x += bias
"""
