"""The spec of a run: everything that determines its result, and nothing else."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from hullo.lab.spec.activation import ActivationSpec
from hullo.lab.spec.paper import Column
from hullo.lab.spec.recipes import (
    AUGMENTATIONS,
    OPTIMIZERS,
    OWN_RECIPE,
    PRECISIONS,
    RECIPES,
    STREAMED,
    Augmentation,
    Recipe,
    parse_schedule,
    spell_schedule,
)

OWN_NETWORK, OWN_DATA = re.compile(r"[\w.-]+:\w+@[0-9a-f]{8}"), re.compile(r"[\w.-]+@[0-9a-f]{8}")
"""Names of the user's own networks and data sets: the name of the file or folder, and eight digits of its hash."""
MAX_LENGTH = 1000
"""The largest number of characters of a text in a record."""
RECORDED = re.compile(r"[\w.-]{1,100}")
"""Names of networks and data sets in runs that :func:`hullo.lab.record` wrote."""
SETTING = re.compile(r"(?!(?:network|data|activation|seed|epochs)=)[^\W\d]\w*=[^\s=]{1,100}")
"""A setting of such a run; the number of epochs is counted, and the others have fields of their own."""


def _setting(default: Any, help_text: str, shown: str = "") -> Any:
    """Return a field that the command line has as an option, with its help."""
    return field(default=default, metadata={"help": help_text, "show_default": shown or str(default)})


def _of_recipe(name: str, help_text: str) -> Any:
    """Return the field of a setting whose default is in the recipe of the network."""
    recipes = {"": Recipe, "AlexNet: ": RECIPES["alexnet"], "your own: ": OWN_RECIPE}
    shown = "; ".join(f"{network}{getattr(recipe, name)}" for network, recipe in recipes.items())
    return _setting(getattr(Recipe, name), help_text, shown)


