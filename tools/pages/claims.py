"""The paper's claims as Markdown: a summary, verdicts under each reading, all figures, power, and the paper's slips."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mode

from hullo.lab.analysis.experiments import Experiment, published_figures, under
from hullo.lab.analysis.power import MOST_SEEDS, detectable_difference
from hullo.lab.analysis.readings import BEST, READINGS, Reading
from hullo.lab.analysis.statistics import pooled_deviation
from hullo.lab.analysis.tables.markdown import escape, grid
from hullo.lab.spec import paper
from hullo.properties import is_monotone
from pages.answers import AGREES, FAILS, HOLDS, OPEN, PROVED, UNTESTED, Answer, Difference
from pages.verdicts import AFFINE, FIXED, HULLS, Claim, claims, known_layers, published_gain


def judge(experiments: Sequence[Experiment], reading: Reading | None = None) -> list[Claim]:
    """Return the claims under one reading, or by default under each experiment's own.

    By default, claims about the size of the paper's figures are judged under the paper's probable reading.
    """
    if reading is None:
        return claims(experiments, under(experiments, BEST))
    return claims(under(experiments, reading))


def summary_list(experiments: Sequence[Experiment]) -> str:
    """Return a line per claim under its verdict: how many of its answers hold, and the seeds that would decide it."""
    judged, parts = judge(experiments), []
    for verdict in (HOLDS, AGREES, PROVED, FAILS, OPEN, UNTESTED):
        lines = [f"- {escape(claim.statement)}{_counts(claim)}" for claim in judged if claim.verdict == verdict]
        parts += ["\n".join([f"**{verdict.capitalize()}**", "", *lines])] if lines else []
    return "\n\n".join(parts)


def readings_table(experiments: Sequence[Experiment]) -> str:
    """Return a line per claim that records answer, and a column per reading: the verdict, and how many answers hold."""
    readings = [reading for reading in READINGS.values() if under(experiments, reading)]
    judged = [judge(experiments, reading) for reading in readings]
    lines = [
        [escape(claims[0].statement), *(f"{claim.verdict}<br>{_support(claim)}" for claim in claims)]
        for claims in zip(*judged, strict=True)
        if claims[0].answers
    ]
    counts = [len(under(experiments, reading)) for reading in readings]
    heads = (f"{r.short}<br>{n} column{'s' * (n > 1)}" for r, n in zip(readings, counts, strict=True))
    return grid(["claim", *heads], lines)


def claims_tables(experiments: Sequence[Experiment]) -> str:
    """Return each claim that differences answer under a heading, and a table of the others."""
    judged = judge(experiments)
    others = [[escape(c.statement), f"**{c.verdict}**", c.said] for c in judged if not c.answers]
    about = "## Proved, counted or not tested\n\n" + grid(["claim", "verdict", "why"], others)
    return "\n\n".join([*map(render_claim, (claim for claim in judged if claim.answers)), about])


def render_claim(claim: Claim) -> str:
    """Return one claim as Markdown."""
    said = [f"{claim.said[0].upper()}{claim.said[1:]}.", _counted(claim)]
    if needed := _needed(claim):
        said.append(f"Fresh seeds that would decide: {needed}.")
    return f"### {escape(claim.statement)}: {claim.verdict}\n\n{' '.join(said)}\n\n{_table(claim)}".rstrip()


def _table(claim: Claim) -> str:
    """Return a line per question and a column per experiment; of one question alone, a line per experiment."""
    names = list(dict.fromkeys(answer.experiment for answer in claim.answers))
    asked: dict[str, dict[str, int]] = {}
    for i, answer in enumerate(claim.answers):
        asked.setdefault(answer.question, {})[answer.experiment] = i
    if len(asked) == 1:
        ((question, found),) = asked.items()
        figures = {name: "<br>".join(map(escape, claim.answers[i].figures)) for name, i in found.items()}
        return grid(
            ["column", escape(question), "verdict"],
            ([escape(name), figures[name], _verdict(claim, i)] for name, i in found.items()),
        )
    lines = (
        [escape(question), *(_cell(claim, found[name]) if name in found else "" for name in names)]
        for question, found in asked.items()
    )
    return grid(["", *map(escape, names)], lines)


def _counted(claim: Claim) -> str:
    """Return how many answers hold, alone and by the means."""
    said = f"Of {len(claim.answers)}: {_spell(claim.verdicts)}"
    if any(isinstance(answer, Difference) for answer in claim.answers):
        said += f"; by the means alone: {_spell([HOLDS for answer in claim.answers if answer.by_means]) or 'none'}"
    return f"{said}."


def _spell(verdicts: Sequence[str]) -> str:
    """Return how many answers have each verdict as text.

    >>> _spell(["holds", "holds", "does not hold", "undecided"])
    '2 hold, 1 does not hold, 1 undecided'
    """
    plural = {HOLDS: "hold", AGREES: "agree", FAILS: "do not hold", OPEN: OPEN}
    counts = {verdict: verdicts.count(verdict) for verdict in plural if verdict in verdicts}
    return ", ".join(f"{count} {verdict if count == 1 else plural[verdict]}" for verdict, count in counts.items())


def _support(claim: Claim) -> str:
    """Return how many answers hold, and how many do not: ``3 of 5, 1 not``."""
    fine = sum(verdict in (HOLDS, AGREES) for verdict in claim.verdicts)
    fails = f", {claim.verdicts.count(FAILS)} not" if FAILS in claim.verdicts else ""
    return f"{fine} of {len(claim.answers)}{fails}"


def _counts(claim: Claim) -> str:
    """Return the end of a claim's line: the answers that hold, and of an undecided one the seeds that would decide."""
    if not claim.answers:
        return ""
    needed = _needed(claim)
    return f" ({_support(claim)}{f'; fresh seeds that would decide: {needed}' if needed else ''})"


