"use strict";
// Coefficients set by hand: the function, its slope and its properties.

const START = ["identity:-0.25", "relu:0.75", "tanh:0.5"];
const PLACES = {
  convex: "In the convex hull: no coefficient is negative, and they sum to one.",
  affine: "In the affine hull, outside of the convex hull: the coefficients sum to one, and one is negative.",
  cone: "In the cone, outside of both hulls: no coefficient is negative, but they do not sum to one.",
  span: "Outside of both hulls and of the cone: the coefficients do not sum to one, and one is negative.",
};
const WIDE = Array.from({length: 321}, (_, i) => 5 * (i / 160 - 1));

/** Return the bases and coefficients of the view. */
function mixture() {
  const found = (state.base ?? START)
    .map((text) => /^(.*):([^:]*)$/.exec(text))
    .filter((match) => match && Object.hasOwn(BASES, match[1]) && Number.isFinite(Number(match[2])))
    .map(([, name, number]) => ({name, coefficient: Number(number)}));
  return found.filter(({name}, i) => found.findIndex((other) => other.name === name) === i);
}

function mix(items) {
  return {base: items.map(({name, coefficient}) => `${name}:${Number(coefficient.toFixed(5))}`)};
}

function buildPlayground() {
  const items = mixture();
  const free = Object.keys(BASES).filter((name) => !items.some((item) => item.name === name));
  const add = select(
    "add",
    [["", "Add a base …"], ...free.map((name) => [name, name])],
    "",
    (name) => name && go(mix([...mixture(), {name, coefficient: 0}])),
  );
  const fit = (id, text, make) => node("button", {type: "button", id, click: () => go(mix(make(mixture())))}, text);
  bodyOf("playground").replaceChildren(
    node(
      "div",
      {class: "beside even"},
      node(
        "div",
        {class: "mixer"},
        items.map(mixerRow),
        node(
          "div",
          {class: "bar"},
          labelled("Bases", add),
          fit("alike", "equal coefficients", (all) => all.map(({name}) => ({name, coefficient: 1 / all.length}))),
          fit("shift", "make them sum to one", shifted),
        ),
        node("dl", {class: "details facts", "aria-live": "polite"}),
        node(
          "div",
          {class: "snippet"},
          node("pre", {class: "code", tabindex: 0, "aria-label": "The same in Python"}, node("code", null)),
          copyButton(() => bodyOf("playground").querySelector("code").textContent),
        ),
        node("div", {class: "place"}),
      ),
      node("div", {class: "drawing"}),
    ),
  );
}

/** Return the nearest coefficients that sum to one. */
function shifted(items) {
  const missing = (1 - items.reduce((sum, item) => sum + item.coefficient, 0)) / items.length;
  return items.map(({name, coefficient}) => ({name, coefficient: coefficient + missing}));
}

function mixerRow({name, coefficient: value}) {
  const set = (event) => {
    const coefficient = Number(event.target.value);
    if (event.target.value === "" || !Number.isFinite(coefficient)) return;
    change(mix(mixture().map((item) => (item.name === name ? {name, coefficient} : item))));
  };
  const shared = {step: 0.01, value, input: set};
  return node(
    "div",
    {class: "mixer-row", "data-base": name, role: "group", "aria-label": name},
    node("span", {class: "name"}, name),
    node("input", {type: "range", min: -2, max: 2, ...shared, "aria-label": `coefficient of ${name}`}),
    node("input", {type: "number", ...shared, "aria-label": `coefficient of ${name}, as a number`}),
    node(
      "button",
      {
        type: "button",
        class: "quiet",
        "aria-label": `remove ${name}`,
        click: () => go(mix(mixture().filter((item) => item.name !== name))),
      },
      "✕",
    ),
  );
}

