"use strict";
// All columns beside the paper's; any of them sorts the rows of its table, and each cell leads to its runs.

const SHOWN = {accuracy: "accuracy", difference: "difference from relu"};

/** What a cell shows: our mean and half its interval under the reading, and the paper's. */
function cellOf(column, name) {
  const row = column.rows.find((other) => other.name === name);
  const difference = state.show === "difference";
  const [ours, half] = (difference ? row?.difference : row?.accuracy)?.[readingOf(column).name] ?? [null, null];
  return {row, ours, half, paper: column.paper[name]?.[Number(difference)] ?? null};
}

const hasRow = (column, name) => column.rows.some((row) => row.name === name);

/** The columns of each table: one of them has all rows of the others, so that few cells are empty. */
function tables() {
  const found = [];
  for (const column of [...DOCUMENT.columns].sort((a, b) => b.rows.length - a.rows.length)) {
    const table = found.find(([widest]) => column.rows.every(({name}) => hasRow(widest, name)));
    if (table) table.push(column);
    else found.push([column]);
  }
  const place = (column) => DOCUMENT.columns.indexOf(column);
  for (const columns of found) columns.sort((a, b) => place(a) - place(b));
  return found.sort(([a], [b]) => place(a) - place(b));
}

function buildTable() {
  const shown = select("show", Object.entries(SHOWN), state.show ?? "accuracy", (show) => go({show}));
  const known = Object.values(DOCUMENT.readings).filter(({name}) =>
    DOCUMENT.columns.some(({readings}) => readings.includes(name)),
  );
  const offered = [["", "the fairest of each column"], ...known.map(({name, short}) => [name, short])];
  const reading = select("reading", offered, state.reading ?? "", (name) => go({reading: name || null}));
  const choose = columnSelect();
  choose.classList.add("narrow");
  const pairs = state.show === "difference" ? ", of differences between runs of the same seed" : "";
  bodyOf("table").replaceChildren(
    node("div", {class: "bar"}, choose, labelled("Show", shown), labelled("Reading", reading)),
    ...tables().map((columns) =>
      node(
        "div",
        {class: "scroll", tabindex: 0, role: "region", "aria-label": columns.map(({name}) => name).join(", ")},
        node("table", {class: "results"}, tableHead(columns), tableBody(columns)),
      ),
    ),
    node(
      "p",
      {class: "lead"},
      `In percent: the mean over seeds and its 95 % interval${pairs}. The best of a column is bold. `,
      "A cell leads to its runs. ",
      [...new Set(DOCUMENT.columns.map(readingOf))].map(meaningOf).join(" "),
    ),
    node(
      "ul",
      {class: "remarks"},
      remarks().map((text) => node("li", null, text)),
    ),
  );
}

/** What a reading is, in a sentence. */
function meaningOf({name, meaning}) {
  return `Reading ${name}: ${meaning}.`;
}

/** What must be known of columns, each remark once. */
function remarks() {
  const about = new Map();
  for (const {name, remarks: said} of DOCUMENT.columns) {
    for (const text of said) about.set(text, [...(about.get(text) ?? []), name]);
  }
  return [...about].map(([text, names]) =>
    names.length === DOCUMENT.columns.length ? text : `${names.join(", ")}: ${text}`,
  );
}

/** On a phone only one column is shown. */
function partOf(column) {
  return column === currentColumn() ? "chosen" : "";
}

function tableHead(columns) {
  const groups = columns.map((column) =>
    node(
      "th",
      {colspan: 2, scope: "colgroup", class: partOf(column)},
      node("a", {href: address({view: "curves", column: column.name})}, column.name),
      node("small", null, `${column.about}, ${readingOf(column).short}`),
    ),
  );
  const headings = columns.map((column) => [
    heading(columns, "hullo", `ours ${column.name}`, partOf(column)),
    heading(columns, "paper", `paper ${column.name}`, partOf(column)),
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
  const spell = difference ? signed : percent;
  const least = difference ? 0 : -Infinity; // what is below the reference is not the best
  const rows = names.map((name) => node("tr", null, node("th", {scope: "row"}, name)));
  for (const column of columns) {
    const cells = names.map((name) => cellOf(column, name));
    const bestOf = (values) => Math.max(least, ...values.map((value) => value ?? -Infinity));
    const ourBest = bestOf(cells.map(({ours}) => ours));
    const paperBest = bestOf(Object.values(column.paper).map((pair) => pair[Number(difference)]));
    cells.forEach(({row, ours, half, paper}, i) => {
      rows[i].append(
        node("td", {class: partOf(column)}, ourCell(column, row, strongIf(ours === ourBest, spell(ours)), half)),
        node("td", {class: `paper ${partOf(column)}`}, strongIf(paper === paperBest, spell(paper))),
      );
    });
  }
  return node("tbody", null, rows);
}

function ourCell(column, row, text, half) {
  if (!row) return "–";
  return node(
    "a",
    {href: address({view: "runs", column: column.name, cell: row.name, run: null})},
    text || "–",
    half === null ? null : node("span", {class: "half"}, ` ± ${percent(half)}`),
    row.diverged ? node("span", {class: "warn"}, `${row.diverged} diverged`) : null,
  );
}

function strongIf(best, text) {
  return best ? node("strong", null, text) : text;
}

/** By which of its headers a table is sorted, and whether from the largest; in the paper's order if by none. */
function sortOf(columns) {
  const [, sign, key] = /^(-?)(.*)$/.exec(state.sort ?? "activation");
  const own = columns.some(({name}) => key === `ours ${name}` || key === `paper ${name}`);
  return own || key === "activation" ? {key, down: sign === "-"} : {key: "activation", down: false};
}

/** A header that sorts: numbers from the largest, names in the paper's order; again, the other way round. */
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

/** The activations of a table in the order that the view asks for; those without a value come last. */
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
