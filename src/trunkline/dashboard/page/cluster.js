// The head of the page, and the nodes of the cluster with their roles.

import { byId, element, keyed, setText, show } from "./dom.js";
import { byName, bytes, count, plural } from "./format.js";
import { term } from "./glossary.js";
import { readRateOf } from "./rates.js";
import { state } from "./stream.js";

const ROLES_MAX = 4; // logs that are named; with more, only their number

export function drawHead() {
  const { head } = state;
  if (head === null) return;
  setText(byId("cluster-id"), head.cluster);
  setText(byId("health-words"), head.health.words);
  byId("health").dataset.level = head.health.level;
  document.title = `${head.health.level === "good" ? "" : "! "}${head.health.words} · Trunkline`;
  const more = head.health.more;
  show(byId("problems"), more.length > 0);
  keyed(byId("problems"), more, (words) => words, () => element("li"), (item, words) => setText(item, words));
}

export function drawCluster() {
  const { head, nodes } = state;
  show(byId("no-nodes"), nodes.length === 0);
  if (head?.coordinator) {
    const where = head.address ? ` at ${head.address}` : "";
    const line = byId("coordinator");
    const name = head.coordinator === "coordinator" ? "" : ` ${head.coordinator}`;
    line.replaceChildren(term("coordinator", "Coordinator"), `${name}${where}, ${head.active ? "active" : "standby"}; ${plural(nodes.length, "node")}, ${plural(head.logs_total, "log")}`);
  }
  const roles = rolesByNode();
  const sorted = [...nodes].sort((one, other) => byName(one.name, other.name));
  keyed(byId("nodes"), sorted, (node) => node.name, makeNode, (card, node) => updateNode(card, node, roles.get(node.name) ?? []));
}

export function drawReads() {
  for (const card of byId("nodes").children) {
    const reads = readRateOf(card.dataset.key, state.samples);
    setText(card.querySelector(".node-reads"), reads === null ? "" : `reads ${count(reads)}/s`);
  }
}

/** By node: the logs with an open segment on it, and its roles for them. */
function rolesByNode() {
  const found = new Map();
  for (const log of state.logs.values()) {
    const last = log.segments.at(-1);
    if (last === undefined || last.end !== null) continue;
    const roles = new Map();
    for (const group of last.groups) {
      group.forEach((member, at) => roles.set(member.node, [...(roles.get(member.node) ?? []), place(log, at, group.length)]));
    }
    if (log.policy === "chain") roles.set(last.owner, [...(roles.get(last.owner) ?? []), "sequencer"]);
    for (const [node, what] of roles) {
      if (!found.has(node)) found.set(node, []);
      found.get(node).push({ log: log.name, what: [...new Set(what)] });
    }
  }
  return found;
}

function place(log, at, length) {
  if (log.policy !== "chain") return "copy";
  if (length === 1) return "head and tail";
  return at === 0 ? "head" : at === length - 1 ? "tail" : "middle";
}

function makeNode(node) {
  return element("li", { className: "node" },
    element("div", { className: "node-head" }, element("span", { className: "dot", "aria-hidden": "true" }), element("strong", { textContent: node.name }), element("span", { className: "node-state" })),
    element("div", { className: "node-address" }),
    element("div", { className: "disk" }, element("meter", { min: 0, max: 1, "aria-label": `disk of ${node.name}` }), element("span", { className: "disk-words" })),
    element("div", { className: "node-reads" }),
    element("dl", { className: "roles" }),
  );
}

function updateNode(card, node, roles) {
  const [level, words] = stateOf(node);
  card.dataset.level = level;
  setText(card.querySelector(".node-state"), words);
  setText(card.querySelector(".node-address"), [node.address, node.zone && `zone ${node.zone}`].filter(Boolean).join(" · "));
  show(card.querySelector(".disk"), node.disk !== null);
  if (node.disk !== null) {
    const { bytes_used: used, bytes_free: free } = node.disk;
    const meter = card.querySelector("meter");
    meter.value = used + free > 0 ? used / (used + free) : 0;
    setText(card.querySelector(".disk-words"), `${bytes(used)} used, ${bytes(free)} free`);
  }
  show(card.querySelector(".node-reads"), node.disk !== null);
  keyed(card.querySelector(".roles"), roles.length > ROLES_MAX ? counted(roles) : roles, (role) => role.key ?? role.log, makeRole, updateRole);
}

/** With many logs: the number of logs for each role. */
function counted(roles) {
  const times = new Map();
  for (const what of roles.flatMap((role) => role.what)) times.set(what, (times.get(what) ?? 0) + 1);
  const order = ["sequencer", "head", "middle", "tail", "head and tail", "copy"];
  const counts = order.filter((what) => times.has(what)).map((what) => ({ key: `of ${what}`, log: plural(times.get(what), "log"), what: [what] }));
  return [{ key: "all", log: plural(roles.length, "open log"), what: [] }, ...counts];
}

function stateOf(node) {
  if (node.state === "gone") return ["off", "removed"];
  if (!node.live) return ["bad", "lost"];
  if (node.disk === null) return ["bad", "does not answer"];
  if (node.disk.full) return ["bad", "full"];
  if (node.damaged > 0) return ["warn", "live, damaged"];
  if (node.state === "draining") return ["warn", "being drained"];
  return ["good", "live"];
}

const makeRole = (role) => element("div", {}, element("dt", { textContent: role.log }), element("dd"));

function updateRole(row, role) {
  setText(row.querySelector("dt"), role.log);
  const where = row.querySelector("dd");
  const words = role.what.join(", ");
  if (where.dataset.words === words) return;
  where.dataset.words = words;
  where.replaceChildren(...role.what.flatMap((what, at) => [at ? ", " : "", roleTerm(what)]));
}

function roleTerm(what) {
  if (what === "sequencer") return term("sequencer", what);
  return what === "copy" ? what : term("chain", what);
}
