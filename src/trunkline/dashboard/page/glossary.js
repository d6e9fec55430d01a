// The words that the page uses, explained once. A term on the page links to its word, and shows it when pointed at.

import { byId, element } from "./dom.js";

export const WORDS = {
  node: ["Node", "a storage process with a disk of its own. It keeps copies of segments, and may give out positions."],
  coordinator: ["Coordinator", "the process that keeps the maps of all logs and repairs what nodes lose. One is active at a time."],
  position: ["Position", "the number of an entry in its log, from 1 on, also called GLSN. It never changes."],
  tail: ["Tail", "the position after the last committed entry: where a reader that has read everything waits."],
  reads: ["Reads", "entries that nodes have sent: to readers, and to nodes that get a copy. Nodes send ahead: for a short read, more than the reader takes."],
  segment: ["Segment", "a stretch of positions that the same nodes keep. Only the last segment of a log is open to appends."],
  epoch: ["Epoch", "the version of a log’s map. It grows with every seal, repair and trim."],
  seal: ["Seal", "ends a segment for ever, so that the next one can begin on other nodes: after a failure, or to grow."],
  chain: ["Head and tail of a chain", "an append is written to the head first and to the tail last; what the tail has is committed."],
  sequencer: ["Sequencer", "who gives out the positions of the open segment. Of a broadcast log it is the client that writes it."],
  repair: ["Being copied", "a node gets its copy of a sealed segment. It counts once it has all of it."],
  trim: ["Trimmed", "entries up to this position were deleted on request."],
  destination: ["Destination", "a table that follows its part of the source table."],
  unrouted: ["No destination", "rows with a routing value that no destination takes. They are counted, and delivered nowhere."],
  state: ["State of a destination", "ready: it waits for changes; flushing, seeding: they are being written; backing off: tried again after an error; halted: somebody has to mend something."],
  control: ["Control store", "the database in which deliverers share who delivers what, and the desired states that operators set."],
  lag: ["Lag", "how long the oldest change that a destination does not have yet has been waiting."],
  version: ["Version", "of the source table. A destination’s position is the version that it has completely."],
  flush: ["Flush", "one transaction that brings a destination to a newer version."],
  counterexample: ["Counterexample", "a run that breaks a property of the protocol, step by step, found by the checker."],
};

/** A link to a word; `text` is how it stands in its sentence. */
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
