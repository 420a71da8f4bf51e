"""One session of `hullo bench`: check the options, then measure, print and save."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from hullo.lab.bench.cases import CONTENDERS, DTYPES, Case, make_cases, parse_names, parse_sizes
from hullo.lab.bench.clocks import Clock, clock_for
from hullo.lab.bench.measure import Bench
from hullo.lab.bench.results import Row, RowFile, draw_chart, terminal_tables
from hullo.lab.progress import Progress
from hullo.lab.spec.environment import environment


@dataclass(frozen=True)
class Session:
    """A session with valid options."""

    clock: Clock
    cases: list[Case]
    activations: tuple[str, ...]
    repeats: int
    budget: float
    commit: str | None
    folder: Path | None
    file: RowFile | None

    @classmethod
    def prepare(
        cls,
        *,
        device: str | None,
        sizes: str | None,
        dtypes: str | None,
        activations: str,
        repeats: int,
        budget: float,
        commit: str | None,
        folder: Path | None,
    ) -> Session:
        """Return a session from command-line options; raise a ValueError for an invalid option."""
        clock = clock_for(device)
        cases = make_cases(
            parse_sizes(clock.default_sizes if sizes is None else sizes),
            parse_names(clock.default_dtypes if dtypes is None else dtypes, DTYPES, "dtype"),
        )
        names = parse_names(activations, CONTENDERS, "activation")
        if repeats < 1:
            raise ValueError(f"{repeats} repeats: must be at least 1")
        if not budget > 0:
            raise ValueError(f"a budget of {budget:g} seconds: must be above 0")
        try:
            file = None if folder is None else RowFile(folder / f"{clock.file_stem}.csv")
        except OSError as error:
            raise ValueError(f"cannot write {error.filename}: {error.strerror}; choose another directory") from error
        return cls(clock, cases, names, repeats, budget, commit, folder, file)

    def run(self, console: Console, *, quiet: bool = False) -> None:
        """Measure, print and save each part when it is finished; draw the chart at the end."""
        rows: list[Row] = []
        with self.file or nullcontext(), Progress(console, quiet=quiet) as progress:
            here = environment(self.clock.device_name, self.commit)
            bench = Bench(self.clock, here, self.activations, self.repeats, progress)
            for part in bench.run(bench.tasks(self.cases), self.budget):
                rows += part
                if self.file is not None:
                    self.file.add(part)
                for table in terminal_tables(part):
                    console.print(table)
            if self.folder is not None and any(row.kind == "eager" for row in rows):
                draw_chart(rows, self.folder / f"{self.clock.file_stem}.png")
