"use strict";
// The page: which view is shown, and when it is drawn.

const NOTHING = () => {};
const DRAWN = {
  table: {build: buildTable, update: updateTable},
  curves: {build: buildCurves, update: updateCurves},
  paths: {build: buildPaths, update: updatePaths},
  training: {build: buildTraining, update: updateTraining},
  playground: {build: buildPlayground, update: updatePlayground},
  runs: {build: buildRuns, update: NOTHING},
};

/** Go to another view, as an entry of the browser's history. */
function go(changes) {
  clearTimeout(writing);
  history.pushState(null, "", address(changes));
  show();
}

/** Draw anew what has moved; controls stay as they are. */
function update() {
  updateControls();
  DRAWN[state.view].update();
  updateLinks();
  if (lit.name !== null) light(lit.name);
}

function updateLinks() {
  for (const link of document.querySelectorAll("#views a")) link.href = address({view: link.dataset.view});
}

/** Build the view that the address names; the focus stays on its control. */
function show() {
  const {id} = document.activeElement;
  readAddress();
  leave();
  if (!DOCUMENT.columns.length) state.view = "playground";
  for (const view of Object.keys(VIEWS)) {
    document.getElementById(view).hidden = view !== state.view;
    if (view !== state.view) bodyOf(view).replaceChildren();
  }
  for (const link of document.querySelectorAll("#views a")) {
    if (link.dataset.view === state.view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (DOCUMENT.columns.length) buildControls();
  DRAWN[state.view].build();
  update();
  if (id && document.activeElement.id !== id) document.getElementById(id)?.focus();
}

function begin() {
  const {columns, waiting} = DOCUMENT;
  const runs = columns.reduce((sum, column) => sum + column.runs.length, 0);
  document.getElementById("summary").textContent =
    `${plural(runs, "run")} in ${plural(columns.length, "experiment")}, hullo ${DOCUMENT.hullo}`;
  const views = Object.entries(VIEWS).filter(([view]) => columns.length || view === "playground");
  document.getElementById("views").append(
    ...views.map(([view, name]) => node("a", {href: `#${view}`, "data-view": view}, name)),
  );
  document.getElementById("notes").append(
    ...waiting.map(([column, count]) =>
      node("p", {class: "note"}, `${column}: ${plural(count, "run")} in progress; shown when finished.`),
    ),
  );
  document.getElementById("theme").addEventListener("click", () => {
    const root = document.documentElement;
    const usual = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    root.dataset.theme = (root.dataset.theme ?? usual) === "dark" ? "light" : "dark";
  });
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault(); // the address is the view's
    document.getElementById("main").focus();
  });
  document.body.append(tip);
  lightFrom(document.getElementById("controls"));
  window.addEventListener("hashchange", show);
  window.addEventListener("resize", update);
  show();
}

begin();
