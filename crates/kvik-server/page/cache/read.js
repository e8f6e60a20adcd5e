// What the cache view reads of the server: the tree, its texts, the selected part. Each answer becomes an action.
import { nameOf, oneLine } from "./words.js";

const NODES_MOST = 400;
/** So many boxes carry their text, if they are at least so large a share of what is shown. */
const NAMED_MOST = 12;
const NAMED_SHARE = 0.08;
/** While keys walk the picture, only the part where they rest is read. */
const REST_MS = 120;
/** What makes a part another one than was read before. */
const COMPARED = ["start", "tokens", "pinned", "ram_tokens", "disk_tokens"];

const path = (id) => `/v1/cache/tree/${encodeURIComponent(id)}`;
const dispatcher = (store) => (type, fields) => store.dispatch({ type: `cache.${type}`, ...fields });

/** Reads the tree: `{loadTree, zoomTo}`. `details` reads the selected part. */
export function createTreeReader({ store, api, notify }, details) {
  const part = () => store.get().cache;
  const dispatch = dispatcher(store);
  const zoomed = () => part().trail.at(-1)?.id ?? null;

  const loadTree = async () => {
    const under = zoomed();
    const query = under ? `&under=${encodeURIComponent(under)}` : "";
    try {
      const tree = await api.get(`/v1/cache/tree?nodes=${NODES_MOST}${query}`);
      if (under !== zoomed()) return;
      dispatch("tree", { tree: { ...tree, under } });
      await Promise.all([nameLargest({ store, api }, tree.nodes), details.readChanged(tree.nodes)]);
    } catch (error) {
      if (under && error.status === 404) return leaveGone();
      dispatch("treeFailed", { message: error.message });
    }
  };
  const leaveGone = () => {
    notify("The part that was shown is no longer in the cache.");
    return zoomTo(null);
  };
  /** Shows what is below a node, or all for null. */
  const zoomTo = (id) => {
    if (id !== zoomed()) dispatch("trail", { trail: trailTo(id, part()) });
    return loadTree();
  };
  return { loadTree, zoomTo };
}

/** The steps from the whole tree to `id`; the label is for those whose text is not known. */
function trailTo(id, { trail, tree }) {
  if (id === null) return [];
  const at = trail.findIndex((step) => step.id === id);
  if (at >= 0) return trail.slice(0, at + 1);
  const node = tree?.nodes.find((one) => one.id === id);
  return [...trail, { id, label: node ? `${node.tokens} tokens after ${node.start}` : id }];
}

async function nameLargest({ store, api }, nodes) {
  const total = nodes.reduce((most, node) => Math.max(most, node.weight), 1);
  const known = store.get().cache.texts;
  const isUnnamed = (node) => node.weight / total >= NAMED_SHARE && nameOf(known, node) === null;
  const texts = {};
  const most = Math.min(NAMED_MOST, api.pace.spare());
  for (const { id, start, tokens } of nodes.filter(isUnnamed).slice(0, most)) {
    const node = await api.get(path(id)).catch(() => null);
    texts[id] = { start, tokens, text: oneLine(node?.text ?? "") };
  }
  if (Object.keys(texts).length > 0) dispatcher(store)("texts", { texts });
}

/** Reads the selected part: `{select, readChanged, readAgain}`. */
export function createDetailsReader({ store, api }) {
  const part = () => store.get().cache;
  const dispatch = dispatcher(store);
  let current = new AbortController();

  const select = (id) => {
    if (id === part().selected && part().node) return;
    current.abort();
    current = new AbortController();
    dispatch("selected", { id });
    setTimeout(read, REST_MS, id, current.signal);
  };
  const read = async (id, signal) => {
    if (signal.aborted) return;
    try {
      const node = await api.get(path(id), { signal });
      dispatch("node", { node, pins: node.pinned ? await pinsThrough(api, node) : [] });
    } catch (error) {
      if (error.aborted) return;
      dispatch("node", { node: error.status === 404 ? { id, gone: true } : { id, error: error.message } });
    }
  };
  /** Reads again what has become another part: it was split, pinned, written to disk or evicted. */
  const readChanged = async (nodes) => {
    const { selected, node } = part();
    const now = nodes.find(({ id }) => id === selected);
    if (!node || node.gone || node.error) return;
    if (now && COMPARED.every((field) => now[field] === node[field])) return;
    await read(selected, current.signal);
  };
  const readAgain = async () => {
    const { selected, node } = part();
    if (selected !== null && !node?.gone) await read(selected, current.signal);
  };
  return { select, readChanged, readAgain };
}

/** What the server's list of pins says of those that keep a node. */
async function pinsThrough(api, { pins }) {
  const { data } = await api.get("/v1/cache/pins");
  return data.filter(({ id }) => pins.includes(id));
}
