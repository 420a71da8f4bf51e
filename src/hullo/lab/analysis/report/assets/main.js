"use strict";
// The page: which view is shown, and when it is drawn.

const VIEWS = {
  table: {name: "Results", title: "Results", build: buildTable, update: updateTable},
  curves: {
    name: "Curves",
    title: "Learned activations",
    lead: "One panel per layer, from the input to the output. Affine hulls are solid, convex hulls dashed.",
    build: buildCurves,
    update: updateCurves,
  },
  paths: {
    name: "Paths",
    title: "Coefficients over training",
    lead:
      "One panel per activation, one path per layer. The coefficients of a convex hull stay in the shaded simplex; " +
      "those of an affine hull may leave it. A dot marks the epoch.",
    build: buildPaths,
    update: updatePaths,
  },
  training: {
    name: "Training",
    title: "Learning curves",
    lead:
      "The mean of the chosen seeds, and each seed as a faint line. A run that diverged ends with a cross and does " +
      "not count in a mean.",
    build: buildTraining,
    update: updateTraining,
  },
  playground: {
    name: "Playground",
    title: "Playground",
    lead: "Change the coefficients of base functions and see their combination.",
    build: buildPlayground,
    update: updatePlayground,
  },
  runs: {name: "Runs", title: "Runs", build: buildRuns, update: () => {}},
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
  VIEWS[state.view].update();
  for (const link of document.querySelectorAll("#views a")) link.href = address({view: link.dataset.view});
  if (lit.name !== null) light(lit.name);
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
  VIEWS[state.view].build();
  update();
  if (id && document.activeElement.id !== id) document.getElementById(id)?.focus();
}

function begin() {
  const {columns, waiting} = DOCUMENT;
  const runs = columns.reduce((sum, column) => sum + column.runs.length, 0);
  document.getElementById("summary").textContent =
    `${plural(runs, "run")} in ${plural(columns.length, "experiment")}, hullo ${DOCUMENT.hullo}`;
  for (const [view, {name, title, lead}] of Object.entries(VIEWS)) {
    if (columns.length || view === "playground") {
      document.getElementById("views").append(node("a", {href: `#${view}`, "data-view": view}, name));
    }
    const heading = node("h2", {id: `${view}-title`}, title);
    const about = lead ? node("p", {class: "lead"}, lead) : null;
    const section = {id: view, "aria-labelledby": heading.id, hidden: true};
    const body = node("div", {"data-part": "body"});
    document.getElementById("main").append(node("section", section, heading, about, body));
  }
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
