"use strict";
// Accuracy and loss over the epochs.

const METRICS = {
  test_accuracy: "test accuracy, %",
  val_accuracy: "accuracy on held-out images, %",
  test_metric: "test metric",
  val_metric: "metric on held-out data",
  test_top5: "test top-5 accuracy, %",
  test_loss: "test loss",
  val_loss: "loss on held-out images",
  train_loss: "training loss",
};

/** Return what a metric is called in the column. */
function metricName(name) {
  return METRICS[name].replace("metric", currentColumn().metric);
}

/** Return the metrics that the runs of the column have. */
function knownMetrics() {
  return Object.keys(METRICS).filter((name) => currentColumn().runs.some((run) => run[name].length));
}

function currentMetric() {
  const known = knownMetrics();
  return known.includes(state.metric) ? state.metric : known[0];
}

function buildTraining() {
  const there = knownMetrics().map((name) => [name, metricName(name)]);
  const metric = select("metric", there, currentMetric(), (value) => change({metric: value}));
  bodyOf("training").replaceChildren(
    node(
      "div",
      {class: "bar"},
      labelled("Show", metric),
      downloads("learning curves", () => bodyOf("training").querySelector(".chart svg"), trainingRows),
    ),
    node(
      "div",
      {class: "beside"},
      node("div", {class: "chart", pointerdown: seek, pointermove: seek}),
      node("div", {class: "reading"}),
    ),
  );
}

/** Choose the epoch under a pressed pointer. */
function seek(event) {
  if (!event.buttons) return;
  const {epochs} = currentColumn();
  const box = event.currentTarget.querySelector(".plot").getBoundingClientRect();
  change({epoch: Math.round(1 + ((event.clientX - box.left) / box.width) * (epochs - 1))});
}

function updateTraining() {
  const metric = currentMetric();
  const {epochs} = currentColumn();
  const lines = chosenRows().map((row) => {
    const runs = chosenRuns(row);
    const sound = runs.filter((run) => run.lost === null);
    const counted = sound.length ? sound : runs;
    return {row, runs, counted, mean: Array.from({length: epochs}, (_, i) => meanOf(counted.map((run) => run[metric][i])))};
  });
  const epoch = Math.max(1, currentEpoch());
  // the readings first: the chart is as wide as they leave it
  bodyOf("training").querySelector(".reading").replaceChildren(reading(metric, lines, epoch));
  const chartBox = bodyOf("training").querySelector(".chart");
  const width = chartBox.clientWidth;
  const chart = frame({
    label: `${metricName(metric)} over ${epochs} epochs: ${lines.map(({row}) => row.name).join("; ")}`,
    width,
    height: Math.max(280, Math.min(480, Math.round(width * 0.6))),
    x: [epochs > 1 ? 1 : 0, epochs],
    xStep: 1,
    y: metricRange(metric, lines),
    xName: "epoch",
  });
  const {svg, plot, X, Y} = chart;
  const epochList = Array.from({length: epochs}, (_, i) => i + 1);
  const xs = epochList.map(X);
  for (const {row, runs} of lines) {
    for (const run of runs.length > 1 ? runs : []) {
      const look = {...lookOf(row), class: "curve faint", "stroke-dasharray": null, "data-line": row.name};
      plot.append(node("path", {...look, d: trace(xs, run[metric].map(Y))}));
    }
  }
  for (const {row, mean} of lines) {
    plot.append(node("path", {...lookOf(row), "data-line": row.name, d: trace(xs, mean.map(Y))}));
  }
  for (const {row, runs} of lines) {
    for (const run of runs.filter((run) => typeof run[metric][run.lost - 2] === "number")) {
      const [x, y] = [xs[run.lost - 2], Y(run[metric][run.lost - 2])];
      const d = `M${x - 4} ${y - 4}l8 8m0 -8l-8 8`;
      const names = {class: "lost", "data-run": run.id, "data-line": row.name};
      plot.append(node("path", {...lookOf(row), ...names, "stroke-dasharray": null, d}));
    }
  }
  plot.append(node("line", {class: "cursor", x1: X(epoch), x2: X(epoch), y1: 0, y2: plot.getAttribute("height")}));
  const spell = (value) => spellMetric(metric, value);
  followCurves(chart, epochList, lines.map(({row, mean}) => ({name: row.name, ys: mean})), (n) => `epoch ${n}`, spell);
  chartBox.replaceChildren(svg);
}

/** Return a table of the values at an epoch, the best first. */
function reading(metric, lines, epoch) {
  const better = metric.endsWith("loss") || (metric.endsWith("metric") && currentColumn().lower) ? 1 : -1;
  const rows = lines.map(({row, runs, mean}) => ({row, runs, value: mean[epoch - 1] ?? null}));
  rows.sort((a, b) => (a.value === null) - (b.value === null) || better * (a.value - b.value));
  return lightFrom(node(
    "table",
    {class: "readings"},
    node("caption", null, `After epoch ${epoch}`),
    node(
      "tbody",
      null,
      rows.map(({row, runs, value}) =>
        node(
          "tr",
          {"data-line": row.name},
          node("th", {scope: "row"}, swatch(row), " ", row.name),
          node("td", null, readingText(metric, runs, value)),
        ),
      ),
    ),
  ));
}

function readingText(metric, runs, value) {
  if (value !== null) return spellMetric(metric, value);
  return runs.some(({lost}) => lost) ? "diverged" : "–";
}

function spellMetric(metric, value) {
  return metric.endsWith("loss") ? value.toFixed(4) : spelled(currentColumn(), value)[0];
}

/** Return the runs on show with their metric after each epoch, as rows for a CSV file. */
function trainingRows() {
  const metric = currentMetric();
  const runs = chosenRows().flatMap(chosenRuns);
  const rows = runs.flatMap(({spec, [metric]: values}) =>
    values.map((value, i) => [spec.activation, spec.seed, i + 1, value]),
  );
  return [["activation", "seed", "epoch", metric], ...rows];
}

function meanOf(values) {
  const known = values.filter((value) => value !== null && value !== undefined);
  return known.length ? known.reduce((a, b) => a + b, 0) / known.length : null;
}

/** Return the range of a metric; curves may begin outside, in the first tenth of the epochs. */
function metricRange(metric, lines) {
  const start = Math.floor(currentColumn().epochs / 10);
  return rangeOf(lines.flatMap(({counted}) => counted.flatMap((run) => run[metric].slice(start))));
}
