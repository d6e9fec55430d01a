// Connects the sections to the stream: each is redrawn when its data has changed.

import { drawCluster, drawHead, drawReads } from "./cluster.js";
import { drawCounterexamples } from "./counterexamples.js";
import { byId, show } from "./dom.js";
import { startBrowser, browse } from "./browser.js";
import { drawFeed, startFeed } from "./feed.js";
import { fillGlossary } from "./glossary.js";
import { askToken, hasAccess } from "./login.js";
import { arrangeLogs, drawLogs, startLogs } from "./logs.js";
import { drawPipelines, startPipelines, drawStores } from "./pipelines.js";
import { drawPlots } from "./plots.js";
import { listen } from "./stream.js";

const SECTIONS = [
  [drawHead, ["head"]],
  [drawCluster, ["head", "nodes", "logs"]],
  [drawReads, ["nodes", "samples"]],
  [arrangeLogs, ["logs"]],
  [drawLogs, ["logs", "nodes", "samples"]],
  [drawPlots, ["samples", "minutes", "logs", "stores"]],
  [browse, ["samples", "logs"]],
  [drawStores, ["stores"]],
  [drawPipelines, ["destinations", "may_operate"]],
  [drawFeed, ["feed"]],
  [drawCounterexamples, ["counterexamples"]],
];

function changed(names) {
  for (const [draw, needs] of SECTIONS) {
    if (needs.some((name) => names.has(name))) draw();
  }
}

async function watch() {
  if (!(await hasAccess())) await askToken();
  listen({
    changed,
    connected: (is) => show(byId("offline"), !is),
    refused: async () => {
      if (await hasAccess()) return false;
      show(byId("offline"), false);
      watch();
      return true;
    },
  });
}

fillGlossary();
startLogs();
startBrowser();
startPipelines();
startFeed();
watch();

function soon(draw) {
  let frame = 0;
  return () => {
    cancelAnimationFrame(frame);
    frame = requestAnimationFrame(draw);
  };
}

addEventListener("resize", soon(() => { drawLogs(); drawPlots(); }));
