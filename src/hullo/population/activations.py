"""The activations of a population: the coefficients of all members and sites in one table.

Every activation is a row of coefficients over base functions, or one row per group of channels. Members with different
activations are one call of the combining kernel, over all bases that any of them uses: a fixed activation is a row that
is never updated. The raw numbers of all rows are one parameter, so that the optimizer and the parametrization take one
pass, however deep the networks are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from hullo.bases import Base, list_bases
from hullo.coefficients import get_parametrization
from hullo.functional import apply
from hullo.kernels import CombineSpec
from hullo.population import kernels
from hullo.population.sites import Activation, Site
from hullo.population.values import Value

UNUSED, USED, REST = 0, 1, 2
"""The role of a base in a row: REST is the coefficient that a "free" row does not learn, one minus all others."""


@dataclass(frozen=True)
class _Part:
    """Members of a site that are computed in one call."""

    members: Tensor | None  # None for all
    bases: tuple[Base, ...]
    columns: Tensor | None  # of the bases in the table; None for all
    rows: Sequence[int]  # of the table, one per member and group of channels

    def to(self, device: torch.device) -> _Part:
        members, columns = (None if item is None else item.to(device) for item in (self.members, self.columns))
        return replace(self, members=members, columns=columns)


class Activations(nn.Module):
    """Hold the raw numbers of all members and sites, (K, R, N), and compute the members' activations.

    R counts the rows of the member with the most, site by site; N counts the bases of all sites. An activation that a
    member uses at several sites has rows at the first alone.
    """

    raw: Tensor
    fixed: Tensor
    roles: Tensor
    codes: Tensor
    order: Tensor  # the row of the table that each row of all calls is made of
    uses: Tensor  # the rows of all calls that are made of each row of the table

    def __init__(self, sites: Sequence[Site], members: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.sites = [site for site in sites if site.activations]
        self._index = {i: number for number, i in enumerate(i for i, site in enumerate(sites) if site.activations)}
        self.bases = _in_order(item for site in self.sites for item in site.activations)
        self._starts, rows = _allocate(self.sites, members)
        raw = torch.zeros(members, rows, len(self.bases), dtype=torch.float64)
        roles, codes = torch.zeros(raw.shape, dtype=torch.int8), torch.zeros(*raw.shape[:2], 1, dtype=torch.int8)
        for site, starts in zip(self.sites, self._starts, strict=True):
            for k, own in enumerate(site.activations):
                here, columns = slice(starts[k], starts[k] + own.groups), self._columns(own)
                raw[k, here, columns[: own.raw.shape[1]]] = own.raw.double().cpu()
                roles[k, here, columns] = REST
                roles[k, here, columns[: own.raw.shape[1]]] = USED
                codes[k, here] = CODES[own.parametrization]
        self.parametrizations = tuple(
            sorted({item.parametrization for site in self.sites for item in site.activations})
        )
        learns = codes != CODES["fixed"]
        self.register_buffer("fixed", torch.where(learns, 0.0, raw).to(dtype), persistent=False)
        self.register_buffer("roles", roles, persistent=False)
        self.register_buffer("codes", codes, persistent=False)
        start = torch.where(learns, raw, 0.0).to(dtype)
        if learns.any():
            self.raw = nn.Parameter(start)
        else:
            self.register_buffer("raw", start, persistent=False)
        self._parts = [self._place(site, starts) for site, starts in zip(self.sites, self._starts, strict=True)]
        order = [row for parts in self._parts for part in parts for row in part.rows]
        self.register_buffer("order", torch.tensor(order, dtype=torch.int32), persistent=False)
        self.register_buffer("uses", _uses(order, members * rows), persistent=False)

    def _columns(self, own: Activation) -> list[int]:
        return [self.bases.index(item) for item in own.bases]

    def _place(self, site: Site, starts: Sequence[int]) -> list[_Part]:
        """Return the calls of a site."""
        total, parts = self.raw.shape[1], []
        for numbers, bases in _partition(site):
            rows = [
                k * total + starts[k] + group * site.activations[k].groups // site.groups
                for k in numbers
                for group in range(site.groups)
            ]
            members = None if len(numbers) == len(site.activations) else torch.tensor(numbers)
            columns = None if bases == self.bases else torch.tensor([self.bases.index(item) for item in bases])
            parts.append(_Part(members, bases, columns, rows))
        return parts

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Activations:
        # model.half() and model.bfloat16() leave the coefficients in float32, as in a hull
        def keep_precision(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return tensor.to(moved.device) if moved.dtype in (torch.float16, torch.bfloat16) else moved

        super()._apply(keep_precision, recurse)  # type: ignore[no-untyped-call]
        self._parts = [[part.to(self.raw.device) for part in parts] for parts in self._parts]
        return self

    @property
    def coefficients(self) -> Tensor:
        """Return the coefficients of every row, (K, R, N), over `bases`."""
        kept: Tensor = _Parametrize.apply(self.raw, self.roles, self.codes, self.parametrizations)  # type: ignore[no-untyped-call]
        return torch.where(self.codes == CODES["fixed"], self.fixed, kept)

    def rows(self) -> list[list[Tensor]]:
        """Return the coefficients of the calls of each site, all made in one pass."""
        if not self.sites:
            return []
        heights = [len(part.rows) for parts in self._parts for part in parts]
        if kernels.serve(self.raw):
            from hullo.population.kernels.parametrize import parametrize

            made = parametrize(self.raw, self.fixed, self.roles, self.codes, self.order, self.uses, heights)
        else:
            made = torch.split(self.coefficients.flatten(0, 1)[self.order], heights)
        calls = iter(made)
        return [
            [rows if part.columns is None else rows[:, part.columns] for part, rows in zip(parts, calls, strict=False)]
            for parts in self._parts
        ]

    @property
    def calls(self) -> dict[int, tuple[Base, ...] | None]:
        """Return the bases of each site; None for a site that needs several calls."""
        return {
            index: self._parts[number][0].bases if len(self._parts[number]) == 1 else None
            for index, number in self._index.items()
        }

    def number(self, index: int) -> int:
        """Return which of the activations' sites a site is."""
        return self._index[index]

    def compute(self, index: int, rows: Sequence[Sequence[Tensor]], x: Value) -> Value:
        """Return what the activations of a site make of x, with the coefficients that `rows` returned."""
        members, number = len(self.codes), self._index[index]
        parts, site = self._parts[number], self.sites[number]
        dim = 0 if x.dim is None else x.dim
        if site.groups > 1:  # members beside the channels, so that each member's channels follow each other
            dim = site.channel_dim % len(x.shape)
        y = x.at(dim, members)
        done = []
        for part, coefficients in zip(parts, rows[number], strict=True):
            own = y if part.members is None else y.index_select(dim, part.members)
            flat = own.flatten(dim, dim + 1) if site.groups > 1 else own
            done.append(
                apply(flat, coefficients, CombineSpec(part.bases, get_parametrization("given"), channel_dim=dim)).view(
                    own.shape
                )
            )
        if len(parts) == 1:
            return Value(done[0], dim)
        order = torch.cat([part.members for part in parts if part.members is not None]).argsort()
        return Value(torch.cat(done, dim).index_select(dim, order), dim)

    def feasible_gradient(self, gradient: Tensor) -> Tensor:
        """Restrict a gradient of the raw numbers to directions in which convex and conic coefficients can move.

        Optimizers call this just before a step, on the gradient of the whole batch; see :mod:`hullo.boundary`.
        """
        if not {"projection", "clamped"} & set(self.parametrizations):
            return gradient
        if kernels.serve(self.raw):
            from hullo.population.kernels.parametrize import restrict

            return restrict(self.raw, gradient, self.roles, self.codes)
        used = self.roles != UNUSED
        # an unused base has the raw number -inf and the gradient inf, against which no coefficient can move
        raw, against = self.raw.masked_fill(~used, -torch.inf), gradient.masked_fill(~used, torch.inf)
        for name in self.parametrizations:
            feasible = None if name == "fixed" else get_parametrization(name).restrict
            if feasible:
                gradient = torch.where((self.codes == CODES[name]) & used, feasible(raw, against), gradient)
        return gradient

    def split(self, k: int, table: Tensor) -> list[Tensor]:
        """Return member k's part of a table like `coefficients`, (R, N), by site: a row per group, over its bases."""
        found = []
        for site, starts in zip(self.sites, self._starts, strict=True):
            own = site.activations[k]
            found.append(table[starts[k] : starts[k] + own.groups, self._columns(own)])
        return found

    def member_tensors(self, k: int) -> Iterator[tuple[str, Tensor]]:
        """Yield the names and the values of the parameters that member k has at the sites."""
        for site, starts in zip(self.sites, self._starts, strict=True):
            own = site.activations[k]
            if own.frozen is not None:
                yield f"{site.path}.{own.parameter}".lstrip("."), own.frozen.to(self.raw)
            elif own.parameter is not None:
                columns = self._columns(own)[: own.raw.shape[1]]
                yield (
                    f"{site.path}.{own.parameter}".lstrip("."),
                    self.raw[k, starts[k] : starts[k] + own.groups, columns],
                )


