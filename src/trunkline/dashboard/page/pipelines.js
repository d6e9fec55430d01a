// Pipelines: every destination with its state, filtered and sorted, and its desired state.

import { byId, element, keyed, setText, show } from "./dom.js";
import { ago, byName, count, duration, plural } from "./format.js";
import { term } from "./glossary.js";
import { state } from "./stream.js";

const ROWS_MAX = 300;
const HEADER = "X-Trunkline-Dashboard";

const COLUMNS = [
  { name: "destination", of: (row) => row.name, text: (row) => row.name },
  { name: "pipeline", of: (row) => row.pipeline, text: (row) => row.pipeline },
  { name: "state", of: (row) => row.state, text: (row) => row.state, word: "state" },
  { name: "position", of: (row) => row.position, text: (row) => count(row.position), number: true, word: "version" },
  { name: "behind", of: (row) => row.lag_versions, text: (row) => count(row.lag_versions), number: true, word: "version" },
  { name: "lag", of: (row) => row.lag_ms, text: (row) => duration(row.lag_ms), number: true, word: "lag" },
  { name: "last flush", of: (row) => row.flushed_at_ms, text: (row) => ago(row.flushed_at_ms), number: true, word: "flush" },
  { name: "rows", of: (row) => row.rows_total, text: (row) => count(row.rows_total), number: true },
];
const sorting = { column: COLUMNS[0], down: false };
const busy = new Set(); // keys of destinations whose desired state is being set

export function startPipelines() {
  for (const column of COLUMNS) {
    const button = element("button", { type: "button", textContent: column.name, className: "sort" });
    button.addEventListener("click", () => {
      sorting.down = sorting.column === column && !sorting.down;
      sorting.column = column;
      drawPipelines();
    });
    const parts = column.word ? [button, term(column.word, "?")] : [button];
    if (column.word) parts[1].setAttribute("aria-label", `what ${column.name} means`);
    column.head = element("th", { scope: "col", className: column.number ? "number" : "", "data-label": column.name }, ...parts);
    byId("destination-heads").append(column.head);
  }
  byId("destination-heads").append(element("th", { scope: "col" }, element("span", { className: "hidden", textContent: "actions" })));
  byId("pipeline-filter").addEventListener("input", () => drawPipelines());
  byId("pipeline-form").addEventListener("submit", (event) => event.preventDefault());
}

export function drawStores() {
  const { stores } = state;
  show(byId("no-pipelines"), stores.length === 0);
  keyed(byId("stores"), stores, (store) => store.address, () => element("li", {}, element("code"), " ", element("span")), (item, store) => {
    setText(item.querySelector("code"), store.address);
    setText(item.querySelector("span"), store.error || store.pipelines.map(pipelineWords).join("; ") || "no pipeline has run yet");
    item.classList.toggle("wrong", Boolean(store.error));
  });
  const lacking = stores.flatMap((store) => store.pipelines).filter((pipeline) => pipeline.unrouted !== null);
  keyed(byId("unrouted"), lacking, (pipeline) => `${pipeline.store}/${pipeline.name}`, makeUnrouted, (item, pipeline) => {
    const { rows, through, values } = pipeline.unrouted;
    const shown = values.map(([value, times]) => `${value === null ? "NULL" : `“${value}”`} ${count(times)}`);
    const rest = rows - values.reduce((sum, [, times]) => sum + times, 0);
    if (rest > 0) shown.push(`others ${count(rest)}`);
    setText(item.firstElementChild, `${pipeline.name}: ${plural(rows, "row")} ${rows === 1 ? "has" : "have"} `);
    setText(item.lastElementChild, `, up to version ${count(through)}: ${shown.join(", ")}`);
  });
}

const makeUnrouted = () => element("li", {}, element("span"), term("unrouted", "no destination"), element("span"));

function pipelineWords(pipeline) {
  const live = pipeline.deliverers.filter((each) => each.live).map((each) => each.name);
  const who = live.length ? `delivered by ${live.join(", ")}` : "no deliverer runs";
  return `${pipeline.name}: ${plural(pipeline.destinations_total, "destination")}, ${who}`;
}

