"use strict";
// The table as a dot plot: a panel per experiment, a line per activation, with intervals, runs and the paper's figures.

const KIND_COLORS = {fixed: "--ink", convex: "--vermilion", affine: "--blue", conic: "--green", linear: "--purple"};
const ROW_HEIGHT = 23;
const ENOUGH_SEEDS = 3;

/** Return a name in lines of at most so many characters, broken after commas and spaces. */
function brokenName(name, most) {
  const lines = [""];
  for (const part of name.split(/(?<=[, ])/)) {
    if (lines.at(-1) && (lines.at(-1) + part).length > most) lines.push("");
    lines[lines.length - 1] += part;
  }
  return lines;
}

/** Return dot plots of experiments: as many panels beside each other as there is room for. */
function dotPlots(columns, width) {
  const names = sortedNames(columns);
  const longest = Math.max(...names.map((name) => name.length));
  const most = Math.max(12, Math.min(longest, Math.floor((width * 0.36) / 6.6), 34));
  const labels = names.map((name) => brokenName(name, most));
  const room = 12 + 6.6 * Math.max(...labels.flat().map((text) => text.length));
  const fit = Math.max(1, Math.min(columns.length, Math.floor((width - room) / 165)));
  const beside = Math.ceil(columns.length / Math.ceil(columns.length / fit));
  const across = Math.min(420, (width - room) / beside);
  const plots = [];
  for (let from = 0; from < columns.length; from += beside) {
    plots.push(dotPlot(columns.slice(from, from + beside), names, labels, room, across));
  }
  return plots;
}

function dotPlot(columns, names, labels, room, across) {
  const heads = columns.map((column) => [
    ...brokenName(column.title, across / 8.2).map((text) => [text, "head"]),
    ...brokenName(column.settings.join(", "), across / 6.6).map((text) => [text, "fine"]),
    ...(gainText(column) ? [[gainText(column), "fine"], [column.undecided, "fine"]] : []),
  ].filter(([text]) => text));
  const tops = [16 + 15 * Math.max(...heads.map((lines) => lines.length))];
  for (const lines of labels) tops.push(tops.at(-1) + Math.max(ROW_HEIGHT, 9 + 14 * lines.length));
  const bottom = tops.at(-1);
  const [width, height] = [Math.round(room + across * columns.length), bottom + 24];
  const label = `Accuracy of ${columns.map(labelOf).join("; ")}; the table below has the values`;
  const plot = node("g", {class: "plot"});
  names.forEach((name, i) => {
    const middle = (tops[i] + tops[i + 1]) / 2;
    const first = middle + 4 - 7 * (labels[i].length - 1);
    const texts = labels[i].map((text, j) => node("text", {x: 0, y: first + 14 * j}, text));
    plot.append(node("g", {class: "row", "data-line": name}, node("line", {x2: width, y1: middle, y2: middle}), texts));
  });
  columns.forEach((column, k) => {
    plot.append(dotPanel(column, names, heads[k], tops, room + across * k, across - 22));
  });
  const svg = canvas(label, width, height, plot);
  follow(svg, (px, py) => {
    const i = names.findIndex((_, j) => py >= tops[j] && py < tops[j + 1]);
    const column = columns[Math.max(0, Math.floor((px - room) / across))];
    return i < 0 || !column ? null : {title: names[i], lines: dotTip(column, names[i]), nearest: names[i]};
  });
  return svg;
}

/** Return what a cell of the dot plot says, as lines of the box beside the pointer. */
function dotTip(column, name) {
  const {row, ours, half, paper} = cellOf(column, name);
  if (!row) return [[labelOf(column), "not run"]];
  return [
    [labelOf(column), spelled(column, ours, half, shownSign()).join("") || "–"],
    ...(paper === null ? [] : [["the paper", spelled(column, paper, null, shownSign())[0]]]),
    ["runs", `${runsOf(column, name).length}${row.diverged ? `, ${row.diverged} diverged` : ""}`],
  ];
}

/** Return the range of a panel: all means and runs but a few far below, and intervals that are not wider than these. */
function dotRange(column, cells) {
  const shown = cells.filter(({row}) => row);
  const runs = state.show === "difference" ? [] : shown.map(({row}) => runValues(column, row)).filter((own) => own.length);
  const means = shown.flatMap(({ours, paper}) => [ours, paper]).filter((value) => value !== null);
  const ascending = (values) => values.sort((a, b) => a - b);
  const [lower, top] = [ascending(means)[Math.floor(means.length / 4)], means.at(-1)];
  const spreads = ascending(runs.map((own) => Math.max(...own) - Math.min(...own)));
  const spread = Math.max(top - lower, spreads[Math.floor(spreads.length / 2)] ?? 0) || 1;
  const near = ascending([...means, ...runs.flat()].filter((value) => value >= lower - 4 * spread));
  const high = near.at(-1);
  const narrow = cells.filter((cell) => hasInterval(column, cell) && cell.half <= high - near[0] && cell.ours >= near[0]);
  return rangeOf([...near, ...narrow.flatMap(({ours, half}) => [ours - half, ours + half])], 0.04);
}

