"""Describe the places of a model where activations are, and put modules there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import nn

from hullo.surgery.recognise import Known, Reading
from hullo.surgery.rewrite.calls import Call
from hullo.surgery.rewrite.write import Turns, put_children


@dataclass(frozen=True, eq=False)
class Site:
    """A place of a model where an activation is.

    Args:
        name: the name that the hull there has in the model, such as ``encoder.layers.0.activation``.
        function: what is there, as a base's name such as ``gelu`` or ``leaky_relu(0.2)`` where it is one.
        module: the module that is there; None for a function.
        place: where it is called, for a call that the code makes of a function or of a module used more than once.
        reason: why no hull can take its place; empty if one can.
    """

    name: str
    function: str
    module: nn.Module | None
    place: str = ""
    reason: str = ""
    reading: Reading | None = None
    home: Home | None = None
    calls: Sequence[Call] = ()
    group: object = None  # the same for all sites of one module or function that a module keeps

    @property
    def known(self) -> Known:
        """The function that is there, for a site without a reason."""
        assert self.reading is not None  # noqa: S101
        assert self.reading.known is not None  # noqa: S101
        return self.reading.known


@dataclass(frozen=True, eq=False)
class Home:
    """Where a hull is kept.

    Args:
        keeper: the module that keeps it.
        attribute: the name it keeps it under.
        key: its key in a ModuleDict of that name, for a call in a loop that has one hull per turn.
        stays: whether what is called is kept there already, so that calls can stay in their words.
    """

    keeper: nn.Module
    attribute: str
    key: str = ""
    stays: bool = False

    @property
    def is_new(self) -> bool:
        """Whether a module there is a child that was not there before, or not one that can be called."""
        return bool(self.key) or not isinstance(self.keeper._modules.get(self.attribute), nn.Module)

    def put(self, module: nn.Module) -> None:
        """Keep a module here."""
        put(self.keeper, self.attribute, module, self.key)


def put(keeper: nn.Module, name: str, module: nn.Module, key: str = "") -> None:
    """Set a child of a module, and tell encoder layers, whose fused path knows two functions only, which it is."""
    if isinstance(keeper, nn.TransformerEncoderLayer) and name == "activation":
        fused = {nn.ReLU: 1, nn.GELU: 2 if getattr(module, "approximate", "") == "none" else 0}
        keeper.activation_relu_or_gelu = fused.get(type(module), 0)
    if key:
        turns = keeper._modules.get(name)
        turns = turns if isinstance(turns, Turns) else Turns()
        turns[key] = module
        module = turns
    put_children(keeper, {name: module})


@dataclass
class Names:
    """Gives out names for new children of a module."""

    owner: nn.Module
    taken: set[str] = field(default_factory=set)

    def take(self, stem: str, number: int) -> str:
        """Return stem_1, stem_2, ...: the first that the module does not have."""
        stem = re.sub(r"\W", "_", stem)
        stem = f"act_{stem}" if stem[:1].isdigit() else stem
        while hasattr(self.owner, f"{stem}_{number}") or f"{stem}_{number}" in self.taken:
            number += 1
        self.taken.add(f"{stem}_{number}")
        return f"{stem}_{number}"
