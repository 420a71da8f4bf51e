"""Base functions, which hulls combine.

A base is a scalar function f applied entry by entry, with its slope f' and facts about both. The paper asks every
base for f(0) = 0 and slope one at the origin, from at least one side; a base that has both is *admissible*.

The functions themselves are listed in :mod:`hullo.catalogue`, each written once as a formula that PyTorch, Triton and
Keras all read.
"""

from __future__ import annotations

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
from hullo.formulas import differentiate, replace_y
from hullo.least_squares import Function, express

Slope = Callable[[Tensor, Tensor], Any]

_TOLERANCE = 1e-9  # on facts, in float64


@dataclass(frozen=True)
class Formula:
    """Hold the formulas of a base: `value` in terms of `x`, `slope` in terms of `x` and the value `y`.

    The text uses + - * /, comparisons, numbers and the names of :data:`hullo.formulas.FUNCTIONS`; every backend gives
    those names its own meaning, so one formula is the base everywhere.
    """

    value: str
    slope: str

    @functools.cache  # noqa: B019  (formulas are few, and live as long as the catalogue)
    def derivative(self, order: int) -> str:
        """Return the formula of a derivative in terms of x: of order 0 the value, of order 1 the slope."""
        if order < 2:
            return replace_y(self.slope, self.value) if order else self.value
        return differentiate(self.derivative(order - 1))

    def functions(self, words: Mapping[str, Any]) -> tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]:
        """Return the formula as two Python functions, `value(x)` and `slope(x, y)`, with the functions of a backend."""
        scope = dict(words)
        value = eval(f"lambda x: {self.value}", scope)  # noqa: S307  (the text is the catalogue's own)
        slope = eval(f"lambda x, y: {self.slope}", scope)  # noqa: S307
        return value, slope


@dataclass(frozen=True, eq=False, repr=False)
class Base:
    """Hold a base function f, its slope and its properties.

    Args:
        name: how it is spelled, with its parameters where they are not the default ones: ``leaky_relu(0.2)``.
        function: f, on tensors.
        slope: f'(x) from x and y = f(x); a number where it is constant.
        value_at_zero: f(0).
        slopes_at_zero: the slopes at 0- and 0+.
        slope_bounds: the infimum and supremum of f' over the real line; of a function without a formula, over points.
        kinks: where f' jumps.
        formula: the text of f, for kernels and other frameworks; None for a function known only as a callable.
        is_certain: whether the slope bounds are proved, or measured at points.

    Example:
        >>> import hullo
        >>> hullo.base("tanh").slopes_at_zero
        (1.0, 1.0)
        >>> hullo.base("gelu").is_admissible
        False
    """

    name: str
    function: Function
    slope: Slope
    value_at_zero: float
    slopes_at_zero: tuple[float, float]
    slope_bounds: tuple[float, float]
    kinks: tuple[float, ...] = ()
    formula: Formula | None = None
    is_certain: bool = True

    def derivative(self, x: Tensor) -> Tensor:
        """Return f'(x), a tensor like x."""
        return derivative_of(self.function, self.slope, x)

    @property
    def is_monotone(self) -> bool | None:
        """Return whether f is non-decreasing; None if unknown: no sample of a Python function was seen to fall."""
        if self.slope_bounds[0] < 0:
            return False
        return True if self.formula and self.is_certain else None

    @property
    def is_admissible(self) -> bool:
        """Return whether f(0) = 0 and f has slope one at the origin, from at least one side."""
        return abs(self.value_at_zero) < _TOLERANCE and any(abs(s - 1) < _TOLERANCE for s in self.slopes_at_zero)

    def __repr__(self) -> str:
        return f"Base({self.name})"

    def __reduce__(self) -> tuple[Callable[[str], Base], tuple[str]]:
        return base, (self.name,)  # by name: functions do not pickle, and a base is one object a process

    def __deepcopy__(self, memo: object) -> Base:
        return self


def derivative_of(function: Function, slope: Slope, x: Tensor) -> Tensor:
    """Return the slopes at x, a tensor like x also where they are a number."""
    slopes = slope(x, function(x))
    return slopes if isinstance(slopes, Tensor) else torch.full_like(x, slopes)


@dataclass(frozen=True)
class _Family:
    make: Callable[..., Base]
    parameters: Mapping[str, float]


