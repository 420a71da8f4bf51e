"""Base functions, which hulls combine.

A base is a scalar function f applied entry by entry, with its slope f' and facts about both. The paper asks every
base for f(0) = 0 and slope one at the origin, from at least one side; a base that has both is *admissible*.

The functions themselves are listed in :mod:`hullo.bases.catalogue`, each written once as a formula that PyTorch,
Triton and Keras all read.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hullo._compat import is_exporting, real_tensors
from hullo.bases.formulas import differentiate, replace_y
from hullo.bases.least_squares import Function, express

Slope = Callable[[Tensor, Tensor], Any]

_TOLERANCE = 1e-9  # on facts, in float64


@dataclass(frozen=True)
class Formula:
    """Hold the formulas of a base: `value` in terms of `x`, `slope` in terms of `x` and the value `y`.

    The text uses + - * /, comparisons, numbers and the names of :data:`hullo.bases.formulas.FUNCTIONS`; every backend
    gives those names its own meaning, so one formula is the base everywhere. The formula of a base that is smooth at 0
    has no abs or positive_part there: their derivatives at 0 are those of one side.
    """

    value: str
    slope: str

    @functools.cache  # noqa: B019  (formulas are few, and live as long as the catalogue)
    def derivative(self, order: int) -> str:
        """Return the formula of a derivative in terms of x: of order 0 the value, of order 1 the slope."""
        if order < 2:
            return replace_y(self.slope, self.value) if order else self.value
        return differentiate(self.derivative(order - 1))

    def functions(self, backend: Mapping[str, Any]) -> tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]:
        """Return two Python functions, `value(x)` and `slope(x, y)`, that call the given functions of a backend."""
        scope = dict(backend)
        value = eval(f"lambda x: {self.value}", scope)  # noqa: S307  (the text is the catalogue's own)
        slope = eval(f"lambda x, y: {self.slope}", scope)  # noqa: S307
        return value, slope


@dataclass(frozen=True, eq=False, repr=False)
class Base:
    """A base function f with its slope and its properties.

    Args:
        name: its name, with parameters unless they have their default values: ``leaky_relu(0.2)``.
        function: f, on tensors.
        slope: f'(x) from x and y = f(x); a number where it is constant.
        value_at_zero: f(0).
        slopes_at_zero: the slopes at 0- and 0+.
        slope_bounds: the infimum and supremum of f' over the real line; of your own functions, over samples.
        kinks: where f' jumps.
        turns: where f' turns from rising to falling or back, other than at kinks; unknown for your own functions.
        is_wave: whether f' turns again and again, as that of sin; then `turns` is empty.
        formula: the text of f, for kernels and other frameworks; None for a Python function.
        is_built_in: whether it is of the catalogue, whose slope bounds are proved; those of your own were measured.

    Example:
        >>> import hullo
        >>> hullo.get_base("tanh").slopes_at_zero
        (1.0, 1.0)
        >>> hullo.get_base("gelu").is_admissible
        False
    """

    name: str
    function: Function
    slope: Slope
    value_at_zero: float
    slopes_at_zero: tuple[float, float]
    slope_bounds: tuple[float, float]
    kinks: tuple[float, ...] = ()
    turns: tuple[float, ...] = ()
    is_wave: bool = False
    formula: Formula | None = None
    is_built_in: bool = True

    def derivative(self, x: Tensor) -> Tensor:
        """Return f'(x), a tensor like x."""
        return derivative_of(self.function, self.slope, x)

    @property
    def is_monotone(self) -> bool | None:
        """Return whether f is non-decreasing; None if unknown: no sample of your own function decreased."""
        if self.slope_bounds[0] < 0:
            return False
        return True if self.is_built_in else None

    @property
    def has_bounded_slope(self) -> bool:
        return all(map(math.isfinite, self.slope_bounds))

    @property
    def is_admissible(self) -> bool:
        """Return whether f(0) = 0 and f has slope one at the origin, from at least one side."""
        return abs(self.value_at_zero) < _TOLERANCE and any(abs(s - 1) < _TOLERANCE for s in self.slopes_at_zero)

    def __repr__(self) -> str:
        return f"Base({self.name})"

    def __reduce__(self) -> tuple[Callable[[str], Base], tuple[str]]:
        return get_base, (self.name,)  # by name: functions cannot be pickled, and a base is one object per process


