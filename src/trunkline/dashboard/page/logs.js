// The list of logs: a line each, filtered; unfolded, a log shows its segments, its rates and its segments as a table.

import { browseLog } from "./browser.js";
import { byId, drawn, element, keyed, setText, show } from "./dom.js";
import { byName, count, plural, brief } from "./format.js";
import { makeFigure, updateFigure } from "./plots.js";
import { pauseOf, pointsOf, ratesOf } from "./rates.js";
import { drawLanes, rowOf } from "./segments.js";
import { state, tailOf } from "./stream.js";

const UNFOLDED_MAX = 3; // with more logs, all are folded at first
const PAGE = 25; // lines at first; more on request
const MORE = 100;
const HEADS = ["segment", "epoch", "positions", "state", "copies, head to tail", "ordered by"];

const view = { found: [], shown: PAGE };

export function startLogs() {
  byId("log-filter").addEventListener("input", () => { view.shown = PAGE; arrangeLogs(); drawLogs(); });
  byId("logs-form").addEventListener("submit", (event) => event.preventDefault());
  byId("more-logs").addEventListener("click", () => { view.shown += MORE; drawLogs(); });
}

/** The logs to show, in order: those with problems first. */
export function arrangeLogs() {
  const words = byId("log-filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const found = [...state.logs.values()].map((log) => ({ log, trouble: troubleOf(log) }));
  const wanted = words.length ? found.filter((each) => words.every((word) => textOf(each).includes(word))) : found;
  view.found = wanted.sort((one, other) => LEVELS[other.trouble.level] - LEVELS[one.trouble.level] || byName(one.log.name, other.log.name));
}

export function drawLogs() {
  const total = state.head?.logs_total ?? state.logs.size;
  const shown = view.found.slice(0, view.shown);
  show(byId("no-logs"), state.logs.size === 0);
  show(byId("logs-form"), state.logs.size > UNFOLDED_MAX);
  keyed(byId("segment-logs"), shown, ({ log }) => log.name, makeLog, updateLog);
  const first = view.found.length > shown.length ? `, the first ${count(shown.length)} shown` : "";
  const left = total > state.logs.size ? `; ${plural(total - state.logs.size, "more log")} only in trunkline status` : "";
  setText(byId("log-count"), `${count(view.found.length)} of ${plural(state.logs.size, "log")}${first}${left}`);
  show(byId("more-logs"), view.found.length > shown.length);
}

const LEVELS = { good: 0, warn: 1, bad: 2 };

function troubleOf(log) {
  if (log.blocked) return { level: "bad", words: "blocked" };
  if (log.gaps.length) return { level: "bad", words: "has lost positions" };
  const fewest = Math.min(log.replicas, ...log.segments.flatMap(({ groups }) => groups.map((group) => group.filter((member) => !member.joining).length)));
  return fewest < log.replicas ? { level: "warn", words: `${fewest} of ${log.replicas} copies` } : { level: "good", words: "" };
}

const isSealed = (log) => (log.segments.at(-1)?.end ?? null) !== null;

function textOf({ log, trouble }) {
  const nodes = log.segments.at(-1)?.groups.flat().map((member) => member.node) ?? [];
  return [log.name, log.policy, trouble.words, isSealed(log) ? "sealed read-only" : "open", ...nodes].join(" ").toLowerCase();
}

// ----------------------------------------------------------------------------------------------------------------- a log

function makeLog({ log }) {
  const fold = element("details", { className: "fold", open: state.logs.size <= UNFOLDED_MAX },
    element("summary", {},
      element("span", { className: "dot", "aria-hidden": "true" }), element("h3", { textContent: log.name }),
      element("span", { className: "log-trouble" }), element("span", { className: "log-facts" }),
      element("span", { className: "log-rate" }), element("span", { className: "log-tail" }, "tail ", element("b"))),
  );
  fold.addEventListener("toggle", () => { if (fold.open) drawLogs(); });
  return element("article", { className: "log", "aria-label": `log ${log.name}` }, fold);
}

function updateLog(article, { log, trouble }) {
  article.dataset.level = trouble.level;
  const tail = tailOf(log.name);
  setText(article.querySelector(".log-trouble"), trouble.words);
  setText(article.querySelector(".log-facts"), factsOf(log));
  setText(article.querySelector(".log-tail b"), count(tail));
  setText(article.querySelector(".log-rate"), rateNow(log));
  const fold = article.firstElementChild;
  if (!fold.open) return;
  if (fold.children.length === 1) fold.append(...makeInside(log));
  updateFigures(fold.querySelector(".plots"), log);
  const width = Math.max(200, Math.floor(fold.clientWidth));
  const lost = state.nodes.filter((node) => !node.live).map((node) => node.name);
  const seen = JSON.stringify([log, tail, width, lost]);
  if (article.seen === seen) return; // its segments did not change
  article.seen = seen;
  const picture = fold.querySelector("svg.lanes");
  show(picture, log.segments.length > 0);
  show(fold.querySelector(".no-segments"), log.segments.length === 0);
  if (log.segments.length) drawLanes(picture, log, tail, width, new Set(lost));
  keyed(fold.querySelector("tbody"), log.segments.toReversed(), (segment) => segment.index, () => element("tr"), (row, segment) => {
    row.replaceChildren(...rowOf(log, segment, tail, new Set(lost)).map((text) => element("td", { textContent: text })));
  });
}

function makeInside(log) {
  const table = element("table", {}, element("thead", {}, element("tr", {}, ...HEADS.map((text) => element("th", { textContent: text, scope: "col" })))), element("tbody"));
  const read = element("button", { type: "button", textContent: "Read entries" });
  read.setAttribute("aria-label", `Read entries of ${log.name}`);
  read.addEventListener("click", () => browseLog(log.name));
  const plots = element("details", { className: "log-plots" }, element("summary", { textContent: "appends and tail" }), element("div", { className: "plots" }));
  plots.addEventListener("toggle", () => drawLogs());
  return [
    drawn("svg", { class: "lanes", role: "img" }),
    element("p", { className: "nothing no-segments", textContent: "There are too many logs to show the segments of each; trunkline log describe shows them." }),
    element("div", { className: "log-more" }, read,
      element("details", {}, element("summary", { textContent: "segments as a table" }), element("div", { className: "scroll" }, table)),
      plots),
  ];
}

function factsOf(log) {
  const facts = [`${log.policy}, ${log.replicas} ${log.replicas === 1 ? "copy" : "copies"}`, plural(log.segments_total, "segment"), `epoch ${count(log.epoch)}`];
  if (log.trim > 0) facts.push(`trimmed up to ${count(log.trim)}`);
  if (isSealed(log)) facts.push("read-only");
  return facts.join(" · ");
}

const tailsOf = (name) => pointsOf(state.samples, (sample) => sample.tails[name] ?? null);

function rateNow(log) {
  const newest = isSealed(log) ? undefined : ratesOf(tailsOf(log.name), pauseOf(state.logs.size)).at(-1);
  return newest === undefined ? "" : `${brief(newest[1])}/s`;
}

function updateFigures(where, log) {
  if (!where.closest("details").open) return;
  const points = tailsOf(log.name);
  const pause = pauseOf(state.logs.size);
  const rates = ratesOf(points, pause);
  const now = rates.length ? `${brief(rates.at(-1)[1])}/s` : "–";
  keyed(where, [
    { key: `rate ${log.name}`, name: log.name, what: "appends", value: now, unit: "entries/s", points: rates, zero: true, pause },
    { key: `tail ${log.name}`, name: log.name, what: "tail", value: count(tailOf(log.name)), unit: "position", points, zero: false, pause },
  ], (figure) => figure.key, makeFigure, updateFigure);
}
