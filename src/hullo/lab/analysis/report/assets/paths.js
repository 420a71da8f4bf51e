"use strict";
// Coefficients over training: in the plane of three of them, otherwise over the epochs.

function buildPaths() {
  const count = layerCount();
  bodyOf("paths").replaceChildren(
    node("p", {class: "lead", "data-part": "remark"}),
    node("div", {class: "panels"}),
    count ? node("p", {class: "depths"}, layerName(0), node("span", {class: "ramp"}), layerName(count - 1)) : "",
  );
}

function updatePaths() {
  bodyOf("paths").querySelector("[data-part=remark]").textContent = lostRemark(chosenRows().flatMap(chosenRuns));
  const drawers = chosenRows().flatMap((row) => {
    const runs = chosenRuns(row);
    if (!runs.length) return [];
    if (runs[0].bases.length === 3) return [(width) => planePanel(row, runs, width)];
    const shown = runs[0].bases.length === 2 ? [0] : runs[0].bases.keys();
    return [...shown].map((base) => (width) => epochPanel(row, runs, base, width));
  });
  const panels = bodyOf("paths").querySelector(".panels");
  const width = panelWidth(panels, 270, Math.min(drawers.length, 4));
  panels.replaceChildren(...drawers.map((draw) => draw(width)));
}

/** Return all layers of all runs, with the color of their depth. */
function layersOf(runs) {
  return runs.flatMap((run) =>
    pathsOf(run).map((paths, layer, all) => ({
      paths,
      name: layerName(layer),
      seed: run.spec.seed,
      color: depthColor(all.length > 1 ? layer / (all.length - 1) : 0),
    })),
  );
}

const planePaths = new WeakMap();

/** Return a layer's points in the plane, one per epoch; they are computed once. */
function planePath(paths) {
  if (!planePaths.has(paths)) {
    planePaths.set(paths, paths[0].map((_, epoch) => planePoint(paths.map((path) => path[epoch]))));
  }
  return planePaths.get(paths);
}

/** Draw the path of each layer, {points, now, name, color}, up to the epoch on the screen; a dot marks that. */
function drawPaths({plot, X, Y}, layers) {
  for (const {color, points, now, name} of layers) {
    const past = [...points.slice(0, Math.floor(motion.shown) + 1), now];
    const d = trace(past.map(([x]) => X(x)), past.map(([, y]) => Y(y)));
    plot.append(node("path", {class: "path", "data-line": name, style: {stroke: color}, d}));
  }
  for (const {color, now: [x, y], name} of layers) {
    if (x === null || y === null) continue;
    plot.append(node("circle", {"data-line": name, cx: X(x), cy: Y(y), r: 3.5, style: {fill: color}}));
  }
}

function planePanel(row, runs, width) {
  const layers = layersOf(runs).map((layer) => ({
    ...layer,
    points: planePath(layer.paths),
    now: planePoint(coefficientsAt(layer.paths, motion.shown)),
  }));
  const chart = plane({
    label: `The path of the coefficients of ${row.name} in their plane, up to epoch ${currentEpoch()}`,
    width,
    names: runs[0].bases,
    points: layers.flatMap(({points}) => points),
  });
  const {svg, X, Y} = chart;
  drawPaths(chart, layers);
  follow(svg, (px, py) => {
    let best = {gap: 24};
    for (const layer of layers) {
      layer.points.slice(0, Math.floor(motion.shown) + 1).forEach(([x, y], epoch) => {
        const gap = x === null ? Infinity : Math.hypot(X(x) - px, Y(y) - py);
        if (gap < best.gap) best = {gap, layer, epoch};
      });
    }
    return best.layer ? pathTip(best.layer, runs[0].bases, best.epoch) : null;
  });
  const note = "in the plane where they sum to one";
  return panel(row.name, svg, {note, rows: () => pathRows(layers, runs[0].bases)});
}

function epochPanel(row, runs, base, width) {
  const {epochs} = currentColumn();
  const layers = layersOf(runs).map((layer) => ({
    ...layer,
    points: layer.paths[base].map((value, epoch) => [epoch, value]),
    now: [motion.shown, coefficientsAt([layer.paths[base]], motion.shown)[0]],
  }));
  const [name, other] = [runs[0].bases[base], runs[0].bases[1]];
  const chart = frame({
    label: `The coefficient of ${name} in ${row.name} over the epochs, up to ${currentEpoch()}`,
    width,
    height: Math.round(width * 0.86),
    x: rangeOf([0, epochs], 0.02),
    xStep: 1,
    y: rangeOf([0, 1, ...layers.flatMap(({paths}) => paths[base])]),
    xName: "epoch",
  });
  const {svg, plot, X, Y} = chart;
  plot.append(node("rect", {class: "simplex", x: X(0), y: Y(1), width: X(epochs) - X(0), height: Y(0) - Y(1)}));
  drawPaths(chart, layers);
  const epochList = Array.from({length: Math.floor(motion.shown) + 1}, (_, i) => i);
  const lines = layers.map(({name, paths}) => ({name, ys: paths[base]}));
  followCurves(chart, epochList, lines, (epoch) => `epoch ${epoch}`, short);
  const note = `${name}’s coefficient${runs[0].bases.length === 2 ? `, ${other}’s is the rest` : ""}`;
  return panel(row.name, svg, {note, rows: () => pathRows(layers, runs[0].bases)});
}

/** Return the coefficients of a layer at an epoch, for the box beside the pointer. */
function pathTip({name, seed, paths}, bases, epoch) {
  const lines = bases.map((base, i) => [base, short(paths[i][epoch])]);
  return {title: `${name}, seed ${seed}, epoch ${epoch}`, lines, nearest: name};
}

/** Return the coefficients of all layers and epochs, as rows for a CSV file. */
function pathRows(layers, bases) {
  const rows = layers.flatMap(({name, seed, paths}) =>
    paths[0].map((_, epoch) => [name, seed, epoch, ...paths.map((path) => path[epoch])]),
  );
  return [["layer", "seed", "epoch", ...bases], ...rows];
}
