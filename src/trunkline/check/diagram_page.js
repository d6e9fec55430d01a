"use strict";
// Every text of the run reaches the page through textContent, never as markup.

const run = JSON.parse(document.getElementById("run").textContent);
const byId = (id) => document.getElementById(id);
const details = byId("details");
let selected = 0;

function element(tag, properties, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties || {})) {
    if (value !== undefined && value !== false) made[name] = value;
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

const processesOf = (index) => (index < 0 ? [] : run.states[index].processes.map((at) => run.processes[at]));
const way = (message) => `${message.source}.${message.source_role} → ${message.target}.${message.target_role}`;

function happened(step) {
  const lines = [];
  const line = (word, text, kind) =>
    lines.push(element("li", {}, element("b", {}, word), element("code", { className: kind || "" }, text)));
  if (step.handled) line(step.kind === "lose" ? "lost" : "received", `${way(step.handled)}  ${step.handled.detail}`);
  step.persisted.forEach((text) => line("persisted", text, "disk"));
  step.sent.forEach((message) => line("sent", `→ ${message.target}.${message.target_role}  ${message.detail}`));
  step.announced.forEach((text) => line("announced", text, "event"));
  step.completed.forEach((text) => line("completed", text, "done"));
  step.notes.forEach((text) => line("note", text));
  return lines.length ? element("ul", { className: "happened" }, ...lines) : null;
}

/* Rows of [name, text] pairs with what changed since `before` marked; null when there is nothing to show. */
function table(pairs, before) {
  const old = new Map(before || pairs);
  const rows = [];
  for (const [name, text] of pairs) {
    const changed = old.get(name) !== text;
    old.delete(name);
    if (!changed && byId("only-changes").checked) continue;
    const was = changed && before ? before.find((pair) => pair[0] === name) : null;
    const value = element("td", {}, was ? element("del", {}, was[1]) : null, text);
    rows.push(element("tr", { className: changed ? "changed" : "" }, element("td", {}, name), value));
  }
  for (const [name, text] of old) {
    rows.push(element("tr", { className: "changed" }, element("td", {}, name), element("td", {}, element("del", {}, text))));
  }
  return rows.length ? element("table", {}, element("tbody", {}, ...rows)) : null;
}

function rolePart(role, before) {
  const fields = table(role.fields, before && before.fields);
  const changed = Boolean(before) && before.phase !== role.phase;
  if (!fields && !changed && byId("only-changes").checked) return null;
  const phase = element("span", { className: changed ? "phase changed" : "phase" },
    changed ? element("s", {}, before.phase) : null, changed ? " → " : null, role.phase);
  return element("div", { className: "part" }, element("b", {}, role.name), " ",
    element("small", {}, role.kind), " ", phase, fields);
}

function listPart(title, pairs, before) {
  const shown = table(pairs, before);
  return shown && element("div", { className: "part" }, element("small", {}, title), shown);
}

function processCard(process, before, acted) {
  const changed = Boolean(before) && before !== process; // one table of processes: the same state is the same object
  if (!changed && byId("only-changes").checked) return null;
  const timers = (of) => of.timers.map((name) => [name, "set"]);
  const parts = process.roles.map((role) =>
    rolePart(role, before && before.roles.find((other) => other.name === role.name)));
  parts.push(listPart("timers", timers(process), before && timers(before)));
  parts.push(listPart("disk", process.disk, before && before.disk));
  const names = ["process", changed && "changed", !process.up && "is-down"].filter(Boolean);
  const summary = element("summary", {}, process.name,
    element("small", {}, `${process.up ? "up" : "down"} · incarnation ${process.incarnation} · start ${process.start}`),
    element("span", { className: "dot" }, changed ? "changed" : ""));
  return element("details", { className: names.join(" "), open: changed || acted || selected === 0 }, summary, ...parts);
}

function inFlight(network, before) {
  const ids = (messages) => new Set(messages.map((message) => message.message_id));
  const now = ids(network);
  const old = before ? ids(before) : now;
  const item = (message, className) => element("li", { className },
    element("span", { className: "way" }, way(message)), element("code", {}, message.detail));
  const only = byId("only-changes").checked;
  const lines = network
    .filter((message) => !only || !old.has(message.message_id))
    .map((message) => item(message, old.has(message.message_id) ? "" : "new"));
  (before || []).filter((message) => !now.has(message.message_id)).forEach((message) => lines.push(item(message, "gone")));
  return lines.length ? element("ul", { className: "flight" }, ...lines) : element("p", { className: "none" }, "nothing");
}

function showPanel() {
  const step = selected > 0 ? run.steps[selected - 1] : null;
  const state = run.states[selected];
  const before = selected > 0 ? run.states[selected - 1] : null;
  const last = selected === run.steps.length;
  byId("step-title").textContent = step ? `Step ${selected} of ${run.steps.length}` : "Initial state";
  const earlier = processesOf(selected - 1);
  const cards = processesOf(selected).map((process) => processCard(
    process, earlier.find((other) => other.name === process.name), Boolean(step) && step.process === process.name));
  const section = (title, content) => (content ? [element("h3", {}, title), content] : []);
  details.replaceChildren(...[
    step && element("div", { className: "action" }, step.action),
    last ? element("div", { className: "verdict" }, `${run.finding.monitor}: ${run.finding.text}`) : null,
    step && happened(step),
    element("h3", {}, step ? "Processes after this step" : "Processes"),
    ...cards,
    ...section("In flight", inFlight(state.network, before && before.network)),
    ...section("Monitors", table(state.monitors, before && before.monitors)),
    ...section("Faults left", table(state.budgets, before && before.budgets)),
  ].filter(Boolean));
  details.scrollTop = 0;
}

function showNames() {
  const step = selected > 0 ? run.steps[selected - 1] : null;
  const down = new Set(processesOf(selected).filter((process) => !process.up).map((process) => process.name));
  for (const name of document.querySelectorAll(".names span")) {
    name.classList.toggle("down", down.has(name.dataset.process));
    name.classList.toggle("at", Boolean(step) && step.process === name.dataset.process);
  }
}

/* The step's row, and the life line that it stands on with room for the texts beside it. */
function bringIntoView() {
  const view = document.querySelector(".diagram");
  const row = document.querySelector(`.row[data-step="${selected}"]`).getBoundingClientRect();
  const frame = view.getBoundingClientRect();
  const header = document.querySelector(".names").offsetHeight;
  const nearest = (low, high, first, last) => (low < first ? low - first : high > last ? Math.min(high - last, low - first) : 0);
  const name = document.querySelector(".names .at");
  const line = (name || view).getBoundingClientRect();
  view.scrollBy({
    top: nearest(row.top - 12, row.bottom + 12, frame.top + header, frame.bottom),
    left: name ? nearest(line.left - 60, line.right + 150, frame.left, frame.right) : 0,
  });
}

function select(index) {
  selected = Math.max(0, Math.min(run.steps.length, index));
  const here = String(selected);
  for (const part of document.querySelectorAll("[data-step]")) {
    part.classList.toggle("selected", part.dataset.step === here);
    if (part.hasAttribute("aria-selected")) part.setAttribute("aria-selected", String(part.dataset.step === here));
  }
  let touched = 0;
  for (const message of document.querySelectorAll(".message")) {
    const touches = message.dataset.from === here || message.dataset.to === here;
    message.classList.toggle("touched", touches);
    touched += touches;
  }
  document.querySelector("svg.sequence").classList.toggle("focused", touched > 0);
  showPanel();
  showNames();
  bringIntoView();
  history.replaceState(null, "", `#step-${here}`);
}

document.querySelector("svg.sequence").addEventListener("click", (event) => {
  const target = event.target.closest("[data-step], .message");
  if (target) select(Number(target.dataset.step ?? (target.dataset.to || target.dataset.from)));
});

const moves = {
  j: () => selected + 1, ArrowDown: () => selected + 1,
  k: () => selected - 1, ArrowUp: () => selected - 1,
  Home: () => 0, End: () => run.steps.length,
};
document.addEventListener("keydown", (event) => {
  const inPanel = event.key.length > 1 && event.target.closest(".panel"); // there, arrow keys scroll the text
  if (event.ctrlKey || event.metaKey || event.altKey || inPanel || !(event.key in moves)) return;
  event.preventDefault();
  select(moves[event.key]());
});

byId("previous").addEventListener("click", () => select(selected - 1));
byId("next").addEventListener("click", () => select(selected + 1));
byId("only-changes").addEventListener("change", showPanel);

const copy = byId("copy");
if (copy) copy.addEventListener("click", async () => {
  const command = byId("replay");
  getSelection().selectAllChildren(command); // still useful where the page may not write to the clipboard
  try {
    await navigator.clipboard.writeText(command.textContent);
    copy.textContent = "copied";
  } catch {
    copy.textContent = "press Ctrl-C";
  }
});

const asked = /^#step-(\d+)$/.exec(location.hash);
select(asked ? Number(asked[1]) : run.steps.length);
