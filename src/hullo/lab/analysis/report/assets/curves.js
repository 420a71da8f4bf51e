"use strict";
// Learned activations, layer by layer, at any epoch.

const REACH = 3;
const POINTS = Array.from({length: 121}, (_, i) => REACH * (i / 60 - 1));
const LANDMARKS = [-REACH, -1, 1, REACH];
const MOST_PANELS = 9;

function layerCount() {
  return Math.max(0, ...currentColumn().runs.map((run) => run.coefficients.length));
}

/** Return the choices of layers in a deep network: some of all depths, or a range of neighbors. */
function layerChoices() {
  const count = layerCount();
  if (count <= MOST_PANELS) return [["", "all", Array.from({length: count}, (_, i) => i)]];
  const spread = Array.from({length: MOST_PANELS}, (_, i) => Math.round((i * (count - 1)) / (MOST_PANELS - 1)));
  const choices = [["", `${MOST_PANELS} of ${count}, through the depth`, spread]];
  for (let from = 0; from < count; from += MOST_PANELS) {
    const layers = Array.from({length: Math.min(MOST_PANELS, count - from)}, (_, i) => from + i);
    choices.push([String(from + 1), `${from + 1} to ${from + layers.length}`, layers]);
  }
  return choices;
}

function chosenLayers() {
  const choices = layerChoices();
  return (choices.find(([value]) => value === (state.layers ?? "")) ?? choices[0])[2];
}

function buildCurves() {
  const choices = layerChoices();
  const layers = select("layers", choices, state.layers ?? "", (value) => change({layers: value || null}));
  bodyOf("curves").replaceChildren(
    node("div", {class: "bar"}, choices.length > 1 ? labelled("Layers", layers) : null),
    node("p", {class: "lead", "data-part": "remark"}),
    node("div", {class: "panels"}),
  );
}

function updateCurves() {
  const body = bodyOf("curves");
  const panels = body.querySelector(".panels");
  const runs = chosenRows().flatMap((row) => chosenRuns(row).map((run) => ({row, run})));
  const drawn = runs.filter(({run}) => canDraw(run));
  const unknown = [...new Set(runs.flatMap(({run}) => run.bases).filter((name) => !Object.hasOwn(BASES, name)))];
  body.querySelector("[data-part=remark]").textContent = [
    runs.length ? "" : "Nothing to draw: choose an activation that learns, and a seed.",
    lostRemark(runs.map(({run}) => run)),
    unknown.length ? `Not drawn, because their formulas are unknown here: ${unknown.join(", ")}.` : "",
    drawn.some(({run}) => run.channels.length)
      ? "With one activation per channel, the line is their mean; after the last epoch, some of them are faint lines."
      : "",
  ]
    .filter(Boolean)
    .join(" ");
  const layers = drawn.every(({run}) => isLost(run)) ? [] : chosenLayers();
  const width = panelWidth(panels, 270, layers.length);
  const y = curveRange(drawn.map(({run}) => run));
  panels.replaceChildren(
    ...layers.map((layer) => {
      const chart = frame({
        label: `${layerName(layer)} at epoch ${currentEpoch()}: ${drawn.map(({row}) => row.name).join("; ")}`,
        width,
        height: Math.round(width * 0.72),
        x: [-REACH, REACH],
        y,
      });
      const lines = drawn.map(({row, run}) => {
        const coefficients = coefficientsAt(pathsOf(run)[layer], motion.shown);
        const ys = combine("value", coefficients, run.bases, POINTS);
        const text = chosenSeeds().length > 1 ? `${row.name}, seed ${run.spec.seed}` : row.name;
        const channels = motion.shown === currentColumn().epochs ? run.channels[layer] ?? [] : [];
        for (const channel of channels) {
          chart.plot.append(curve(chart, row, run, combine("value", channel, run.bases, POINTS), "faint"));
        }
        chart.plot.append(curve(chart, row, run, ys, ""));
        return {name: row.name, kind: row.kind, text, coefficients, bases: run.bases, ys};
      });
      followCurves(chart, POINTS, lines, (x) => `${layerName(layer)}, x = ${short(x)}`, short);
      return panel(layerName(layer), chart.svg, {
        rows: () => [
          ["x", ...lines.map(({text}) => text)],
          ...POINTS.map((x, i) => [x, ...lines.map(({ys}) => ys[i])]),
        ],
        code: () => lines.filter(({coefficients}) => !coefficients.includes(null)).map(codeLine).join(""),
      });
    }),
  );
}

/** Return the code of a learned hull; as stored, coefficients are rounded, and here they sum to one again. */
function codeLine({kind, text, coefficients, bases}) {
  const exact = ["convex", "affine"].includes(kind);
  const largest = coefficients.indexOf(Math.max(...coefficients));
  const missing = exact ? 1 - coefficients.reduce((sum, c) => sum + c, 0) : 0;
  const sound = coefficients.map((c, i) => (i === largest ? c + missing : c));
  return `${hullCode(kind, sound, bases)}  # ${text}\n`;
}

function curve({X, Y}, row, run, values, kind) {
  return node("path", {
    ...lookOf(row),
    class: `curve ${kind || row.kind}`,
    d: trace(POINTS.map(X), values.map(Y)),
    "data-run": run.id,
    "data-line": row.name,
  });
}

/** Return one range for all panels and epochs, so that curves move and axes do not. */
function curveRange(runs) {
  const {epochs} = currentColumn();
  const values = [-1, 1];
  for (const run of runs) {
    for (const paths of pathsOf(run)) {
      for (const share of [0, 0.1, 0.25, 0.5, 0.75, 1]) {
        const coefficients = coefficientsAt(paths, Math.round(share * epochs));
        values.push(...combine("value", coefficients, run.bases, LANDMARKS));
      }
    }
  }
  const [low, high] = rangeOf(values);
  return [Math.max(low, -12), Math.min(high, 12)];
}
