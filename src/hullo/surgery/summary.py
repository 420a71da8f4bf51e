"""List the hulls of a model, and the activations that are not hulls."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from torch import nn

from hullo.modules import Hull, without_rounding
from hullo.recognition.known import AMBIGUOUS
from hullo.surgery.find import NO_INPUTS, count_mentions, default_inputs, module_sites, observed_sites
from hullo.surgery.prove import Comparison
from hullo.surgery.sites import Site, named_hulls
from hullo.surgery.state import Inputs

KEPT = "_hullo_kept"
"""Name of the attribute of a swapped model that holds the modes in which it was compared, and what was not replaced."""


@dataclass(frozen=True, eq=False)
class Summary:
    """The `hulls` of a model by name, and the sites that are `not_replaced`; prints as two tables.

    Of a hull at several sites, `hulls` has the first, and `shared` maps the names of the others to it. `compared` names
    the modes in which the last swap was compared with the model before.
    """

    hulls: dict[str, Hull]
    not_replaced: tuple[Site, ...]
    shared: dict[str, str] = field(default_factory=dict)
    compared: str = ""

    def __str__(self) -> str:
        replaced: list[tuple[str, str, str, str]] = []
        for name, hull in self.hulls.items():
            what = getattr(hull, "replaced", "")
            replaced.append((name, hull.spelling, _coefficients(hull), what))
            replaced += [(other, f"shared with {name}", "", what) for other, of in self.shared.items() if of == name]
        is_swapped = any(hasattr(hull, "replaced") for hull in self.hulls.values())
        not_replaced = [
            (site.name or "(the model)", site.function, why_not_replaced(site, is_swapped))
            for site in self.not_replaced
            if site.reason != NO_INPUTS
        ]
        parts = []
        if replaced:
            parts.append(_table(("hull", "bases", "coefficients", "replaced"), replaced))
        if not_replaced:
            parts.append(_table(("not replaced", "function", "why"), not_replaced))
        if counts := count_mentions(self.not_replaced):
            parts.append(f"the source also calls functions: {counts}; example_inputs= finds them")
        if is_swapped and self.compared:
            parts.append(f"same outputs as the original model in {self.compared} mode")
        elif is_swapped:
            parts.append("not compared with the original model (give example_inputs to replace_activations)")
        return "\n\n".join(parts) or "no hulls, and no activations were found"

    __repr__ = __str__


def summary(model: nn.Module, *, example_inputs: Inputs | None = None) -> Summary:
    """List the hulls of a model (name, bases, coefficients, replaced activation) and other activations, with reasons.

    Before :func:`hullo.replace_activations` it shows what that would find, with the same `example_inputs`.

    Example:
        >>> import torch, hullo
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
        >>> model.append(torch.nn.Sigmoid())  # doctest: +ELLIPSIS
        Sequential(...)
        >>> hullo.summary(hullo.replace_activations(model))
        hull  bases                       coefficients  replaced
        1     affine(identity,relu,tanh)  0 0 1         Tanh
        <BLANKLINE>
        not replaced  function  why
        3             sigmoid   replaced only if named in functions
        <BLANKLINE>
        not compared with the original model (give example_inputs to replace_activations)
    """
    hulls = named_hulls("summary", model)
    first = {hull: name for name, hull in hulls.items()}
    shared = {
        name: first[module]
        for name, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, Hull) and name != first[module]
    }
    compared, left = vars(model).get(KEPT, ("", None))
    if left is not None and example_inputs is None:
        sites = [Site(name, function, None, place, reason) for name, function, place, reason in left]
    else:
        sites = _find(model, default_inputs(model) if example_inputs is None else example_inputs, example_inputs)
    return Summary(hulls, tuple(sites), shared, compared)


def _find(model: nn.Module, inputs: Inputs | None, given: Inputs | None) -> list[Site]:
    try:
        if inputs is not None:
            return observed_sites(model, Comparison(model, inputs, observe=True))
    except Exception:
        if given is not None:
            raise
    return module_sites(model)


def keep(model: nn.Module, sites: Iterable[Site], replaced: Collection[str], compared: str = "") -> None:
    """Store with a model which sites were not replaced, and why, as plain text, and in which modes it was compared."""
    left = [site for site in sites if site.reason or site.name not in replaced]
    texts = tuple((site.name, site.function, site.place, _why(site, True)) for site in left)
    vars(model)[KEPT] = compared, texts


def why_not_replaced(site: Site, is_swapped: bool) -> str:
    """Return why a site is not a hull, and the line that calls it; `is_swapped` is whether others were replaced."""
    return _why(site, is_swapped) + (f" ({site.place})" if site.place else "")


def _why(site: Site, is_swapped: bool) -> str:
    if site.reason:
        return site.reason
    if site.known.family in AMBIGUOUS:
        return "replaced only if named in functions"
    return "not selected by where or functions" if is_swapped else "would be replaced"


def _coefficients(hull: Hull) -> str:
    rows = hull.local_rows()
    if rows is None:
        return "no values"
    shown = _spans(list(map(without_rounding, rows)))
    remarks = [f"{hull.groups} groups"] * (hull.groups > 1) + ["frozen"] * (not hull.raw.requires_grad)
    if scales := hull.local_scales():
        remarks.append(f"inner scale {' '.join(_spans(scales))}")
    return " ".join(shown) + (f" ({', '.join(remarks)})" if remarks else "")


def _spans(rows: Sequence[Sequence[float]]) -> list[str]:
    """Return the range of each column."""
    bounds = ((f"{min(column):.3g}", f"{max(column):.3g}") for column in zip(*rows, strict=True))
    return [low if low == high else f"{low}..{high}" for low, high in bounds]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[n]) for row in (head, *rows)) for n in range(len(head))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (head, *rows))
    return "\n".join(line.rstrip() for line in lines)
