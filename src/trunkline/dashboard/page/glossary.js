// The terms of the page, explained once. A term on the page links to its explanation, and shows it as a tooltip.

import { byId, element } from "./dom.js";

export const WORDS = {
  node: ["Node", "a server that stores copies of segments. It may also be the sequencer of a log."],
  coordinator: ["Coordinator", "the server that keeps the metadata of all logs and performs duties, such as fail-over and repair. One is active at a time."],
  position: ["Position", "the number of an entry in its log, from 1; also called GLSN. It never changes."],
  tail: ["Tail", "the position after the last committed entry."],
  reads: ["Reads", "entries that nodes have sent, to readers and to nodes that copy a segment. Nodes send ahead: for a short read, more than the reader uses."],
  segment: ["Segment", "a range of positions with one set of replicas. Only the last segment of a log is open to appends."],
  epoch: ["Epoch", "the version of a log’s projection. It grows with every seal, repair and trim."],
  seal: ["Seal", "ends a segment, so that the next one can begin on other nodes, for example after a failure."],
  chain: ["Head and tail of a chain", "an append passes from the head to the tail; an entry at the tail is committed."],
  sequencer: ["Sequencer", "assigns the positions of the open segment. In a broadcast log it is the writer."],
  repair: ["Being copied", "a node copies a sealed segment. Its replica counts when it is complete."],
  trim: ["Trimmed", "entries up to this position were deleted on request."],
  destination: ["Destination", "a table that follows its part of the source table."],
  unrouted: ["No destination", "unrouted rows: no destination has their routing value. They are counted, but not delivered."],
  state: ["State of a destination", "ready: it waits for changes; flushing, seeding: a transaction is in progress; backing off: it retries after an error; halted: an operator has to resolve a problem."],
  control: ["Control store", "the database that holds the ownership, the desired states and the statistics of pipelines."],
  lag: ["Lag", "how long the oldest change that a destination lacks has been waiting."],
  version: ["Version", "a state of the source table. The position of a destination is the version that it holds."],
  flush: ["Flush", "applies the changes up to a newer version to a destination, in one transaction."],
  counterexample: ["Counterexample", "a schedule, found by the checker, that violates a property of the protocol."],
};

/** A link to an explanation; `text`: the term as the sentence needs it. */
export function term(key, text) {
  return explained(element("a", { className: "term", textContent: text }), key);
}

function explained(link, key) {
  link.href = `#word-${key}`;
  link.title = WORDS[key][1];
  link.setAttribute("aria-describedby", `word-${key}`);
  return link;
}

export function fillGlossary() {
  for (const [key, [word, meaning]] of Object.entries(WORDS)) {
    byId("glossary").append(element("div", {}, element("dt", { textContent: word }), element("dd", { id: `word-${key}`, textContent: meaning })));
  }
  for (const link of document.querySelectorAll("a[data-term]")) explained(link, link.dataset.term);
}
