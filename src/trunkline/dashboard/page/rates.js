// Rates from samples: counts that grow, per second. A pause in looking is a gap.

const RECENT = 6; // samples that a rate of now needs, with one to spare
export const PAUSE_MS = 6000; // between two samples: nobody looked
const SMOOTH_MS = 3000; // a rate is taken over this long, or it would jump with every look

export const pointsOf = (samples, valueIn) => samples.map((sample) => [sample.at_ms, valueIn(sample)]).filter(([, value]) => value !== null);

const ASKED_AT_ONCE = 128; // tails at one look; with more logs, they take turns

/** How long a silence on a log's tail is a pause, where there are so many logs. */
export const pauseOf = (logs) => PAUSE_MS * Math.max(1, Math.ceil(logs / ASKED_AT_ONCE));

/** Growth per second of points that are counts. */
export function ratesOf(points, pause = PAUSE_MS) {
  const rates = [];
  for (let at = 1, from = 0; at < points.length; at += 1) {
    if (points[at][0] - points[at - 1][0] > pause) { from = at; continue; }
    while (points[at][0] - points[from + 1][0] >= SMOOTH_MS) from += 1;
    const seconds = (points[at][0] - points[from][0]) / 1000;
    if (seconds > 0) rates.push([points[at][0], Math.max(0, (points[at][1] - points[from][1]) / seconds)]);
  }
  return rates;
}

/** Entries per second that were appended to all logs. Samples tell what came since the one before; here it is added up. */
export function appendRates(samples) {
  let total = 0;
  return ratesOf(pointsOf(samples, ({ appends }) => (appends === null ? null : (total += appends))));
}

/** Entries per second that all nodes have sent. Samples tell what was sent since the one before; here it is added up. */
export function readRates(samples) {
  let total = 0;
  return ratesOf(pointsOf(samples, ({ reads }) => {
    const counts = Object.values(reads);
    if (counts.length === 0) return null;
    total += counts.reduce((sum, each) => sum + each, 0);
    return total;
  }));
}

/** What one node sends per second now, or null where that is not known. */
export function readRateOf(node, samples) {
  const newest = samples.at(-1);
  if (newest?.reads[node] === undefined) return null;
  const recent = samples.slice(-RECENT).filter((sample) => sample.reads[node] !== undefined);
  let total = 0;
  return ratesOf(recent.map((sample) => [sample.at_ms, total += sample.reads[node]])).at(-1)?.[1] ?? null;
}
