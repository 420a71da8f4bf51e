"use strict";
// Charts in SVG: a frame with axes, lines in it, and the plane of three coefficients.

const ROW_COLORS = {
  "identity,relu": "--blue",
  "identity,tanh": "--vermilion",
  "relu,tanh": "--green",
  "identity,relu,tanh": "--purple",
  identity: "--gray",
  relu: "--ink",
  tanh: "--orange",
  leaky_relu: "--sky",
};
const OTHER_HUES = [295, 120, 15, 200];
const DASHES = {affine: null, convex: "7 4", conic: "8 3 2 3", linear: "1 3", fixed: "2 3", own: "2 3"};

/** Return what has a color of its own: the bases and settings of a hull, or the name of another activation. */
function colorKey({name}) {
  return /^(?:convex|affine|conic|linear)\((.*)\)$/.exec(name)?.[1] ?? name;
}

/** Return the colors of a column's rows by key: those of the paper's rows, then the rest, then ever other hues. */
function colorsOf(column) {
  const keys = [...new Set(column.rows.map(colorKey))];
  const used = keys.map((key) => ROW_COLORS[key]);
  const free = Object.values(ROW_COLORS).filter((color) => !used.includes(color));
  const others = keys.filter((key) => !(key in ROW_COLORS));
  return Object.fromEntries(
    keys.map((key) => {
      const i = others.indexOf(key);
      const hue = OTHER_HUES[i - free.length] ?? ((i - free.length) * 137.5 + 61) % 360;
      const made = `light-dark(oklch(0.5 0.15 ${hue}), oklch(0.78 0.13 ${hue}))`;
      return [key, i >= free.length ? made : `var(${i < 0 ? ROW_COLORS[key] : free[i]})`];
    }),
  );
}

/** Return a row's look: a color per bases and settings, a line style per kind of hull, so that hulls compare. */
function lookOf(row) {
  const column = currentColumn();
  column.colors ??= colorsOf(column);
  const stroke = column.colors[colorKey(row)];
  return {class: `curve ${row.kind}`, "stroke-dasharray": DASHES[row.kind], style: {stroke}};
}

/** Return a short line in a row's look, for legends. */
function swatch(row) {
  return node(
    "svg",
    {width: 28, height: 10, "aria-hidden": "true"},
    node("path", {...lookOf(row), d: "M1 5H27"}),
  );
}

/** Return the color of a depth between 0 and 1. */
function depthColor(depth) {
  return `color-mix(in oklab, var(--deep) ${Math.round(100 * depth)}%, var(--shallow))`;
}

/** Return about `count` round numbers of a range, at least `least` apart. */
function ticks([low, high], count, least) {
  const rough = Math.max((high - low) / count, least);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((multiple) => multiple * power >= rough);
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({length: last - first + 1}, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

/** Return the range of numbers, widened by a margin; nulls are ignored. */
function rangeOf(values, margin = 0.05) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (value !== null && value < low) low = value;
    if (value !== null && value > high) high = value;
  }
  if (low > high) return [0, 1];
  const room = (high - low || Math.abs(high) || 1) * margin;
  return [low - room, high + room];
}

/** Return a scale that maps null, an unknown value, to null. */
function known(scale) {
  return (value) => (value === null ? null : scale(value));
}

/** Return the path data of a line through points, with gaps where a point is unknown. */
function trace(xs, ys) {
  let text = "";
  let pen = "M";
  for (let i = 0; i < xs.length; i += 1) {
    if (xs[i] === null || ys[i] === null) pen = "M";
    else {
      text += `${pen}${Math.round(100 * xs[i]) / 100} ${Math.round(100 * ys[i]) / 100}`;
      pen = "L";
    }
  }
  return text;
}

/** Return the svg of a chart, which has a name. */
function canvas(label, width, height, ...children) {
  const size = {width, height, viewBox: `0 0 ${width} ${height}`};
  return node("svg", {...size, role: "img", "aria-label": label}, ...children);
}

