"use strict";
// Where coefficients went: in the plane of three of them, otherwise over the epochs.

function buildPaths() {
  const count = layerCount();
  bodyOf("paths").replaceChildren(
    node("p", {class: "lead", "data-part": "remark"}),
    node("div", {class: "panels"}),
    node("p", {class: "depths"}, "layer 1", node("span", {class: "ramp"}), `layer ${count}`),
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

/** All layers of all runs, with the colour of their depth. */
function layersOf(runs) {
  return runs.flatMap((run) =>
    pathsOf(run).map((paths, layer, all) => ({
      paths,
      colour: depthColour(all.length > 1 ? layer / (all.length - 1) : 0),
    })),
  );
}

const planePaths = new WeakMap();

/** A layer's points in the plane, one an epoch; they are computed once. */
function planePath(paths) {
  if (!planePaths.has(paths)) {
    planePaths.set(paths, paths[0].map((_, epoch) => planePoint(paths.map((path) => path[epoch]))));
  }
  return planePaths.get(paths);
}

function planePanel(row, runs, width) {
  const layers = layersOf(runs).map(({paths, colour}) => ({
    colour,
    points: planePath(paths),
    now: planePoint(coefficientsAt(paths, motion.shown)),
  }));
  const {svg, plot, X, Y} = plane({
    label: `The path of the coefficients of ${row.name} in their plane, up to epoch ${currentEpoch()}`,
    width,
    names: runs[0].bases,
    points: layers.flatMap(({points}) => points),
  });
  for (const {colour, points, now} of layers) {
    const past = [...points.slice(0, Math.floor(motion.shown) + 1), now];
    plot.append(
      node("path", {
        class: "path",
        style: {stroke: colour},
        d: trace(past.map(([x]) => X(x)), past.map(([, y]) => Y(y))),
      }),
    );
  }
  for (const {colour, now} of layers) {
    if (now[0] !== null) plot.append(node("circle", {cx: X(now[0]), cy: Y(now[1]), r: 3.5, style: {fill: colour}}));
  }
  return panel(row.name, svg, "in the plane where they sum to one");
}

function epochPanel(row, runs, base, width) {
  const {epochs} = currentColumn();
  const layers = layersOf(runs);
  const {svg, plot, X, Y} = frame({
    label: `The coefficient of ${runs[0].bases[base]} in ${row.name} over the epochs, up to ${currentEpoch()}`,
    width,
    height: Math.round(width * 0.86),
    x: rangeOf([0, epochs], 0.02),
    xStep: 1,
    y: rangeOf([0, 1, ...layers.flatMap(({paths}) => paths[base])]),
    xName: "epoch",
  });
  plot.append(node("rect", {class: "simplex", x: X(0), y: Y(1), width: X(epochs) - X(0), height: Y(0) - Y(1)}));
  for (const {paths, colour} of layers) {
    const past = paths[base].slice(0, Math.floor(motion.shown) + 1);
    const now = coefficientsAt([paths[base]], motion.shown)[0];
    const xs = [...past.keys(), motion.shown].map(X);
    plot.append(
      node("path", {
        class: "path",
        style: {stroke: colour},
        d: trace(xs, [...past, now].map(Y)),
      }),
    );
    if (now !== null) plot.append(node("circle", {cx: X(motion.shown), cy: Y(now), r: 3.5, style: {fill: colour}}));
  }
  const rest = runs[0].bases.length === 2 ? `, ${runs[0].bases[1]}’s is the rest` : "";
  return panel(row.name, svg, `${runs[0].bases[base]}’s coefficient${rest}`);
}