def _allocate(sites: Sequence[Site], members: int) -> tuple[list[list[int]], int]:
    """Return the first row of each site and member, and how many rows a member needs."""
    starts: list[list[int]] = []
    used, known = [0] * members, dict[tuple[int, int], int]()
    for site in sites:
        own = []
        for k, activation in enumerate(site.activations):
            learned = activation.parametrization != "fixed"
            start = known.get((k, activation.owner), used[k]) if learned else used[k]
            if start == used[k]:
                used[k] += activation.groups
            if learned:
                known[k, activation.owner] = start
            own.append(start)
        starts.append(own)
    return starts, max(used, default=0)


def _uses(order: Sequence[int], rows: int) -> Tensor:
    """Return which entries of an order name each row, (rows, most), filled up with -1."""
    found: list[list[int]] = [[] for _ in range(rows)]
    for place, row in enumerate(order):
        found[row].append(place)
    most = max(map(len, found), default=1)
    return torch.tensor([own + [-1] * (most - len(own)) for own in found], dtype=torch.int32).view(rows, most)


def _partition(site: Site) -> list[tuple[list[int], tuple[Base, ...]]]:
    """Return which members are computed together, and over which bases.

    Members share one call unless a base of one may overflow where another's does not: zero times infinity would put
    NaN into its neighbours.
    """
    together: dict[tuple[str, ...], list[int]] = {}
    for k, own in enumerate(site.activations):
        together.setdefault(tuple(sorted(item.name for item in own.bases if not _is_tame(item))), []).append(k)
    return [(numbers, _in_order(site.activations[k] for k in numbers)) for numbers in together.values()]


