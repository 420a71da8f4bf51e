"use strict";
// All columns beside the paper's; any of them sorts the rows, and each cell leads to its runs.

const SHOWN = {accuracy: "accuracy", difference: "difference from relu"};

/** What a cell shows: our mean and half its interval, and the paper's. */
function cellOf(column, name) {
  const row = column.rows.find((other) => other.name === name);
  const difference = state.show === "difference";
  const [ours, half] = (difference ? row?.difference : row?.accuracy) ?? [null, null];
  return {row, ours, half, paper: column.paper[name]?.[Number(difference)] ?? null};
}

function buildTable() {
  const names = sortedNames();
  const shown = select("show", Object.entries(SHOWN), state.show ?? "accuracy", (show) => go({show}));
  const choose = columnSelect();
  choose.classList.add("narrow");
  const pairs = state.show === "difference" ? ", of differences between runs of the same seed" : "";
  bodyOf("table").replaceChildren(
    node("div", {class: "bar"}, choose, labelled("Show", shown)),
    node(
      "div",
      {class: "scroll", tabindex: 0, role: "region", "aria-labelledby": "table-title"},
      node("table", {class: "results"}, tableHead(), tableBody(names)),
    ),
    node(
      "p",
      {class: "lead"},
      `In percent: the mean over seeds and its 95 % interval${pairs}. The best of a column is bold. `,
      "A cell leads to its runs.",
    ),
    node(
      "ul",
      {class: "remarks"},
      remarks().map((text) => node("li", null, text)),
    ),
  );
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

function tableHead() {
  const groups = DOCUMENT.columns.map((column) =>
    node(
      "th",
      {colspan: 2, scope: "colgroup", class: partOf(column)},
      node("a", {href: address({view: "curves", column: column.name})}, column.name),
      node("small", null, column.about),
    ),
  );
  const headings = DOCUMENT.columns.map((column) => [
    heading("hullo", `ours ${column.name}`, partOf(column)),
    heading("paper", `paper ${column.name}`, partOf(column)),
  ]);
  return node(
    "thead",
    null,
    node("tr", null, node("td"), groups),
    node("tr", null, heading("activation", "activation", ""), headings),
  );
}

function tableBody(names) {
  const difference = state.show === "difference";
  const spell = difference ? signed : percent;
  const least = difference ? 0 : -Infinity; // what is below the reference is not the best
  const rows = names.map((name) => node("tr", null, node("th", {scope: "row"}, name)));
  for (const column of DOCUMENT.columns) {
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

/** A header that sorts: numbers from the largest, names in the paper's order; again, the other way round. */
function heading(text, key, part) {
  const [, sign, by] = /^(-?)(.*)$/.exec(state.sort ?? "activation");
  const sorted = by === key;
  const down = key !== "activation";
  const id = `sort-${key.replaceAll(" ", "-")}`;
  const next = sorted ? `${sign ? "" : "-"}${key}` : `${down ? "-" : ""}${key}`;
  return node(
    "th",
    {scope: "col", class: part, "aria-sort": sorted ? (sign ? "descending" : "ascending") : "none"},
    node("button", {type: "button", id, class: "sort", click: () => go({sort: next})}, text),
  );
}

/** All activations in the order that the view asks for; those without a value come last. */
function sortedNames() {
  const names = DOCUMENT.rows;
  const [, sign, whose, by] = /^(-?)(\w*) ?(.*)$/.exec(state.sort ?? "activation");
  const column = DOCUMENT.columns.find(({name}) => name === by);
  if (!column) return sign ? [...names].reverse() : names;
  const value = (name) => cellOf(column, name)[whose] ?? null;
  const direction = sign ? -1 : 1;
  return [...names].sort((a, b) => {
    const [one, two] = [value(a), value(b)];
    if (one === null || two === null) return (one === null) - (two === null);
    return direction * (one - two);
  });
}
