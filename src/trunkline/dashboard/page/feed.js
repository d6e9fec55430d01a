// Events in words, the newest first; filtered, and older ones on request.

import { byId, element, keyed, setText, show } from "./dom.js";
import { count, dateTime, plural, time } from "./format.js";
import { state } from "./stream.js";

const MARKS = { good: "✓", info: "·", warn: "▲", bad: "✕" }; // not by colour alone
const PAGE = 150;
const DAY_MS = 12 * 3600 * 1000; // older events show their date

const view = { shown: PAGE, withLogs: true };

export function startFeed() {
  byId("feed-filter").addEventListener("input", () => { view.shown = PAGE; drawFeed(); });
  byId("feed-form").addEventListener("submit", (event) => event.preventDefault());
  byId("feed-cluster").addEventListener("click", () => {
    view.withLogs = !view.withLogs;
    view.shown = PAGE;
    byId("feed-cluster").setAttribute("aria-pressed", String(!view.withLogs));
    drawFeed();
  });
  byId("more-feed").addEventListener("click", () => { view.shown += PAGE; drawFeed(); });
}

export function drawFeed() {
  const words = byId("feed-filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const found = state.feed.filter((item) => (view.withLogs || !item.log) && words.every((word) => item.text.toLowerCase().includes(word)));
  const shown = found.slice(-view.shown).toReversed();
  show(byId("no-feed"), state.feed.length === 0);
  show(byId("feed-form"), state.feed.length > 0);
  show(byId("feed-count"), state.feed.length > 0);
  const of = found.length < state.feed.length ? `${count(found.length)} of ` : "";
  setText(byId("feed-count"), `${of}${plural(state.feed.length, "event")}, the newest first`);
  keyed(byId("feed"), shown, (item) => item.number, makeItem, () => {});
  show(byId("more-feed"), found.length > shown.length);
}

function makeItem(item) {
  const isOld = Math.abs(Date.now() - item.at_ms) > DAY_MS;
  const made = element("li", {},
    element("time", { textContent: isOld ? dateTime(item.at_ms) : time(item.at_ms), title: dateTime(item.at_ms), dateTime: new Date(item.at_ms).toISOString() }),
    element("span", { className: "mark", "aria-hidden": "true", textContent: MARKS[item.level] }),
    element("span", { className: "words", textContent: item.text }));
  made.dataset.level = item.level;
  return made;
}
