"""The activations of a population: the coefficients of all members and sites in one table.

Every activation is a row of coefficients over base functions, or one row per group of channels. Members with different
activations are one call of the combining kernel, over all bases that any of them uses: a fixed activation is a row that
is never updated. The raw numbers of all rows are one parameter, so that the optimizer and the parametrization take one
pass, however deep the networks are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from hullo.bases import Base, list_bases
from hullo.functional import apply
from hullo.inner_scale import apply_scaled
from hullo.kernels import CombineSpec
from hullo.parametrizations import get_parametrization
from hullo.population import kernels
from hullo.population.parametrizations import CODES, REST, UNUSED, USED, Parametrize
from hullo.population.scales import InnerScales
from hullo.population.sites import Activation, Site
from hullo.population.values import Value


@dataclass(frozen=True)
class _Part:
    """Members of a site that are computed in one call."""

    members: Tensor | None  # None for all
    bases: tuple[Base, ...]
    columns: Tensor | None  # of the bases in the table; None for all
    rows: Tensor  # of the table, one per member and group of channels

    def to(self, device: torch.device) -> _Part:
        members, columns = (None if item is None else item.to(device) for item in (self.members, self.columns))
        return replace(self, members=members, columns=columns, rows=self.rows.to(device))


class Activations(nn.Module):
    """Hold the raw numbers of all members and sites, (K, R, N), and compute the members' activations.

    R counts the rows of the member with the most, site by site; N counts the bases of all sites. An activation that a
    member uses at several sites has rows at the first alone.
    """

    raw: Tensor
    fixed: Tensor
    roles: Tensor
    codes: Tensor
    owners: Tensor  # the row of the table that has the numbers of each row: its own, unless members share a hull
    order: Tensor  # the row of the table that each row of all calls is made of
    uses: Tensor  # the rows of all calls that are made of each row of the table
    scales: InnerScales | None

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
        self.scales = self._read_scales(dtype)
        self._fixed_rows: list[list[Tensor]] | None = None
        self._parts = [self._place(site, starts) for site, starts in zip(self.sites, self._starts, strict=True)]
        owners = self._find_owners()
        self.register_buffer("owners", torch.tensor(owners, dtype=torch.int64), persistent=False)
        order = [owners[row] for parts in self._parts for part in parts for row in part.rows.tolist()]
        self.register_buffer("order", torch.tensor(order, dtype=torch.int32), persistent=False)
        self.register_buffer("uses", _uses(order, members * rows), persistent=False)

    def _read_scales(self, dtype: torch.dtype) -> InnerScales | None:
        """Return the inner scales of the hulls that have any."""
        if not any(own.scales is not None for site in self.sites for own in site.activations):
            return None
        scales = InnerScales(self.raw.shape)
        for site, starts in zip(self.sites, self._starts, strict=True):
            for k, own in enumerate(site.activations):
                if own.scales is not None:
                    scales.add(k, slice(starts[k], starts[k] + own.groups), self._columns(own), own.scales)
        return scales.to(dtype)

    def _find_owners(self) -> list[int]:
        """Return the row that has the numbers of each row: the first member's, where all members share a hull."""
        members, rows = self.raw.shape[:2]
        owners = list(range(members * rows))
        for site, starts in zip(self.sites, self._starts, strict=True):
            for k, own in enumerate(site.activations):
                if site.is_shared:
                    owners[k * rows + starts[k] : k * rows + starts[k] + own.groups] = range(
                        starts[0], starts[0] + own.groups
                    )
        return owners

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
            parts.append(_Part(members, bases, columns, torch.tensor(rows)))
        return parts

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Activations:
        # model.half() and model.bfloat16() leave the coefficients in float32, as in a hull
        def keep_precision(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return tensor.to(moved.device) if moved.dtype in (torch.float16, torch.bfloat16) else moved

        super()._apply(keep_precision, recurse)  # type: ignore[no-untyped-call]
        self._fixed_rows = None
        self._parts = [[part.to(self.raw.device) for part in parts] for parts in self._parts]
        return self

    @property
    def coefficients(self) -> Tensor:
        """Return the coefficients of every row, (K, R, N), over `bases`."""
        kept: Tensor = Parametrize.apply(self.raw, self.roles, self.codes, self.parametrizations)  # type: ignore[no-untyped-call]
        own = torch.where(self.codes == CODES["fixed"], self.fixed, kept)
        return own.flatten(0, 1)[self.owners].view(own.shape)

    def rows(self) -> list[list[Tensor]]:
        """Return the coefficients of the calls of each site, all made in one pass; once, if none is learned."""
        if isinstance(self.raw, nn.Parameter):
            return self._make_rows()
        if self._fixed_rows is None:
            with torch.inference_mode(False):  # so that they serve in training, too
                self._fixed_rows = self._make_rows()
        return self._fixed_rows

    def _make_rows(self) -> list[list[Tensor]]:
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
    def calls(self) -> dict[int, tuple[tuple[Base, ...], int] | None]:
        """Return each site's bases and groups; None for a site that needs several calls, or has inner scales."""
        return {
            index: (self._parts[number][0].bases, self.sites[number].groups)
            if len(self._parts[number]) == 1 and not self.sites[number].is_scaled
            else None
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
            spec = CombineSpec(part.bases, get_parametrization("given"), channel_dim=dim)
            if site.is_scaled:
                combined = apply_scaled(flat, coefficients, self._scale_rows(part), spec)
            else:
                combined = apply(flat, coefficients, spec)
            done.append(combined.view(own.shape))
        if len(parts) == 1:
            return Value(done[0], dim)
        order = torch.cat([part.members for part in parts if part.members is not None]).argsort()
        return Value(torch.cat(done, dim).index_select(dim, order), dim)

    def _scale_rows(self, part: _Part) -> Tensor:
        """Return the inner scales of a call."""
        assert self.scales is not None  # noqa: S101
        rows: Tensor = self.scales().flatten(0, 1)[self.owners[part.rows]]
        return rows if part.columns is None else rows[:, part.columns]

    def feasible_gradient(self, gradient: Tensor) -> Tensor:
        """Restrict a gradient of the raw numbers to directions in which convex and conic coefficients can move.

        Optimizers call this just before a step, on the gradient of the whole batch; see :mod:`hullo.optimizer_hook`.
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
        tables = [self.raw, self.raw if self.scales is None else self.scales()]
        raw, scales = (table.flatten(0, 1)[self.owners].view(table.shape)[k] for table in tables)
        for site, starts in zip(self.sites, self._starts, strict=True):
            own, prefix = site.activations[k], f"{site.path}." if site.path else ""
            here, columns = slice(starts[k], starts[k] + own.groups), self._columns(own)
            if own.parameter is not None:
                learned = raw[here, columns[: own.raw.shape[1]]]
                yield f"{prefix}{own.parameter}", learned if own.frozen is None else own.frozen.to(raw)
            if own.scales is not None:
                yield f"{prefix}inner_scale", scales[here, columns[: own.scales.shape[1]]]


def _allocate(sites: Sequence[Site], members: int) -> tuple[list[list[int]], int]:
    """Return the first row of each site and member, and how many rows a member needs."""
    starts: list[list[int]] = []
    used, known = [0] * members, dict[tuple[int, int], int]()
    for site in sites:
        own = []
        for k, activation in enumerate(site.activations):
            learned = activation.learns
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