def _needed(claim: Claim) -> str:
    """Return the seeds that would decide a claim; nothing if it is decided."""
    return _seeds(claim.seeds_needed, claim.answers) if claim.verdict == OPEN else ""


def _seeds(needed: int | None, answers: Sequence[Answer]) -> str:
    """Return a needed number of seeds as text, also if it is too large to search for, or unknown with one seed."""
    if needed is not None:
        return str(needed)
    return "unknown" if max(answer.interval.count for answer in answers) == 1 else f"more than {MOST_SEEDS:,}"


def _cell(claim: Claim, i: int) -> str:
    return "<br>".join([*map(escape, claim.answers[i].figures), _verdict(claim, i)])


def _verdict(claim: Claim, i: int) -> str:
    """Return the verdict of an answer, bold if it stands among all answers; of an undecided one, the seeds needed."""
    answer, verdict = claim.answers[i], claim.verdicts[i]
    text = f"**{verdict}**" if claim.certain[i] or verdict == AGREES else verdict
    p = f", p = {min(answer.p):.2g}" if isinstance(answer, Difference) and min(answer.p) < 1 else ""
    needed = "" if verdict != OPEN else _seeds(answer.seeds_needed(), [answer])
    return f"{text}{p}: {needed} seeds" if needed and needed != "unknown" else f"{text}{p}"


def power_table(experiments: Sequence[Experiment]) -> str:
    """Return the differences that the seeds of most comparisons of each column can show, and more seeds would."""
    judged = judge(experiments)
    lines = []
    for experiment in experiments:
        answers = [a for claim in judged for a in _compared(claim.answers) if a.experiment == experiment.name]
        deviation = pooled_deviation([*answer.strongest.differences.values()] for answer in answers)
        if deviation is not None:
            seeds = mode(answer.interval.count for answer in answers if answer.interval.count > 1)
            found = (detectable_difference(deviation, number) for number in (seeds, 10, 20))
            lines.append([escape(experiment.name), f"{deviation:.2f}", str(seeds), *(f"{d:.2f}" for d in found)])
    return grid(["column", "deviation", "seeds", "these seeds", "10 seeds", "20 seeds"], lines)


def _compared(answers: Sequence[Answer]) -> list[Difference]:
    return [answer for answer in answers if isinstance(answer, Difference)]


def slips_list(experiments: Sequence[Experiment]) -> str:
    """Return where the paper's text contradicts its own table, or is wrong, with numbers."""
    without = [row for row in FIXED if row != "leaky_relu"]
    whole, rest = (
        {column: published_gain(published_figures(column), HULLS, fixed) or 0.0 for column in paper.COLUMNS}
        for fixed in (FIXED, without)
    )
    least, quoted = min(whole, key=whole.__getitem__), paper.QUOTED_GAINS
    first, _, alexnet = quoted
    layers = [
        (layer, record.bases)
        for experiment in experiments
        for record in experiment.records
        if record.spec.activation in AFFINE
        for layer in known_layers(record, experiment.read_epoch(record))
    ]
    outside = [is_monotone(layer, bases) is True for layer, bases in layers if min(layer) < 0]
    gains = (
        f"**The least gain.** The text gives {quoted[first]:.2f} points on {first} as the least of its gains over "
        f"customary activations. Its table has {whole[least]:.2f} on {least}, where leaky_relu is the best of "
        f"these. Without leaky_relu {quoted[first]:.2f} is the least, but then AlexNet's gain is "
        f"{rest[alexnet]:.2f}, not the {quoted[alexnet]:.2f} of the text, which counts leaky_relu."
    )
    cone = (
        "**The cone.** The text says that all non-decreasing combinations of non-decreasing functions lie in their "
        "convex cone. They do not: 2 identity - tanh increases everywhere and has a negative coefficient. Of the "
        f"{len(outside):,} activations with a negative coefficient that our affine hulls learned, {sum(outside):,} are "
        "monotone."
    )
    origin = (
        "**Slope one at the origin.** The proposition asks that every base has slope one at the origin. ReLU has it "
        "from the right alone, so hulls that contain it approximate the identity from the right alone."
    )
    dimension = (
        "**The dimension.** The text gives the affine hull of N functions the dimension N - 1. That asks for affinely "
        "independent functions: leaky ReLU is in the hull of identity and ReLU, so that of all three is a line."
    )
    crop = "**The crop.** The text crops images of ILSVRC-2012 to 227 x 277 pixels; AlexNet takes 227 x 227."
    texts = (gains.replace("leaky_relu", r"leaky\_relu"), cone, origin, dimension, crop)
    return "\n".join(f"- {text}" for text in texts)
