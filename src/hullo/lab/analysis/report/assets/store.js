"use strict";
// What the page knows: the document, and the view, which is also written into the address after the #.

const DOCUMENT = JSON.parse(document.getElementById("data").textContent);
const VIEWS = {
  table: "Results",
  curves: "Curves",
  paths: "Paths",
  training: "Training",
  playground: "Playground",
  runs: "Runs",
};

/** How each part of the view is read from the address; null is whatever suits the data. */
const PARTS = {
  column: (texts) => texts[0],
  row: (texts) => texts,
  seed: (texts) => texts.filter(Boolean).map(Number),
  epoch: (texts) => Number(texts[0]) || 0,
  layers: (texts) => texts[0],
  metric: (texts) => texts[0],
  show: (texts) => texts[0],
  reading: (texts) => (Object.hasOwn(DOCUMENT.readings, texts[0]) ? texts[0] : null),
  sort: (texts) => texts[0],
  studies: (texts) => texts[0],
  cell: (texts) => texts[0],
  run: (texts) => texts[0],
  base: (texts) => texts,
};

const state = {view: "table"};

function readAddress() {
  const [view, query = ""] = location.hash.slice(1).split("?");
  const given = new URLSearchParams(query);
  state.view = view in VIEWS ? view : "table";
  for (const [name, read] of Object.entries(PARTS)) state[name] = given.has(name) ? read(given.getAll(name)) : null;
}

/** The address of a view: the present one with changes. */
function address(changes) {
  const {view, ...parts} = {...state, ...changes};
  const query = new URLSearchParams();
  for (const name of Object.keys(PARTS)) {
    for (const value of [parts[name] ?? []].flat()) query.append(name, value);
    if (Array.isArray(parts[name]) && !parts[name].length) query.append(name, "");
  }
  return `#${view}${query.size ? `?${query}` : ""}`;
}

let writing = null;

/** Change the view, show it, and soon note it in the address: browsers do not like that done many times a second. */
function change(changes) {
  Object.assign(state, changes);
  clearTimeout(writing);
  writing = setTimeout(() => history.replaceState(null, "", address({})), 150);
  update();
}

// What the view means for the data.

function currentColumn() {
  const {columns} = DOCUMENT;
  return columns.find(({name}) => name === state.column) ?? columns.find(({study}) => !study) ?? columns[0];
}

/** Return a column's title with the settings that set it apart. */
function labelOf({title, chips}) {
  return [title, ...chips].join(", ");
}

/** Return the settings that set a column apart, as chips. */
function chipList({chips}) {
  return chips.map((text) => node("span", {class: "setting"}, text));
}

/** Return the name of a layer of the current column. */
function layerName(layer) {
  return currentColumn().layers[layer] ?? `layer ${layer + 1}`;
}

/** Which epochs of a column's runs count: the chosen reading, or by default the column's fairest. */
function readingOf(column) {
  return DOCUMENT.readings[state.reading ?? column.reading];
}

const learns = (row) => row.kind !== "fixed" && row.kind !== "own";

/** The rows that a view can show, and those of them that are chosen. */
function offeredRows() {
  const {rows} = currentColumn();
  return state.view === "training" ? rows : rows.filter(learns);
}

function chosenRows() {
  return offeredRows().filter((row) => state.row === null || state.row.includes(row.name));
}

function offeredSeeds() {
  return [...new Set(currentColumn().runs.map((run) => run.spec.seed))].sort((a, b) => a - b);
}

/** Curves of several seeds would hide each other: there it is the first one until others are asked for. */
function chosenSeeds() {
  const seeds = offeredSeeds();
  if (state.seed !== null) return seeds.filter((seed) => state.seed.includes(seed));
  return state.view === "training" ? seeds : seeds.slice(0, 1);
}

function chosenRuns(row) {
  const seeds = chosenSeeds();
  return currentColumn().runs.filter((run) => run.spec.activation === row.name && seeds.includes(run.spec.seed));
}

function currentEpoch() {
  const {epochs} = currentColumn();
  return state.epoch === null ? epochs : Math.min(Math.max(Math.round(state.epoch), 0), epochs);
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

/** The coefficients at an epoch, between two epochs a mixture of both. */
function coefficientsAt(paths, epoch) {
  const before = Math.floor(epoch);
  const share = epoch - before;
  return paths.map((path) => {
    const [a, b] = [path[before], path[share ? before + 1 : before]];
    return a === null || b === null ? null : a + share * (b - a);
  });
}

/** Whether a run has diverged by now: what it had learned is known up to the epoch before. */
function isLost(run) {
  return run.lost !== null && motion.shown > run.lost - 1;
}

function lostRemark(runs) {
  return runs
    .filter(isLost)
    .map(({spec, ended}) => `${spec.activation}, seed ${spec.seed}: ${ended}; what it learned is known up to there.`)
    .join(" ");
}

/** Whether the functions of all these bases are known here; somebody's own ones are not. */
function canDraw(run) {
  return run.bases.every((name) => Object.hasOwn(BASES, name));
}
