"use strict";
// Copy code, save a chart as SVG or its data as CSV.

const SVG_STYLES = [
  "fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "opacity", "paint-order",
  "font-family", "font-size", "font-weight",
];

/** Save text as a file. */
function saveFile(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], {type}));
  node("a", {href: url, download: name}).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

/** Return a color as rgb, which every program that reads SVG understands. */
function plainColor(value) {
  if (!/^(color|oklab|oklch|light-dark)\(/.test(value)) return value;
  const pixel = node("canvas", {width: 1, height: 1}).getContext("2d");
  pixel.fillStyle = value;
  pixel.fillRect(0, 0, 1, 1);
  return `rgb(${[...pixel.getImageData(0, 0, 1, 1).data.slice(0, 3)].join(", ")})`;
}

/** Return a chart as an SVG file: styles become attributes, and the page's background comes along. */
function svgText(svg) {
  const copy = svg.cloneNode(true);
  const originals = [svg, ...svg.querySelectorAll("*")];
  [copy, ...copy.querySelectorAll("*")].forEach((element, i) => {
    const style = getComputedStyle(originals[i]);
    for (const name of SVG_STYLES) element.setAttribute(name, plainColor(style.getPropertyValue(name)));
    element.removeAttribute("class");
    element.removeAttribute("style");
  });
  const fill = getComputedStyle(document.documentElement).backgroundColor;
  copy.prepend(node("rect", {width: "100%", height: "100%", fill}));
  return new XMLSerializer().serializeToString(copy);
}

/** Return rows of values as CSV. */
function csvText(rows) {
  const cell = (value) => {
    const text = String(value ?? "");
    return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return rows.map((row) => `${row.map(cell).join(",")}\n`).join("");
}

/** Return buttons that save a chart as SVG and its data as CSV; `rows` makes the data, the head first. */
function downloads(title, svg, rows) {
  const stem = title.replace(/[^\w]+/g, "-").replace(/^-|-$/g, "").toLowerCase();
  const button = (kind, type, text) =>
    node(
      "button",
      {
        type: "button",
        class: "quiet",
        "aria-label": `Download ${title} as ${kind}`,
        click: () => saveFile(`${stem}.${kind.toLowerCase()}`, type, text()),
      },
      kind,
    );
  return node(
    "span",
    {class: "tools"},
    svg && button("SVG", "image/svg+xml", () => svgText(svg())),
    rows && button("CSV", "text/csv", () => csvText(rows())),
  );
}

/** Return a button that copies code, and says so. */
function copyButton(code, title = "Copy code") {
  const made = node("button", {type: "button", class: "quiet", "aria-label": title, click: copy}, "Copy code");
  async function copy() {
    const done = await navigator.clipboard?.writeText(code()).then(() => true, () => false);
    made.textContent = done ? "Copied" : "Not copied"; // a page that is not served securely has no clipboard
    setTimeout(() => (made.textContent = "Copy code"), 1500);
  }
  return made;
}