/** Return a chart with axes: its svg, the plot to draw into, which clips, and the scales of both axes. */
function frame({label, width, height, x, y, xStep = 0, xName = ""}) {
  const left = 44;
  const bottom = xName ? 38 : 22;
  const [across, down] = [Math.max(0, width - left - 14), Math.max(0, height - bottom - 8)];
  const X = known((value) => ((value - x[0]) / (x[1] - x[0])) * across);
  const Y = known((value) => down - ((value - y[0]) / (y[1] - y[0])) * down);
  const plot = node("svg", {class: "plot", x: left, y: 8, width: across, height: down, "data-x": x, "data-y": y});
  const marks = node("g", {class: "axes", transform: `translate(${left} 8)`});
  const mark = (value, line, text) =>
    marks.append(node("line", {class: value === 0 ? "zero" : null, ...line}), node("text", text, minus(value)));
  for (const value of ticks(x, Math.max(2, Math.min(8, across / 60)), xStep)) {
    const at = X(value);
    mark(value, {x1: at, x2: at, y1: 0, y2: down}, {x: at, y: down + 16, "text-anchor": "middle"});
  }
  for (const value of ticks(y, Math.max(2, Math.min(6, down / 35)), 0)) {
    const at = Y(value);
    mark(value, {x1: 0, x2: across, y1: at, y2: at}, {x: -7, y: at + 4, "text-anchor": "end"});
  }
  if (xName) marks.append(node("text", {x: across / 2, y: down + 33, "text-anchor": "middle"}, xName));
  return {svg: canvas(label, width, height, marks, plot), plot, X, Y, left, top: 8};
}

/** Return the width of `count` panels beside each other: at least `least`, where there is room. */
function panelWidth(body, least, count) {
  const room = body.clientWidth;
  const rows = Math.ceil(count / Math.max(1, Math.floor((room + 16) / (least + 16))));
  const beside = Math.max(1, Math.ceil(count / rows)); // rows of about the same length
  return Math.min(Math.floor((room - 16 * (beside - 1)) / beside), 460);
}

/** Return a figure with its title, a note, and buttons; `rows` makes its data for a CSV file. */
function panel(title, svg, {note = null, rows = null, code = null} = {}) {
  const width = `${svg.getAttribute("width")}px`;
  const name = note ? `${title}, ${note}` : title;
  const tools = downloads(name, () => svg, rows);
  if (code) tools.prepend(copyButton(code, `Copy the code of ${title}`));
  const heading = node("span", null, breakable(title), note && node("small", null, note));
  const caption = node("figcaption", null, heading, tools);
  return node("figure", {class: "panel", style: {width}}, caption, svg);
}

const CORNERS = [[0, 0], [1, 0], [0.5, Math.sqrt(0.75)]];

/** Return the point of three coefficients that sum to one; the bases are the corners of a triangle. */
function planePoint(coefficients) {
  if (coefficients.some((c) => c === null)) return [null, null];
  return [0, 1].map((axis) => dot(coefficients, CORNERS, (corner) => corner[axis]));
}

/** Return a chart of the plane of three coefficients, with its simplex; it contains all points. */
function plane({label, width, names, points}) {
  const height = Math.round(width * 0.86);
  const [x, y] = [0, 1].map((axis) => rangeOf([...CORNERS, ...points].map((point) => point[axis]), 0.04));
  const unit = Math.min((width - 120) / (x[1] - x[0]), (height - 56) / (y[1] - y[0]));
  const X = known((value) => width / 2 + (value - (x[0] + x[1]) / 2) * unit);
  const Y = known((value) => height / 2 - (value - (y[0] + y[1]) / 2) * unit);
  const corners = CORNERS.map(([a, b]) => [X(a), Y(b)]);
  const edges = [[0, 1], [1, 2], [2, 0]].map(([a, b]) => {
    const at = (share) => [0, 1].map((axis) => corners[a][axis] + share * (corners[b][axis] - corners[a][axis]));
    const [[x1, y1], [x2, y2]] = [at(-20), at(20)];
    return node("line", {x1, y1, x2, y2});
  });
  const labels = names.map((name, i) => {
    const [x, y] = corners[i];
    const above = i === 2;
    const anchor = ["end", "start", "middle"][i];
    return node("text", {class: "corner", x, y: y + (above ? -9 : 17), "text-anchor": anchor}, name);
  });
  const plot = node("g");
  const simplex = node("polygon", {class: "simplex", points: corners.join(" ")});
  return {svg: canvas(label, width, height, node("g", {class: "axes"}, edges), simplex, plot, labels), plot, X, Y};
}
