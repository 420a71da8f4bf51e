"use strict";
// The runs of an experiment, grouped by activation: how each was made and how it ended.

function buildRuns() {
  const column = currentColumn();
  const cell = select(
    "cell",
    [["", "all"], ...column.rows.map(({name}) => [name, name])],
    state.cell ?? "",
    (name) => go({cell: name || null, run: null}),
  );
  const rows = column.rows.filter(({name}) => name === (state.cell ?? name));
  const own = ({name}) => runsOf(column, name);
  const count = rows.flatMap(own).length;
  bodyOf("runs").replaceChildren(
    node("div", {class: "bar"}, columnSelect(), labelled("Activation", cell)),
    node("p", {class: "lead"}, settingList(column), ` ${plural(count, "run")}. ${meaningOf(readingOf(column))}`),
    ...rows.map((row) => runGroup(row, own(row), column, rows.length === 1)),
  );
  bodyOf("runs").querySelector("[data-run][open]")?.scrollIntoView({block: "nearest"});
}

/** Return the runs of an activation, behind their mean. */
function runGroup(row, runs, column, alone) {
  const [mean, half] = row.accuracy[readingOf(column).name] ?? [null, null];
  return node(
    "details",
    {class: "group", "data-group": row.name, open: alone || runs.some(({id}) => id === state.run)},
    node(
      "summary",
      null,
      node("span", {class: "name"}, row.name),
      node("span", {class: "seed"}, plural(runs.length, "run")),
      node("strong", null, mean === null ? "–" : spelled(column, mean, half).join("") + column.unit),
      row.diverged ? node("span", {class: "warn"}, `${row.diverged} diverged`) : null,
    ),
    runs.map((run) => runDetails(run, column)),
  );
}

function runDetails(run, column) {
  const reading = readingOf(column);
  const environment = DOCUMENT.environments[run.environment];
  const {network, data, activation, ...rest} = run.spec;
  const said = {
    "how it ended": run.ended,
    ...Object.fromEntries(column.readings.map((name) => [DOCUMENT.readings[name].short, readText(run, name, column)])),
    took: `${run.seconds.toLocaleString("en")} s for ${plural(run.members, "network")} side by side`,
    network,
    "data set": data,
    activation,
    ...rest,
    ...environment,
    id: run.id,
  };
  const made = node(
    "details",
    {"data-run": run.id, open: state.run === run.id},
    node(
      "summary",
      null,
      node("span", {class: "name"}, `seed ${run.spec.seed}`),
      node("strong", null, reading.name in run.accuracy ? spelled(column, run.accuracy[reading.name])[0] + column.unit : "–"),
      node("span", {class: run.lost ? "warn" : "fine"}, run.ended),
    ),
    node(
      "dl",
      {class: "details"},
      Object.entries(said).map(([term, value]) =>
        node("div", null, definition(term.replaceAll("_", " "), value === "" ? "–" : String(value))),
      ),
    ),
    node(
      "p",
      null,
      ["curves", "training"].map((view) =>
        node("a", {class: "more", href: address({view, row: [activation], seed: [run.spec.seed]})}, VIEWS[view].name),
      ),
    ),
  );
  made.addEventListener("toggle", () => {
    if (made.open) change({run: run.id});
  });
  return made;
}

/** Return a run's accuracy under a reading, with the epoch if it was chosen. */
function readText(run, name, column) {
  const chosen = ["chosen", "best"].includes(name) ? `, epoch ${run.read[name]}` : "";
  return spelled(column, run.accuracy[name])[0] + column.unit + chosen;
}