export function drawPipelines() {
  const rows = [...state.destinations.values()];
  show(byId("destinations"), rows.length > 0);
  show(byId("pipeline-form"), rows.length > 0);
  byId("destinations").classList.toggle("one-pipeline", new Set(rows.map((row) => `${row.store}/${row.pipeline}`)).size === 1);
  const found = rows.filter(matches).sort(inOrder);
  const shown = found.slice(0, ROWS_MAX);
  const hidden = found.length > ROWS_MAX ? `, the first ${ROWS_MAX} shown` : "";
  setText(byId("pipeline-count"), `${count(found.length)} of ${plural(rows.length, "destination")}${hidden}`);
  for (const { head, ...column } of COLUMNS) {
    head.setAttribute("aria-sort", sorting.column.name !== column.name ? "none" : sorting.down ? "descending" : "ascending");
  }
  keyed(byId("destination-rows"), shown, (row) => row.key, makeRow, updateRow);
}

function matches(row) {
  const words = byId("pipeline-filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const text = `${row.name} ${row.pipeline} ${row.state} ${row.desired_state} ${row.error}`.toLowerCase();
  return words.every((word) => text.includes(word));
}

function inOrder(one, other) {
  const [a, b] = [sorting.column.of(one), sorting.column.of(other)];
  const order = sorting.column.number ? (a ?? -1) - (b ?? -1) : byName(a, b);
  return (sorting.down ? -order : order) || byName(one.key, other.key);
}

function makeRow(row) {
  const cells = COLUMNS.map((column) => element("td", { className: column.number ? "number" : "", "data-label": column.name }));
  cells[0].append(element("span", { className: "destination-name" }));
  cells[2].append(element("span", { className: "state" }), element("p", { className: "error" }));
  const button = element("button", { type: "button", className: "desired-state" });
  button.addEventListener("click", () => setDesiredState(row.key));
  return element("tr", {}, ...cells, element("td", { className: "action" }, button));
}

function updateRow(line, row) {
  COLUMNS.forEach((column, at) => {
    if (at === 0) setText(line.querySelector(".destination-name"), row.name);
    else if (at === 2) setText(line.querySelector(".state"), row.state);
    else setText(line.children[at], column.text(row));
  });
  line.dataset.level = row.halted ? "bad" : row.desired_state !== "active" ? "warn" : row.error ? "warn" : "good";
  const error = line.querySelector(".error");
  setText(error, row.error.replace(`${row.name}: `, ""));
  show(error, Boolean(row.error));
  const button = line.querySelector(".desired-state");
  const [word, hidden] = wordFor(row);
  setText(button, word);
  button.setAttribute("aria-label", `${word} ${row.name}`);
  button.disabled = busy.has(row.key);
  show(button, state.may_operate && !hidden);
}

/** The text of the button, and whether it is hidden. */
function wordFor(row) {
  if (row.desired_state === "active") return [row.halted ? "Try again" : "Pause", false];
  return ["Resume", row.desired_state === "retired"];
}

async function setDesiredState(key) {
  const row = state.destinations.get(key);
  if (row === undefined || busy.has(key)) return;
  const wanted = row.desired_state === "active" && !row.halted ? "paused" : "active";
  busy.add(key);
  drawPipelines();
  try {
    const body = JSON.stringify({ store: row.store, pipeline: row.pipeline, destination: row.name, desired_state: wanted });
    const answer = await fetch("/api/desired-state", { method: "POST", headers: { [HEADER]: "1", "Content-Type": "application/json" }, body });
    const reply = await answer.json();
    say(answer.ok ? `${row.name}: ${wanted === "paused" ? "to be paused" : "to be resumed"}` : reply.message, !answer.ok);
  } catch {
    say("the server of the dashboard does not answer; the table shows the result when it does", true);
  } finally {
    busy.delete(key);
    drawPipelines();
  }
}

function say(text, isWrong) {
  setText(byId("pipeline-said"), text);
  byId("pipeline-said").classList.toggle("wrong", isWrong);
}
