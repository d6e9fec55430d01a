// Small plots of the last five minutes: appends and reads, tails, and the lag of pipelines. A pause in looking is a gap.

import { byId, drawn, element, keyed, setText, show } from "./dom.js";
import { brief, count, duration, plural } from "./format.js";
import { PAUSE_MS, pointsOf, ratesOf, readRates } from "./rates.js";
import { state, tailOf } from "./stream.js";

const SPAN_MS = 5 * 60 * 1000;
const HEIGHT = 92;
const LEFT = 40;
const TOP = 8;
const BOTTOM = 18;
const LOGS_MAX = 12;

export function drawPlots() {
  const figures = figuresNow();
  show(byId("no-plots"), figures.length === 0);
  keyed(byId("plots"), figures, (figure) => figure.key, makeFigure, updateFigure);
}

function figuresNow() {
  const { logs, samples, stores } = state;
  const shown = logs.slice(0, LOGS_MAX);
  const figures = [];
  if (logs.length > 1) figures.push(rateFigure("all", `all ${count(logs.length)} logs`, "appends", ratesOf(pointsOf(samples, sumOfTails))));
  for (const log of shown) {
    figures.push(rateFigure(`rate ${log.name}`, log.name, "appends", ratesOf(pointsOf(samples, (sample) => sample.tails[log.name] ?? null))));
    figures.push({ key: `tail ${log.name}`, name: log.name, what: "tail", value: count(tailOf(log.name)), unit: "position", points: pointsOf(samples, (sample) => sample.tails[log.name] ?? null), zero: false });
  }
  for (const [number, store] of stores.entries()) {
    for (const { name } of store.pipelines) {
      const points = pointsOf(samples, (sample) => (sample.lags_ms[`${number}/${name}`] ?? null) === null ? null : sample.lags_ms[`${number}/${name}`] / 1000);
      figures.push({ key: `lag ${number}/${name}`, name, what: "lag", value: duration(points.length ? points.at(-1)[1] * 1000 : null), unit: "seconds", points, zero: true });
    }
  }
  if (figures.length) figures.splice(1, 0, rateFigure("reads", nodesThatTell(), "reads", readRates(samples))); // beside the first appends
  return figures;
}

/** Only samples that know all logs count: one that is missing is no fall. */
function sumOfTails(sample) {
  const tails = Object.values(sample.tails);
  return tails.length < state.logs.length ? null : tails.reduce((sum, tail) => sum + tail, 0);
}

function nodesThatTell() {
  const told = Object.keys(state.samples.at(-1)?.reads ?? {}).length;
  return told ? plural(told, "node") : "nodes";
}

function rateFigure(key, name, what, points) {
  return { key, name, what, value: points.length ? `${brief(points.at(-1)[1])}/s` : "–", unit: "entries/s", points, zero: true };
}

// ------------------------------------------------------------------------------------------------------------- drawing

function makeFigure(figure) {
  return element("figure", { className: "plot" },
    element("figcaption", {}, element("span", { className: "plot-name" }), element("span", { className: "plot-what", textContent: figure.what }), element("b")),
    drawn("svg", { role: "img", height: HEIGHT }));
}

function updateFigure(where, figure) {
  setText(where.querySelector(".plot-name"), figure.name);
  setText(where.querySelector("b"), figure.value);
  const picture = where.querySelector("svg");
  const width = Math.max(160, where.clientWidth);
  const values = figure.points.map(([, value]) => value);
  const [low, high] = rangeOf(values, figure.zero);
  const newest = state.samples.at(-1)?.at_ms ?? Date.now();
  const x = (at) => LEFT + (width - LEFT - 4) * (1 - (newest - at) / SPAN_MS);
  const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - (value - low) / (high - low || 1));
  picture.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
  picture.setAttribute("aria-label", `${figure.what} of ${figure.name}, ${figure.unit}, over the last five minutes: now ${figure.value}, between ${brief(Math.min(...values, high))} and ${brief(Math.max(...values, low))}`);
  picture.replaceChildren(...axes(figure, low, high, x, y, newest, width), ...lines(figure.points, x, y));
}

/** From zero, or from the smallest, to a round number. */
function rangeOf(values, zero) {
  if (!values.length) return [0, 1];
  const low = zero ? 0 : Math.min(...values);
  const high = Math.max(...values);
  const span = Math.max(high - low, zero ? 1 : 4);
  const step = 10 ** Math.floor(Math.log10(span));
  const nice = [1, 2, 5, 10].map((each) => each * step).find((each) => each >= span);
  return zero ? [0, nice] : [low, low + span];
}

function axes(figure, low, high, x, y, newest, width) {
  const parts = [];
  for (let minute = 1; minute <= 5; minute += 1) {
    const at = x(newest - minute * 60000);
    parts.push(drawn("line", { class: "grid", x1: at, x2: at, y1: TOP, y2: HEIGHT - BOTTOM }));
  }
  for (const value of [low, high]) parts.push(drawn("line", { class: "grid", x1: LEFT, x2: width - 4, y1: y(value), y2: y(value) }));
  parts.push(drawn("text", { class: "axis", x: LEFT - 5, y: TOP + 7, "text-anchor": "end" }, brief(high)));
  parts.push(drawn("text", { class: "axis", x: LEFT - 5, y: HEIGHT - BOTTOM, "text-anchor": "end" }, brief(low)));
  parts.push(drawn("text", { class: "axis", x: LEFT, y: HEIGHT - 4 }, "5 min ago"));
  parts.push(drawn("text", { class: "axis", x: width - 4, y: HEIGHT - 4, "text-anchor": "end" }, "now"));
  parts.push(drawn("text", { class: "axis unit", x: (LEFT + width) / 2, y: HEIGHT - 4, "text-anchor": "middle" }, figure.unit));
  return parts;
}

function lines(points, x, y) {
  const runs = [];
  for (const [at, point] of points.entries()) {
    if (at === 0 || point[0] - points[at - 1][0] > PAUSE_MS) runs.push([]);
    runs.at(-1).push(point);
  }
  const base = HEIGHT - BOTTOM;
  const parts = runs.flatMap((run) => {
    const path = run.map(([at, value]) => `${x(at).toFixed(1)},${y(value).toFixed(1)}`).join(" L");
    const area = `M${x(run[0][0]).toFixed(1)},${base} L${path} L${x(run.at(-1)[0]).toFixed(1)},${base} Z`;
    return [drawn("path", { class: "area", d: area }), drawn("path", { class: "line", d: `M${path}` })];
  });
  if (points.length) parts.push(drawn("circle", { class: "latest", cx: x(points.at(-1)[0]), cy: y(points.at(-1)[1]), r: 2.6 }));
  return parts;
}
