"""What a run is: everything that decides how it ends, and nothing else."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

from hullo.lab.spec.activation import ActivationSpec
from hullo.lab.spec.paper import COLUMNS, Column
from hullo.lab.spec.schema import LARGEST

NETWORKS = tuple(dict.fromkeys(column.network for column in COLUMNS))
"""Names alone: specs and records are read where no network is built and no data set is loaded."""
STREAMED = "ilsvrc2012"
"""The data set that does not fit into memory and is read as a stream."""
DATASETS = ("fashion-mnist", "cifar10", "fashion-mnist-sample", STREAMED)
ALEXNET = {"epochs": 90, "batch": 256, "lr": 0.01, "decay": 0.05}
"""As in Caffe's solver, but for a part in a thousand: 450,000 updates with 256 images each of the whole ILSVRC-2012, a
tenth of the learning rate after every 100,000."""
PRECISIONS = ("float32", "bfloat16")


@dataclass(frozen=True)
class Spec:
    """One network trained once: what it is, what it sees, how it learns, and from which seed.

    Args:
        network: "lenet5", "kerasnet", "resnet56" or "alexnet".
        data: the name of a data set.
        activation: a row such as ``relu`` or ``convex(identity,relu)``.
        seed: where weights start, and the streams of orders, moves and dropouts.
        epochs: how often all training pictures are seen.
        batch: pictures a step; the last step of an epoch takes what is left, as in Keras.
        lr: the learning rate.
        decay: how fast it falls: to lr / (1 + decay * updates) with RMSprop, and to a tenth after every 1 / decay
            epochs with AlexNet's SGD, however many images an epoch has.
        coefficient_lr_scale: the coefficients' learning rate is `lr` times this.
        precision: "float32", or "bfloat16" for products in bfloat16 and everything else in float32.
        val_size: how many training images are held out and evaluated beside the test images.

    Example:
        >>> from hullo.lab.spec.run_spec import Spec
        >>> spec = Spec("lenet5", "cifar10", "affine(tanh, identity)", seed=3, epochs=10)
        >>> spec.activation
        'affine(identity,tanh)'
        >>> print(spec)  # doctest: +NORMALIZE_WHITESPACE
        lenet5/cifar10 affine(identity,tanh) seed=3 epochs=10 batch=32 lr=0.0001 decay=1e-06
        coefficient_lr_scale=1.0 precision=float32 val_size=0
        >>> Spec.parse(str(spec)) == spec
        True
        >>> spec.id
        '6431fa994f91'
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
    val_size: int = 0

    def __post_init__(self) -> None:
        for name, value, known in (
            ("network", self.network, NETWORKS),
            ("data set", self.data, DATASETS),
            ("precision", self.precision, PRECISIONS),
        ):
            if value not in tuple(known):
                raise ValueError(f"unknown {name} {value!r}; there are {', '.join(known)}")
        for name, least in (("seed", 0), ("epochs", 1), ("batch", 1), ("val_size", 0)):
            value = getattr(self, name)
            if type(value) is not int or not least <= value < 2**63:
                raise ValueError(f"{name}={value!r}: give a whole number of at least {least} and below 2^63")
        for name in ("lr", "decay", "coefficient_lr_scale"):
            value = getattr(self, name)
            if type(value) not in (int, float) or not 0 <= value <= LARGEST:
                raise ValueError(f"{name}={value!r}: give a number that is not negative")
            object.__setattr__(self, name, float(value))
        object.__setattr__(self, "activation", str(ActivationSpec.parse(self.activation)))

    @classmethod
    def default(cls, network: str, data: str, activation: str, **given: Any) -> Spec:
        """The run as the paper's protocol has it for that network, but for what is given and is not None.

        AlexNet's schedule is squeezed or stretched with the number of epochs.

        >>> Spec.default("alexnet", "ilsvrc2012", "relu", epochs=9).decay
        0.5
        """
        values = {name: value for name, value in given.items() if value is not None}
        if network == "alexnet":
            epochs = values.setdefault("epochs", ALEXNET["epochs"])
            values = ALEXNET | {"decay": round(ALEXNET["decay"] * ALEXNET["epochs"] / max(1, epochs), 12)} | values
        return cls(network, data, activation, **values)

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
    def population_key(self) -> Spec:
        """Return what the spec shares with all that can be trained beside it: not activation, seed, rates and decay.

        Members that read one stream of images share its order, and so the seed.
        """
        seed = self.seed if self.data == STREAMED else 0
        return replace(self, activation="relu", seed=seed, lr=0.0, decay=0.0, coefficient_lr_scale=0.0)


_KINDS = {"int": int, "float": float, "str": str}
_NUMBERED = {field.name: _KINDS[str(field.type)] for field in fields(Spec)[3:]}


def identify(specs: Iterable[Spec]) -> str:
    """Twelve characters that stand for several specs in their order."""
    return hashlib.sha256("\n".join(map(str, specs)).encode()).hexdigest()[:12]
