// Wires the sections to the stream: each is drawn anew when what it shows has changed.

import { drawCluster, drawHead } from "./cluster.js";
import { drawCounterexamples } from "./counterexamples.js";
import { byId, show } from "./dom.js";
import { startBrowser, browse } from "./browser.js";
import { drawFeed } from "./feed.js";
import { fillGlossary } from "./glossary.js";
import { drawPipelines, startPipelines, drawStores } from "./pipelines.js";
import { drawPlots } from "./plots.js";
import { drawSegments } from "./segments.js";
import { listen } from "./stream.js";

const SECTIONS = [
  [drawHead, ["standing"]],
  [drawCluster, ["standing", "nodes", "logs", "samples"]],
  [drawSegments, ["logs", "nodes", "samples"]],
  [drawPlots, ["samples", "logs", "stores"]],
  [browse, ["samples", "logs"]],
  [drawStores, ["stores"]],
  [drawPipelines, ["destinations", "may_operate"]],
  [drawFeed, ["feed"]],
  [drawCounterexamples, ["counterexamples"]],
];

fillGlossary();
startBrowser();
startPipelines();
listen({
  changed: (names) => {
    for (const [draw, needs] of SECTIONS) {
      if (needs.some((name) => names.has(name))) draw();
    }
  },
  connected: (is) => show(byId("offline"), !is),
});

function soon(draw) {
  let asked = 0;
  return () => {
    cancelAnimationFrame(asked);
    asked = requestAnimationFrame(draw);
  };
}

addEventListener("resize", soon(() => { drawSegments(); drawPlots(); }));
addEventListener("scroll", soon(drawSegments), { passive: true });
