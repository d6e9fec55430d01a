// Segments along the axis of positions: a lane per node, a bar per copy. Seals are vertical lines, repairs are hatched.

import { drawn } from "./dom.js";
import { byName, count } from "./format.js";

const LANE = 15;
const LANE_GAP = 3;
const TOP = 17;
const BOTTOM = 18;
const BAR_MIN = 16; // a shorter segment is drawn this wide, so that it is visible
const LETTER = 6.6; // about the width of a character of the labels
const LANES_MAX = 16;

const COPYING = "CopyToJoiner"; // the duty of the coordinator for a log

const endOf = (segment, tail) => segment.end ?? Math.max(tail ?? segment.base, segment.base);

function positionsOf(segment, tail) {
  const end = endOf(segment, tail);
  if (segment.end === null) return `${count(segment.base)} on`;
  return end > segment.base ? `${count(segment.base)} to ${count(end - 1)}` : "none";
}

/** The state of one copy; empty if it is complete. */
function copyWords(log, segment, member, lost) {
  if (lost.has(member.node)) return member.joining ? "node lost, copy unfinished" : "node lost";
  if (member.joining) return log.duty === COPYING ? "being copied" : "waits for its copy";
  return segment.end !== null && !segment.repaired ? "being settled" : "";
}

function stateOf(log, segment, lost) {
  if (segment.end === null) return "open";
  if (!segment.repaired) return "sealed, being settled";
  const joining = segment.groups.flat().filter((member) => member.joining);
  if (joining.length === 0) return "sealed";
  return joining.every((member) => lost.has(member.node)) ? "sealed, a copy is unfinished" : "sealed, being copied";
}

/** A segment as a row of the table. */
export function rowOf(log, segment, tail, lost) {
  const shown = (member) => {
    const words = copyWords(log, segment, member, lost);
    return words ? `${member.node} (${words})` : member.node;
  };
  const copies = segment.groups.map((group) => group.map(shown).join(" → ")).join(" / ");
  return [count(segment.index), count(segment.epoch), positionsOf(segment, tail), stateOf(log, segment, lost), copies, segment.owner];
}

const wordsOf = (log, segment, tail, lost) => {
  const [index, epoch, positions, phase, copies, owner] = rowOf(log, segment, tail, lost);
  return `segment ${index}, epoch ${epoch}, positions ${positions}: ${phase}; on ${copies}; ordered by ${owner}`;
};

// ------------------------------------------------------------------------------------------------------------- drawing

export function drawLanes(picture, log, tail, width, lost) {
  const names = [...new Set(log.segments.flatMap((segment) => segment.groups.flat().map((member) => member.node)))].sort(byName).slice(0, LANES_MAX);
  const gutter = Math.min(96, 14 + LETTER * Math.max(...names.map((name) => name.length)));
  const height = TOP + names.length * (LANE + LANE_GAP) + BOTTOM;
  const spans = laidOut(log.segments, tail, gutter, width - 14);
  picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
  picture.setAttribute("height", height);
  picture.setAttribute("aria-label", `${log.name}: ${log.segments.map((segment) => wordsOf(log, segment, tail, lost)).join(". ")}`);
  const top = (name) => TOP + names.indexOf(name) * (LANE + LANE_GAP);
  const parts = names.flatMap((name) => [
    drawn("line", { class: "lane", x1: gutter, x2: width, y1: top(name) + LANE / 2, y2: top(name) + LANE / 2 }),
    drawn("text", { class: lost.has(name) ? "lane-name lost" : "lane-name", x: 0, y: top(name) + LANE - 4 }, name.length > 12 ? `${name.slice(0, 11)}…` : name),
  ]);
  for (const span of spans) parts.push(...bars(log, span, tail, top, names, lost));
  for (const [first, end] of log.gaps) parts.push(gap(spans, first, end, names.length));
  if (log.trim > 0) parts.push(...trimmed(spans, log.trim, gutter, names.length));
  parts.push(...boundaries(spans, tail, height, width));
  picture.replaceChildren(...parts);
}

