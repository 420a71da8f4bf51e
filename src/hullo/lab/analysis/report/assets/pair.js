"use strict";
// Two activations of an experiment, compared in a sentence.

/** Return the two activations: the chosen ones, or the best and the reference. */
function currentPair(column) {
  const [best] = byAccuracy(column);
  const first = column.rows.find(({name}) => name === state.pair?.[0]) ?? best ?? column.rows[0];
  const rest = column.rows.filter((row) => row !== first);
  const second = rest.find(({name}) => name === state.pair?.[1]) ?? rest.find(({name}) => name === REFERENCE);
  return [first, second ?? rest[0]];
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
      column.runs
        .filter((run) => run.spec.activation === activation && name in run.accuracy)
        .map((run) => [run.spec.seed, run.accuracy[name]]),
    );
  const [ours, theirs] = [reached(one), reached(two)];
  const differences = [...ours.keys()].filter((seed) => theirs.has(seed)).map((seed) => ours.get(seed) - theirs.get(seed));
  if (!differences.length) return `${one} and ${two} have no common seeds.`;
  const unit = column.unit ? " points" : "";
  const about = `${labelOf(column)}, ${reading}`;
  const mean = meanOf(differences);
  const size = percent(Math.abs(mean)) + unit;
  if (differences.length === 1) return `${one} and ${two} differ by ${size} on one seed, which gives no interval (${about}).`;
  const squares = differences.reduce((sum, value) => sum + (value - mean) ** 2, 0);
  const count = differences.length;
  const half = DOCUMENT.quantiles[count - 2] * Math.sqrt(squares / (count - 1) / count);
  const interval = `${percent(Math.abs(mean))} ± ${percent(half)}${unit}`;
  const seeds = `on ${count} common seeds (${about}; one comparison, not corrected for others)`;
  if (half >= Math.abs(mean) || !half) return `${one} and ${two} differ by ${interval} ${seeds}: undecided.`;
  const better = (mean > 0) !== column.lower;
  return better ? `${one} beats ${two} by ${interval} ${seeds}.` : `${two} beats ${one} by ${interval} ${seeds}.`;
}