def derivative_of(function: Function, slope: Slope, x: Tensor) -> Tensor:
    """Return the slopes at x as a tensor like x, also if `slope` returns a number."""
    slopes = slope(x, function(x))
    return slopes if isinstance(slopes, Tensor) else torch.full_like(x, slopes)


@dataclass(frozen=True)
class _Family:
    make: Callable[..., Base]
    parameters: dict[str, float]


_families: dict[str, _Family] = {}
_cache: dict[str, Base] = {}  # by every spelling used so far


def family(make: Callable[..., Base]) -> Callable[..., Base]:
    """Register a family of bases under the name of the function, with its parameters (numbers with defaults)."""
    parameters = {p.name: float(p.default) for p in inspect.signature(make).parameters.values()}
    _families[make.__name__] = _Family(make, parameters)
    _cache[make.__name__] = make()
    return make


def spell(name: str, parameters: Mapping[str, float]) -> str:
    """Return the name of a member of a family; parameters are written only if one is not the default."""
    if all(value == _families[name].parameters[key] for key, value in parameters.items()):
        return name
    return f"{name}({','.join(repr(value).removesuffix('.0') for value in parameters.values())})"


def add_family(name: str, make: Callable[..., Base], parameters: dict[str, float]) -> Base:
    """Add a family under a new name, and return its member with the default parameters."""
    if not isinstance(name, str) or not re.fullmatch(r"[^\W\d_][^\W_]*(_[^\W_]+)*", name):
        raise ValueError(
            f"invalid name {name!r} of a base; give letters and digits with single _ inside, as my_function"
        )
    if _known_name(name) in _families:
        raise ValueError(f"there is a base function {_known_name(name)!r} already; choose another name")
    _families[name] = _Family(make, parameters)
    try:
        return get_base(name)
    except BaseException:  # also Ctrl-C: add it completely or not at all
        del _families[name]
        raise


def list_bases() -> tuple[str, ...]:
    """Return the names of all base functions: those of the catalogue, then your own.

    >>> import hullo
    >>> hullo.list_bases()[:3]
    ('identity', 'relu', 'tanh')
    """
    return tuple(_families)


def in_order(bases: Iterable[Base]) -> tuple[Base, ...]:
    """Return bases without duplicates, in the order of `list_bases`."""
    position = {name: i for i, name in enumerate(_families)}
    return tuple(sorted(set(bases), key=lambda item: (position[item.name.partition("(")[0]], item.name)))


def all_bases() -> tuple[Base, ...]:
    """Return the base functions of all names, in the order of `list_bases`."""
    return tuple(map(get_base, _families))


def get_base(spelling: str | Base) -> Base:
    """Return the base function of a name such as ``tanh`` or ``leaky_relu(0.2)``.

    The names of PyTorch's classes, such as ``LeakyReLU``, are accepted, too.

    >>> import hullo
    >>> hullo.get_base("leaky_relu(0.2)").slopes_at_zero
    (0.2, 1.0)
    >>> hullo.get_base("SiLU")
    Base(silu)
    """
    if isinstance(spelling, Base):
        return spelling
    if not isinstance(spelling, str):
        raise TypeError(f"invalid base {spelling!r} of type {type(spelling).__name__}; give a name or a hullo.Base")
    if spelling not in _cache:
        _cache[spelling] = _parse(spelling)
    return _cache[spelling]


def make_member(name: str, *parameters: float) -> Base:
    """Return a member of a family without adding it to the cache."""
    member_of = _families[name]
    return member_of.make(**dict(zip(member_of.parameters, parameters, strict=True)))


