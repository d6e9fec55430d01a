// Rates from samples of growing counts, per second. A pause between polls is a gap.

const RECENT = 6; // samples for a current rate, and one to spare
export const PAUSE_MS = 6000; // between two samples: no page was open
const SMOOTH_MS = 3000; // the time for a rate; shorter: it would jump with every poll

export const pointsOf = (samples, valueIn) => samples.map((sample) => [sample.at_ms, valueIn(sample)]).filter(([, value]) => value !== null);

const ASKED_AT_ONCE = 128; // tails per poll; with more logs, they take turns

/** How long a tail without a sample is a pause, with so many logs. */
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

/** Entries per second that were appended to all logs. A sample has the growth since the last one; this adds them up. */
export function appendRates(samples) {
  let total = 0;
  return ratesOf(pointsOf(samples, ({ appends }) => (appends === null ? null : (total += appends))));
}

/** Entries per second that all nodes have sent. A sample has the count since the last one; this adds them up. */
export function readRates(samples) {
  let total = 0;
  return ratesOf(pointsOf(samples, ({ reads }) => {
    const counts = Object.values(reads);
    if (counts.length === 0) return null;
    total += counts.reduce((sum, each) => sum + each, 0);
    return total;
  }));
}

/** What one node sends per second now, or null if that is unknown. */
export function readRateOf(node, samples) {
  const newest = samples.at(-1);
  if (newest?.reads[node] === undefined) return null;
  const recent = samples.slice(-RECENT).filter((sample) => sample.reads[node] !== undefined);
  let total = 0;
  return ratesOf(recent.map((sample) => [sample.at_ms, total += sample.reads[node]])).at(-1)?.[1] ?? null;
}
