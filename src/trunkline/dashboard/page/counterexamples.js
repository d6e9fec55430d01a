// The files of the checker. Each is opened in a page of its own, which may run its script but reach nothing here.

import { byId, element, keyed, setText, show } from "./dom.js";
import { bytes, dateTime } from "./format.js";
import { state } from "./stream.js";

const KINDS = { html: "diagram", json: "JSON", actions: "actions to replay" };

export function drawCounterexamples() {
  const files = state.counterexamples;
  show(byId("no-counterexamples"), files.length === 0);
  keyed(byId("counterexample-files"), files, (file) => file.name, makeFile, updateFile);
}

function makeFile(file) {
  const at = file.name.lastIndexOf(".");
  const link = element("a", { href: `/check-out/${encodeURIComponent(file.name)}`, target: "_blank", rel: "noopener", textContent: file.name.slice(0, at) });
  return element("li", {}, link, element("span", { className: "kind", textContent: KINDS[file.name.slice(at + 1)] ?? "" }), element("span", { className: "size" }), element("time"));
}

function updateFile(item, file) {
  setText(item.querySelector(".size"), bytes(file.size_bytes));
  setText(item.querySelector("time"), dateTime(file.at_ms));
}