def _parse(spelling: str) -> Base:
    match = re.fullmatch(r"\s*(\w+)\s*(?:\(([^()]*)\))?\s*", spelling)
    name = _known_name(match[1]) if match else spelling
    if name not in _families or not match:
        close = difflib.get_close_matches(name.lower(), _families)
        guess = f" (did you mean {' or '.join(map(repr, close))}?)" if close else ""
        raise ValueError(
            f"unknown base function {spelling!r}{guess}; hullo.list_bases() lists all, hullo.add_base adds one"
        )
    defaults = _families[name].parameters
    try:
        # adding zero turns -0.0, which spells differently, into 0.0
        given = [float(number) + 0.0 for number in match[2].split(",")] if match[2] else []
    except ValueError:
        given = [math.nan]
    if len(given) > len(defaults) or not all(map(math.isfinite, given)):
        raise ValueError(f"{spelling!r}: {name} is written {_usage(name)}")
    parameters = defaults | dict(zip(defaults, given, strict=False))
    canonical = spell(name, parameters)
    return _families[name].make(**parameters) if canonical == spelling else get_base(canonical)


def _known_name(written: str) -> str:
    """Return the name of a base in any case and with or without underscores; other names as they are."""
    names = {name.replace("_", ""): name for name in _families}
    return written if written in _families else names.get(written.lower().replace("_", ""), written)


def _usage(name: str) -> str:
    parameters = _families[name].parameters
    written = ", ".join(f"{key}={value:g}" for key, value in parameters.items())
    return f"{name}({written}) with finite numbers" if parameters else f"{name}, without parameters"


def resolve(bases: Iterable[str | Base], *, strict: bool = True) -> tuple[Base, ...]:
    """Return base functions; check that they are distinct, linearly independent and, if `strict`, admissible."""
    if isinstance(bases, str):
        raise TypeError(f"bases={bases!r} is one string; give several, as in 'identity', 'relu'")
    resolved = tuple(map(get_base, bases))
    if not torch.compiler.is_compiling() or is_exporting():
        _check(resolved, strict)
    return resolved


@functools.cache
def _check(resolved: tuple[Base, ...], strict: bool) -> None:
    spelled = [item.name for item in resolved]
    if not resolved:
        raise ValueError("a hull needs at least one base function, got none; for example 'identity', 'relu', 'tanh'")
    for name in spelled:
        if spelled.count(name) > 1:
            raise ValueError(f"base function {name!r} is given more than once in {spelled}; give each one once")
    if strict:
        for item in resolved:
            if not item.is_admissible:
                left, right = item.slopes_at_zero
                raise ValueError(
                    f"base function {item.name!r} has value {item.value_at_zero:.4g} and slopes {left:.4g} and "
                    f"{right:.4g} at the origin; a hull needs f(0) = 0 and slope 1 from at least one side: "
                    f"{_unit_form(item)}pass strict=False"
                )
    _check_independence(resolved)


def _unit_form(item: Base) -> str:
    unit = f"unit_{item.name}"
    return f"use its normalized form {unit!r}, or " if unit.partition("(")[0] in list_bases() else ""


def _check_independence(resolved: tuple[Base, ...]) -> None:
    functions = [item.function for item in resolved]
    for n in range(1, len(resolved)):
        (weights,) = express([functions[n]], functions[:n])
        if weights is not None:
            involved = [item.name for item, weight in zip(resolved, weights, strict=False) if abs(weight) > _TOLERANCE]
            raise ValueError(
                f"base function {resolved[n].name!r} is a linear combination of {', '.join(involved)}; "
                "coefficients would not be unique. Leave one of them out"
            )


@real_tensors()
def real_line() -> Tensor:
    """Return samples of the real line, for functions of users: dense near 0, wider apart beyond."""
    near = torch.linspace(-16.0, 16.0, 32001, dtype=torch.float64, device="cpu")
    period = torch.linspace(0, 2 * math.pi, 257, dtype=torch.float64, device="cpu")
    ratios = torch.arange(1, 64 * 36 + 1, dtype=torch.float64, device="cpu") / 64
    far = torch.cat([16 * ratios.exp2(), *(period + 2.0**k for k in range(4, 41, 4))])  # whole periods, for waves
    return torch.cat([-far, near, far]).sort().values


_LARGEST = 2.0**64


def check_parameter(name: str, parameter: str, value: float, *, positive: bool = False) -> None:
    """Raise an error if float32 values would overflow with a parameter, or underflow with it as a divisor."""
    least = 1 / _LARGEST if positive else -_LARGEST
    if not least <= value <= _LARGEST:
        raise ValueError(f"{name} needs {parameter} from {least:.3g} to {_LARGEST:.3g}, got {value:g}; try {name}(1)")
