// What the server told so far, and the stream by which it tells more. Everything the page keeps is bounded.

const FEED_MAX = 2500;
const SAMPLES_MS = 5 * 60 * 1000;

export const state = fresh();

function fresh() {
  return {
    standing: null, nodes: [], logs: new Map(), stores: [], destinations: new Map(), counterexamples: [],
    samples: [], feed: [], minutes: [], may_operate: false, tails: new Map(),
  };
}

/** Apply one message of the server; answers the names of what changed. */
function apply(patch) {
  if (patch.reset) Object.assign(state, fresh());
  const changed = new Set(patch.reset ? Object.keys(state) : []);
  for (const name of ["standing", "nodes", "stores", "counterexamples", "minutes", "may_operate"]) {
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
  for (const key of changes.gone) kept.delete(key);
}

/** Where a log ends, as far as that is known, or null. */
export function tailOf(name) {
  return state.logs.get(name)?.segments.at(-1)?.end ?? state.tails.get(name) ?? null;
}

/**
 * `changed(names)` after every message, `connected(is)` when the stream comes and goes. It reconnects by itself;
 * where the server turns the page away, `refused()` says whether to go on.
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
