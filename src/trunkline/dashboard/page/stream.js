// What the server told so far, and the stream by which it tells more. Everything the page keeps is bounded.

const FEED_MAX = 500;
const SAMPLES_MS = 5 * 60 * 1000;

export const state = fresh();

function fresh() {
  return {
    standing: null, nodes: [], logs: [], stores: [], destinations: new Map(), counterexamples: [],
    samples: [], feed: [], may_operate: false,
  };
}

/** Apply one message of the server; answers the names of what changed. */
function apply(patch) {
  if (patch.reset) Object.assign(state, fresh());
  const changed = new Set(patch.reset ? Object.keys(state) : []);
  for (const name of ["standing", "nodes", "logs", "stores", "counterexamples", "may_operate"]) {
    if (patch[name] !== undefined && patch[name] !== null) {
      state[name] = patch[name];
      changed.add(name);
    }
  }
  if (patch.destinations) {
    for (const row of patch.destinations.rows) state.destinations.set(row.key, row);
    for (const key of patch.destinations.gone) state.destinations.delete(key);
    changed.add("destinations");
  }
  if (patch.samples?.length) {
    state.samples.push(...patch.samples);
    const oldest = state.samples.at(-1).at_ms - SAMPLES_MS;
    while (state.samples[0].at_ms < oldest) state.samples.shift();
    changed.add("samples");
  }
  if (patch.feed?.length) {
    state.feed.push(...patch.feed);
    state.feed.splice(0, Math.max(0, state.feed.length - FEED_MAX));
    changed.add("feed");
  }
  return changed;
}

/** The last tail that was told of a log, or null. */
export function tailOf(log) {
  for (let at = state.samples.length - 1; at >= 0; at -= 1) {
    const tail = state.samples[at].tails[log];
    if (tail !== undefined) return tail;
  }
  return null;
}

/** `changed(names)` after every message, `connected(is)` when the stream comes and goes. It reconnects by itself. */
export function listen({ changed, connected }) {
  const source = new EventSource("/api/events");
  source.onopen = () => connected(true);
  source.onmessage = (message) => changed(apply(JSON.parse(message.data)));
  source.onerror = () => {
    connected(false);
    if (source.readyState === EventSource.CLOSED) setTimeout(() => listen({ changed, connected }), 2000);
  };
}