function dotPanel(column, names, head, tops, left, across) {
  const cells = names.map((name) => cellOf(column, name));
  const [low, high] = dotRange(column, cells);
  const bottom = tops.at(-1);
  const X = (value) => ((Math.min(Math.max(value, low), high) - low) / (high - low)) * across;
  const inside = (value) => value >= low && value <= high;
  const made = node("g", {class: "dots", transform: `translate(${left} 0)`});
  head.forEach(([text, kind], i) => made.append(node("text", {class: kind, y: 14 + 15 * i}, text)));
  for (const value of ticks([low, high], Math.max(2, across / 55), 0)) {
    made.append(
      node("line", {class: value === 0 ? "zero" : "grid", x1: X(value), x2: X(value), y1: tops[0] - 4, y2: bottom}),
      node("text", {class: "fine", x: X(value), y: bottom + 16, "text-anchor": "middle"}, minus(value)),
    );
  }
  cells.forEach((cell, i) => {
    const {row, ours, half, paper} = cell;
    if (!row || ours === null) return;
    const y = (tops[i] + tops[i + 1]) / 2;
    const group = node("g", {"data-line": row.name, style: {"--dot": `var(${KIND_COLORS[kindOf(row)]})`}});
    if (state.show !== "difference") {
      const run = (value) => node("circle", {class: "run", cx: X(value), cy: y + 6, r: 1.7});
      group.append(...runValues(column, row).filter(inside).map(run));
    }
    if (hasInterval(column, cell)) {
      group.append(node("line", {class: "interval", x1: X(ours - half), x2: X(ours + half), y1: y, y2: y}));
      const beyond = [ours - half, ours + half].filter((end) => end < low || end > high);
      group.append(...beyond.map((end) => arrow(X(end), y, end < low)));
    }
    if (inside(ours)) group.append(node("circle", {class: "mean", cx: X(ours), cy: y, r: 4.2}));
    else {
      const text = [ours, paper].map((value) => spelled(column, value, null, shownSign())[0]).filter(Boolean).join(", paper ");
      group.append(arrow(X(ours), y, ours < low), node("text", {class: "fine", x: 10, y: y + 4}, text));
    }
    if (paper !== null && inside(paper)) {
      group.append(node("path", {class: "paper", d: `M${X(paper)} ${y - 4.5}l4.5 4.5l-4.5 4.5l-4.5 -4.5z`}));
    } else if (paper !== null && inside(ours)) {
      group.append(arrow(X(paper), y, paper < low, "paper"));
    }
    made.append(group);
  });
  return made;
}

/** Return an arrow where something goes on outside of the panel. */
function arrow(x, y, toLeft, kind = "arrow") {
  return node("path", {class: kind, d: toLeft ? `M${x - 3} ${y}l6 -4v8z` : `M${x + 3} ${y}l-6 -4v8z`});
}

/** Return the accuracies of a row's runs; one alone is the mean. */
function runValues(column, row) {
  const {name} = readingOf(column);
  const runs = runsOf(column, row.name).filter((run) => run.lost === null);
  const values = runs.map((run) => run.accuracy[name]).filter((value) => value !== undefined);
  return values.length > 1 ? values : [];
}

/** Return what the best hull gains in an experiment, if several seeds say so. */
function gainText(column) {
  const {gain} = column;
  return gain && gain[1] !== null ? `hulls ${spelled(column, ...gain, "+").join("")}` : "";
}

/** Return whether a cell has an interval to draw: that of two runs is 12.7 times their error. */
function hasInterval(column, {row, half}) {
  return half !== null && runsOf(column, row.name).length >= ENOUGH_SEEDS;
}

/** Return whether an activation was run with several seeds. */
function haveSeeds(columns) {
  return columns.some(({rows}) => rows.some(({accuracy}) => Object.values(accuracy).some(([, half]) => half !== null)));
}

/** Return the kind of a row's hull; PReLU and a network's own activations are with those that are no hulls. */
function kindOf({name, kind}) {
  return name === "prelu" || kind === "own" ? "fixed" : kind;
}

/** Return the key of the dot plots. */
function dotKey(columns) {
  const rows = columns.flatMap((column) => column.rows);
  const kinds = [...new Set(rows.map(kindOf))];
  const drawn = columns.some((column) => column.rows.some(({name}) => hasInterval(column, cellOf(column, name))));
  const icon = (shape) => node("svg", {width: 22, height: 12, "aria-hidden": "true", class: "dots"}, shape);
  const item = (text, shape) => node("span", {class: "chip"}, icon(shape), text);
  const dot = (color) => node("circle", {class: "mean", cx: 11, cy: 6, r: 4.2, style: {"--dot": `var(${color})`}});
  const bar = node("line", {class: "interval", x1: 1, x2: 21, y1: 6, y2: 6});
  return node(
    "p",
    {class: "key"},
    kinds.map((kind) => item(kind === "fixed" ? "no hull" : kind, dot(KIND_COLORS[kind]))),
    drawn ? item("95 % interval", bar) : null,
    haveSeeds(columns) ? item("a run", node("circle", {class: "run", cx: 11, cy: 6, r: 1.7})) : null,
    columns.some(({paper}) => Object.keys(paper).length)
      ? item("the paper", node("path", {class: "paper", d: "M11 1.5l4.5 4.5l-4.5 4.5l-4.5 -4.5z"}))
      : null,
  );
}
