"use strict";
// The results: the finding, a dot plot, and a table whose columns sort it and whose cells lead to their runs.

const SHOWN = {accuracy: "accuracy", difference: "difference from relu"};

/** Return what a cell shows: our mean and half its interval under the reading, and the paper's. */
function cellOf(column, name) {
  const row = column.rows.find((other) => other.name === name);
  const difference = state.show === "difference";
  const [ours, half] = (difference ? row?.difference : row?.accuracy)?.[readingOf(column).name] ?? [null, null];
  return {row, ours, half, paper: column.paper[name]?.[Number(difference)] ?? null};
}

/** Return the sign of positive figures. */
const shownSign = () => (state.show === "difference" ? "+" : "");
const hasRow = (column, name) => column.rows.some((row) => row.name === name);
const hasPaper = (column) => Object.keys(column.paper).length > 0;

/** Return the experiments on show: studies only if they are asked for. */
function shownColumns() {
  const main = DOCUMENT.columns.filter(({study}) => !study);
  return state.studies || !main.length ? DOCUMENT.columns : main;
}

/** Return the columns of each table: one of them has all rows of the others, so that few cells are empty. */
function tables() {
  const found = [];
  const columns = shownColumns();
  for (const column of [...columns].sort((a, b) => b.rows.length - a.rows.length)) {
    const table = found.find(([widest]) => column.rows.every(({name}) => hasRow(widest, name)));
    if (table) table.push(column);
    else found.push([column]);
  }
  const place = (column) => columns.indexOf(column);
  for (const group of found) group.sort((a, b) => place(a) - place(b));
  return found.sort(([a], [b]) => place(a) - place(b));
}

function buildTable() {
  const metrics = [...new Set(shownColumns().map(({metric}) => metric))];
  const shown = select("show", Object.entries({...SHOWN, accuracy: metrics.join(", ")}), state.show ?? "accuracy", (show) => go({show}));
  const known = Object.values(DOCUMENT.readings).filter(({name}) =>
    DOCUMENT.columns.some(({readings}) => readings.includes(name)),
  );
  const offered = [["", "the fairest of each column"], ...known.map(({name, short}) => [name, short])];
  const reading = select("reading", offered, state.reading ?? "", (name) => go({reading: name || null}));
  const pairs = state.show === "difference" ? ", of differences between runs of the same seed" : "";
  document.getElementById("table-title").replaceChildren(...breakable(DOCUMENT.finding));
  bodyOf("table").replaceChildren(
    node(
      "div",
      {class: "bar"},
      studySwitch(),
      labelled("Show", shown),
      labelled("Reading", reading),
      downloads("results", null, resultRows),
    ),
    dotKey(shownColumns()),
    node("div", {"data-part": "dots"}),
    node("p", {class: "lead"}, gainNote()),
    pairPanel(),
    ...tables().map((columns) =>
      node(
        "div",
        {class: "scroll", tabindex: 0, role: "region", "aria-label": columns.map(labelOf).join(", ")},
        lightFrom(node("table", {class: "results"}, tableHead(columns), tableBody(columns))),
      ),
    ),
    node(
      "p",
      {class: "lead"},
      shownColumns().every(({unit}) => unit) ? "In percent. " : "",
      haveSeeds(shownColumns()) ? `The mean over seeds and its 95 % interval${pairs}. ` : "",
      shownColumns().every(({compared}) => compared)
        ? ""
        : "The best of a column is bold; activations of which all runs diverged do not count. ",
      "A cell leads to its runs. ",
      [...new Set(shownColumns().map(readingOf))].map(meaningOf).join(" "),
    ),
    node(
      "ul",
      {class: "remarks"},
      remarks().map((text) => node("li", null, text)),
    ),
  );
}

/** Draw the dot plots as wide as there is room. */
function updateTable() {
  const place = bodyOf("table").querySelector("[data-part=dots]");
  place.replaceChildren(
    ...tables()
      .flatMap((columns) => dotPlots(columns, place.clientWidth))
      .map((svg, i) =>
        node("figure", {class: "panel"}, svg, downloads(i ? `dot plot ${i + 1}` : "dot plot", () => svg, null)),
      ),
  );
}

/** Return the switch that shows studies, if there are any beside the main experiments. */
function studySwitch() {
  const count = DOCUMENT.columns.filter(({study}) => study).length;
  if (!count || count === DOCUMENT.columns.length) return null;
  const box = node("input", {
    type: "checkbox",
    role: "switch",
    id: "studies",
    checked: Boolean(state.studies),
    change: () => go({studies: box.checked ? "all" : null}),
  });
  const studies = count === 1 ? "1 study" : `${count} studies`;
  return node("label", {class: "chip"}, box, `Show ${studies} with other settings`);
}

function gainNote() {
  if (!shownColumns().some(gainText)) return "";
  return (
    `Hulls: how much better the best hull is than the best other activation${shownColumns().every(({unit}) => unit) ? ", in points" : ""}, ` +
    "each chosen on some seeds and compared on others, under the fairest reading of the experiment. Gains that are undecided, each alone, name " +
    "the seeds that would show what was seen with a probability of 80 %."
  );
}

/** Return the table as rows for a CSV file. */
function resultRows() {
  const rows = tables().flatMap((columns) =>
    columns.flatMap((column) =>
      sortedNames(columns).flatMap((name) => {
        const {row, ours, half, paper} = cellOf(column, name);
        const runs = runsOf(column, name).length;
        return row ? [[column.name, readingOf(column).name, name, ours, half, runs, row.diverged, paper]] : [];
      }),
    ),
  );
  const shown = state.show ?? "accuracy";
  return [["experiment", "reading", "activation", shown, "half_interval", "runs", "diverged", "paper"], ...rows];
}

