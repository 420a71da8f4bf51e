"""Planned runs: pairs, seeds, tests and margins fixed in advance, and what the runs say once they are there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hullo.lab.analysis.experiments import Experiment
from hullo.lab.analysis.inference import compare
from hullo.lab.analysis.statistics import ALPHA, Interval, t_quantile
from hullo.lab.analysis.tables.markdown import escape, grid
from hullo.lab.spec.paper import Column, parse_column


@dataclass(frozen=True)
class Plan:
    """A pair of activations that is to be compared on fresh seeds.

    Args:
        column: network and data.
        row, other: the hull and the fixed activation with the best means over the seeds that were there.
        seeds: the fresh ones.
        margin: of equivalence, in points; None to test for a difference.
        val_size: the number of images held out.
    """

    column: Column
    row: str
    other: str
    seeds: range
    margin: float | None = None
    val_size: int = 2500

    @property
    def test(self) -> str:
        if self.margin is None:
            return "difference: paired t test at 5 %"
        return f"equivalence within {self.margin:g} points: two one-sided paired t tests at 5 %"

    @property
    def command(self) -> str:
        """Return the command that makes the runs; seeds that have records are not run again."""
        settings = f"--seeds {self.seeds.stop} --epochs 200 --val-size {self.val_size} --precision bfloat16"
        rows = f'--activation "{self.row}" --activation {self.other}'
        return f"hullo reproduce {self.column} {settings} --output results/table {rows}"

    def judge(self, experiment: Experiment) -> str:
        """Return what the fresh runs say, or how many of them there are."""
        scores = {name: experiment.accuracies.get(name, {}) for name in (self.row, self.other)}
        fresh = {name: {s: own[s] for s in self.seeds if s in own} for name, own in scores.items()}
        found = compare(fresh, [self.row], [self.other])
        if not found or len(found.seeds) < len(self.seeds):
            return f"{len(found.seeds) if found else 0} of {len(self.seeds)} runs of each"
        gain = found.interval
        if self.margin is None:
            verdict = "undecided" if found.p > ALPHA else "the hull gains" if gain.mean > 0 else "the hull loses"
            return f"{gain.spell('+.2f')}, p = {found.p:.2g}: {verdict}"
        verdict = "equivalent" if is_equivalent(gain, self.margin) else "not shown to be equivalent"
        return f"{gain.spell('+.2f')}: {verdict}"


PLANS = (
    Plan(parse_column("lenet5/cifar10"), "convex(identity,relu)", "relu", range(5, 25)),
    Plan(parse_column("lenet5/fashion-mnist"), "affine(relu,tanh)", "tanh", range(5, 25), margin=0.3, val_size=3000),
    Plan(parse_column("resnet56/cifar10"), "convex(identity,relu)", "leaky_relu", range(3, 11)),
)


def is_equivalent(gain: Interval, margin: float) -> bool:
    """Return whether a mean lies within a margin of zero by two one-sided t tests at 5 %: by its 90 % interval.

    >>> is_equivalent(Interval.of([0.1, 0.0, -0.1, 0.05]), 0.3), is_equivalent(Interval.of([0.1, 0.6]), 0.3)
    (True, False)
    """
    if gain.half is None:
        return False
    half = gain.half * t_quantile(gain.count - 1, 1 - 2 * ALPHA) / t_quantile(gain.count - 1)
    return abs(gain.mean) + half < margin


def plans_part(experiments: Sequence[Experiment]) -> str:
    """Return the plans with their results, and the commands."""
    by_column = {experiment.setting.column: experiment for experiment in experiments}
    lines = []
    for plan in PLANS:
        pair, seeds = f"{plan.row} over {plan.other}", f"{plan.seeds.start} to {plan.seeds.stop - 1}"
        result = plan.judge(by_column[plan.column]) if plan.column in by_column else "not run"
        lines.append([*map(escape, (str(plan.column), pair)), seeds, plan.test, result])
    table = grid(["column", "pair", "fresh seeds", "test", "result"], lines)
    return "\n".join([table, "", "```", *(plan.command for plan in PLANS), "```"])
