"""Parse activations from text.

A *row* of the paper's table is the activation of a network: a base function such as ``relu`` or ``leaky_relu(0.2)``,
which is fixed, or a hull such as ``convex(identity,relu)`` or ``affine(identity,relu,tanh)``, or ``prelu``, which are
learned.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from hullo.bases import Base, get_base, in_order, resolve
from hullo.modules import HULLS, LinearHull

DEFAULTS = {"fixed": "fixed", "convex": "projection", "affine": "recentred", "conic": "clamped", "linear": "given"}
"""The parametrization if the text names none. These never change: records depend on them."""
_OPTION = re.compile(r"\s*\w+\s*=")
OPTIONS = {"parametrization": "", "init": "uniform", "per": "layer"}


@dataclass(frozen=True)
class ActivationSpec:
    """The activation of a network: one base function, or the hull of several, in the catalogue's order.

    The spelling of a hull may contain options: a parametrization, the base that it starts as instead of 1/N each, and
    one activation per channel, as in ``convex(identity,relu,init=relu,per=channel)``. Fully connected layers of the
    paper's networks still have one activation each; where activations of a user's network are replaced, their units
    are channels.

    ``prelu`` is ``affine(identity,relu,parametrization=free,init=relu,per=channel)``, which is a * identity +
    (1 - a) * relu: one learned slope per channel after a convolution and one after a fully connected layer, each
    starting at 0.

    >>> from hullo.lab.spec.activation import ActivationSpec
    >>> str(ActivationSpec.parse("affine(tanh, identity)"))
    'affine(identity,tanh)'
    >>> str(ActivationSpec.parse("convex(identity,relu,init=relu,parametrization=projection)"))
    'convex(identity,relu,init=relu)'
    >>> str(ActivationSpec.parse("leaky_relu(0.01)"))
    'leaky_relu'
    >>> str(ActivationSpec.parse("affine(identity,relu,parametrization=free,init=relu,per=channel)"))
    'prelu'
    """

    kind: str
    bases: tuple[Base, ...]
    parametrization: str = "fixed"
    init: Base | None = None
    per: str = "layer"
    label: str = ""  # of a user's own activation

    @classmethod
    @functools.cache
    def parse(cls, text: str | ActivationSpec) -> ActivationSpec:
        """Parse an activation such as ``relu`` or ``convex(identity,relu)``."""
        if isinstance(text, ActivationSpec):
            return text
        if not isinstance(text, str):
            raise TypeError(f"an activation must be a str, as in 'relu'; got {text!r} of type {type(text).__name__}")
        if text.strip() == "prelu":
            return PRELU
        if own := re.fullmatch(r"\s*own(?::([\w.-]{1,100}))?\s*", text):
            return cls("own", (), label=own[1] or "")
        hull = re.fullmatch(rf"\s*({'|'.join(HULLS)})\s*\((.*)\)\s*", text)
        kind, inner = (hull[1], hull[2]) if hull else ("fixed", text)
        # at commas between bases, not between the parameters of one
        parts = re.split(r",(?![^(]*\))", inner) if hull else [inner]
        given = [re.split(r"\s*=\s*", part.strip(), maxsplit=1) for part in parts if _OPTION.match(part)]
        spelled = [part for part in parts if not _OPTION.match(part)]
        try:
            bases = in_order(resolve(spelled, strict=False))
            return cls(kind, bases, *_read_options(given, kind, bases))
        except ValueError as error:
            valid = f"a base function, prelu, or a hull ({', '.join(HULLS)}), as in convex(identity,relu)"
            raise ValueError(f"invalid activation {text!r}: {error}. An activation is {valid}") from None

    def __str__(self) -> str:
        if self.kind == "own":
            return f"own:{self.label}" if self.label else "own"
        if not self.learns:
            return self.bases[0].name
        if self == PRELU:
            return "prelu"
        options = {
            "parametrization": self.parametrization,
            "init": self.init.name if self.init else "uniform",
            "per": self.per,
        }
        default = OPTIONS | {"parametrization": DEFAULTS[self.kind]}
        changed = [f"{name}={value}" for name, value in options.items() if value != default[name]]
        return f"{self.kind}({','.join([item.name for item in self.bases] + changed)})"

    @property
    def learns(self) -> bool:
        return self.kind in HULLS

    @property
    def initial_coefficients(self) -> list[float]:
        """Return the initial coefficients: 1/N each, unless the hull is initialized as one of its bases."""
        if self.init is None:
            return [1 / len(self.bases)] * len(self.bases)
        return [float(item == self.init) for item in self.bases]

    @property
    def span(self) -> tuple[Base, ...]:
        """Return the bases that the activation combines: identity and relu for a fixed leaky_relu."""
        if self.kind == "fixed" and self.bases[0].name.startswith("leaky_relu"):
            return get_base("identity"), get_base("relu")
        return self.bases

    def module(self, channels: int) -> nn.Module:
        """Build the activation of a layer with the given number of channels; 1 after a linear layer."""
        if not self.learns:
            name, _, given = self.bases[0].name.rstrip(")").partition("(")
            if name in _PLAIN:
                return _PLAIN[name](*(float(number) for number in given.split(",") if number))
            return LinearHull(self.bases[0], init=[1.0]).requires_grad_(False)
        groups = channels if self.per == "channel" else 1
        return HULLS[self.kind](
            *self.bases,
            parametrization=self.parametrization,
            init=self.initial_coefficients,
            groups=groups,
            strict=False,
        )


_PLAIN: dict[str, Callable[..., nn.Module]] = {
    "identity": nn.Identity,
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "leaky_relu": nn.LeakyReLU,
}
PRELU = ActivationSpec(
    "affine", (get_base("identity"), get_base("relu")), parametrization="free", init=get_base("relu"), per="channel"
)
"""PReLU; as in Keras, the slopes are initialized to 0."""


def _read_options(given: list[list[str]], kind: str, bases: tuple[Base, ...]) -> tuple[str, Base | None, str]:
    """Return parametrization, init and per, as given or by default."""
    options: dict[str, str] = {}
    for name, value in given:
        if name in options:
            raise ValueError(f"{name}={options[name]} and {name}={value}; give each option once")
        options[name] = value
    if options and kind not in HULLS:
        raise ValueError("only a hull takes options")
    if unknown := options.keys() - OPTIONS.keys():
        raise ValueError(f"unknown option {min(unknown)!r}; available: {', '.join(OPTIONS)}")
    chosen = OPTIONS | {"parametrization": DEFAULTS[kind]} | options
    init = None if chosen["init"] == "uniform" else get_base(chosen["init"])
    if init and init not in bases:
        raise ValueError(f"init={init.name!r} is not one of its bases")
    if chosen["per"] not in ("layer", "channel"):
        raise ValueError(f"per={chosen['per']!r}; must be layer or channel")
    if kind in HULLS:
        numbers = [1 / len(bases) if init is None else float(item == init) for item in bases]
        allowed, start = HULLS[kind].coefficient_set, torch.tensor(numbers, dtype=torch.float64)
        name = allowed.read_parametrization(chosen["parametrization"]).name
        if reason := allowed.describe_violation(start, name):
            raise ValueError(reason)
    return chosen["parametrization"], init, chosen["per"]
