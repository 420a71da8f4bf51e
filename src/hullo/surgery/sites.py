"""Describe the sites of a model where activations are, and set modules there."""

from __future__ import annotations

import re
import sys
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from torch import nn

from hullo.modules import Hull
from hullo.surgery.recognize import Known, Reading
from hullo.surgery.rewrite.findings import Call
from hullo.surgery.rewrite.write import PerIteration, put_children


@dataclass(frozen=True, eq=False)
class Site:
    """Describe a site of a model where an activation is.

    Args:
        name: the name of a hull there, such as ``encoder.layers.0.activation``.
        function: the activation; if it is a base, its name, such as ``gelu`` or ``leaky_relu(0.2)``.
        module: the module there; None for a function.
        place: the line that calls a function, or a module that is called more than once.
        reason: why a hull cannot replace it; empty if one can.
    """

    name: str
    function: str
    module: nn.Module | None
    place: str = ""
    reason: str = ""
    reading: Reading | None = None
    slot: Slot | None = None
    calls: Sequence[Call] = ()
    group: object = None  # the same for all sites of one attribute

    @property
    def known(self) -> Known:
        """Return the function there, for a site without a reason."""
        assert self.reading is not None  # noqa: S101
        assert self.reading.known is not None  # noqa: S101
        return self.reading.known


@dataclass(frozen=True, eq=False)
class Slot:
    """Describe where a hull is stored.

    Args:
        parent: the module whose child it is.
        name: its name there.
        key: its key in a ModuleDict of that name, for a call in a loop with one hull per iteration.
        reused: whether the replaced activation has this name: calls need not change.
    """

    parent: nn.Module
    name: str
    key: str = ""
    reused: bool = False

    @property
    def is_new(self) -> bool:
        """Return whether a hull there is an additional child of the module."""
        return bool(self.key) or not isinstance(self.parent._modules.get(self.name), nn.Module)

    def put(self, module: nn.Module) -> None:
        """Store a module here."""
        put(self.parent, self.name, module, self.key)


def put(parent: nn.Module, name: str, module: nn.Module, key: str = "") -> None:
    """Set a child of a module. Encoder layers have a fused path for two functions: update its flag, too."""
    if isinstance(parent, nn.TransformerEncoderLayer) and name == "activation":
        fused = {nn.ReLU: 1, nn.GELU: 2 if getattr(module, "approximate", "") == "none" else 0}
        parent.activation_relu_or_gelu = fused.get(type(module), 0)
    if key:
        existing = parent._modules.get(name)
        container = existing if isinstance(existing, PerIteration) else PerIteration()
        container[key] = module
        module = container
    put_children(parent, {name: module})


@dataclass
class Names:
    """Choose names for new children of a module."""

    owner: nn.Module
    taken: set[str] = field(default_factory=set)

    def take(self, stem: str, number: int) -> str:
        """Return the first of stem_1, stem_2, ... that the module does not have."""
        stem = re.sub(r"\W", "_", stem)
        stem = f"act_{stem}" if stem[:1].isdigit() else stem
        while hasattr(self.owner, f"{stem}_{number}") or f"{stem}_{number}" in self.taken:
            number += 1
        self.taken.add(f"{stem}_{number}")
        return f"{stem}_{number}"


def _as_module(caller: str, model: object) -> nn.Module:
    """Return the model; raise an error that says what to give instead if it is no module of PyTorch."""
    keras = sys.modules.get("keras")
    if keras is not None and isinstance(model, keras.layers.Layer):  # a torch.nn.Module on the backend torch
        has_own = caller in ("replace_activations", "summary", "fold")
        hint = (
            f"use hullo.keras.{caller}" if has_own else "to_torch() of a layer of hullo.keras returns a torch.nn.Module"
        )
        raise TypeError(f"{caller} takes a torch.nn.Module, not a Keras {type(model).__name__}; {hint}")
    if isinstance(model, type):
        raise TypeError(f"{caller} takes a torch.nn.Module, not a class; give an object, as in {model.__name__}()")
    if not isinstance(model, nn.Module):
        raise TypeError(f"{caller} takes a torch.nn.Module, not a {type(model).__name__}; give the model itself")
    return model


def parameters_key(hull: Hull) -> tuple[Hashable, ...]:
    """Return a key that is equal for hulls that share their parameters, as in-place twins do."""
    return (hull.raw_name, *([id(item) for item in hull.parameters()] or [id(hull)]))


def named_hulls(caller: str, model: object, required: bool = False) -> dict[str, Hull]:
    """Return the hulls of a model by name, for a public function.

    Raises:
        TypeError: the model is not a module, or one that holds several networks.
        ValueError: there are no hulls, but they are required.
    """
    model = _as_module(caller, model)
    if caller and (hint := getattr(type(model), "surgery_hint", "")):
        raise TypeError(f"{caller} does not take a {type(model).__name__}; {hint}")
    hulls = {name: module for name, module in model.named_modules() if isinstance(module, Hull)}
    if required and not hulls:
        raise ValueError(f"the model has no hulls for {caller}; call replace_activations first, or use it as it is")
    return hulls
