// Events in words, the newest first.

import { byId, element, keyed, show } from "./dom.js";
import { dateTime, time } from "./format.js";
import { state } from "./stream.js";

const MARKS = { good: "✓", info: "·", warn: "▲", bad: "✕" }; // not by colour alone

export function drawFeed() {
  show(byId("no-feed"), state.feed.length === 0);
  keyed(byId("feed"), state.feed.toReversed(), (item) => item.number, makeItem, () => {});
}

function makeItem(item) {
  const made = element("li", {},
    element("time", { textContent: time(item.at_ms), title: dateTime(item.at_ms), dateTime: new Date(item.at_ms).toISOString() }),
    element("span", { className: "mark", "aria-hidden": "true", textContent: MARKS[item.level] }),
    element("span", { className: "words", textContent: item.text }));
  made.dataset.level = item.level;
  return made;
}
