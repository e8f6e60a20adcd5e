// The cache view's part of the state.

/** Five minutes, read each second. */
export const SAMPLES_MOST = 300;

export const initial = {
  /** The answer of `/v1/cache/tree`, with `under`: the node it was asked for. */
  tree: null,
  /** Why the tree or the numbers cannot be read now, as a sentence. */
  treeError: null,
  statsError: null,
  /** The nodes zoomed into, outermost first: `{id, label}`; the label is for those whose text is not known. */
  trail: [],
  colour: "tier",
  selected: null,
  /** The answer of `/v1/cache/tree/{id}` for what is selected, or `{id, gone}` or `{id, error}`. */
  node: null,
  /** Pins that may run through what is selected. */
  pins: [],
  /** What nodes that are drawn large begin with: `{start, tokens, text}` by id. */
  texts: {},
  /** Answers of `/v1/stats`; null where there was none. */
  samples: [],
  /** Whether they are read less often than each second, as the key may send few requests. */
  slow: false,
  /** `{cache}`, `{error}` or null. */
  explanation: null,
  conversations: [],
};

const REDUCERS = {
  "cache.tree": (cache, { tree }) => ({ ...cache, tree, treeError: null }),
  "cache.treeFailed": (cache, { message }) => ({ ...cache, treeError: message }),
  "cache.trail": (cache, { trail }) => ({ ...cache, trail }),
  "cache.colour": (cache, { colour }) => ({ ...cache, colour }),
  "cache.selected": (cache, { id }) =>
    id === cache.selected ? cache : { ...cache, selected: id, node: null, pins: [] },
  // An answer about what is no longer selected comes too late.
  "cache.node": (cache, { node, pins = [] }) => (node.id === cache.selected ? { ...cache, node, pins } : cache),
  "cache.texts": (cache, { texts }) => ({ ...cache, texts: { ...cache.texts, ...texts } }),
  "cache.stats": (cache, { stats, slow }) => ({
    ...cache,
    slow,
    samples: [...cache.samples, stats].slice(-SAMPLES_MOST),
    statsError: null,
  }),
  "cache.statsFailed": (cache, { message }) => ({
    ...cache,
    samples: [...cache.samples, null].slice(-SAMPLES_MOST),
    statsError: message,
  }),
  "cache.explained": (cache, { explanation }) => ({ ...cache, explanation }),
  "cache.conversations": (cache, { conversations }) => ({ ...cache, conversations }),
};

export function reduce(cache, action) {
  return REDUCERS[action.type]?.(cache, action) ?? cache;
}
