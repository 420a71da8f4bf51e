"""Save what hulls have learned, as names and numbers, and load it as the initial state of other models."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hullo.modules import AffineHull, ConicHull, ConvexHull, Hull, LinearHull
from hullo.surgery.survey import expect_model

_FORMAT = "hullo hulls, version 1"
_CLASSES: dict[str, type[Hull]] = {cls.kind: cls for cls in (AffineHull, ConvexHull, ConicHull, LinearHull)}


def save_hulls(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Write the hulls of a model into a small JSON file: where they are, their bases and their coefficients.

    Args:
        model: any module with hulls; a single hull, too.
        path: the file; it is replaced as a whole, or stays as it was.

    Example:
        >>> import hullo, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     hullo.save_hulls(hullo.AffineHull("identity", "relu", init="relu"), f"{folder}/hulls.json")
        ...     hullo.load_hulls(f"{folder}/hulls.json")
        {'': AffineHull(identity=0, relu=1)}
    """
    expect_model("save_hulls", model)
    hulls = {name: module for name, module in model.named_modules() if isinstance(module, Hull)}
    if not hulls:
        raise ValueError("the model has no hulls to save; replace_activations puts them in")
    text = json.dumps({"format": _FORMAT, "hulls": {name: _facts(hull) for name, hull in hulls.items()}}, indent=1)
    target = Path(path)
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    try:
        partial.write_text(text + "\n", "utf-8")
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def load_hulls(path: str | os.PathLike[str], *, trainable: bool = True) -> dict[str, Hull]:
    """Return the hulls of a file of :func:`save_hulls`, by the names they had in their model.

    ``replace_activations(model, hull=lambda site: hulls[site.name])`` puts them into a model of the same kind; into
    another one, copies of any of them.

    Args:
        path: the file.
        trainable: whether their coefficients are parameters that learn, or stay as they are.

    Raises:
        ValueError: the file is no such file, or a base is not known.
    """
    text = Path(path).read_text("utf-8")
    try:
        content = json.loads(text)
        if content["format"] != _FORMAT:
            raise ValueError(f"its format is {content['format']!r}, not {_FORMAT!r}")
        return {name: _made(facts).requires_grad_(trainable) for name, facts in content["hulls"].items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{os.fspath(path)} is no file of save_hulls: {error}") from error


def _facts(hull: Hull) -> dict[str, Any]:
    return {
        "hull": hull.kind,
        "bases": [item.name for item in hull.bases],
        "parametrization": hull.constraint.parametrization.name,
        "groups": hull.groups,
        "channel_dim": hull.spec.channel_dim,
        "coefficients": hull.coefficients.detach().double().tolist(),
        "inner_scale": None if hull.inner_scale is None else hull.inner_scale.tolist(),
    }


def _made(facts: dict[str, Any]) -> Hull:
    options = {name: facts[name] for name in ("parametrization", "groups", "channel_dim")}
    scales = torch.tensor([]) if facts["inner_scale"] is None else torch.tensor(facts["inner_scale"])
    kind = None if not len(scales) else "hull" if scales.shape[-1] == 1 else "base"
    cls, init = _CLASSES[facts["hull"]], facts["coefficients"]
    made = cls(*facts["bases"], init=init, inner_scale=kind, strict=False, **options)
    if made.inner_scale is not None:
        made.inner_scale.data.copy_(scales)
    return made
