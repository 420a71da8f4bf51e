"""Figure of coefficients over training."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from hullo.lab.analysis.experiments import Experiment
from hullo.lab.analysis.figures.learned import LearnedCoefficients, Pair, find_learned, spell_seeds, spell_time
from hullo.lab.analysis.figures.style import FAINT, MANY, WIDTH, Round, depth_bar, entitle, explain, shade

LINES = ("-", (0, (5, 1.5)), (0, (2, 1)), (0, (5, 1, 1, 1)))


def draw_coefficients(experiment: Experiment, seed: int | None = None) -> dict[str, Figure]:
    """Draw a figure for each set of bases, by what the rows have in their parentheses: coefficients over epochs."""
    figures = {}
    for pair in find_learned(experiment, seed):
        figures[pair.about] = figure = _draw(pair)
        entitle(
            figure,
            f"{experiment.name}: coefficients of {pair.about} over {spell_time(experiment)}, {spell_seeds([pair])}",
        )
    return figures


def _draw(pair: Pair) -> Figure:
    """Draw a row of panels per hull, a panel per base."""
    figure = Figure(figsize=(WIDTH, 0.7 + 2.1 * len(pair.runs)), layout="constrained")
    panels = figure.subplots(len(pair.runs), len(pair.bases), sharex=True, sharey=True, squeeze=False)
    for line, (kind, run) in zip(panels, pair.runs.items(), strict=True):
        line[0].set_ylabel(", ".join(filter(None, ("coefficient", pair.of_channels))))
        for i, (panel, base) in enumerate(zip(line, pair.bases, strict=True)):
            panel.set_title(f"{kind}: {base}")
            _draw_lines(panel, run, i)
    for panel in panels[-1]:
        panel.set_xlabel("epoch")
    panels[0, 0].xaxis.set_major_locator(Round(integer=True))
    if run.layers > MANY:
        depth_bar(figure, panels, run.layers)
    else:
        keys, _ = panels[0, 0].get_legend_handles_labels()
        explain(figure, keys, ncols=int(WIDTH / 2.3), handlelength=3.0)
    return figure


def _draw_lines(panel: Axes, run: LearnedCoefficients, base: int) -> None:
    for bound in (0.0, 1.0):
        # an artist, not a line of the panel: it is to be seen where it is in view, and not to widen the view
        line = Line2D([0, 1], [bound] * 2, transform=panel.get_yaxis_transform(), color=FAINT, linewidth=0.8, zorder=0)
        panel.add_artist(line)
    for layer, path in enumerate(run.paths[:, :, base].T):
        few, style = run.layers <= MANY, layer % len(LINES)
        # broken lines above whole ones, so that both are seen where coefficients are the same
        look = {"linestyle": LINES[style], "linewidth": 1.3, "zorder": 2 + style} if few else {"linewidth": 0.7}
        panel.plot(path, color=shade(layer, run.layers), label=run.names[layer], **look)
