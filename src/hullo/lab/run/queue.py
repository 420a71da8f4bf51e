"""The queue of runs: groups runs without a record into populations to train."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hullo.lab.errors import RunError
from hullo.lab.files import check_writable, make_directory
from hullo.lab.run.checkpoints import Checkpoints
from hullo.lab.spec.records import Record, Records
from hullo.lab.spec.run_spec import Spec

Members = tuple[Spec, ...]  # of a population


@dataclass
class RunQueue:
    """The runs of an output directory, and those of them that have no record yet.

    Args:
        specs: the runs.
        output: the directory of the records, and of the checkpoints of unfinished runs.
        members: the largest number of runs in a population; None for as many as fit into memory.
        weights: whether to save the trained networks in the folder ``weights`` of the output directory.

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
    _max_members: dict[Spec, int] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.specs = list(dict.fromkeys(self.specs))

    @property
    def records(self) -> Records:
        return Records(self.output / "records.jsonl")

    @property
    def checkpoints(self) -> Checkpoints:
        return Checkpoints(self.output / "checkpoints")

    def prepare_output(self) -> None:
        """Create the output directory if runs have to be trained; raise a ValueError if results cannot be written."""
        if not self.populations():
            return
        make_directory(self.output)
        if self.records.path.exists():
            check_writable(self.records.path)
        for folder in (self.checkpoints.folder, self.output / "weights"):
            if folder.exists():  # others are made in the output directory
                make_directory(folder)

    def populations(self, exclude: Collection[Spec] = ()) -> list[Members]:
        """Return the populations to train: those with a checkpoint first, unchanged, then new ones.

        Runs in `exclude`, such as those that are being trained, are left out.
        """
        recorded = {record.spec for record in self.records.read()}
        missing = [spec for spec in self.specs if spec not in recorded and spec not in exclude]
        populations = []
        for started in self.checkpoints.started():
            if recorded.issuperset(started):  # a process was killed before it could delete the checkpoint
                self.checkpoints.delete(started)
            elif not set(started).isdisjoint(missing):
                populations.append(started)
                missing = [spec for spec in missing if spec not in started]
        while missing:
            population_key = missing[0].population_key
            compatible = [spec for spec in missing if spec.population_key == population_key]
            population = tuple(compatible[: self._max_members.get(population_key, self.members)])
            populations.append(population)
            missing = [spec for spec in missing if spec not in population]
        return populations

    def split_in_half(self, population: Members) -> str:
        """Halve the size of populations like this one, which does not fit into memory; return a note that says so."""
        if len(population) == 1:
            raise out_of_memory_error(population)
        self.checkpoints.delete(population)
        half = (len(population) + 1) // 2
        self._max_members[population[0].population_key] = half
        return f"{len(population)} networks do not fit into memory; trying {half} at a time"

    def commit(self, population: Members, records: Sequence[Record]) -> None:
        """Write the records of a trained population, and delete its checkpoint."""
        self.records.add(records)
        self.checkpoints.delete(population)

    def results(self) -> list[Record]:
        """Return the records of all runs, once there are no more populations to train."""
        recorded = self.records.find(self.specs)
        return [recorded[spec] for spec in self.specs]


def weights_path(output: Path, spec: Spec) -> Path:
    """Return where the weights of a run are saved under an output directory: its id names the file."""
    return output / "weights" / f"{spec.id}.safetensors"


def describe_population(population: Members) -> str:
    """Return a short description of a population for progress lines: its column and its size."""
    networks = "1 network" if len(population) == 1 else f"{len(population)} networks"
    return f"{population[0].column.without_hashes}: {networks}"


def out_of_memory_error(population: Members) -> RunError:
    """Return the error for a run that does not fit into memory even alone."""
    return RunError(f"{population[0]} does not fit into memory; choose a smaller --batch-size")
