// Small plots: the last hour of all nodes; appends, reads and the lag of pipelines in the last five minutes, while a page
// is open. A pause is a gap.

import { byId, drawn, element, keyed, setText, show } from "./dom.js";
import { brief, count, duration, plural } from "./format.js";
import { PAUSE_MS, appendRates, pointsOf, readRates } from "./rates.js";
import { state } from "./stream.js";

const SPAN_MS = 5 * 60 * 1000;
const HOUR_MS = 60 * 60 * 1000;
const HOUR_PAUSE_MS = 150 * 1000; // between two minutes: nothing was counted
const HEIGHT = 92;
const LEFT = 40;
const TOP = 8;
const BOTTOM = 18;
const PARTS = 5; // of the time axis
const PIPELINES_MAX = 12;

export function drawPlots() {
  const figures = figuresNow();
  show(byId("no-plots"), figures.length === 0);
  keyed(byId("plots"), figures, (figure) => figure.key, makeFigure, updateFigure);
}

function figuresNow() {
  const { logs, samples, stores } = state;
  const figures = [];
  if (logs.size) {
    const last = samples.at(-1)?.at_ms ?? Date.now();
    figures.push(hourFigure("hour written", "written", (minute) => minute.written, last));
    figures.push(hourFigure("hour read", "read", (minute) => minute.read, last));
    figures.push(rateFigure("all", logs.size === 1 ? "1 log" : `all ${count(logs.size)} logs`, "appends", appendRates(samples)));
    figures.push(rateFigure("reads", reportingNodes(), "reads", readRates(samples)));
  }
  const pipelines = stores.flatMap((store, number) => store.pipelines.map(({ name }) => ({ name, key: `${number}/${name}` })));
  for (const { name, key } of pipelines.slice(0, PIPELINES_MAX)) {
    const points = pointsOf(samples, (sample) => (sample.lags_ms[key] === undefined ? null : sample.lags_ms[key] / 1000));
    figures.push({ key: `lag ${key}`, name, what: "lag", value: duration(points.length ? points.at(-1)[1] * 1000 : null), unit: "seconds", points, zero: true });
  }
  return figures;
}

/** By the minute, over an hour, as nodes counted it. */
function hourFigure(key, what, valueIn, last) {
  const points = state.minutes.filter((minute) => minute.at_ms > last - HOUR_MS).map((minute) => [minute.at_ms, valueIn(minute) / minute.seconds]);
  const value = points.length ? `${brief(points.at(-1)[1])}/s` : "–";
  return { key, name: "all nodes", what, value, unit: "entries/s, each copy counted", points, zero: true, span: HOUR_MS, pause: HOUR_PAUSE_MS, none: "no data yet" };
}

function reportingNodes() {
  const nodes = Object.keys(state.samples.at(-1)?.reads ?? {}).length;
  return nodes ? plural(nodes, "node") : "nodes";
}

function rateFigure(key, name, what, points) {
  return { key, name, what, value: points.length ? `${brief(points.at(-1)[1])}/s` : "–", unit: "entries/s", points, zero: true };
}

// ------------------------------------------------------------------------------------------------------------- drawing

export function makeFigure(figure) {
  return element("figure", { className: "plot" },
    element("figcaption", {}, element("span", { className: "plot-name" }), element("span", { className: "plot-what", textContent: figure.what }), element("b")),
    drawn("svg", { role: "img", height: HEIGHT }));
}

export function updateFigure(where, figure) {
  setText(where.querySelector(".plot-name"), figure.name);
  setText(where.querySelector("b"), figure.value);
  const picture = where.querySelector("svg");
  const width = Math.max(160, where.clientWidth);
  const values = figure.points.map(([, value]) => value);
  const [low, high] = rangeOf(values, figure.zero);
  const span = figure.span ?? SPAN_MS;
  const ago = span === HOUR_MS ? "the last hour" : "the last five minutes";
  const newest = state.samples.at(-1)?.at_ms ?? Date.now();
  const x = (at) => LEFT + (width - LEFT - 4) * (1 - (newest - at) / span);
  const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - (value - low) / (high - low || 1));
  picture.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
  picture.setAttribute("aria-label", `${figure.what} of ${figure.name}, ${figure.unit}, over ${ago}: now ${figure.value}, between ${brief(Math.min(...values, high))} and ${brief(Math.max(...values, low))}`);
  picture.replaceChildren(...axes(figure, low, high, x, y, newest, width, span), ...lines(figure.points, x, y, figure.pause ?? PAUSE_MS));
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

function axes(figure, low, high, x, y, newest, width, span) {
  const parts = [];
  for (let part = 1; part <= PARTS; part += 1) {
    const at = x(newest - (part * span) / PARTS);
    parts.push(drawn("line", { class: "grid", x1: at, x2: at, y1: TOP, y2: HEIGHT - BOTTOM }));
  }
  for (const value of [low, high]) parts.push(drawn("line", { class: "grid", x1: LEFT, x2: width - 4, y1: y(value), y2: y(value) }));
  parts.push(drawn("text", { class: "axis", x: LEFT - 5, y: TOP + 7, "text-anchor": "end" }, brief(high)));
  parts.push(drawn("text", { class: "axis", x: LEFT - 5, y: HEIGHT - BOTTOM, "text-anchor": "end" }, brief(low)));
  parts.push(drawn("text", { class: "axis", x: LEFT, y: HEIGHT - 4 }, span === HOUR_MS ? "1 h ago" : "5 min ago"));
  parts.push(drawn("text", { class: "axis", x: width - 4, y: HEIGHT - 4, "text-anchor": "end" }, "now"));
  parts.push(drawn("text", { class: "axis unit", x: (LEFT + width) / 2, y: HEIGHT - 4, "text-anchor": "middle" }, figure.unit));
  if (figure.none && !figure.points.length) parts.push(drawn("text", { class: "axis none", x: (LEFT + width) / 2, y: (HEIGHT - BOTTOM + TOP) / 2 + 4, "text-anchor": "middle" }, figure.none));
  return parts;
}

function lines(points, x, y, pause) {
  const runs = [];
  for (const [at, point] of points.entries()) {
    if (at === 0 || point[0] - points[at - 1][0] > pause) runs.push([]);
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