_families: dict[str, _Family] = {}
_known: dict[str, Base] = {}  # by every spelling that was asked for


def family(make: Callable[..., Base]) -> Callable[..., Base]:
    """Register a family of bases: its name and its parameters (numbers with defaults) are those of the function."""
    parameters = {p.name: float(p.default) for p in inspect.signature(make).parameters.values()}
    _families[make.__name__] = _Family(make, parameters)
    _known[make.__name__] = make()
    return make


def spell(name: str, parameters: Mapping[str, float]) -> str:
    """Return the name of a member of a family; parameters are written only if one is not the default."""
    if all(value == _families[name].parameters[key] for key, value in parameters.items()):
        return name
    return f"{name}({','.join(repr(value).removesuffix('.0') for value in parameters.values())})"


def add_family(name: str, make: Callable[..., Base], parameters: Mapping[str, float]) -> Base:
    """Add a family under a new name, and return its member with the default parameters."""
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"a base's name is a Python identifier such as 'my_function', not {name!r}")
    if name in list_bases() or name in _ALIASES:
        known = base(name).name
        other = "" if known == name else f" (another name of {known!r})"
        raise ValueError(f"there is a base function {name!r} already{other}; choose another name")
    _families[name] = _Family(make, parameters)
    try:
        return base(name)
    except BaseException:  # Ctrl-C, too: what is not finished is not there
        del _families[name]
        raise


def list_bases() -> tuple[str, ...]:
    """Return the names of all base functions, in the order of the catalogue, then your own.

    >>> import hullo
    >>> hullo.list_bases()[:3]
    ('identity', 'relu', 'tanh')
    """
    return tuple(_families)


def catalogued() -> tuple[Base, ...]:
    """Return the base of every name, in the order of `list_bases`."""
    return tuple(map(base, _families))


def is_built_in(item: Base) -> bool:
    """Return whether a base is one of the package, and not one that `add_base` added in this process."""
    return _families[item.name.partition("(")[0]].make.__module__ == "hullo.catalogue"


def base(spelling: str | Base) -> Base:
    """Return the base function of a name such as ``tanh``, ``leaky_relu(0.2)`` or ``leaky_relu(negative_slope=0.2)``.

    Other names that are common for a base, such as ``swish`` for ``silu``, are understood, too.

    >>> import hullo
    >>> hullo.base("leaky_relu(0.2)").slopes_at_zero
    (0.2, 1.0)
    >>> hullo.base("swish")
    Base(silu)
    """
    if isinstance(spelling, Base):
        return spelling
    if not isinstance(spelling, str):
        raise TypeError(f"a base is a name or a hullo.Base, not {spelling!r} of type {type(spelling).__name__}")
    if spelling not in _known:
        _known[spelling] = _parse(spelling)
    return _known[spelling]


def make(name: str, *parameters: float) -> Base:
    """Return a member of a family without adding it to those that are known."""
    found = _families[name]
    return found.make(**dict(zip(found.parameters, parameters, strict=True)))


_ALIASES = {
    "swish": "silu",
    "hard_swish": "hardswish",
    "hard_silu": "hardswish",
    "hard_sigmoid": "hardsigmoid",
    "hard_tanh": "hardtanh",
    "linear": "identity",
    "lrelu": "leaky_relu",
    "atan": "arctan",
    "arcsinh": "asinh",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu_squared": "relu2",
    "squared_relu": "relu2",
    "relu_cubed": "relu3",
    "sine": "sin",
}
"""Other names of bases in PyTorch, Keras, transformers and papers."""


def _parse(spelling: str) -> Base:
    match = re.fullmatch(r"\s*(\w+)\s*(?:\(([^()]*)\))?\s*", spelling)
    name = match[1] if match else spelling
    name = name if name in _families else _ALIASES.get(name, name)
    if name not in _families or not match:
        raise ValueError(f"unknown base function {spelling!r}{_guess(name)}; known are: {', '.join(list_bases())}")
    defaults = _families[name].parameters
    written = [part.rpartition("=") for part in match[2].split(",")] if match[2] else []
    try:
        # adding zero turns -0.0, which spells differently, into 0.0
        given = [(key.strip(), float(number) + 0.0) for key, _, number in written]
    except ValueError:
        raise ValueError(f"{spelling!r}: the parameters of {name} are numbers, as in {_usage(name)}") from None
    in_order = dict(zip(defaults, (number for key, number in given if not key), strict=False))
    by_name = {key: number for key, number in given if key}
    parameters = {**defaults, **in_order, **by_name}
    is_valid = len(in_order) + len(by_name) == len(given) and parameters.keys() == defaults.keys()
    if not is_valid or in_order.keys() & by_name.keys() or not all(math.isfinite(number) for _, number in given):
        raise ValueError(f"{spelling!r}: {name} is written {_usage(name)}")
    canonical = spell(name, parameters)
    return _families[name].make(**parameters) if canonical == spelling else base(canonical)


