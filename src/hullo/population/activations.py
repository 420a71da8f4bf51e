"""The activations of a population: the numbers of all members and sites in one table.

Every activation is a row of numbers over base functions, or one row per group of channels; a parametrization makes
coefficients of them. Members with different activations are one call of a kernel, in which each computes its own bases
where it can. Numbers that are learned are one parameter: the optimizer and the parametrization take one pass, however
deep the networks are. Numbers that are not, of fixed activations and frozen hulls, are a buffer of the same shape.
"""

from __future__ import annotations

import functools
import itertools
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from hullo.bases import Base
from hullo.functional import apply
from hullo.kernels import CombineSpec
from hullo.modules import keep_float32
from hullo.optimizer_hook import watch
from hullo.parametrizations import BuiltInParametrization, evaluate, get_parametrization
from hullo.population import kernels
from hullo.population.kernels.kinds import Kinds
from hullo.population.sites import Activation, ActivationCall, ActivationSite
from hullo.population.values import Value

_OTHERS = ("unused", "fixed", "slope", "rest")
NAMES = (*_OTHERS, "given", "projection", "softmax", "recentred", "free", "clamped", "softplus")
CODES = {name: code for code, name in enumerate(NAMES)}
"""How the coefficient of a base in a row is computed: by a parametrization, or "fixed", a constant.

"rest" is the last coefficient of a "free" row, one minus the others; "slope" is the other one of an `nn.PReLU`. The
code of a number that is not learned is negative.
"""


class InnerScales(nn.Module):
    """Hold a scale per row and base of a table, (K, R, N); it is one where a hull has no inner scale.

    A hull with one scale for all its bases learns the number at its first base. Scales that are not learned are those
    in `fixed`.
    """

    raw: nn.Parameter
    fixed: Tensor
    sources: Tensor  # the column with the scale of each base; -1 if it is not learned

    def __init__(self, scales: Tensor, sources: Tensor) -> None:
        super().__init__()
        self.raw = nn.Parameter(scales.clone())
        self.register_buffer("fixed", scales)
        self.register_buffer("sources", sources, persistent=False)

    def forward(self) -> Tensor:
        """Return the scale of every row and base."""
        return torch.where(self.sources < 0, self.fixed, self.raw.gather(-1, self.sources.clamp_min(0)))


@dataclass
class _Plan:
    """Hold the calls of each site, and the indices that they need, on one device.

    Args:
        calls: the calls of each site.
        orders: for each site, the members in the order of its calls, and how to undo that; None if it changes nothing.
        groups: parametrizations, the entries of the table that each makes coefficients of, (rows, numbers), the entries
            of these, and whether they are learned.
        order: for each row of all calls, its row of the table.
        uses: for each row of the table, the rows of calls that use it, padded with -1.
        rows: the coefficients of the calls, if none is learned.
    """

    calls: list[list[ActivationCall]]
    orders: list[tuple[Tensor, Tensor] | None]
    groups: list[tuple[BuiltInParametrization, Tensor, Tensor, bool]]
    order: Tensor
    uses: Tensor
    rows: list[list[Tensor]] = field(default_factory=list)


