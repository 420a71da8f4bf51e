"use strict";
// The state of the page: the document, and the view, which is also in the address after the #.

const DOCUMENT = JSON.parse(document.getElementById("data").textContent);

/** The parts of the view in the address, as text; null means the default for the data. Some are lists. */
const PARTS = [
  "column", "row", "seed", "epoch", "layers", "metric", "show", "reading", "sort", "studies", "pair", "cell", "run",
  "base",
];
const LISTS = ["row", "seed", "pair", "base"];

const REFERENCE = "relu";
const FEW_ROWS = 4;
const state = {view: "table"};

function readAddress() {
  const [view, query = ""] = location.hash.slice(1).split("?");
  const given = new URLSearchParams(query);
  state.view = Object.hasOwn(VIEWS, view) ? view : "table";
  for (const name of PARTS) state[name] = LISTS.includes(name) && given.has(name) ? given.getAll(name) : given.get(name);
}

/** Return the address of a view: the present one with changes. */
function address(changes) {
  const {view, ...parts} = {...state, ...changes};
  const query = new URLSearchParams();
  for (const name of PARTS) {
    for (const value of [parts[name] ?? []].flat()) query.append(name, value);
    if (Array.isArray(parts[name]) && !parts[name].length) query.append(name, "");
  }
  return `#${view}${query.size ? `?${query}` : ""}`;
}

let writing = null;

/** Change the view, and soon the address: browsers limit how often it may change. */
function change(changes) {
  Object.assign(state, changes);
  clearTimeout(writing);
  writing = setTimeout(() => history.replaceState(null, "", address({})), 150);
  update();
}

function currentColumn() {
  const {columns} = DOCUMENT;
  return columns.find(({name}) => name === state.column) ?? columns.find(({study}) => !study) ?? columns[0];
}

/** Return a column's title with the settings that set it apart. */
function labelOf({title, settings}) {
  return [title, ...settings].join(", ");
}

/** Return the settings that set a column apart, as labels. */
function settingList({settings}) {
  return settings.map((text) => node("span", {class: "setting"}, text));
}

/** Return a figure of a column and half its interval as texts: accuracies have two decimals, others two digits of the
 * half, or four without one. */
function spelled({unit}, value, half = null, sign = "") {
  if (value === null) return ["", ""];
  const [size, digits] = half > 1e-6 * Math.abs(value) ? [half, 2] : [Math.abs(value), 4];
  const decimals = unit || !size ? 2 : Math.max(0, digits - 1 - Math.floor(Math.log10(size)));
  const text = Math.abs(value).toFixed(decimals);
  return [`${value < 0 ? "−" : sign}${text}`, half === null ? "" : ` ± ${half.toFixed(decimals)}`];
}

/** Return the runs of an activation. */
function runsOf(column, name) {
  return column.runs.filter((run) => run.spec.activation === name);
}

/** Return the name of a layer of the current column. */
function layerName(layer) {
  return currentColumn().layers[layer] ?? `layer ${layer + 1}`;
}

/** Return the reading of a column: the chosen one, or by default the column's fairest. */
function readingOf(column) {
  return DOCUMENT.readings[Object.hasOwn(DOCUMENT.readings, state.reading) ? state.reading : column.reading];
}

const learns = (row) => row.kind !== "fixed" && row.kind !== "own";

/** Return the rows that a view can show. */
function offeredRows() {
  const {rows} = currentColumn();
  return state.view === "training" ? rows : rows.filter(learns);
}

/** Return the rows of a column with results, the best mean first. */
function byAccuracy(column) {
  const {name} = readingOf(column);
  const mean = (row) => (row.lost ? null : (row.accuracy[name]?.[0] ?? null));
  const rows = column.rows.filter((row) => mean(row) !== null);
  return rows.sort((a, b) => (column.lower ? 1 : -1) * (mean(a) - mean(b)));
}

/** Return the rows to start with: more than a few curves hide each other. */
function firstRows() {
  const offered = offeredRows();
  if (state.view === "paths" || offered.length <= FEW_ROWS) return offered;
  const ranked = byAccuracy(currentColumn()).filter((row) => offered.includes(row));
  const kinds = [ranked.find(learns), ranked.find((row) => !learns(row)), ranked.find(({name}) => name === REFERENCE)];
  return [...new Set([...kinds.filter(Boolean), ...ranked])].slice(0, FEW_ROWS);
}

function chosenRows() {
  const first = firstRows();
  return offeredRows().filter((row) => (state.row === null ? first.includes(row) : state.row.includes(row.name)));
}

function offeredSeeds() {
  return [...new Set(currentColumn().runs.map((run) => run.spec.seed))].sort((a, b) => a - b);
}

/** Return the chosen seeds; by default the first, as curves of several hide each other, and all for training. */
function chosenSeeds() {
  const seeds = offeredSeeds();
  if (state.seed !== null) return seeds.filter((seed) => state.seed.includes(String(seed)));
  return state.view === "training" ? seeds : seeds.slice(0, 1);
}

function chosenRuns(row) {
  const seeds = chosenSeeds();
  return runsOf(currentColumn(), row.name).filter((run) => seeds.includes(run.spec.seed));
}

function currentEpoch() {
  const {epochs} = currentColumn();
  return state.epoch === null ? epochs : Math.min(Math.max(Math.round(Number(state.epoch) || 0), 0), epochs);
}

/** Return a run’s coefficients by layer and base: one value per epoch, null where it is not known. */
function pathsOf(run) {
  const decode = (steps) => {
    let value = 0;
    return steps.map((step) => (step === null ? null : (value += step) / DOCUMENT.scale));
  };
  run.paths ??= run.coefficients.map((layer) => layer.map(decode));
  return run.paths;
}

/** Return the coefficients at an epoch, interpolated between two epochs. */
function coefficientsAt(paths, epoch) {
  const before = Math.floor(epoch);
  const share = epoch - before;
  return paths.map((path) => {
    const [a, b] = [path[before], path[share ? before + 1 : before]];
    return a === null || b === null ? null : a + share * (b - a);
  });
}

/** Return whether a run has diverged by the epoch on the screen. */
function isLost(run) {
  return run.lost !== null && motion.shown > run.lost - 1;
}

function lostRemark(runs) {
  return runs
    .filter(isLost)
    .map(({spec, ended}) => `${spec.activation}, seed ${spec.seed}: ${ended}; what it learned is known up to there.`)
    .join(" ");
}

/** Return whether the formulas of all bases of a run are known here; those of a user's own bases are not. */
function canDraw(run) {
  return run.bases.every((name) => Object.hasOwn(BASES, name));
}
