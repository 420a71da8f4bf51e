"""Read checkpoint files: their specs, metadata and tensors."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import SafetensorError
from torch import Tensor

from hullo.lab.files import read_safetensors
from hullo.lab.spec.run_spec import Spec, identify

VERSION = "5"
REMEDY = "delete it to train its runs from the start"


def scan_checkpoints(folder: Path) -> tuple[list[tuple[Spec, ...]], list[str]]:
    """Return the members of each population with a checkpoint, and error messages for other files."""
    populations, flaws = [], []
    for path in sorted(folder.glob("*.safetensors")):
        try:
            populations.append(read_members(path))
        except FileNotFoundError:  # another process has just recorded it
            continue
        except ValueError as error:
            flaws.append(str(error))
    return populations, flaws


def read_members(path: Path) -> tuple[Spec, ...]:
    """Return the specs of a checkpoint from its metadata; raise a ValueError if the file is not a checkpoint."""
    metadata, _ = read_checkpoint(path, tensors=False)
    if (version := metadata.get("version")) != VERSION:
        raise ValueError(
            f"{path} is a checkpoint of version {version or 'none'}, this hullo reads version {VERSION}; finish the "
            f"runs with the hullo that wrote it, or {REMEDY}"
        )
    try:
        members = tuple(map(Spec.parse, json.loads(metadata["specs"])))
        if (name := identify(members)) != path.stem:
            raise ValueError(f"its specs belong to {name}.safetensors")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a checkpoint: {error}; {REMEDY}") from None
    return members


def read_checkpoint(path: Path, *, tensors: bool = True) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Return the metadata of a file and, if requested, its tensors."""
    try:
        return read_safetensors(path, tensors=tensors)
    except FileNotFoundError:
        raise
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path} cannot be read as a checkpoint: {error}; {REMEDY}") from None