def _guess(name: str) -> str:
    import difflib

    close = difflib.get_close_matches(name.lower(), list_bases(), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _usage(name: str) -> str:
    parameters = _families[name].parameters
    written = ", ".join(f"{key}={value:g}" for key, value in parameters.items())
    return f"{name}({written}) with finite numbers" if parameters else f"{name}, without parameters"


def resolve(bases: Iterable[str | Base], *, strict: bool = True) -> tuple[Base, ...]:
    """Check a set of bases and return it: known, distinct, linearly independent and, if `strict`, admissible."""
    if isinstance(bases, str):
        raise TypeError(f"bases are given one by one, as in 'identity', 'relu'; not as one string {bases!r}")
    if torch.compiler.is_compiling() and not is_exporting():
        return tuple(item if isinstance(item, Base) else _looked_up(item) for item in bases)
    found = tuple(base(item) for item in bases)
    _check(found, strict)
    return found


def _looked_up(spelling: str) -> Base:
    """Return a base for code that is being compiled, which can look one up but not create one."""
    if spelling not in _known:
        raise ValueError(
            f"base function {spelling!r} is not known to compiled code; call hullo.base({spelling!r}) before"
        )
    return _known[spelling]


@functools.cache
def _check(found: tuple[Base, ...], strict: bool) -> None:
    spelled = [item.name for item in found]
    if not found:
        raise ValueError("a hull needs at least one base function, got none; for example 'identity', 'relu', 'tanh'")
    for name in spelled:
        if spelled.count(name) > 1:
            raise ValueError(f"base function {name!r} is given more than once in {spelled}; give each one once")
    if strict:
        for item in found:
            if not item.is_admissible:
                left, right = item.slopes_at_zero
                raise ValueError(
                    f"base function {item.name!r} has value {item.value_at_zero:.4g} and slopes {left:.4g} and "
                    f"{right:.4g} at the origin; a hull needs f(0) = 0 and slope 1 from at least one side. "
                    f"{_unit_form(item)}strict=False admits it as it is"
                )
    _check_independence(found)


def _unit_form(item: Base) -> str:
    unit = f"unit_{item.name}"
    return f"Use its normalised form {unit!r}; " if unit.partition("(")[0] in list_bases() else ""


def _check_independence(found: tuple[Base, ...]) -> None:
    functions = [item.function for item in found]
    for n in range(1, len(found)):
        (weights,) = express([functions[n]], functions[:n])
        if weights is not None:
            involved = [item.name for item, weight in zip(found, weights, strict=False) if abs(weight) > _TOLERANCE]
            raise ValueError(
                f"base function {found[n].name!r} is a linear combination of {', '.join(involved)}; "
                "coefficients would not be unique. Leave one of them out"
            )


@real_tensors()
def real_line() -> Tensor:
    """Return points that stand for the real line where no formula tells more: dense near 0, then ever wider."""
    near = torch.linspace(-16.0, 16.0, 32001, dtype=torch.float64, device="cpu")
    period = torch.linspace(0, 2 * math.pi, 257, dtype=torch.float64, device="cpu")
    ratios = torch.arange(1, 64 * 36 + 1, dtype=torch.float64, device="cpu") / 64
    far = torch.cat([16 * ratios.exp2(), *(period + 2.0**k for k in range(4, 41, 4))])  # whole periods, for waves
    return torch.cat([-far, near, far]).sort().values


_MOST = 2.0**64


def check_parameter(name: str, parameter: str, value: float, *, positive: bool = False) -> None:
    """Raise an error for a parameter with which float32 values would overflow, or underflow as a divisor."""
    least = 1 / _MOST if positive else -_MOST
    if not least <= value <= _MOST:
        raise ValueError(f"{name} needs {parameter} from {least:.3g} to {_MOST:.3g}, got {value:g}; try {name}(1)")
