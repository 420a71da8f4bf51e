"""The folder of a comparison: every network, what was planned and decided, and the weights of the best networks."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor, nn

from hullo.lab.comparison.decision import Score, Trial
from hullo.lab.files import atomic_write, write_tensors
from hullo.lab.spec.records import Record, Records
from hullo.lab.spec.run_spec import Spec


@dataclass
class Store:
    """Keep a comparison on disk, so that a killed one resumes and a finished one can be extended.

    ``trials.jsonl`` has a record of each network, at its learning rate; ``records.jsonl`` those at the rate that was
    chosen for the candidate, which tables, figures and pages compare; ``comparison.json`` the plan, the choice, the
    looks and the finding.
    """

    folder: Path
    sign: float  # -1 if a lower metric is better
    state: dict[str, Any] = field(default_factory=dict)
    records: dict[Trial, Record] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._state = self.folder / "comparison.json"
        if self._state.exists():
            try:
                self.state = json.loads(self._state.read_bytes())
            except ValueError as error:
                raise ValueError(f"{self._state} is damaged: {error}; delete it, or choose another output") from None
        self._trials = Records(self.folder / "trials.jsonl")
        for record in self._trials.read():
            lr = float(record.spec.conditions["lr"])
            self.records[Trial(record.spec.activation, lr, record.spec.seed)] = record

    def update(self, **changes: Any) -> None:
        """Change the state and write it atomically."""
        self.state |= changes
        with atomic_write(self._state) as file:
            file.write(json.dumps(self.state, indent=1).encode() + b"\n")

    def add(self, records: Mapping[Trial, Record]) -> None:
        """Append records."""
        self._trials.add(records.values())
        self.records |= records

    def publish(self, rates: Mapping[str, float]) -> None:
        """Record the networks at the chosen learning rates for tables, figures and pages.

        Their rate is spelled "tuned", so that candidates are compared at their own.
        """

        def tuned(spec: Spec) -> Spec:
            return replace(spec, settings=re.sub(r"\blr=\S+", "lr=tuned", spec.settings or ""))

        chosen = (record for trial, record in self.records.items() if rates.get(trial.candidate) == trial.lr)
        Records(self.folder / "records.jsonl").add(replace(record, spec=tuned(record.spec)) for record in chosen)

    def score(self, trial: Trial) -> Score:
        """Return the score of a trial that has a record."""
        return score_of(self.records[trial], self.sign)

    def scores(self) -> dict[Trial, Score]:
        """Return the scores of all trials that have a record."""
        return {trial: self.score(trial) for trial in self.records}

    def save_weights(self, name: str, state: Mapping[str, Tensor]) -> None:
        """Save the state dict of a network; its hulls can be restored from it."""
        write_tensors(self._weights_path(name), state)

    def load_weights(self, name: str, network: nn.Module) -> nn.Module:
        """Load the weights of a candidate's best member into a network of its structure."""
        path = self._weights_path(name)
        if not path.exists():
            raise ValueError(f"there are no weights of {name}: none of its networks was trained without diverging")
        network.load_state_dict(load_file(path))
        return network.eval()

    def _weights_path(self, name: str) -> Path:
        letters = re.sub(r"[^\w.-]", "-", name).strip("-")
        return self.folder / "weights" / f"{letters}.safetensors"

    def save_examples(self, record: Record, scores: Tensor) -> None:
        """Save the score of each test sample, of a network of the confirmation."""
        write_tensors(self._examples_path(record), {"scores": scores.float()})

    def load_examples(self, trial: Trial) -> Tensor | None:
        """Return what `save_examples` saved."""
        path = self._examples_path(self.records[trial])
        return load_file(path)["scores"].double() if path.exists() else None

    def _examples_path(self, record: Record) -> Path:
        return self.folder / "examples" / f"{record.spec.id}.safetensors"


def score_of(record: Record, sign: float) -> Score:
    """Return the score of a network after the epoch that was best on validation data.

    `sign` is 1, or -1 if lower is better.
    """
    if record.diverged:
        return Score(math.nan, math.nan)
    values = [sign * value for value in record.val_scores]
    best = values.index(max(values))
    return Score(values[best], sign * record.test_scores[best])
