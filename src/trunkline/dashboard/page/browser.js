// The log browser: a page of entries by position, back and forth, and the tail as it grows.

import { byId, element, keyed, setText, show } from "./dom.js";
import { byName, bytes, count, dateTime, plural } from "./format.js";
import { state, tailOf } from "./stream.js";

const PAGE = 50;
const LISTED_MAX = 200; // names to choose from
const PREVIEW = 240; // characters of a payload in its row; the rest unfolds

const view = { log: "", first: 1, end: 1, chosen: null, following: false, tail: null, requests: 0, busy: false, names: [], listed: null };

export function startBrowser() {
  byId("log-form").addEventListener("submit", (event) => { event.preventDefault(); jump(); });
  byId("log-name").addEventListener("change", () => { view.log = byId("log-name").value; follow(false); last(); });
  byId("log-first").addEventListener("click", () => { follow(false); open(1); });
  byId("log-back").addEventListener("click", () => { follow(false); open(Math.max(1, view.first - PAGE)); });
  byId("log-forward").addEventListener("click", () => { follow(false); open(view.end); });
  byId("log-last").addEventListener("click", () => { follow(false); last(); });
  byId("log-follow").addEventListener("click", () => { follow(!view.following); if (view.following) last(); });
}

/** New samples or logs: update the list of logs, and the tail if it is followed. */
export function browse() {
  listLogs();
  if (!view.log && view.names.length) {
    view.log = view.names[0];
    byId("log-name").value = view.log;
    last();
  } else if (view.following && (tailOf(view.log) ?? 0) !== view.tail) {
    last();
  }
}

/** The first names, and the one that is shown: a list of thousands is too long, and the section of logs has a filter. */
function listLogs() {
  const names = state.logs.size > LISTED_MAX ? [...state.logs.keys()].slice(0, LISTED_MAX) : [...state.logs.keys()];
  if (view.log && !names.includes(view.log) && state.logs.has(view.log)) names.push(view.log);
  if (names.join("\n") === view.listed) return;
  view.listed = names.join("\n");
  view.names = names.sort(byName);
  keyed(byId("log-name"), view.names, (name) => name, (name) => element("option", { value: name, textContent: name }), () => {});
}

/** A log was chosen elsewhere on the page. */
export function browseLog(name) {
  view.log = name;
  listLogs();
  byId("log-name").value = name;
  follow(false);
  last();
  byId("log").scrollIntoView();
  byId("log-name").focus({ preventScroll: true });
}

function jump() {
  const position = Number(byId("log-position").value.replace(/[,. ]/g, ""));
  if (!Number.isSafeInteger(position) || position < 1) {
    say("positions are whole numbers from 1", true);
    return;
  }
  follow(false);
  open(Math.max(1, position - (position - 1) % PAGE), position);
}

function follow(on) {
  view.following = on;
  byId("log-follow").setAttribute("aria-pressed", String(on));
}

/** The page that ends at the tail; the first page if the tail is unknown. */
function last() {
  const tail = tailOf(view.log);
  if (tail === null) open(1);
  else open(Math.max(1, tail - PAGE));
}

async function open(first, chosen = null) {
  if (!view.log || (view.busy && view.following)) return;
  view.requests += 1;
  const request = view.requests;
  view.busy = true;
  try {
    const answer = await fetch(`/api/logs/${encodeURIComponent(view.log)}/entries?start=${first}&count=${PAGE}`);
    const page = await answer.json();
    if (request !== view.requests) return; // a newer request was sent
    if (answer.ok) showPage(page, chosen);
    else say(page.message, true);
  } catch {
    if (request === view.requests) say("the server of the dashboard does not answer; try again", true);
  } finally {
    if (request === view.requests) view.busy = false;
  }
}

function showPage(page, chosen) {
  Object.assign(view, { first: page.first, end: page.end, chosen, tail: page.tail });
  const range = page.end > page.first ? `positions ${count(page.first)} to ${count(page.end - 1)}` : "nothing here yet";
  const tail = page.tail === null ? "the tail is unknown" : `tail ${count(page.tail)}`;
  say([`${range} of ${page.log}, ${tail}`, ...page.notes].join("; "), false);
  byId("log-back").disabled = page.first <= 1;
  byId("log-forward").disabled = page.tail !== null && page.end >= page.tail;
  const list = byId("entries");
  keyed(list, page.entries, (entry) => `${page.log}/${entry.glsn}`, (entry) => makeEntry(entry), (row, entry) => row.classList.toggle("chosen", entry.glsn === chosen));
  show(list, page.entries.length > 0);
  if (chosen !== null) showChosen(list, chosen, page);
  else list.scrollTop = page.end === page.tail ? list.scrollHeight : 0;
}

function showChosen(list, chosen, page) {
  const row = list.querySelector(".chosen");
  if (row === null) {
    const why = page.tail !== null && chosen >= page.tail ? "is not written yet" : "holds no entry";
    say(`position ${count(chosen)} ${why}; ${byId("log-said").textContent}`, true);
    return;
  }
  const details = row.querySelector("details");
  if (details !== null) details.open = true;
  list.scrollTop = row.offsetTop - list.offsetTop - list.clientHeight / 3;
}

function say(text, isWrong) {
  setText(byId("log-said"), text);
  byId("log-said").classList.toggle("wrong", isWrong);
}

// -------------------------------------------------------------------------------------------------------------- entries

function makeEntry(entry) {
  return element("article", { className: "entry" },
    element("span", { className: "glsn", textContent: count(entry.glsn) }),
    element("time", { textContent: entry.time_ms ? dateTime(entry.time_ms) : "", dateTime: entry.time_ms ? new Date(entry.time_ms).toISOString() : "" }),
    payload(entry),
    element("span", { className: "size", textContent: bytes(entry.size_bytes) }),
  );
}

function payload(entry) {
  const line = oneLine(entry);
  const isShort = entry.kind !== "json" && entry.kind !== "hex" && !entry.text.includes("\n") && line.length <= PREVIEW && !entry.cut_bytes;
  const preview = entry.kind === "empty" ? "(empty)" : entry.kind === "hex" ? entry.text.slice(8, 55) : line.slice(0, PREVIEW);
  const summary = element("summary", {}, element("span", { className: `preview ${entry.kind}`, textContent: preview }));
  const parts = [summary];
  if (!isShort) parts.push(element("pre", { textContent: entry.text }));
  if (entry.cut_bytes) parts.push(element("p", { className: "cut", textContent: `${plural(entry.cut_bytes, "more byte")} not shown; read all of it with trunkline read` }));
  parts.push(facts(entry));
  return element("details", { className: "payload" }, ...parts);
}

/** JSON has no line breaks inside strings, so this removes only formatting. */
function oneLine({ kind, text }) {
  if (kind !== "json") return text.replace(/\s+/g, " ");
  return text.replace(/([{[])\n\s*/g, "$1").replace(/\n\s*([}\]])/g, "$1").replace(/\n\s*/g, " ");
}

function facts(entry) {
  const rows = [["kind", entry.kind], ["size", plural(entry.size_bytes, "byte")], ["writer", `${entry.writer || "–"}, batch ${count(entry.seq)}`], ...entry.headers.map(([name, value]) => [`header ${name}`, value])];
  return element("dl", { className: "facts" }, ...rows.map(([name, value]) => element("div", {}, element("dt", { textContent: name }), element("dd", { textContent: value }))));
}