function updatePlayground() {
  const body = bodyOf("playground");
  const items = mixture();
  for (const {name, coefficient} of items) {
    for (const input of body.querySelectorAll(`[data-base="${CSS.escape(name)}"] input`)) {
      if (Number(input.value) !== coefficient) input.value = coefficient; // who types "0." goes on typing
    }
  }
  const names = items.map(({name}) => name);
  const coefficients = items.map(({coefficient}) => coefficient);
  const drawing = body.querySelector(".drawing");
  body.querySelector(".facts").replaceChildren(...facts(coefficients, names));
  body.querySelector("code").textContent = inPython(coefficients, names);
  const width = drawing.clientWidth;
  const chart = (kind, title, least) => {
    const values = combine(kind, coefficients, names, WIDE);
    const made = frame({
      label: `${title} of the combination, from −5 to 5`,
      width,
      height: Math.round(Math.min(320, width * 0.55)),
      x: [-5, 5],
      y: rangeOf([...values, ...least]),
    });
    const {svg, plot, X, Y} = made;
    plot.append(node("path", {class: "curve", d: trace(WIDE.map(X), values.map(Y)), "data-kind": kind}));
    followCurves(made, WIDE, [{name: title, ys: values}], (x) => `x = ${short(x)}`, short);
    return panel(title, svg, {rows: () => [["x", title], ...WIDE.map((x, i) => [x, values[i]])]});
  };
  drawing.replaceChildren(chart("value", "function", [-1, 1]), chart("slope", "slope", [-0.2, 1.2]));
  const place = body.querySelector(".place");
  place.replaceChildren(...(names.length === 3 ? [placePanel(coefficients, names, place.clientWidth)] : []));
}

/** Return a chart of three coefficients in their plane, if they sum to one. */
function placePanel(coefficients, names, width) {
  const on = Math.abs(coefficients.reduce((a, b) => a + b, 0) - 1) <= 1e-5;
  const points = on ? [planePoint(coefficients)] : [];
  const {svg, plot, X, Y} = plane({
    label: on ? "The coefficients in their plane" : "The plane of the coefficients, which are not in it",
    width: Math.min(width, 340),
    names,
    points,
  });
  for (const [x, y] of points) plot.append(node("circle", {class: "here", cx: X(x), cy: Y(y), r: 6}));
  return panel("place in the plane", svg, {note: on ? null : "not in the plane"});
}

function facts(coefficients, names) {
  if (!names.length) return [node("dt", null, "Nothing yet"), node("dd", null, "Add a base function.")];
  const bounds = slopeBounds(coefficients, names);
  const [low, high] = bounds;
  const sum = coefficients.reduce((a, b) => a + b, 0);
  const [value, left, right] = [0, 1, 2].map((i) => dot(coefficients, names, (name) => BASES[name].atZero[i]));
  const strange = names.filter((name) => !BASES[name].admissible);
  const said = [
    ["monotone", isMonotone(bounds) ? "Monotone: it never falls" : "Not monotone: it falls somewhere", ""],
    ["slopes", "Slopes", `from ${short(low)} to ${short(high)}`],
    ["lipschitz", "Lipschitz constant", short(Math.max(Math.abs(low), Math.abs(high)))],
    ["origin", "At the origin", `value ${short(value)}, slopes ${short(left)} and ${short(right)}`],
    ["sum", "Sum of coefficients", short(Number(sum.toFixed(6)))],
    ["place", "Place", PLACES[placeOf(coefficients)]],
  ];
  if (strange.length) {
    const why = "a hull asks for value 0 and slope 1 at the origin";
    said.push(["strange", "Not for hulls without strict=False", `${strange.join(", ")}: ${why}`]);
  }
  return said.map(([key, ...pair]) => node("div", {"data-fact": key}, definition(...pair)));
}

/** Return the Python code of the function. */
function inPython(coefficients, names) {
  if (!names.length) return "";
  const place = placeOf(coefficients);
  if (["convex", "affine"].includes(place)) return hullCode(place, coefficients, names);
  const spelled = names.map((name) => JSON.stringify(name)).join(", ");
  return `hullo.combine(x, torch.tensor(${numberList(coefficients)}), [${spelled}])`;
}

/** Return the Python code of a hull of a kind. */
function hullCode(kind, coefficients, names) {
  const hull = {convex: "ConvexHull", affine: "AffineHull", conic: "ConicHull", linear: "LinearHull"}[kind];
  const spelled = names.map((name) => JSON.stringify(name)).join(", ");
  const strict = names.every((name) => BASES[name].admissible) ? "" : ", strict=False";
  return `hullo.${hull}(${spelled}, init=${numberList(coefficients)}${strict})`;
}

function numberList(values) {
  return `[${values.map((value) => Number(value.toFixed(5))).join(", ")}]`;
}
