"use strict";
// Create elements of the page and of charts. Text is never parsed as HTML.

const SVG_TAGS = new Set(["svg", "g", "path", "line", "circle", "text", "rect", "polygon"]);

/** Return a new element; attributes that are functions become listeners, null and false are left out. */
function node(tag, attributes, ...children) {
  const made = SVG_TAGS.has(tag)
    ? document.createElementNS("http://www.w3.org/2000/svg", tag)
    : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (typeof value === "function") made.addEventListener(name, value);
    else if (name === "style") for (const [key, text] of Object.entries(value)) made.style.setProperty(key, text);
    else if (value !== null && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null));
  return made;
}

/** Return the part of a view that its script fills. */
function bodyOf(view) {
  return document.querySelector(`#${view} [data-part="body"]`);
}

function labelled(label, control) {
  return node("label", {class: "field"}, node("span", null, label), control);
}

function select(id, options, chosen, choose) {
  const made = node("select", {id, change: () => choose(made.value)});
  for (const [value, text] of options) made.append(node("option", {value, selected: value === chosen}, text));
  return made;
}

/** Return a name that may be broken after its commas. */
function breakable(name) {
  return name.split(/(?<=,)/).flatMap((part) => [part, node("wbr")]);
}

/** Return a term and its description, for a description list. */
function definition(term, text) {
  return [node("dt", null, term), node("dd", null, text)];
}

/** Return a named group of checkboxes, with buttons that check all or none of them. */
function checkboxes(legend, items, choose) {
  const boxes = items.map(({value, checked}) => node("input", {type: "checkbox", value, checked}));
  const report = () => choose(boxes.filter((box) => box.checked).map((box) => box.value));
  const all = (checked) => () => {
    for (const box of boxes) box.checked = checked;
    report();
  };
  return node(
    "fieldset",
    {change: report},
    node("legend", null, legend),
    node("button", {type: "button", class: "quiet", click: all(true)}, "all"),
    node("button", {type: "button", class: "quiet", click: all(false)}, "none"),
    items.map(({text, line = null, mark = null}, i) =>
      node("label", {class: "chip", "data-line": line}, boxes[i], mark, text),
    ),
  );
}

const minus = (value) => String(value).replace("-", "−");
const short = (value) => minus(Number(value.toPrecision(4)));
const plural = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
