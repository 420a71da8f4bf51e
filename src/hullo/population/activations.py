"""The activations of a population: the coefficients of all members and sites in one table.

Every activation is a row of coefficients over base functions, or one row per group of channels. Members with different
activations are one call of the combining kernel, over all bases that any of them uses: a fixed activation is a row that
is never updated. The raw parameters of all rows are one parameter: the optimizer and the parametrization take one pass,
however deep the networks are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from hullo.bases import Base, in_order
from hullo.functional import apply
from hullo.kernels import CombineSpec
from hullo.modules import keep_float32
from hullo.optimizer_hook import watch
from hullo.parametrizations import get_parametrization
from hullo.population import kernels
from hullo.population.parametrizations import CODES, REST, UNUSED, USED, Parametrize
from hullo.population.regroup import join_members, split_members
from hullo.population.sites import Activation, Call, Site, fingerprint
from hullo.population.values import Value


class InnerScales(nn.Module):
    """Hold a scale per row and base of a table, (K, R, N); it is one where a hull has no inner scale.

    A hull with one scale for all its bases learns the number at its first base. Scales that are not learned are stored
    in `fixed`.
    """

    raw: nn.Parameter
    fixed: Tensor
    sources: Tensor  # the column with the scale of each base; -1 if it is not learned

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        self.raw = nn.Parameter(torch.ones(*shape, dtype=torch.float64))
        self.register_buffer("fixed", torch.ones(*shape, dtype=torch.float64), persistent=False)
        self.register_buffer("sources", torch.full(tuple(shape), -1), persistent=False)

    @torch.no_grad()
    def add(self, k: int, rows: slice, columns: list[int], given: Tensor) -> None:
        """Set the scales of member k at given rows and columns: one number per row, or one for each column."""
        sources = columns if given.shape[1] > 1 else columns[:1] * len(columns)
        for column, source, scale in zip(columns, sources, given.expand(-1, len(columns)).unbind(1), strict=True):
            if given.requires_grad:
                self.raw[k, rows, source] = scale.to(self.raw)
                self.sources[k, rows, column] = source
            else:
                self.fixed[k, rows, column] = scale.to(self.fixed)

    def forward(self) -> Tensor:
        """Return the scale of every row and base."""
        return torch.where(self.sources < 0, self.fixed, self.raw.gather(-1, self.sources.clamp_min(0)))


class Activations(nn.Module):
    """Hold the raw parameters of all members and sites, (K, R, N), and compute the members' activations.

    R is the largest number of rows that a member has at all sites; N is the number of bases of all sites. An activation
    that a member uses at several sites has rows only at the first. `bases` are in the order in which hulls name
    them, then other activations; the tables have them in the order of the catalogue, in which kernels add them up.
    """

    raw: Tensor
    slopes: nn.Parameter | None  # of nn.PReLU, (K, slopes per member): not coefficients, for an optimizer
    sources: Tensor  # the slope of each entry of the table; -1 for none
    fixed: Tensor
    roles: Tensor
    codes: Tensor
    owners: Tensor  # for each row of the table, the row with its numbers: itself, unless members share a hull
    order: Tensor  # for each row of all calls, its row of the table
    uses: Tensor  # for each row of the table, the rows of calls that use it
    fingerprints: Tensor  # of each member's activations
    scales: InnerScales | None

    def __init__(self, sites: Sequence[Site], members: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.sites = list(sites)
        used = [item for site in self.sites for item in site.activations]
        hulls_first = sorted(used, key=lambda item: not item.is_learned_hull)
        self.bases = tuple(dict.fromkeys(base for item in hulls_first for base in item.bases))
        self._table_bases = _bases_of(used)
        self._starts, rows = _allocate(self.sites, members)
        raw = torch.zeros(members, rows, len(self.bases), dtype=torch.float64)
        roles, codes = torch.zeros(raw.shape, dtype=torch.int8), torch.zeros(*raw.shape[:2], 1, dtype=torch.int8)
        for site, starts in zip(self.sites, self._starts, strict=True):
            for k, activation in enumerate(site.activations):
                span, columns = slice(starts[k], starts[k] + activation.groups), self._columns(activation)
                raw[k, span, columns[: activation.raw.shape[1]]] = activation.raw.double().cpu()
                roles[k, span, columns] = REST
                roles[k, span, columns[: activation.raw.shape[1]]] = USED
                codes[k, span] = CODES[activation.parametrization]
        self.parametrizations = tuple(
            sorted({item.parametrization for site in self.sites for item in site.activations})
        )
        learns = codes != CODES["fixed"]
        sources = self._find_slopes(raw.shape)
        self._exact = torch.where(learns, 0.0, raw)  # `fixed` in float64
        self.register_buffer("fixed", self._exact.to(dtype), persistent=False)
        self._register_frozen()
        self.register_buffer("roles", roles, persistent=False)
        self.register_buffer("codes", codes, persistent=False)
        self.slopes = None
        if (sources >= 0).any():
            self.register_buffer("sources", sources, persistent=False)
            slopes = raw.new_zeros(members, int(sources.max()) + 1)
            owner, row, column = (sources >= 0).nonzero(as_tuple=True)
            slopes[owner, sources[owner, row, column]] = raw[owner, row, column]
            self.slopes = nn.Parameter(slopes.to(dtype))
        start = torch.where(learns & (sources < 0), raw, 0.0).to(dtype)
        if any(item.is_learned_hull for item in used):
            self.raw = nn.Parameter(start)
        else:
            self.register_buffer("raw", start, persistent=False)
        self.scales = self._read_scales(dtype)
        self._fixed_rows: list[list[Tensor]] | None = None
        self.calls = [self._plan_calls(i) for i in range(len(self.sites))]
        owners = self._find_owners()
        self.register_buffer("owners", torch.tensor(owners, dtype=torch.int64), persistent=False)
        order = [owners[row] for calls in self.calls for call in calls for row in call.rows.tolist()]
        self.register_buffer("order", torch.tensor(order, dtype=torch.int32), persistent=False)
        self.register_buffer("uses", _uses(order, members * rows), persistent=False)
        self.register_buffer("fingerprints", torch.tensor([fingerprint(self.sites, k) for k in range(members)]))
        watch(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        watch(self)  # copies and unpickled populations

    def _register_frozen(self) -> None:
        """Register the numbers of hulls and PReLUs that are not learned: they are part of a state all the same."""
        for i, site in enumerate(self.sites):
            for k, activation in enumerate(site.activations):
                if activation.frozen is not None:
                    self.register_buffer(f"frozen_{i}_{k}", activation.frozen.detach().clone())
                    self.register_buffer(f"frozen_{i}_{k}_coefficients", activation.raw.detach().clone())

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        own = self.fingerprints
        saved = state_dict.setdefault(f"{prefix}fingerprints", own)  # older states have none
        if saved.shape == own.shape and not (saved.is_meta or own.is_meta):
            apart = (saved.double().cpu() - own.double().cpu()).abs() > 2  # averages round
            if apart.any():
                rest[4].append(
                    f"the state was saved with other activations in members {apart.nonzero().flatten().tolist()}; make "
                    "the population of the same networks, in the same order"
                )
                return
            state_dict[f"{prefix}fingerprints"] = own
        super()._load_from_state_dict(state_dict, prefix, *rest)
        self._read_frozen()

    @torch.no_grad()
    def _read_frozen(self) -> None:
        """Read the coefficients of hulls that are not learned from their buffers, after a state was loaded.

        Tensors are written in place: a captured step goes on to read them.
        """
        if not any(activation.frozen is not None for site in self.sites for activation in site.activations):
            return
        for i, (site, starts) in enumerate(zip(self.sites, self._starts, strict=True)):
            for k, activation in enumerate(site.activations):
                if activation.frozen is not None:
                    span, given = slice(starts[k], starts[k] + activation.groups), f"frozen_{i}_{k}_coefficients"
                    self._exact[k, span, self._columns(activation)] = self.get_buffer(given).double().cpu()
        self.fixed.copy_(self._exact)
        if self._fixed_rows is not None:
            for kept, new in zip(self._fixed_rows, self._make_rows(), strict=True):
                for old_rows, new_rows in zip(kept, new, strict=True):
                    old_rows.copy_(new_rows)

    def _read_scales(self, dtype: torch.dtype) -> InnerScales | None:
        """Return the inner scales of the hulls that have any."""
        if not any(activation.scales is not None for site in self.sites for activation in site.activations):
            return None
        scales = InnerScales(self.raw.shape)
        for site, starts in zip(self.sites, self._starts, strict=True):
            for k, activation in enumerate(site.activations):
                if activation.scales is not None:
                    span = slice(starts[k], starts[k] + activation.groups)
                    scales.add(k, span, self._columns(activation), activation.scales)
        return scales.to(dtype)

    def _find_slopes(self, shape: Sequence[int]) -> Tensor:
        """Return the number of the slope at each entry of a table; -1 where a row is not that of an `nn.PReLU`."""
        sources, used = torch.full(tuple(shape), -1), [0] * shape[0]
        for site, starts in zip(self.sites, self._starts, strict=True):
            for k, activation in enumerate(site.activations):
                column = self._columns(activation)[0]
                if activation.is_prelu and sources[k, starts[k], column] < 0:
                    numbers = torch.arange(used[k], used[k] + activation.groups)
                    sources[k, starts[k] : starts[k] + activation.groups, column] = numbers
                    used[k] += activation.groups
        return sources

    @property
    def table(self) -> Tensor:
        """Return the raw parameters of every row, with the slopes of `nn.PReLU`."""
        if self.slopes is None:
            return self.raw
        slopes = self.slopes.gather(1, self.sources.flatten(1).clamp_min(0)).view_as(self.raw)
        return torch.where(self.sources < 0, self.raw, slopes)

    def coefficient_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of coefficients and inner scales; none where no member learns any."""
        found = [self.raw, None if self.scales is None else self.scales.raw]
        return [item for item in found if isinstance(item, nn.Parameter)]

    def keep(self, members: Sequence[int]) -> Activations:
        """Return the activations of some members."""
        kept = Activations([site.keep(members) for site in self.sites], len(members), self.raw.dtype)
        kept = kept.to(self.raw.device)
        with torch.no_grad():
            for name, buffer in kept.named_buffers():
                if name.startswith("frozen_"):
                    _, site, k, *suffix = name.split("_")
                    buffer.copy_(self.get_buffer("_".join(["frozen", site, str(members[int(k)]), *suffix])))
            for name, parameter in kept.named_parameters():
                parameter.copy_(self.select(name, self.get_parameter(name), members, kept))
                parameter.requires_grad_(self.get_parameter(name).requires_grad)
            kept._read_frozen()
        return kept

    def select(self, name: str, values: Tensor, members: Sequence[int], kept: Activations) -> Tensor:
        """Return the part for some members, `kept`, of a tensor like the parameter of a name."""
        if name == "slopes":
            assert kept.slopes is not None  # noqa: S101
            return values[members, : kept.slopes.shape[1]]
        owned = values.flatten(0, 1)[self.owners].view(values.shape)[members]
        columns = [self._table_bases.index(item) for item in kept._table_bases]
        return owned[:, : kept.raw.shape[1], columns]

    def _find_owners(self) -> list[int]:
        """Return, for each row, the row with its numbers: the first member's, where all members share a hull."""
        members, rows = self.raw.shape[:2]
        owners = list(range(members * rows))
        for site, starts in zip(self.sites, self._starts, strict=True):
            for k, activation in enumerate(site.activations):
                if site.is_shared:
                    owners[k * rows + starts[k] : k * rows + starts[k] + activation.groups] = range(
                        starts[0], starts[0] + activation.groups
                    )
        return owners

    def _columns(self, activation: Activation) -> list[int]:
        return [self._table_bases.index(item) for item in activation.bases]

    def _plan_calls(self, index: int) -> list[Call]:
        """Return the calls of a site."""
        site, starts = self.sites[index], self._starts[index]
        total, calls = self.raw.shape[1], []
        for indices in _partition(site):
            used = [site.activations[k] for k in indices]
            bases, groups = _bases_of(used), math.lcm(*(item.groups for item in used))
            channel_dim = next((item.channel_dim for item in used if item.groups > 1), 1)
            rows = [
                k * total + starts[k] + group * site.activations[k].groups // groups
                for k in indices
                for group in range(groups)
            ]
            members = None if len(indices) == len(site.activations) else torch.tensor(indices)
            places = [self._table_bases.index(item) for item in bases]
            columns = None if bases == self._table_bases else torch.tensor(places)
            call = Call(bases, groups, index, channel_dim, members, columns, torch.tensor(rows))
            calls.append(replace(call, own=_split_by_bases(site, indices, call)))
        return calls

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Activations:
        super()._apply(keep_float32(fn), recurse)  # type: ignore[no-untyped-call]
        if not self.fixed.is_meta:
            self.fixed.copy_(self._exact)
        self._fixed_rows = None
        self.calls = [[call.to(self.raw.device) for call in calls] for calls in self.calls]
        return self

    @property
    def coefficients(self) -> Tensor:
        """Return the coefficients of every row, (K, R, N), over `bases`."""
        table = self._table_coefficients()
        if self.bases == self._table_bases:
            return table
        return table[..., [self._table_bases.index(item) for item in self.bases]]

    def _table_coefficients(self) -> Tensor:
        """Return the coefficients of every row, with columns in the order of the tables."""
        learned: Tensor = Parametrize.apply(self.table, self.roles, self.codes, self.parametrizations)  # type: ignore[no-untyped-call]
        table = torch.where(self.codes == CODES["fixed"], self.fixed, learned)
        return table.flatten(0, 1)[self.owners].view(table.shape)

    def rows(self) -> list[list[Tensor]]:
        """Return the coefficients of the calls of each site, computed in one pass; cached if none is learned."""
        if isinstance(self.raw, nn.Parameter) or self.slopes is not None:
            return self._make_rows()
        if self._fixed_rows is None:
            with torch.inference_mode(False):  # they are used in training, too
                self._fixed_rows = self._make_rows()
        return self._fixed_rows

    def _make_rows(self) -> list[list[Tensor]]:
        if not self.sites:
            return []
        heights = [len(call.rows) for calls in self.calls for call in calls]
        if kernels.support(self.raw):
            from hullo.population.kernels.parametrize import parametrize

            computed = parametrize(self.table, self.fixed, self.roles, self.codes, self.order, self.uses, heights)
        else:
            computed = torch.split(self._table_coefficients().flatten(0, 1)[self.order], heights)
        tables = iter(computed)
        return [[call.select(next(tables)) for call in calls] for calls in self.calls]

    @property
    def fusable_calls(self) -> dict[int, Call]:
        """Return the calls of sites that take one call, without inner scales, by the number of the site."""
        return {
            i: calls[0]
            for i, (site, calls) in enumerate(zip(self.sites, self.calls, strict=True))
            if not (calls[1:] or site.is_scaled or site.functions) and 1 in (calls[0].groups, calls[0].channel_dim)
        }

    def compute(self, index: int, rows: Sequence[Sequence[Tensor]], x: Value) -> Value:
        """Return the activations of a site at x, with the coefficients that `rows` returned."""
        calls, site = self.calls[index], self.sites[index]
        if site.functions and None not in site.functions:
            return Value(torch.stack([site.call(k, x.select(k)) for k in range(len(self.codes))]), 0)
        outputs = [
            self._combine(call, coefficients, x, site.is_scaled)
            for call, coefficients in zip(calls, rows[index], strict=True)
        ]
        result = outputs[0]
        if len(calls) > 1:
            dim = 0 if result.dim is None else result.dim
            order = torch.cat([call.members for call in calls if call.members is not None]).argsort()
            result = Value(torch.cat([y.at(dim, 1) for y in outputs], dim).index_select(dim, order), dim)
        if not site.functions:
            return result
        own = [
            result.select(k) if function is None else site.call(k, x.select(k))
            for k, function in enumerate(site.functions)
        ]
        return Value(torch.stack(own), 0)

    def _combine(self, call: Call, coefficients: Tensor, x: Value, is_scaled: bool) -> Value:
        """Return the activations of the members of one call.

        Without kernels, which compute all bases of a call while they wait for memory, a member pays for its own bases.
        """
        dim = 0 if x.dim is None else x.dim
        if call.groups > 1:  # members beside the channels: each member's channels are contiguous
            dim = call.channel_dim % len(x.shape)
        y = x.at(dim, len(self.codes))
        selected = y if call.members is None else y.index_select(dim, call.members)
        flat = selected.flatten(dim, dim + 1) if call.groups > 1 else selected
        spec = CombineSpec(call.bases, get_parametrization("given"), channel_dim=dim)
        if call.own and not is_scaled and not kernels.support(x.tensor):
            return Value(_combine_own(selected, coefficients, call, dim), dim)
        if is_scaled:
            combined = apply(flat, coefficients, spec, self._scale_rows(call))
        else:
            combined = apply(flat, coefficients, spec)
        return Value(combined.view(selected.shape), dim)

    def _scale_rows(self, call: Call) -> Tensor:
        """Return the inner scales of a call."""
        assert self.scales is not None  # noqa: S101
        rows: Tensor = self.scales().flatten(0, 1)[self.owners[call.rows]]
        return call.select(rows)

    def feasible_gradient(self, gradient: Tensor) -> Tensor:
        """Restrict a gradient of the raw parameters to directions in which convex and conic coefficients can move.

        Optimizers call this just before a step, on the gradient of the whole batch; see :mod:`hullo.optimizer_hook`.
        """
        if not {"projection", "clamped"} & set(self.parametrizations):
            return gradient
        if kernels.support(self.raw):
            from hullo.population.kernels.parametrize import restrict

            return restrict(self.raw, gradient, self.roles, self.codes)
        used = self.roles != UNUSED
        # with raw number -inf and gradient inf, the coefficient of an unused base cannot move
        raw, masked = self.raw.masked_fill(~used, -torch.inf), gradient.masked_fill(~used, torch.inf)
        for name in self.parametrizations:
            feasible = None if name == "fixed" else get_parametrization(name).restrict
            if feasible:
                gradient = torch.where((self.codes == CODES[name]) & used, feasible(raw, masked), gradient)
        return gradient

    def split(self, k: int, table: Tensor) -> list[Tensor]:
        """Return member k's part of a table like `coefficients`, (R, N), by site: a row per group, over its bases."""
        parts = []
        for site, starts in zip(self.sites, self._starts, strict=True):
            activation = site.activations[k]
            columns = [self.bases.index(item) for item in activation.bases]
            parts.append(table[starts[k] : starts[k] + activation.groups, columns])
        return parts

    def member_tensors(self, k: int) -> Iterator[tuple[str, Tensor]]:
        """Yield the names and the values of the parameters that member k has at the sites."""
        tables = [self.table, self.raw if self.scales is None else self.scales()]
        raw, scales = (table.flatten(0, 1)[self.owners].view(table.shape)[k] for table in tables)
        for i, (site, starts) in enumerate(zip(self.sites, self._starts, strict=True)):
            activation, prefix = site.activations[k], f"{site.path}." if site.path else ""
            span, columns = slice(starts[k], starts[k] + activation.groups), self._columns(activation)
            if activation.parameter is not None:
                learned = raw[span, columns[: activation.raw.shape[1]]]
                values = learned if activation.frozen is None else self.get_buffer(f"frozen_{i}_{k}").to(raw)
                yield f"{prefix}{activation.parameter}", values
            if activation.scales is not None:
                yield f"{prefix}inner_scale", scales[span, columns[: activation.scales.shape[1]]]