/** Return what a reading is, in a sentence. */
function meaningOf({name, meaning}) {
  return `Reading ${name}: ${meaning}.`;
}

/** Return what must be known of columns, each remark once. */
function remarks() {
  const about = new Map();
  const columns = shownColumns();
  for (const column of columns) {
    for (const text of column.remarks) about.set(text, [...(about.get(text) ?? []), labelOf(column)]);
  }
  return [...about].map(([text, names]) => (names.length === columns.length ? text : `${names.join("; ")}: ${text}`));
}

/** Return the class of a column's cells: on a phone only the chosen column is shown. */
function partOf(column) {
  return column === currentColumn() ? "chosen" : "";
}

function tableHead(columns) {
  const groups = columns.map((column) =>
    node(
      "th",
      {colspan: hasPaper(column) ? 2 : 1, scope: "colgroup", class: partOf(column)},
      node("a", {href: address({view: "curves", column: column.name})}, column.title),
      settingList(column),
      node("small", null, `${column.about}, ${readingOf(column).short}`),
    ),
  );
  const headings = columns.map((column) => [
    heading(columns, hasPaper(column) ? "hullo" : column.metric, `ours ${column.name}`, partOf(column)),
    hasPaper(column) ? heading(columns, "paper", `paper ${column.name}`, partOf(column)) : null,
  ]);
  return node(
    "thead",
    null,
    node("tr", null, node("td"), groups),
    node("tr", null, heading(columns, "activation", "activation", ""), headings),
  );
}

function tableBody(columns) {
  const names = sortedNames(columns);
  const difference = state.show === "difference";
  const least = difference ? 0 : -Infinity; // what is below the reference is not the best
  const rows = names.map((name) => node("tr", {"data-line": name}, node("th", {scope: "row"}, breakable(name))));
  for (const column of columns) {
    const cells = names.map((name) => cellOf(column, name));
    const sign = column.lower ? -1 : 1;
    const bestOf = (values) => sign * Math.max(least, ...values.map((value) => sign * (value ?? -sign * Infinity)));
    const ourBest = bestOf(cells.map(({row, ours}) => (row?.lost ? null : ours)));
    const paperBest = bestOf(Object.values(column.paper).map((pair) => pair[Number(difference)]));
    cells.forEach(({row, ours, half, paper}, i) => {
      rows[i].append(
        node(
          "td",
          {class: partOf(column)},
          ourCell(column, row, ours === ourBest && !row?.lost && !column.compared, ours, half),
        ),
      );
      if (hasPaper(column)) {
        rows[i].append(
          node("td", {class: `paper ${partOf(column)}`}, strongIf(paper === paperBest, spelled(column, paper, null, shownSign())[0])),
        );
      }
    });
  }
  return node("tbody", null, rows);
}

function ourCell(column, row, best, ours, half) {
  if (!row) return "–";
  const [mean, interval] = spelled(column, ours, half, shownSign());
  const seeds = runsOf(column, row.name).length;
  return node(
    "a",
    {href: address({view: "runs", column: column.name, cell: row.name, run: null})},
    strongIf(best, mean || "–"),
    node("span", {class: "half"}, interval),
    seeds === usualSeeds(column) ? null : node("span", {class: "half remark"}, plural(seeds, "seed")),
    row.diverged ? node("span", {class: "warn remark"}, `${row.diverged} diverged`) : null,
  );
}

/** Return the number of seeds that most activations of a column have; of several such numbers, the largest. */
function usualSeeds(column) {
  const counts = column.rows.map(({name}) => runsOf(column, name).length).sort((a, b) => b - a);
  const often = (count) => counts.filter((other) => other === count).length;
  return counts.find((count) => often(count) === Math.max(...counts.map(often)));
}

function strongIf(best, text) {
  return best ? node("strong", null, text) : text;
}

/** Return by which of its headers a table is sorted, and whether from the largest; in the paper's order if by none. */
function sortOf(columns) {
  const [, sign, key] = /^(-?)(.*)$/.exec(state.sort ?? "activation");
  const own = columns.some(({name}) => key === `ours ${name}` || key === `paper ${name}`);
  return own || key === "activation" ? {key, down: sign === "-"} : {key: "activation", down: false};
}

/** Return a header that sorts: numbers from the largest, names in the paper's order; again, the other way round. */
function heading(columns, text, key, part) {
  const sort = sortOf(columns);
  const sorted = sort.key === key;
  const next = (sorted ? !sort.down : key !== "activation") ? `-${key}` : key;
  const id = `sort ${columns[0].name} ${key}`.replaceAll(" ", "-");
  return node(
    "th",
    {scope: "col", class: part, "aria-sort": sorted ? (sort.down ? "descending" : "ascending") : "none"},
    node("button", {type: "button", id, class: "sort", click: () => go({sort: next})}, text),
  );
}

/** Return the activations of a table in the order that the view asks for; those without a value come last. */
function sortedNames(columns) {
  const {key, down} = sortOf(columns);
  const names = DOCUMENT.rows.filter((name) => columns.some((column) => hasRow(column, name)));
  if (key === "activation") return down ? names.reverse() : names;
  const [, whose, by] = /^(\w+) (.*)$/.exec(key);
  const column = columns.find(({name}) => name === by);
  const value = (name) => cellOf(column, name)[whose];
  return names.sort((a, b) => {
    const [one, two] = [value(a), value(b)];
    if (one === null || two === null) return (one === null) - (two === null);
    return (down ? -1 : 1) * (one - two);
  });
}
