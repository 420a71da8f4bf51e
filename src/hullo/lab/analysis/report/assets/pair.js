"use strict";
// Two activations of an experiment, compared in a sentence.

/** Return the two activations: the chosen ones, or the best and the reference. Of `hullo compare` these are the
 * challenger, which has most seeds, and the original. */
function currentPair(column) {
  const named = (rows, wanted) => rows.find(({name}) => name === wanted);
  const reference = column.rows.find(({kind}) => kind === "own") ?? named(column.rows, REFERENCE);
  const seeds = ({name}) => runsOf(column, name).length;
  const others = byAccuracy(column).filter((row) => row !== reference);
  const best = column.compared ? others.sort((a, b) => seeds(b) - seeds(a))[0] : byAccuracy(column)[0];
  const first = named(column.rows, state.pair?.[0]) ?? best ?? column.rows[0];
  const rest = column.rows.filter((row) => row !== first);
  return [first, named(rest, state.pair?.[1]) ?? (rest.includes(reference) ? reference : rest[0])];
}

/** Return the control: an experiment, two activations, and what their runs of the same seeds say. */
function pairPanel() {
  const column = currentColumn();
  if (column.rows.length < 2) return node("div", {class: "bar"}, columnSelect());
  const [one, two] = currentPair(column).map(({name}) => name);
  const choose = (id, chosen, make) =>
    select(id, column.rows.map(({name}) => [name, name]), chosen, (name) => go({pair: make(name)}));
  return node(
    "div",
    {class: "pair"},
    node(
      "div",
      {class: "bar"},
      columnSelect(),
      labelled("Compare", choose("pair-one", one, (name) => (name === two ? [two, one] : [name, two]))),
      labelled("with", choose("pair-two", two, (name) => (name === one ? [two, one] : [one, name]))),
    ),
    node("p", {"data-part": "pair", "aria-live": "polite"}, breakable(pairSentence(column, one, two))),
  );
}

function pairSentence(column, one, two) {
  const {name, short: reading} = readingOf(column);
  const reached = (activation) =>
    new Map(
      runsOf(column, activation)
        .filter((run) => name in run.accuracy)
        .map((run) => [run.spec.seed, run.accuracy[name]]),
    );
  const [ours, theirs] = [reached(one), reached(two)];
  const differences = [...ours.keys()].filter((seed) => theirs.has(seed)).map((seed) => ours.get(seed) - theirs.get(seed));
  if (!differences.length) return `${one} and ${two} have no common seeds.`;
  const unit = column.unit ? " points" : "";
  const about = `${labelOf(column)}, ${reading}`;
  const mean = meanOf(differences);
  const spell = (...figures) => spelled(column, Math.abs(mean), ...figures).join("") + unit;
  if (differences.length === 1) return `${one} and ${two} differ by ${spell()} on one seed, which gives no interval (${about}).`;
  const squares = differences.reduce((sum, value) => sum + (value - mean) ** 2, 0);
  const count = differences.length;
  const half = DOCUMENT.quantiles[count - 2] * Math.sqrt(squares / (count - 1) / count);
  const interval = spell(half);
  const choosing = column.compared ? ", and with the seeds that chose the candidates" : "";
  const seeds = `on ${count} common seeds (${about}; one comparison, not corrected for others${choosing})`;
  if (half >= Math.abs(mean) || !half) return `${one} and ${two} differ by ${interval} ${seeds}: undecided.`;
  const better = (mean > 0) !== column.lower;
  return better ? `${one} beats ${two} by ${interval} ${seeds}.` : `${two} beats ${one} by ${interval} ${seeds}.`;
}
