"use strict";
// Hover: the values under the pointer in a box beside it, and the line they belong to stands out.

const tip = node("div", {id: "tip", hidden: true});
const lit = {name: null};

/** Show a box beside the pointer: a title, and lines of [name, text] of which one may be nearest. */
function showTip(event, title, lines, nearest = null) {
  tip.replaceChildren(
    node("strong", null, title),
    ...lines.map(([name, text]) =>
      node("div", {class: name === nearest ? "nearest" : null}, node("span", null, name), node("span", null, text)),
    ),
  );
  tip.hidden = false;
  const {width, height} = tip.getBoundingClientRect();
  const left = event.clientX + 16 + width < innerWidth ? event.clientX + 16 : Math.max(4, event.clientX - 16 - width);
  const top = Math.max(4, Math.min(event.clientY + 12, innerHeight - height - 4));
  tip.style.setProperty("left", `${left}px`);
  tip.style.setProperty("top", `${top}px`);
}

/** Make everything of one name stand out: a row of the table, or a layer; null lets all be alike again. */
function light(name) {
  lit.name = name;
  const main = document.getElementById("main");
  main.classList.toggle("lighting", name !== null);
  for (const element of main.querySelectorAll("[data-line]")) {
    element.classList.toggle("lit", element.dataset.line === name);
  }
}

function leave() {
  tip.hidden = true;
  light(null);
}

/** Light what a pointer or the focus is on, of elements inside that have a data-line. */
function lightFrom(element) {
  const on = (event) => light(event.target.closest("[data-line]")?.dataset.line ?? null);
  for (const name of ["pointerover", "focusin"]) element.addEventListener(name, on);
  for (const name of ["pointerleave", "focusout"]) element.addEventListener(name, leave);
  return element;
}

/** Show what `find` finds at a position of a chart: {title, lines, nearest}, or null. */
function follow(svg, find) {
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const found = find(event.clientX - box.left, event.clientY - box.top);
    if (!found) return leave();
    if (found.nearest !== lit.name) light(found.nearest);
    showTip(event, found.title, found.lines, found.nearest);
  });
  svg.addEventListener("pointerleave", leave);
}

/** Follow curves over common points: lines of {name, ys}, in the chart's units. */
function followCurves({svg, X, Y, left, top}, points, lines, titleOf, spell) {
  const xs = points.map(X);
  follow(svg, (px, py) => {
    let i = 0;
    for (let j = 1; j < xs.length; j += 1) if (Math.abs(xs[j] - px + left) < Math.abs(xs[i] - px + left)) i = j;
    const known = lines.filter(({ys}) => typeof ys[i] === "number").sort((a, b) => b.ys[i] - a.ys[i]);
    if (!known.length) return null;
    const gap = ({ys}) => Math.abs(Y(ys[i]) + top - py);
    const {name} = known.reduce((best, line) => (gap(line) < gap(best) ? line : best));
    return {title: titleOf(points[i]), lines: known.map((line) => [line.name, spell(line.ys[i])]), nearest: name};
  });
}
