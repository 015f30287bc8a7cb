// The live view: asks the server once a second what it does, and draws the last two minutes.

import { get } from "./api.js";

const KEPT = 120;
const SVG = "http://www.w3.org/2000/svg";
const history = [];
let last = null;
/// Counts how often the view was shown or left; a tick of an earlier time ends.
let turn = 0;

/// The charts: title, unit, and one or two lines, each with a name and a value of a sample.
const CHARTS = [
  { title: "Throughput", unit: "tokens/s", lines: [["generated", (s) => s.generated], ["prompt", (s) => s.prompted]] },
  { title: "Time to first token", unit: "ms, last minute", lines: [["median", (s) => s.ttft?.p50_ms], ["95%", (s) => s.ttft?.p95_ms]] },
  { title: "Time per output token", unit: "ms, last minute", lines: [["median", (s) => s.tpot?.p50_ms], ["95%", (s) => s.tpot?.p95_ms]] },
  { title: "Batch", unit: "requests", lines: [["running", (s) => s.running], ["waiting", (s) => s.waiting]] },
  { title: "Tokens in a step", unit: "mean", lines: [["decode", (s) => s.stepDecode], ["prompt", (s) => s.stepPrompt]] },
  { title: "KV in use", unit: "%", most: 100, lines: [["blocks", (s) => s.kv]] },
  { title: "Prefix cache hits", unit: "% of prompt tokens, last minute", most: 100, lines: [["hits", (s) => s.hits]] },
  { title: "Power", unit: "W", lines: [["engine", (s) => s.watts]] },
];

const drawn = CHARTS.map((chart) => {
  const figure = document.createElement("figure");
  const caption = document.createElement("figcaption");
  const heading = document.createElement("h2");
  heading.textContent = chart.title;
  const keys = document.createElement("div");
  keys.className = "keys";
  const values = chart.lines.map(([name], i) => {
    const key = document.createElement("span");
    if (i) key.className = "b";
    const value = document.createElement("b");
    value.textContent = "–";
    key.append(document.createElement("i"), name + " ", value);
    keys.append(key);
    return value;
  });
  const unit = document.createElement("span");
  unit.className = "quiet";
  unit.textContent = chart.unit;
  caption.append(heading, unit, keys);
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "chart");
  svg.setAttribute("viewBox", "0 0 " + (KEPT - 1) + " 100");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  for (const y of [0.5, 50, 99.5]) {
    const line = document.createElementNS(SVG, "line");
    for (const [name, value] of [["x1", 0], ["x2", KEPT - 1], ["y1", y], ["y2", y]]) line.setAttribute(name, value);
    svg.append(line);
  }
  const path = (name) => {
    const made = document.createElementNS(SVG, "path");
    made.setAttribute("class", name);
    svg.append(made);
    return made;
  };
  const area = path("area");
  const paths = chart.lines.map((_, i) => path(i ? "b" : "a"));
  const scale = document.createElement("div");
  scale.className = "scale";
  const top = document.createElement("span");
  const span = document.createElement("span");
  span.textContent = "two minutes ago to now";
  scale.append(top, span);
  figure.append(caption, svg, scale);
  return { chart, values, svg, area, paths, top, figure };
});
document.getElementById("charts").append(...drawn.map((d) => d.figure));

/// A number as people read it.
function number(value) {
  if (value === undefined || value === null || !Number.isFinite(value)) return "–";
  return value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(value ? 2 : 0);
}

/// The next number of the kind 1, 2, 5, 10, 20...
function round(most) {
  if (!(most > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 5, 10].map((n) => n * power).find((n) => n >= most);
}

function draw() {
  for (const { chart, values, svg, area, paths, top } of drawn) {
    const lines = chart.lines.map(([, value]) => history.map(value));
    const most = chart.most ?? round(Math.max(...lines.flat().filter(Number.isFinite), 0));
    const point = (v, i) => (i + KEPT - history.length) + " " + (99.5 - Math.min(v / most, 1) * 99).toFixed(2);
    lines.forEach((line, n) => {
      let path = "", open = false;
      line.forEach((v, i) => {
        if (Number.isFinite(v)) path += (open ? "L" : "M") + point(v, i);
        open = Number.isFinite(v);
      });
      paths[n].setAttribute("d", path);
      if (n === 0) {
        const known = line.findIndex(Number.isFinite);
        const from = known + KEPT - history.length;
        const whole = known >= 0 && line.slice(known).every(Number.isFinite);
        area.setAttribute("d", whole ? path + "V99.5H" + from + "Z" : "");
      }
      values[n].textContent = number(line.at(-1));
    });
    top.textContent = "0 to " + Number(most.toPrecision(3));
    const now = chart.lines.map(([name], i) => name + " " + values[i].textContent).join(", ");
    svg.setAttribute("aria-label", chart.title + " in " + chart.unit + ": now " + now);
  }
}

/// What happened between two states of the server.
function sample(now, before) {
  const seconds = now.time_s - before.time_s;
  const steps = now.steps - before.steps;
  const output = now.output_tokens - before.output_tokens;
  // What went through the model and is no decode is a prompt's.
  const prompt = Math.max(0, now.computed_tokens - before.computed_tokens - output);
  return {
    running: now.running,
    waiting: now.waiting,
    generated: output / seconds,
    prompted: prompt / seconds,
    stepDecode: steps > 0 ? output / steps : 0,
    stepPrompt: steps > 0 ? prompt / steps : 0,
    kv: now.kv_blocks ? 100 * now.kv_blocks_used / now.kv_blocks : undefined,
    hits: now.recent_prompt_tokens ? 100 * now.recent_cached_tokens / now.recent_prompt_tokens : undefined,
    watts: (now.joules - before.joules) / seconds,
    ttft: now.ttft,
    tpot: now.tpot,
  };
}

async function tick(of) {
  try {
    const now = await get("/live");
    // A server that was started anew counts from zero.
    if (last && now.steps < last.steps) { last = null; history.length = 0; }
    if (last && now.time_s > last.time_s + 0.2) {
      history.push(sample(now, last));
      if (history.length > KEPT) history.shift();
      draw();
    }
    last = now;
    document.getElementById("live-now").textContent =
      now.model + ": " + now.running + " running, " + now.waiting + " waiting; " +
      now.steps.toLocaleString("en") + " steps, " + now.output_tokens.toLocaleString("en") + " tokens generated, " +
      number(now.joules) + " J (" + now.joules_source + ") since the start.";
  } catch {
    document.getElementById("live-now").textContent = "The server does not answer.";
  }
  // After the answer, so that two never overlap; the view may have been left meanwhile.
  if (of === turn) setTimeout(() => { if (of === turn) tick(of); }, 1000);
}

export function show(is) {
  turn++;
  if (is) tick(turn);
}