/** The place of each segment: to scale, but never too narrow to see. */
function laidOut(segments, tail, left, right) {
  const lengths = segments.map((segment) => endOf(segment, tail) - segment.base);
  const total = lengths.reduce((sum, length) => sum + length, 0) || 1;
  const room = right - left;
  const least = Math.min(BAR_MIN, room / segments.length);
  const spare = room - least * segments.length;
  let x = left;
  return segments.map((segment, at) => {
    const width = least + (spare * lengths[at]) / total;
    const span = { segment, x, width, base: segment.base, end: segment.base + lengths[at] };
    x += width;
    return span;
  });
}

function placeOf(spans, glsn) {
  const span = spans.find((each) => glsn < each.end) ?? spans.at(-1);
  const share = (glsn - span.base) / Math.max(1, span.end - span.base);
  return span.x + span.width * Math.min(1, Math.max(0, share));
}

function bars(log, span, tail, top, names, lost) {
  const { segment } = span;
  const words = wordsOf(log, segment, tail, lost);
  return segment.groups.flatMap((group) => group.flatMap((member, at) => {
    if (!names.includes(member.node)) return [];
    const kind = lost.has(member.node) ? "lost" : member.joining || (segment.end !== null && !segment.repaired) ? "joining" : segment.end === null ? "open" : "sealed";
    const y = top(member.node);
    const bar = drawn("rect", { class: `copy ${kind}`, x: span.x + 1, y, width: Math.max(2, span.width - 2), height: LANE, rx: 3 }, drawn("title", {}, words));
    const role = copyWords(log, segment, member, lost) || roleOf(log, segment, group, member, at);
    const fits = role && span.width > role.length * LETTER + 14;
    return fits ? [bar, drawn("text", { class: `role ${kind}`, x: span.x + 8, y: y + LANE - 4 }, role)] : [bar];
  }));
}

function roleOf(log, segment, group, member, at) {
  const words = [];
  if (log.policy === "chain" && group.length > 1) {
    if (at === 0) words.push("head");
    if (at === group.length - 1) words.push("tail");
  }
  if (segment.end === null && segment.owner === member.node) words.push("sequencer");
  return words.join(", ");
}

function gap(spans, first, end, lanes) {
  const x = placeOf(spans, first);
  const width = Math.max(3, placeOf(spans, end) - x);
  const height = lanes * (LANE + LANE_GAP) - LANE_GAP;
  return drawn("rect", { class: "gap", x, y: TOP, width, height }, drawn("title", {}, `positions ${count(first)} to ${count(end - 1)} were declared lost`));
}

function trimmed(spans, trim, left, lanes) {
  const width = placeOf(spans, trim + 1) - left;
  const height = lanes * (LANE + LANE_GAP) - LANE_GAP;
  return width > 1 ? [drawn("rect", { class: "trimmed", x: left, y: TOP, width, height }, drawn("title", {}, `trimmed up to ${count(trim)}`))] : [];
}

/** A line at every seal, epochs above, positions below if there is room. */
function boundaries(spans, tail, height, width) {
  const parts = [];
  const tailText = count(tail ?? spans.at(-1).end);
  const tailLeft = width - tailText.length * LETTER - 12;
  let free = 0;
  for (const [at, { segment, x, width: wide }] of spans.entries()) {
    if (at > 0) parts.push(drawn("line", { class: "seal", x1: x, x2: x, y1: 3, y2: height - BOTTOM + 4 }, drawn("title", {}, `sealed at ${count(segment.base)}`)));
    const label = wide > 92 ? `segment ${segment.index} · epoch ${segment.epoch}` : wide > 30 ? `${segment.index} · e${segment.epoch}` : "";
    const whole = label.length * LETTER + 6 <= wide ? label : wide > 20 ? `${segment.index}` : "";
    if (whole) parts.push(drawn("text", { class: "epoch", x: x + 3, y: 11 }, whole));
    const text = count(segment.base);
    if (x >= free && x + text.length * LETTER < tailLeft) {
      parts.push(drawn("text", { class: "tick", x: x + 2, y: height - 4 }, text));
      free = x + text.length * LETTER + 12;
    }
  }
  parts.push(drawn("text", { class: "tick now", x: width - 2, y: height - 4, "text-anchor": "end" }, tailText));
  return parts;
}