class Activations(nn.Module):
    """Hold the numbers of all members and sites, (K, R, N), and compute the members' activations.

    R is the largest number of rows that a member has at all sites; N is the number of bases of all sites. An activation
    that a member uses at several sites has rows only at the first. `bases` are in the order in which hulls name
    them, then other activations.
    """

    raw: Tensor
    slopes: nn.Parameter | None  # of nn.PReLU, (K, R): not coefficients, for an optimizer
    fixed: Tensor  # numbers that are not learned; always float64, so that no conversion rounds them
    codes: Tensor  # as in `CODES`
    digests: Tensor  # of what the activations of each member are, (K,); averages in float32 are exact
    scales: InnerScales | None

    def __init__(self, sites: Sequence[ActivationSite], members: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.sites = list(sites)
        used = [item for site in self.sites for item in site.activations]
        hulls_first = sorted(used, key=lambda item: not item.is_learned or item.parametrization == "slope")
        self.bases = tuple(dict.fromkeys(base for item in hulls_first for base in item.bases))
        self._starts, rows = _allocate(self.sites, members)
        shape = (members, rows, len(self.bases))
        numbers, codes = torch.zeros(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.int8)
        scales, sources = torch.ones(shape, dtype=dtype), torch.full(shape, -1)
        for _, k, span, columns, activation in self._spans():
            own, sign = columns[: activation.raw.shape[1]], 1 if activation.is_learned else -1
            numbers[k, span, own] = activation.raw.double().cpu()
            codes[k, span, columns] = sign * CODES["rest"]
            codes[k, span, own] = sign * CODES[activation.parametrization]
            if activation.scales is not None:
                scales[k, span, columns] = activation.scales.detach().to(scales)
                if activation.scales.requires_grad:
                    sources[k, span, columns] = torch.tensor(columns if activation.scales.shape[1] > 1 else columns[:1])
        self.register_buffer("codes", codes)
        described = ([site.activations[k].describe() for site in self.sites] for k in range(members))
        self.register_buffer("digests", torch.tensor([zlib.crc32(repr(item).encode()) % 2**24 for item in described]))
        self.register_buffer("fixed", torch.where(codes < 0, numbers, 0.0))
        like = next((item.raw for item in used if item.parametrization == "slope"), None)
        is_slope = codes == CODES["slope"]
        raw = torch.where((codes > 0) & ~is_slope, numbers, 0.0).to(dtype)
        if any(item.is_learned and item.parametrization != "slope" for item in used):
            self.raw = nn.Parameter(raw)
        else:
            self.register_buffer("raw", raw, persistent=False)
        slopes = torch.where(is_slope, numbers, 0.0).sum(-1)  # of the precision of nn.PReLU
        self.slopes = None if like is None else nn.Parameter(slopes.to(like.dtype), bool(is_slope.any()))
        self.scales = InnerScales(scales, sources) if any(site.is_scaled for site in self.sites) else None
        self._made: _Plan | None = None
        watch(self)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_made": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        watch(self)  # copies and unpickled populations

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        given = state_dict.get(f"{prefix}digests", self.digests)
        if given.shape == self.digests.shape and not torch.equal(given, self.digests.to(given)):
            members = (given != self.digests.to(given)).nonzero().flatten().tolist()
            rest[4].append(
                f"the state was saved with other activations in members {members}; make the population of the same "
                "networks, in the same order"
            )
            return
        super()._load_from_state_dict(state_dict, prefix, *rest)
        if self._made is not None and self._made.rows:  # in place, since a captured step reads them
            with torch.no_grad():
                pytree.tree_map(Tensor.copy_, self._made.rows, self._make_rows(self._made))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Activations:
        exact, slopes = self.fixed, None if self.slopes is None else self.slopes.data
        super()._apply(keep_float32(fn), recurse)  # type: ignore[no-untyped-call]
        self.fixed = exact.to(self.fixed.device)
        if self.slopes is not None and slopes is not None:
            self.slopes.data = fn(slopes)
        self._made = None
        return self

    def _spans(self) -> Iterator[tuple[int, int, slice, list[int], Activation]]:
        """Yield the number of each site and member, and its rows, columns and activation there."""
        for i, (site, starts) in enumerate(zip(self.sites, self._starts, strict=True)):
            for k, (activation, start) in enumerate(zip(site.activations, starts, strict=True)):
                columns = [self.bases.index(item) for item in activation.bases]
                yield i, k, slice(start, start + activation.groups), columns, activation

    def coefficient_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of coefficients and inner scales; none where no member learns any."""
        found = [self.raw, None if self.scales is None else self.scales.raw]
        return [item for item in found if isinstance(item, nn.Parameter)]

    def keep(self, members: Sequence[int]) -> None:
        """Keep some members; `bases` stay as they are."""
        self.sites = [replace(site, activations=[site.activations[k] for k in members]) for site in self.sites]
        self._starts = [[starts[k] for k in members] for starts in self._starts]
        for module in self.modules():
            for name, parameter in module.named_parameters(recurse=False):
                setattr(module, name, nn.Parameter(parameter.detach()[members], parameter.requires_grad))
            for name, buffer in module.named_buffers(recurse=False):
                setattr(module, name, buffer[members])
        self._made = None

    @property
    def _plan(self) -> _Plan:
        """Return the plan for this device, which kernels compute in fewer calls."""
        if self._made is None:
            with torch.inference_mode(False):  # it is used in training, too
                self._made = self._make_plan(kernels.support(self.raw))
        return self._made

    def _make_plan(self, fused: bool) -> _Plan:
        members, rows, bases = self.raw.shape
        parts = [_partition(site, fused) for site in self.sites]
        calls = [[self._make_call(i, indices, fused) for indices in part] for i, part in enumerate(parts)]
        orders = [_order(list(itertools.chain(*part)), self.raw.device) for part in parts]
        taken = [row for site in calls for call in site for row in call.rows.tolist()]
        entries: dict[tuple[str, int, bool], dict[tuple[int, int], Tensor]] = {}
        for _, k, span, columns, activation in self._spans():
            name = {"fixed": "given", "slope": "free"}.get(activation.parametrization, activation.parametrization)
            first = (k * rows + torch.arange(span.start, span.stop)) * bases
            own = entries.setdefault((name, len(columns), activation.is_learned), {})
            own[k, span.start] = first[:, None] + torch.tensor(columns)
        groups = []
        for (name, width, is_learned), found in entries.items():
            at, parametrization = torch.cat(list(found.values())).to(self.raw.device), get_parametrization(name)
            groups.append((parametrization, at[:, : width - parametrization.fewer], at, is_learned))
        order, uses = torch.tensor(taken, dtype=torch.int32), _uses(taken, members * rows)
        return _Plan(calls, orders, groups, order.to(self.raw.device), uses.to(self.raw.device))

    def _make_call(self, index: int, indices: list[int], fused: bool) -> ActivationCall:
        """Return the call of some members of a site."""
        site, starts, total = self.sites[index], self._starts[index], self.raw.shape[1]
        used = [site.activations[k] for k in indices]
        bases = tuple(item for item in self.bases if any(item in activation.bases for activation in used))
        groups = math.lcm(*(item.groups for item in used))
        rows = [
            k * total + starts[k] + group * item.groups // groups
            for k, item in zip(indices, used, strict=True)
            for group in range(groups)
        ]
        columns = [self.bases.index(item) for item in bases]
        at, rows_at = (torch.tensor(item, device=self.raw.device) for item in (columns, rows))
        function: Callable[[Value], Value] | None = None
        is_scaled = any(item.scales is not None for item in used)
        if used[0].function is not None:
            function = functools.partial(site.call, indices[0])
        elif not fused and len(bases) == 1 and all(item.is_base for item in used):
            base = bases[0].function  # whose derivatives take fewer passes if it is PyTorch's own

            def function(x: Value) -> Value:
                return Value(base(x.tensor), x.dim)

        return ActivationCall(
            bases,
            groups,
            index,
            next((item.channel_dim for item in used if item.groups > 1), 1),
            indices,
            None if bases == self.bases else at,
            rows_at,
            function=function,
            is_scaled=is_scaled,
            kinds=_read_kinds(bases, used, self.raw.device) if fused and groups == 1 and not is_scaled else None,
        )

    @property
    def table(self) -> Tensor:
        """Return the numbers of every row that are learned."""
        if self.slopes is None:
            return self.raw
        return torch.where(self.codes == CODES["slope"], self.slopes.unsqueeze(-1), self.raw)

    def _transform(self, plan: _Plan) -> Tensor:
        """Return the coefficients of every row of the table, (rows, N), by plain operations."""
        learned, fixed = self.table.flatten(), self.fixed.flatten()
        coefficients = torch.zeros_like(learned)
        for parametrization, entries, to, is_learned in plan.groups:
            made = evaluate(parametrization, learned[entries] if is_learned else fixed[entries].to(learned))
            coefficients = coefficients.index_put((to,), made)
        return coefficients.view(self.raw.shape).flatten(0, 1)  # also of no rows

    @property
    def coefficients(self) -> Tensor:
        """Return the coefficients of every row, (K, R, N), over `bases`."""
        return self._transform(self._plan).view(self.raw.shape)

    def rows(self) -> list[list[Tensor]]:
        """Return the coefficients of the calls of each site, computed in one pass; cached if none is learned."""
        plan = self._plan
        if any(is_learned for *_, is_learned in plan.groups):
            return self._make_rows(plan)
        if not plan.rows:
            with torch.inference_mode(False):
                plan.rows = self._make_rows(plan)
        return plan.rows

    def _make_rows(self, plan: _Plan) -> list[list[Tensor]]:
        if not self.sites:
            return []
        heights = [len(call.rows) for calls in plan.calls for call in calls]
        if kernels.support(self.raw):
            from hullo.population.kernels.parametrize import parametrize

            computed = parametrize(self.table, self.fixed, self.codes, plan.order, plan.uses, heights)
        else:
            computed = torch.split(self._transform(plan)[plan.order], heights)
        tables = iter(computed)
        return [[call.select(next(tables)) for call in calls] for calls in plan.calls]

    @property
    def fusable_calls(self) -> dict[int, ActivationCall]:
        """Return the calls of sites that take one call, without inner scales, by the number of the site."""
        return {
            i: calls[0]
            for i, (site, calls) in enumerate(zip(self.sites, self._plan.calls, strict=True))
            if not (calls[1:] or site.is_scaled or site.functions) and 1 in (calls[0].groups, calls[0].channel_dim)
        }

    def compute(self, index: int, rows: Sequence[Sequence[Tensor]], x: Value) -> Value:
        """Return the activations of a site at x, with the coefficients that `rows` returned."""
        calls = self._plan.calls[index]
        if len(calls) == 1:
            return self._call(calls[0], rows[index][0], x)
        dim, order = 0 if x.dim is None else x.dim, self._plan.orders[index]
        y = x.at(dim, len(self.codes))
        y = y if order is None else y.index_select(dim, order[0])
        parts = torch.split(y, [len(call.members) for call in calls], dim)
        made = [
            self._call(call, coefficients, Value(part, dim)).at(dim, len(call.members))
            for call, coefficients, part in zip(calls, rows[index], parts, strict=True)
        ]
        y = torch.cat(made, dim)
        return Value(y if order is None else y.index_select(dim, order[1]), dim)

    def _call(self, call: ActivationCall, coefficients: Tensor, x: Value) -> Value:
        """Return the activations of the members of one call, at their values."""
        if call.function is not None:
            return call.function(x)
        if call.kinds is not None:
            made = _combine_kinds(call, coefficients, x)
            if made is not None:
                return made
        dim = 0 if x.dim is None else x.dim
        if call.groups > 1:  # members beside the channels: each member's channels are contiguous
            dim = call.channel_dim % len(x.shape)
        y = x.at(dim, len(call.members))
        flat = y.flatten(dim, dim + 1) if call.groups > 1 else y
        spec = CombineSpec(call.bases, get_parametrization("given"), channel_dim=dim)
        scales = None
        if call.is_scaled and self.scales is not None:
            scales = call.select(self.scales().flatten(0, 1)[call.rows])
        return Value(apply(flat, coefficients, spec, scales).view(y.shape), dim)

    def feasible_gradient(self, gradient: Tensor) -> Tensor:
        """Restrict a gradient of the raw parameters to directions in which convex and conic coefficients can move.

        Optimizers call this just before a step, on the gradient of the whole batch; see :mod:`hullo.optimizer_hook`.
        """
        groups = self._plan.groups
        restricted = [
            (item.restrict, entries) for item, entries, _, is_learned in groups if item.restrict and is_learned
        ]
        if not restricted:
            return gradient
        if kernels.support(self.raw):
            from hullo.population.kernels.parametrize import restrict

            return restrict(self.raw, gradient, self.codes)
        raw, feasible = self.raw.flatten(), gradient.flatten().clone()
        for own, entries in restricted:
            feasible[entries] = own(raw[entries], feasible[entries])
        return feasible.view(gradient.shape)

    def split(self, k: int, table: Tensor) -> list[Tensor]:
        """Return member k's part of a table like `coefficients`, (R, N), by site: a row per group, over its bases."""
        return [table[span, columns] for _, member, span, columns, _ in self._spans() if member == k]

    def member_tensors(self, k: int) -> Iterator[tuple[str, Tensor, bool]]:
        """Yield the names and values of the tensors that member k has at the sites, and whether they are learned."""
        numbers = torch.where(self.codes > 0, self.table, self.fixed.to(self.raw.dtype))
        scales = self.raw if self.scales is None else self.scales()
        numbers, scales = numbers[k], scales[k]
        for i, member, span, columns, activation in self._spans():
            prefix = f"{self.sites[i].path}." if self.sites[i].path else ""
            if member == k:
                yield from (
                    (f"{prefix}{name}", tensor.to(self.raw.device), False) for name, tensor in activation.constants
                )
            if member == k and activation.parameter is not None:
                own, table = numbers[span, columns[: activation.raw.shape[1]]], self.raw
                if activation.parametrization == "slope" and self.slopes is not None:
                    own, table = own.to(self.slopes.dtype), self.slopes
                yield f"{prefix}{activation.parameter}", own, activation.is_learned and table.requires_grad
            if member == k and activation.scales is not None and self.scales is not None:
                own, is_learned = scales[span, columns[: activation.scales.shape[1]]], self.scales.raw.requires_grad
                yield f"{prefix}inner_scale", own, activation.scales.requires_grad and is_learned


def _allocate(sites: Sequence[ActivationSite], members: int) -> tuple[list[list[int]], int]:
    """Return the first row of each site and member, and the number of rows that a member needs."""
    used, first_rows = [0] * members, dict[tuple[int, int], int]()
    starts: list[list[int]] = []
    for site in sites:
        starts.append([])
        for k, activation in enumerate(site.activations):
            owner, start = activation.owner, used[k]
            if owner is not None:
                start = first_rows.setdefault((k, id(owner)), start)
            used[k] = max(used[k], start + activation.groups)
            starts[-1].append(start)
    return starts, max(used, default=0)


def _order(members: list[int], device: torch.device) -> tuple[Tensor, Tensor] | None:
    """Return members and the permutation that sorts them; None if they are sorted."""
    order = torch.tensor(members, device=device)
    return None if members == sorted(members) else (order, order.argsort())


def _uses(order: Sequence[int], rows: int) -> Tensor:
    """Return the positions of each row in an order, (rows, most), padded with -1."""
    positions: list[list[int]] = [[] for _ in range(rows)]
    for position, row in enumerate(order):
        positions[row].append(position)
    most = max(map(len, positions), default=1)
    return torch.tensor([p + [-1] * (most - len(p)) for p in positions], dtype=torch.int32).view(rows, most)


_CHEAP = frozenset({"identity", "relu"})
"""Bases that take less time than copying the members that use them."""


def _read_kinds(bases: tuple[Base, ...], used: Sequence[Activation], device: torch.device) -> Kinds | None:
    """Return which bases each member uses; None if they use the same, or one at most takes time."""
    kinds = [(tuple(i for i, base in enumerate(bases) if base in item.bases), item.is_learned) for item in used]
    distinct = list(dict.fromkeys(kinds))
    if len({own for own, _ in distinct}) == 1 or sum(base.name not in _CHEAP for base in bases) < 2:
        return None
    numbers = torch.tensor([distinct.index(kind) for kind in kinds], dtype=torch.int32, device=device)
    return Kinds(tuple(distinct), numbers)


def _partition(site: ActivationSite, fused: bool) -> list[list[int]]:
    """Return groups of members that are computed in one call.

    Members share one call unless one calls a module of its own, their channels are in different dimensions, or a base
    of one may overflow where another's does not: zero times infinity would give NaN for other members, where programs
    compute all bases of a call. Without kernels, members with other bases or scales are calls of their own.
    """
    calls: dict[tuple[Any, ...], list[int]] = {}
    for k, item in enumerate(site.activations):
        apart = [base.name for base in item.bases if not _is_finite_everywhere(base)]
        if not fused:
            apart = [*({base.name for base in item.bases} - _CHEAP), *(["scaled"] if item.scales is not None else [])]
        own = None if item.function is None else k
        calls.setdefault((own, item.channel_dim if item.groups > 1 else 1, frozenset(apart)), []).append(k)
    return list(calls.values())


@functools.cache
def _is_finite_everywhere(item: Base) -> bool:
    """Return whether a function is finite on all finite numbers."""
    ends = torch.tensor([-1.0, 1.0]) * torch.finfo(torch.float32).max / 2
    return bool(item.function(ends).isfinite().all())


def _combine_kinds(call: ActivationCall, coefficients: Tensor, x: Value) -> Value | None:
    """Return the activations of members of several kinds, by one kernel; None if no view of their values is as even as
    it takes them."""
    y = x.at(0, len(call.members))
    order = sorted(range(y.dim()), key=y.stride, reverse=True)
    each = y.numel() // len(call.members)
    columns = math.gcd(each, 128)
    if order[0] != 0 or not y.permute(order).is_contiguous() or columns < _LEAST_COLUMNS or not each:
        return None
    from hullo.population.kernels.bias_act import combine_biased

    rows = y.permute(order).view(len(call.members), each // columns, columns)
    made = combine_biased(rows, None, coefficients, call.bases, call.kinds)
    back = sorted(range(y.dim()), key=order.__getitem__)
    return Value(made.view([y.shape[dim] for dim in order]).permute(back), 0)


_LEAST_COLUMNS = 16
"""The least columns that a tile of the kernel for features has."""