@dataclass(frozen=True)
class Spec:
    """One training run: the network, the data set, the activation, the hyperparameters and the seed.

    Args:
        network: a network of the laboratory, such as "lenet5", or a user's, such as "my_network:Net@1f2e3d4c".
        data: a data set of the laboratory, such as "cifar10", or a user's, such as "images@1f2e3d4c".
        activation: such as ``relu`` or ``convex(identity,relu)``; ``own`` leaves the activations of a user's network.
        seed: seed of the initial weights, the order of samples, their augmentation and dropout.
        epochs, ...: the settings; each has its help and default for the command line beside it.
        settings: settings of a run that :func:`hullo.lab.record` wrote, as in "lr=0.001 width=64"; only these, the
            number of epochs and the first four fields describe such a run. None for runs of the laboratory.

    Example:
        >>> from hullo.lab.spec import Spec
        >>> spec = Spec("lenet5", "cifar10", "affine(tanh, identity)", seed=3, epochs=10)
        >>> spec.activation
        'affine(identity,tanh)'
        >>> print(spec)  # doctest: +NORMALIZE_WHITESPACE
        lenet5/cifar10 affine(identity,tanh) seed=3 epochs=10 batch_size=32 optimizer=rmsprop lr=0.0001
        schedule=inverse:1e-06 weight_decay=0.0 coefficient_lr_scale=1.0 augment=flip,shift:0.1 precision=float32
        val_size=0
        >>> Spec.parse(str(spec)) == spec
        True
        >>> len(spec.id)
        12
    """

    network: str
    data: str
    activation: str
    seed: int = 0
    epochs: int = _of_recipe("epochs", "Number of epochs.")
    batch_size: int = _of_recipe("batch_size", "Samples per batch.")
    optimizer: str = _of_recipe("optimizer", "rmsprop, sgd (momentum 0.9), adam or adamw.")
    lr: float = _of_recipe("lr", "The learning rate.")
    schedule: str = _of_recipe(
        "schedule",
        "Learning rate schedule: constant; cosine, to 0 in the last epoch; inverse:D, lr / (1 + D * updates); step:N, "
        "divided by 10 every N epochs (AlexNet's N scales with --epochs).",
    )
    weight_decay: float = _of_recipe("weight_decay", "Weight decay of weights, not of biases, norms and coefficients.")
    coefficient_lr_scale: float = _setting(1.0, "Learning rate of the coefficients, as a multiple of --lr.")
    augment: str = _setting(
        "",
        "Augmentation of training images: none, flip, shift:F, or flip,shift:F.",
        f"{AUGMENTATIONS['cifar10']}; your own: none",
    )
    precision: str = _setting("float32", "float32, or bfloat16: mixed precision by autocast.")
    val_size: int = _setting(0, "Number or fraction of training samples to hold out for validation, as in 5000 or 0.1.")
    settings: str | None = None

    def __post_init__(self) -> None:
        if self.settings is None:
            self._check_names()
        else:
            self._check_recorded(self.settings)
        for name, least in (("seed", 0), ("epochs", 1), ("batch_size", 1), ("val_size", 0)):
            value = getattr(self, name)
            if type(value) is not int or not least <= value < 2**63:
                raise ValueError(f"{name}={value!r}: must be an integer of at least {least} and below 2^63")
        for name in ("lr", "weight_decay", "coefficient_lr_scale"):
            value = getattr(self, name)
            if type(value) not in (int, float) or not 0 <= value <= sys.float_info.max:
                raise ValueError(f"{name}={value!r}: must be a finite number of at least 0")
            object.__setattr__(self, name, float(value))
        activation = ActivationSpec.parse(self.activation)
        object.__setattr__(self, "activation", str(activation))
        object.__setattr__(self, "_row", activation)  # no field: it is the activation again
        if self.settings is not None:
            return
        augmentation = Augmentation.parse(self.augment or AUGMENTATIONS.get(self.data, "none"))
        if augmentation.crop != (self.data in STREAMED) or (augmentation.crop and augmentation.shift):
            valid = AUGMENTATIONS.get(self.data, "none, or flip,shift:0.1")
            raise ValueError(f"augment={self.augment!r} is not supported with {self.data}; use {valid}")
        if activation.kind == "own" and not self.is_own_network:
            raise ValueError(f"activation='own' is only for your own networks; {self.network} needs one, such as relu")
        for name, text in (("schedule", spell_schedule(self.schedule)), ("augment", str(augmentation))):
            object.__setattr__(self, name, text)

    def _check_recorded(self, settings: str) -> None:
        for name, value in (("network", self.network), ("data", self.data)):
            if not isinstance(value, str) or not RECORDED.fullmatch(value) or not value.isprintable():
                raise ValueError(f"{name}={value!r}: must be a name of at most 100 letters, digits, '_', '-' and '.'")
        names = [word.partition("=")[0] for word in settings.split(" ")] if settings else []
        if not all(map(SETTING.fullmatch, settings.split(" ") if settings else [])) or names != sorted(set(names)):
            raise ValueError(f"settings={settings!r}: must be name=value, sorted by name, with a space in between")
        if len(settings) > MAX_LENGTH or not settings.isprintable():
            raise ValueError(f"settings={settings!r}: must be at most {MAX_LENGTH} printable characters in all")

    def _check_names(self) -> None:
        if isinstance(self.optimizer, str):
            object.__setattr__(self, "optimizer", self.optimizer.lower())  # "AdamW", as PyTorch spells it
        for name, value, names, own, how in (
            ("network", self.network, RECIPES, OWN_NETWORK, "your own as my_network.py:Net"),
            ("data set", self.data, AUGMENTATIONS, OWN_DATA, "a path to your own, as in ./images or ./x.npz"),
        ):
            if value not in names and not own.fullmatch(value):
                raise ValueError(f"unknown {name} {value!r}; available: {', '.join(names)}, or give {how}")
        for name, value, valid in (
            ("optimizer", self.optimizer, OPTIMIZERS),
            ("precision", self.precision, PRECISIONS),
        ):
            if value not in valid:
                raise ValueError(f"unknown {name} {value!r}; available: {', '.join(valid)}")

    @classmethod
    def default(cls, network: str, data: str, activation: str, **given: Any) -> Spec:
        """Return a spec with the defaults of the network's recipe; values that are not None override them.

        The steps of AlexNet's schedule scale with the number of epochs.

        >>> Spec.default("alexnet", "ilsvrc2012", "relu", epochs=9).schedule
        'step:2'
        """
        values = {name: value for name, value in given.items() if value is not None}
        recipe = recipe_of(network)
        kind, number = parse_schedule(recipe.schedule)
        if kind == "step":
            epochs = max(1, values.get("epochs", recipe.epochs))
            values.setdefault("schedule", f"step:{number * epochs / recipe.epochs:.12g}")
        defaults = {name: value for name, value in asdict(recipe).items() if name in SETTING_TYPES}
        return cls(network, data, activation, **defaults | values)

    def __str__(self) -> str:
        values = (f"{name}={value}" for name, value in {"seed": self.seed, **self.conditions}.items())
        return " ".join((str(self.column), self.activation, *values))

    @property
    def conditions(self) -> dict[str, Any]:
        """Return the epochs and settings, which runs must share to be compared."""
        if self.settings is None:
            return {name: getattr(self, name) for name in SETTING_TYPES if name != "seed"}
        pairs = (word.partition("=") for word in self.settings.split())
        return {"epochs": self.epochs, **{name: value for name, _, value in pairs}}

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that describe the run, as records hold them."""
        more = self.conditions if self.settings is None else {"epochs": self.epochs, "settings": self.settings}
        return {"network": self.network, "data": self.data, "activation": self.activation, "seed": self.seed, **more}

    @classmethod
    def parse(cls, text: str) -> Spec:
        """Parse a spec; omitted values have their defaults."""
        try:
            column, activation, *values = text.split()
            network, data = column.split("/")
            given = dict(value.split("=") for value in values)
            numbers = {name: SETTING_TYPES[name](value) for name, value in given.items()}
        except (KeyError, ValueError):
            form = "network/data activation name=value ..., as in 'lenet5/cifar10 relu seed=3'"
            raise ValueError(f"invalid spec {text!r}: must be {form}; names are {', '.join(SETTING_TYPES)}") from None
        return cls(network, data, activation, **numbers)

    @property
    def id(self) -> str:
        """Return an identifier of twelve characters, the same on every machine."""
        return identify([self])

    def is_same_run(self, other: Spec) -> bool:
        """Return whether a recorded run is the same as another, apart from the number of epochs."""
        return self.settings is not None and replace(self, epochs=other.epochs) == other

    @property
    def row(self) -> ActivationSpec:
        """Return the activation, parsed."""
        row: ActivationSpec = self._row  # type: ignore[attr-defined]
        return row

    @property
    def column(self) -> Column:
        return Column(self.network, self.data)

    @property
    def is_own_network(self) -> bool:
        """Return whether the network is the user's own."""
        return self.network not in RECIPES

    @property
    def is_own_data(self) -> bool:
        """Return whether the data set is the user's own."""
        return "@" in self.data

    @property
    def recipe(self) -> Recipe:
        return recipe_of(self.network)

    @property
    def population_key(self) -> Spec:
        """Return the key that specs must share to be trained in one population.

        Members may differ in activation, seed, learning rates, weight decay and the number of their schedule. With a
        streamed data set, all members read the same images, so they share the seed. A user's network with its own
        activations may have another structure than with replaced ones.
        """
        kind, number = parse_schedule(self.schedule)
        return replace(
            self,
            activation="own" if self.activation == "own" else "relu",
            seed=self.seed if self.data in STREAMED else 0,
            lr=0.0,
            weight_decay=0.0,
            coefficient_lr_scale=0.0,
            schedule=f"{kind}:1" if number else kind,
        )


_KINDS = {"int": int, "float": float, "str": str}
SETTING_TYPES = {item.name: _KINDS[str(item.type)] for item in fields(Spec)[3:-1]}
"""The types of the fields that have defaults, the seed among them."""


def recipe_of(network: str) -> Recipe:
    return RECIPES.get(network, OWN_RECIPE)


def identify(specs: Iterable[Spec]) -> str:
    """Return an identifier of twelve characters for a sequence of specs."""
    return hashlib.sha256("\n".join(map(str, specs)).encode()).hexdigest()[:12]
