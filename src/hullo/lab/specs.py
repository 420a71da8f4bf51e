"""What a run is: everything that decides how it ends, and nothing else."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

from hullo.lab.activations import Row
from hullo.lab.data import RELEASES
from hullo.lab.networks import NETWORKS
from hullo.lab.paper import Column

PRECISIONS = ("float32", "bfloat16")


@dataclass(frozen=True)
class Spec:
    """One network trained once: what it is, what it sees, how it learns, and from which seed.

    Args:
        network: "lenet5", "kerasnet" or "resnet56".
        data: the name of a data set.
        activation: a row such as ``relu`` or ``convex(identity,relu)``.
        seed: where weights start, and the streams of orders, moves and dropouts.
        epochs: how often all training pictures are seen.
        batch: pictures a step; the last step of an epoch takes what is left, as in Keras.
        lr: RMSprop's learning rate.
        decay: how fast it falls with the number of updates.
        coefficient_lr_scale: the coefficients' learning rate is `lr` times this.
        precision: "float32", or "bfloat16" for products in bfloat16 and everything else in float32.

    Example:
        >>> from hullo.lab.specs import Spec
        >>> spec = Spec("lenet5", "cifar10", "affine(tanh, identity)", seed=3, epochs=10)
        >>> spec.activation
        'affine(identity,tanh)'
        >>> print(spec)  # doctest: +NORMALIZE_WHITESPACE
        lenet5/cifar10 affine(identity,tanh) seed=3 epochs=10 batch=32 lr=0.0001 decay=1e-06
        coefficient_lr_scale=1.0 precision=float32
        >>> Spec.parse(str(spec)) == spec
        True
        >>> spec.id
        'f0b9f3a1a1e4'
    """

    network: str
    data: str
    activation: str
    seed: int = 0
    epochs: int = 50
    batch: int = 32
    lr: float = 1e-4
    decay: float = 1e-6
    coefficient_lr_scale: float = 1.0
    precision: str = "float32"

    def __post_init__(self) -> None:
        for name, value, known in (
            ("network", self.network, NETWORKS),
            ("data set", self.data, RELEASES),
            ("precision", self.precision, PRECISIONS),
        ):
            if value not in known:
                raise ValueError(f"unknown {name} {value!r}; there are {', '.join(known)}")
        for name, least in (("seed", 0), ("epochs", 1), ("batch", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or not least <= value < 2**63:
                raise ValueError(f"{name}={value!r}: give a whole number of at least {least}")
        for name in ("lr", "decay", "coefficient_lr_scale"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise ValueError(f"{name}={value!r}: give a number that is not negative")
            object.__setattr__(self, name, float(value))
        object.__setattr__(self, "activation", str(Row.parse(self.activation)))

    def __str__(self) -> str:
        values = (f"{name}={getattr(self, name)}" for name in _NUMBERED)
        return " ".join((str(self.column), self.activation, *values))

    @classmethod
    def parse(cls, text: str) -> Spec:
        """The spec of a spelling; what is left out has its default."""
        try:
            column, activation, *values = text.split()
            network, data = column.split("/")
            given = dict(value.split("=") for value in values)
            numbers = {name: _NUMBERED[name](value) for name, value in given.items()}
        except (KeyError, ValueError):
            wanted = "network/data activation name=value ..., as in 'lenet5/cifar10 relu seed=3'"
            raise ValueError(f"{text!r} is no run: write {wanted}; names are {', '.join(_NUMBERED)}") from None
        return cls(network, data, activation, **numbers)

    @property
    def id(self) -> str:
        """Twelve characters that stand for the spec, the same on every machine."""
        return identify([self])

    @property
    def column(self) -> Column:
        return Column(self.network, self.data)

    @property
    def company(self) -> Spec:
        """What the spec shares with those that can be trained beside it; activations, seeds and rates may differ."""
        return replace(self, activation="relu", seed=0, lr=0.0)


_KINDS = {"int": int, "float": float, "str": str}
_NUMBERED = {field.name: _KINDS[str(field.type)] for field in fields(Spec)[3:]}


def identify(specs: Iterable[Spec]) -> str:
    """Twelve characters that stand for several specs in their order."""
    return hashlib.sha256("\n".join(map(str, specs)).encode()).hexdigest()[:12]