def _allocate(sites: Sequence[Site], members: int) -> tuple[list[list[int]], int]:
    """Return the first row of each site and member, and the number of rows that a member needs."""
    starts: list[list[int]] = []
    used, first_rows = [0] * members, dict[tuple[int, int], int]()
    for site in sites:
        site_starts = []
        for k, activation in enumerate(site.activations):
            learned = activation.learns
            start = first_rows.get((k, activation.owner), used[k]) if learned else used[k]
            if start == used[k]:
                used[k] += activation.groups
            if learned:
                first_rows[k, activation.owner] = start
            site_starts.append(start)
        starts.append(site_starts)
    return starts, max(used, default=0)


def _uses(order: Sequence[int], rows: int) -> Tensor:
    """Return the positions of each row in an order, (rows, most), padded with -1."""
    positions: list[list[int]] = [[] for _ in range(rows)]
    for position, row in enumerate(order):
        positions[row].append(position)
    most = max(map(len, positions), default=1)
    return torch.tensor([p + [-1] * (most - len(p)) for p in positions], dtype=torch.int32).view(rows, most)


def _partition(site: Site) -> list[list[int]]:
    """Return groups of members that are computed in one call.

    Members share one call unless their channels are in different dimensions, or a base of one may overflow where
    another's does not: zero times infinity would give NaN for other members.
    """
    any_dim = next((item.channel_dim for item in site.activations if item.groups > 1), 1)
    calls: dict[tuple[Any, ...], list[int]] = {}
    for k, activation in enumerate(site.activations):
        unbounded = sorted(item.name for item in activation.bases if not _is_finite_everywhere(item))
        channel_dim = activation.channel_dim if activation.groups > 1 else any_dim
        calls.setdefault((channel_dim, *unbounded), []).append(k)
    return list(calls.values())


