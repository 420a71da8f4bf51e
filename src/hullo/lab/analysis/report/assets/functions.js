"use strict";
// Properties of a combination of base functions. hullo.properties computes certain bounds of slopes; here they are
// estimated on the points of hullo.bases.real_line and between them.

/** Points that represent the real line: dense near 0, then ever sparser. */
const REAL_LINE = (() => {
  const linspace = (from, to, count) => {
    const step = (to - from) / (count - 1);
    return Array.from({length: count}, (_, i) => (i < count / 2 ? from + step * i : to - step * (count - 1 - i)));
  };
  const period = linspace(0, 2 * Math.PI, 257);
  const waves = Array.from({length: 10}, (_, k) => period.map((x) => x + 2 ** (4 * k + 4))).flat();
  const far = [...Array.from({length: 64 * 36}, (_, k) => 16 * 2 ** ((k + 1) / 64)), ...waves];
  return Float64Array.from([...far.map((x) => -x), ...linspace(-16, 16, 32001), ...far]).sort();
})();

const TOLERANCE = 1e-6;
const UNBOUNDED = 1e9;

function slopeOf(name, x) {
  const base = BASES[name];
  return base.slope(x, base.value(x));
}

const slopesOnLine = new Map();

/** Return a base's slopes on the whole line; they are computed once. */
function lineSlopes(name) {
  if (!slopesOnLine.has(name)) slopesOnLine.set(name, REAL_LINE.map((x) => slopeOf(name, x)));
  return slopesOnLine.get(name);
}

/** Return the smallest and the largest slope of the combination over the real line; far out, powers of ReLU are
 * steeper than UNBOUNDED, and no bounded slope is. */
function slopeBounds(coefficients, names) {
  const least = leastSlope(coefficients, names);
  const largest = -leastSlope(coefficients.map((c) => -c), names);
  return [least, largest].map((slope) =>
    Math.abs(slope) > UNBOUNDED ? Math.sign(slope) * Infinity : Math.round(slope * 1e9) / 1e9 + 0,
  );
}

/** Return the smallest slope: at points, beside kinks, and between points around the lowest local minima. */
function leastSlope(coefficients, names) {
  const slopeAt = (x) => dot(coefficients, names, (name) => slopeOf(name, x));
  const sides = names.flatMap((name) => BASES[name].kinks).flatMap((kink) => [kink - 1e-9, kink + 1e-9]);
  const slopes = names.map(lineSlopes);
  const line = REAL_LINE.map((_, i) => dot(coefficients, slopes, (values) => values[i]));
  const turns = [];
  for (let i = 1; i + 1 < line.length; i += 1) {
    if (line[i] <= line[i - 1] && line[i] <= line[i + 1]) turns.push(i);
  }
  turns.sort((a, b) => line[a] - line[b]);
  const between = turns.slice(0, 8).map((i) => leastBetween(slopeAt, REAL_LINE[i - 1], REAL_LINE[i + 1]));
  return Math.min(line[0], line[line.length - 1], ...sides.map(slopeAt), ...between);
}

/** Return the minimum of a function that falls, then rises between two points, by golden-section search. */
function leastBetween(valueAt, from, to) {
  const golden = (Math.sqrt(5) - 1) / 2;
  let [low, high] = [from, to];
  let least = Infinity;
  for (let n = 0; n < 40; n += 1) {
    const [a, b] = [high - golden * (high - low), low + golden * (high - low)];
    const [atA, atB] = [valueAt(a), valueAt(b)];
    least = Math.min(least, atA, atB, valueAt((low + high) / 2));
    if (atA < atB) high = b;
    else low = a;
  }
  return least;
}

function isMonotone([low]) {
  return low >= -TOLERANCE;
}

/** Return the sum of coefficients times `valueOf` the items. */
function dot(coefficients, items, valueOf) {
  let sum = 0;
  for (let i = 0; i < items.length; i += 1) sum += coefficients[i] * valueOf(items[i]);
  return sum;
}

/** Return the smallest set that contains the coefficients: "convex", "affine", "cone" or "span". */
function placeOf(coefficients) {
  const sum = coefficients.reduce((a, b) => a + b, 0);
  const positive = coefficients.every((c) => c >= 0);
  if (Math.abs(sum - 1) <= 1e-5) return positive ? "convex" : "affine";
  return positive ? "cone" : "span";
}

const sampled = new WeakMap();

/** Return a base's values or slopes at a list of points; they are computed once per list. */
function sample(kind, name, points) {
  if (!sampled.has(points)) sampled.set(points, {});
  const known = sampled.get(points);
  const key = `${kind} ${name}`;
  known[key] ??= points.map(kind === "slope" ? (x) => slopeOf(name, x) : BASES[name].value);
  return known[key];
}

/** Return the values or slopes of a combination at points; null if a coefficient is unknown. */
function combine(kind, coefficients, names, points) {
  if (coefficients.some((c) => c === null)) return points.map(() => null);
  const values = names.map((name) => sample(kind, name, points));
  return points.map((_, i) => dot(coefficients, values, (of) => of[i]));
}
