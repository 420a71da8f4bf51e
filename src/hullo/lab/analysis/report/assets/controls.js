"use strict";
// Controls that several views share: experiment, activations, seeds and epoch.

const SHARED = ["curves", "paths", "training"];

/** The epoch on the screen: the chosen one, or what the animation has come to. */
const motion = {shown: 0, playing: false, last: 0, frame: null};

function buildControls() {
  const [bar, time] = ["controls", "time"].map((id) => document.getElementById(id));
  bar.hidden = time.hidden = !SHARED.includes(state.view);
  motion.playing = false;
  motion.shown = currentEpoch();
  if (bar.hidden) return;
  bodyOf(state.view).before(bar, time);
  time.replaceChildren(...epochField());
  bar.replaceChildren(
    columnSelect(),
    checkboxes(
      "Seeds",
      offeredSeeds().map((seed) => ({value: seed, text: String(seed), checked: chosenSeeds().includes(seed)})),
      (seed) => change({seed}),
    ),
    checkboxes(
      "Activations",
      offeredRows().map((row) => ({
        value: row.name,
        text: row.name,
        line: state.view === "paths" ? null : row.name,
        mark: state.view === "paths" ? null : swatch(row), // there colors are depths
        checked: chosenRows().includes(row),
      })),
      (row) => change({row}),
    ),
  );
}

function columnSelect() {
  const choose = (column) => go({column, epoch: null, layers: null, seed: null, cell: null, run: null});
  const made = select("column", [], null, choose);
  const option = (column) =>
    node("option", {value: column.name, selected: column === currentColumn()}, labelOf(column));
  const [main, studies] = [false, true].map((study) => DOCUMENT.columns.filter((column) => column.study === study));
  made.append(...main.map(option));
  if (studies.length) made.append(node("optgroup", {label: "Studies with other settings"}, studies.map(option)));
  return labelled("Experiment", made);
}

function epochField() {
  const slider = node("input", {
    type: "range",
    id: "epoch",
    min: 0,
    max: currentColumn().epochs,
    step: 1,
    input: () => {
      motion.playing = false;
      change({epoch: Number(slider.value)});
    },
  });
  return [
    node("button", {type: "button", id: "play", click: play}, "Play"),
    node("label", {for: "epoch"}, "Epoch"),
    slider,
    node("output", {for: "epoch", id: "epoch-text"}),
  ];
}

function updateControls() {
  if (!SHARED.includes(state.view)) return;
  const epoch = currentEpoch();
  document.getElementById("epoch").value = epoch;
  document.getElementById("epoch-text").textContent = `${epoch} of ${currentColumn().epochs}`;
  document.getElementById("play").textContent = motion.playing ? "Pause" : "Play";
  if (!motion.playing) motion.shown = epoch;
}

function play() {
  motion.playing = !motion.playing;
  if (motion.playing && currentEpoch() === currentColumn().epochs) motion.shown = 0;
  motion.last = performance.now();
  motion.frame ??= requestAnimationFrame(move);
  update();
}

/** Advance the animation: a training takes 3 to 10 seconds. */
function move(now) {
  motion.frame = null;
  if (!motion.playing) return;
  const {epochs} = currentColumn();
  const seconds = Math.min(Math.max(now - motion.last, 0) / 1000, 0.1);
  const length = Math.min(Math.max(epochs / 15, 3), 10);
  motion.last = now;
  motion.shown = Math.min(motion.shown + (seconds * epochs) / length, epochs);
  motion.playing = motion.shown < epochs;
  change({epoch: Math.round(motion.shown)});
  if (motion.playing) motion.frame = requestAnimationFrame(move);
}
