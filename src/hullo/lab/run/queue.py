"""What is to be done for a set of runs: populations, until every run has its record."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hullo.lab.errors import RunError
from hullo.lab.run.checkpoints import Checkpoints
from hullo.lab.spec.records import Record, Records
from hullo.lab.spec.run_spec import Spec

Population = tuple[Spec, ...]


@dataclass
class RunQueue:
    """Runs to be made into an output directory: those that it has no record of.

    Args:
        specs: the runs.
        output: the directory of the records, and of checkpoints while there are runs under way.
        members: how many runs are trained side by side at most; None for as many as fit into memory.
        weights: whether the trained networks are saved, in the folder ``weights`` of the output directory.

    Example:
        >>> from dataclasses import replace
        >>> from tempfile import TemporaryDirectory
        >>> spec = Spec("lenet5", "cifar10", "relu")
        >>> specs = [replace(spec, seed=seed, batch_size=size) for size in (32, 64) for seed in (0, 1)]
        >>> with TemporaryDirectory() as output:
        ...     for population in RunQueue(specs, Path(output)).populations():
        ...         print([(spec.batch_size, spec.seed) for spec in population])
        [(32, 0), (32, 1)]
        [(64, 0), (64, 1)]
    """

    specs: Sequence[Spec]
    output: Path
    members: int | None = None
    weights: bool = False
    _fitting: dict[Spec, int] = field(default_factory=dict, repr=False)

    @property
    def records(self) -> Records:
        return Records(self.output / "records.jsonl")

    @property
    def checkpoints(self) -> Checkpoints:
        return Checkpoints(self.output / "checkpoints")

    @property
    def finished(self) -> Checkpoints:
        """Return the last states of populations whose weights are kept: longer runs go on from there."""
        return Checkpoints(self.output / "finished")

    def populations(self, aside: Collection[Spec] = ()) -> list[Population]:
        """What is to be trained: populations that were begun, as they were, then what else can stand side by side.

        Runs `aside` are left out, as those that are under way.
        """
        recorded = {record.spec for record in self.records.read()}
        missing = [spec for spec in dict.fromkeys(self.specs) if spec not in recorded and spec not in aside]
        found = []
        for begun in self.checkpoints.begun():
            if recorded.issuperset(begun):  # a process was killed just before it would have done this
                self.checkpoints.drop(begun)
            elif not set(begun).isdisjoint(missing):
                found.append(begun)
                missing = [spec for spec in missing if spec not in begun]
        while missing:
            population_key = missing[0].population_key
            side_by_side = [spec for spec in missing if spec.population_key == population_key]
            population = tuple(side_by_side[: self._fitting.get(population_key, self.members)])
            found.append(population)
            missing = [spec for spec in missing if spec not in population]
        return found

    def split_in_half(self, population: Population) -> str:
        """Try half as many side by side from now on, as these do not fit into memory; a note that says so."""
        if len(population) == 1:
            raise does_not_fit(population)
        self.checkpoints.drop(population)
        half = (len(population) + 1) // 2
        self._fitting[population[0].population_key] = half
        return f"{len(population)} networks do not fit into memory; trying {half} at a time"

    def commit(self, population: Population, records: Sequence[Record]) -> None:
        """Keep the records of a population that was trained; its checkpoint has done its duty."""
        self.records.add(records)
        self.checkpoints.drop(population)

    def outcome(self) -> list[Record]:
        """The records of all runs, when there are no more populations."""
        found = {record.spec: record for record in self.records.read()}
        if lost := [spec for spec in self.specs if spec not in found]:
            raise RunError(
                f"{self.records.path} has lost the record of {lost[0]} since it was added; give the command again to "
                "train what is missing"
            )
        return [found[spec] for spec in self.specs]


def title(population: Population) -> str:
    """A population in a line of progress: its column and how many they are."""
    return f"{population[0].column} x {len(population)}"


def does_not_fit(population: Population) -> RunError:
    return RunError(f"{population[0]} does not fit into memory; choose a smaller --batch-size")
