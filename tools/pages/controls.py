"""Controls: the same runs with one setting changed, compared with those of the table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hullo.lab.analysis.experiments import REFERENCE, SETTINGS, Experiment
from hullo.lab.analysis.inference import compare
from hullo.lab.analysis.readings import CHOSEN, LAST10, Reading
from hullo.lab.analysis.statistics import paired
from hullo.lab.analysis.tables.format import provenance
from hullo.lab.analysis.tables.markdown import escape, grid
from hullo.lab.spec.run_spec import Spec
from pages.answers import exceed_each
from pages.verdicts import FIXED, HULLS

VARIANTS = {"resnet56_he": "resnet56"}
"""Networks that are controls, and the network of the table that each is compared with."""
SHARED = ("epochs", "precision", "val_size")
"""Settings that a control has in common with the runs that it is compared with, whatever the defaults are."""

ABOUT = """\
A gain in a control is that of the table's best hull over the strongest fixed activation of the control, on all of its
seeds; a gain in the table is that of the claims. Intervals are Student's at 95 %, not corrected for their number."""

Pair = tuple[Experiment, Experiment]
"""A control, and the runs of the table that it is compared with; these may be none."""


def controls_part(experiments: Sequence[Experiment]) -> str:
    """Return the gains of all controls, then a table per control and reading; nothing if there are no controls."""
    pairs = find_pairs(experiments)
    return "\n\n".join(filter(None, [ABOUT, _gains_table(pairs), *map(_tables, pairs), _made(pairs)])) if pairs else ""


def find_pairs(experiments: Sequence[Experiment]) -> list[Pair]:
    """Return each control and the runs that it is compared with."""
    return [(e, _counterpart(e, experiments)) for e in experiments if _changed(e.setting)]


def _made(pairs: Sequence[Pair]) -> str:
    """Return what the controls, and the runs beside them, were run with."""
    return f"<sub>{escape(provenance(record for pair in pairs for e in pair for record in e.records))}</sub>"


def _plain(setting: Spec) -> Spec:
    """Return the default setting, except for what a control shares with the table."""
    shared = {name: getattr(setting, name) for name in SHARED}
    network = VARIANTS.get(setting.network, setting.network)
    return Spec.default(network, setting.data, setting.activation, seed=setting.seed, **shared)


def _changed(setting: Spec) -> list[str]:
    """Return the names of the settings that make a control."""
    return [name for name in ("network", *SETTINGS) if getattr(setting, name) != getattr(_plain(setting), name)]


def _counterpart(control: Experiment, experiments: Sequence[Experiment]) -> Experiment:
    """Return the runs to compare a control with: default settings, read after as many epochs; none if not run yet."""
    plain = _plain(control.setting)
    fitting = [e for e in experiments if e.epoch >= control.epoch and replace(e.setting, epochs=plain.epochs) == plain]
    if not fitting:
        return replace(control, setting=plain, records=())
    nearest = min(fitting, key=lambda e: e.epoch)
    return replace(nearest, epoch=control.epoch, reading=control.reading)


def _gains_table(pairs: Sequence[Pair]) -> str:
    """Return the gain of the table's best hull over the strongest fixed activation of each control, and in the table.

    Both are the fairest reading that the control has. The runs of the table choose the hull, so that those of the
    control choose nothing.
    """
    lines = []
    for control, table in pairs:
        reading = _readings(control)[0]
        chosen = compare(replace(table, reading=reading).accuracies, HULLS, FIXED)
        if chosen and (each := exceed_each(replace(control, reading=reading).accuracies, chosen.row, FIXED)):
            gains = (f"{escape(g.row)} over {escape(g.other)}<br>{g.interval.spell('+.2f')}" for g in (each[0], chosen))
            lines.append([escape(_name(control, table)), reading.short, *gains])
    return grid(["control", "reading", "gain of the hull: control", "table"], lines) if lines else ""


def _name(control: Experiment, table: Experiment) -> str:
    """Return the column, the settings that were changed, and the epochs of a control."""
    ours, usual = control.setting, table.setting
    changed = (f"{name}={getattr(ours, name)} (default {getattr(usual, name)})" for name in _changed(ours))
    return ", ".join([str(usual.column), *changed, control.time])


def _readings(control: Experiment) -> list[Reading]:
    return [reading for reading in (CHOSEN, LAST10) if reading in control.by_reading] or [control.reading]


def _tables(pair: Pair) -> str:
    tables = (_table(pair, reading) for reading in _readings(pair[0]))
    return "\n\n".join([f"### {escape(_name(*pair))}", *tables])


def _table(pair: Pair, reading: Reading) -> str:
    """Return a row per activation under one reading."""
    control, table = on_shared_seeds(*(replace(experiment, reading=reading) for experiment in pair))
    known, lines = table.cells if table.records else {}, []
    for row, cell in control.cells.items():
        compared, beside = ["", ""], known.get(row)
        if beside and (change := paired(control.accuracies[row], table.accuracies[row])):
            compared = [beside.accuracy.spell(), change.spell("+.2f")]
        leads = (found.over_reference if found else None for found in (cell, beside))
        shown = ("" if lead is None else lead.spell("+.2f") for lead in leads)
        paper = f"{beside.published:.2f}" if beside and beside.published is not None else ""
        lines.append([escape(row), cell.accuracy.spell(), *compared, *shown, paper, str(cell.accuracy.count)])
    over = (f"over {REFERENCE}: {name}" for name in ("control", "table"))
    head = ["activation", "control", "table", "difference", *over, "paper", "seeds"]
    return f"{reading.short.capitalize()}.\n\n{grid(head, lines)}"


def on_shared_seeds(control: Experiment, table: Experiment) -> Pair:
    """Return the runs whose activation and seed both have, and of activations that are not in both, the control's."""
    found = [{(r.spec.activation, r.spec.seed) for r in e.records} for e in (control, table)]
    shared = found[0] & found[1]
    kept = shared | {key for key in found[0] if key[0] not in {activation for activation, _ in shared}}
    control, table = (
        replace(e, records=tuple(r for r in e.records if (r.spec.activation, r.spec.seed) in keys))
        for e, keys in ((control, kept), (table, shared))
    )
    return control, table
