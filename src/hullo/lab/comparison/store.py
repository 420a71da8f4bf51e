"""The folder of a comparison: every run, what was planned and decided, and the weights of the best networks."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save
from torch import Tensor, nn

from hullo.lab.comparison.decision import Arm, Score
from hullo.lab.files import atomic_write, make_directory
from hullo.lab.spec.records import Record, Records
from hullo.lab.spec.run_spec import Spec

STATE, TRIALS, RECORDS, CHECKPOINT = "comparison.json", "trials.jsonl", "records.jsonl", "checkpoint.safetensors"


@dataclass
class Store:
    """Keep a comparison on disk, so that a killed one resumes and a finished one can be extended.

    ``trials.jsonl`` has a record of each run, at its learning rate; ``records.jsonl`` those at the rate that was chosen
    for the candidate, which tables, figures and pages compare; ``comparison.json`` the plan, the looks and the finding.
    """

    folder: Path
    sign: float  # -1 if a lower metric is better
    state: dict[str, Any] = field(default_factory=dict)
    records: dict[Arm, Record] = field(default_factory=dict)

    def __post_init__(self) -> None:
        make_directory(self.folder)
        path = self.folder / STATE
        if path.exists():
            with path.open("rb") as file:
                try:
                    self.state = json.load(file)
                except ValueError as error:
                    raise ValueError(f"{path} is damaged: {error}; delete it, or choose another output") from None
        for record in self._trials.read():
            self.records[_arm(record)] = record

    @property
    def _trials(self) -> Records:
        return Records(self.folder / TRIALS)

    @property
    def spent(self) -> float:
        """Return the seconds that were spent on this comparison."""
        return float(self.state.get("seconds", 0.0))

    def update(self, **changes: Any) -> None:
        """Change the state and write it atomically."""
        self.state |= changes
        with atomic_write(self.folder / STATE) as file:
            file.write(json.dumps(self.state, indent=1).encode() + b"\n")

    def add(self, records: Iterable[Record], seconds: float) -> None:
        """Append the records of runs; all together took some seconds up to now."""
        new = list(records)
        self._trials.add(new)
        self.records |= {_arm(record): record for record in new}
        self.update(seconds=seconds)
        (self.folder / CHECKPOINT).unlink(missing_ok=True)

    def publish(self, rates: dict[str, float]) -> None:
        """Record the runs at the chosen learning rates for tables, figures and pages."""
        chosen = [record for arm, record in self.records.items() if rates.get(arm.candidate) == arm.lr]
        Records(self.folder / RECORDS).add(replace(record, spec=_tuned(record.spec)) for record in chosen)

    def score(self, arm: Arm) -> Score | None:
        """Return the score of a run; None if it was not trained."""
        record = self.records.get(arm)
        if record is None:
            return None
        if record.diverged:
            return Score(math.nan, math.nan)
        values = [self.sign * value for value in record.val_scores]
        best = values.index(max(values))
        return Score(values[best], self.sign * record.test_scores[best])

    def save_weights(self, name: str, network: nn.Module) -> None:
        """Save the state dict of a network; its hulls can be restored from it."""
        tensors = {
            key: value.detach().cpu().contiguous().clone()
            for key, value in network.state_dict().items()
            if isinstance(value, Tensor)
        }
        path = self.weights_path(name)
        path.parent.mkdir(exist_ok=True)
        with atomic_write(path) as file:
            file.write(save(tensors))

    def load_weights(self, name: str, network: nn.Module) -> nn.Module:
        """Load the weights of a candidate's best member into a network of its structure."""
        network.load_state_dict(load_file(self.weights_path(name)))
        return network.eval()

    def weights_path(self, name: str) -> Path:
        letters = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in name).strip("-")
        return self.folder / "weights" / f"{letters}.safetensors"

    def save_examples(self, arm: Arm, scores: Tensor) -> None:
        """Save the score of each test sample, of a run of the confirmation."""
        path = self._examples_path(arm)
        path.parent.mkdir(exist_ok=True)
        with atomic_write(path) as file:
            file.write(save({"scores": scores.float().cpu().contiguous()}))

    def load_examples(self, arm: Arm) -> Tensor | None:
        """Return what `save_examples` saved."""
        path = self._examples_path(arm)
        return load_file(path)["scores"].double() if path.exists() else None

    def _examples_path(self, arm: Arm) -> Path:
        return self.folder / "examples" / f"{self.records[arm].spec.id}.safetensors"


def _arm(record: Record) -> Arm:
    return Arm(record.spec.activation, float(record.spec.conditions["lr"]), record.spec.seed)


def _tuned(spec: Spec) -> Spec:
    """Return a spec with the learning rate spelled as "tuned", so that candidates are compared at their own."""
    words = (word for word in (spec.settings or "").split() if not word.startswith("lr="))
    return replace(spec, settings=" ".join(sorted(["lr=tuned", *words])))
