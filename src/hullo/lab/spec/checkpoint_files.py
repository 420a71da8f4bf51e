"""Find checkpoints and the runs that they continue."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import SafetensorError, safe_open

from hullo.lab.spec.run_spec import Spec, identify

VERSION = "6"
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
    """Return the specs of a checkpoint, without its tensors; raise a ValueError if the file is not a checkpoint."""
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
        if (version := metadata.get("version")) != VERSION:
            raise ValueError(f"version {version or 'none'}, this hullo reads version {VERSION}")
        members = tuple(map(Spec.parse, json.loads(metadata["specs"])))
        if (name := identify(members)) != path.stem:
            raise ValueError(f"its specs belong to {name}.safetensors")
    except FileNotFoundError:
        raise
    except (AttributeError, KeyError, OSError, SafetensorError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a checkpoint of this hullo: {error}; {REMEDY}") from None
    return members
