// The data of the page, and the stream of changes from the server. Everything that the page keeps is bounded.

const FEED_MAX = 2500;
const SAMPLES_MS = 5 * 60 * 1000;

export const state = fresh();

function fresh() {
  return {
    head: null, nodes: [], logs: new Map(), stores: [], destinations: new Map(), counterexamples: [],
    samples: [], feed: [], minutes: [], may_operate: false, tails: new Map(),
  };
}

/** Apply one message of the server; returns the names of what changed. */
function apply(patch) {
  if (patch.reset) Object.assign(state, fresh());
  const changed = new Set(patch.reset ? Object.keys(state) : []);
  for (const name of ["head", "nodes", "stores", "counterexamples", "minutes", "may_operate"]) {
    if (patch[name] !== undefined && patch[name] !== null) {
      state[name] = patch[name];
      changed.add(name);
    }
  }
  if (patch.logs) {
    follow(state.logs, patch.logs, (log) => log.name);
    changed.add("logs");
  }
  if (patch.destinations) {
    follow(state.destinations, patch.destinations, (row) => row.key);
    changed.add("destinations");
  }
  if (patch.samples?.length) {
    for (const sample of patch.samples) {
      state.samples.push(sample);
      for (const [log, tail] of Object.entries(sample.tails)) state.tails.set(log, tail);
    }
    const oldest = state.samples.at(-1).at_ms - SAMPLES_MS;
    while (state.samples[0].at_ms < oldest) state.samples.shift();
    changed.add("samples");
  }
  if (patch.feed?.length) {
    state.feed.push(...patch.feed);
    state.feed.sort((one, other) => one.order_ms - other.order_ms || one.number - other.number);
    state.feed.splice(0, Math.max(0, state.feed.length - FEED_MAX));
    changed.add("feed");
  }
  return changed;
}

function follow(kept, changes, keyOf) {
  for (const row of changes.rows) kept.set(keyOf(row), row);
  for (const key of changes.removed) kept.delete(key);
}

/** The tail of a log, or null if it is unknown. */
export function tailOf(name) {
  return state.logs.get(name)?.segments.at(-1)?.end ?? state.tails.get(name) ?? null;
}

/**
 * `changed(names)` after every message, `connected(is)` when the stream connects or breaks. It reconnects by itself;
 * if the server refuses the page, `refused()` says whether to stop.
 */
export function listen({ changed, connected, refused }) {
  const source = new EventSource("/api/events");
  source.onopen = () => connected(true);
  source.onmessage = (message) => changed(apply(JSON.parse(message.data)));
  source.onerror = async () => {
    connected(false);
    if (source.readyState !== EventSource.CLOSED) return;
    if (await refused()) return;
    setTimeout(() => listen({ changed, connected, refused }), 2000);
  };
}