_CHEAP = frozenset({"identity", "relu"})
"""Bases that take less time than copying the members that use them."""


def _combine_own(x: Tensor, coefficients: Tensor, call: Call, dim: int) -> Tensor:
    """Combine the bases of each member alone, of members in dimension `dim`."""
    if len(call.own) == 1 and call.own[0].function is not None:
        return call.own[0].function(x)
    groups, outputs = [own.members for own in call.own if own.members is not None], []
    for own, selected in zip(call.own, split_members(x, dim, groups), strict=True):
        if own.function is not None:  # derivatives of PyTorch's own functions take fewer passes
            outputs.append(own.function(selected))
            continue
        flat = selected.flatten(dim, dim + 1) if call.groups > 1 else selected
        spec = CombineSpec(own.bases, get_parametrization("given"), channel_dim=dim)
        outputs.append(apply(flat, own.select(coefficients[own.rows]), spec).view(selected.shape))
    return join_members(outputs, dim, groups)


def _split_by_bases(site: Site, indices: Sequence[int], call: Call) -> tuple[Call, ...]:
    """Return the members of a call with like bases; nothing if all are alike, and combine bases."""
    alike: dict[frozenset[str], list[int]] = {}
    for position, k in enumerate(indices):
        names = frozenset(item.name for item in site.activations[k].bases)
        alike.setdefault(names - _CHEAP, []).append(position)
    own = []
    for positions in alike.values():
        used = [site.activations[indices[position]] for position in positions]
        bases = _bases_of(used)
        is_plain = all(
            item.parametrization == "fixed" and item.frozen is None and bool((item.raw == 1).all()) for item in used
        )
        function = bases[0].function if is_plain and len(bases) == 1 else None
        rows = [position * call.groups + group for position in positions for group in range(call.groups)]
        columns = [call.bases.index(item) for item in bases]
        at, columns_at, rows_at = (torch.tensor(item) for item in (positions, columns, rows))
        own.append(Call(bases, call.groups, call.site, call.channel_dim, at, columns_at, rows_at, function=function))
    return tuple(own) if len(own) > 1 or own[0].function is not None else ()


def _is_finite_everywhere(item: Base) -> bool:
    """Return whether a function is finite on all finite numbers."""
    ends = torch.tensor([-1.0, 1.0]) * torch.finfo(torch.float32).max / 2
    return bool(item.function(ends).isfinite().all())


def _bases_of(activations: Iterable[Activation]) -> tuple[Base, ...]:
    """Return the bases of several activations once each, in the order of the catalogue."""
    return in_order(item for activation in activations for item in activation.bases)