def _is_tame(item: Base) -> bool:
    """Return whether a function is finite on all finite numbers."""
    ends = torch.tensor([-1.0, 1.0]) * torch.finfo(torch.float32).max / 2
    return bool(item.function(ends).isfinite().all())


def _in_order(activations: Iterable[Activation]) -> tuple[Base, ...]:
    """Return the bases of several activations once each, in the order of the catalogue."""
    position = {name: i for i, name in enumerate(list_bases())}
    found = {item for own in activations for item in own.bases}
    return tuple(sorted(found, key=lambda item: (position[item.name.partition("(")[0]], item.name)))


# Parametrizations of rows that use different bases: those of hullo.coefficients, over the used bases of each row.


def _masked_recentre(numbers: Tensor, roles: Tensor, total: float) -> Tensor:
    """Shift the used numbers of each row alike so that they sum to `total`."""
    used = roles != UNUSED
    numbers = numbers.masked_fill(~used, 0.0)
    missing = total - numbers.sum(-1, keepdim=True)
    return (numbers + missing / used.sum(-1, keepdim=True)).masked_fill(~used, 0.0)


def _complete(raw: Tensor, roles: Tensor) -> Tensor:
    others = raw.masked_fill(roles != USED, 0.0)
    return torch.where(roles == REST, 1 - others.sum(-1, keepdim=True), others)


def _complete_pullback(raw: Tensor, kept: Tensor, gradient: Tensor, roles: Tensor) -> Tensor:
    rest = gradient.masked_fill(roles != REST, 0.0).sum(-1, keepdim=True)
    return (gradient - rest).masked_fill(roles != USED, 0.0)


@dataclass(frozen=True)
class _Parametrization:
    """Map raw numbers of rows to coefficients, and gradients of coefficients to gradients of raw numbers."""

    coefficients: Callable[[Tensor, Tensor], Tensor]
    pullback: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def _entrywise(name: str) -> _Parametrization:
    """Return a parametrization of the library that treats each coefficient alone."""
    own = get_parametrization(name)
    return _Parametrization(
        lambda raw, roles: own.transform(raw).masked_fill(roles == UNUSED, 0.0),
        lambda raw, kept, gradient, roles: own.pullback(raw, kept, gradient).masked_fill(roles == UNUSED, 0.0),
    )


def _over_used(name: str) -> _Parametrization:
    """Return a parametrization of the library in which a raw number of -inf is an unused base."""
    own = get_parametrization(name)
    return _Parametrization(
        lambda raw, roles: own.transform(raw.masked_fill(roles == UNUSED, -torch.inf)),
        lambda raw, kept, gradient, roles: own.pullback(raw, kept, gradient.masked_fill(roles == UNUSED, 0.0)),
    )


PARAMETRIZATIONS = {
    "fixed": _Parametrization(
        lambda raw, roles: torch.zeros_like(raw), lambda raw, kept, gradient, roles: torch.zeros_like(gradient)
    ),
    "projection": _Parametrization(
        _over_used("projection").coefficients, lambda raw, kept, gradient, roles: _masked_recentre(gradient, roles, 0.0)
    ),
    "softmax": _over_used("softmax"),
    "recentred": _Parametrization(
        lambda raw, roles: _masked_recentre(raw, roles, 1.0),
        lambda raw, kept, gradient, roles: _masked_recentre(gradient, roles, 0.0),
    ),
    "free": _Parametrization(_complete, _complete_pullback),
    "given": _entrywise("given"),
    "clamped": _entrywise("clamped"),
    "softplus": _entrywise("softplus"),
}
CODES = {name: code for code, name in enumerate(PARAMETRIZATIONS)}


class _Parametrize(torch.autograd.Function):
    """Map raw numbers to coefficients, each row by its own parametrization."""

    @staticmethod
    def forward(ctx: Any, raw: Tensor, roles: Tensor, codes: Tensor, parametrizations: Sequence[str]) -> Tensor:
        kept = raw
        for name in parametrizations:
            kept = torch.where(codes == CODES[name], PARAMETRIZATIONS[name].coefficients(raw, roles), kept)
        ctx.parametrizations = parametrizations
        ctx.save_for_backward(raw, kept, roles, codes)
        return kept

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        raw, kept, roles, codes = ctx.saved_tensors
        pulled = torch.zeros_like(gradient)
        for name in ctx.parametrizations:
            own = PARAMETRIZATIONS[name].pullback(raw, kept, gradient, roles)
            pulled = torch.where(codes == CODES[name], own, pulled)
        return pulled, None, None, None
