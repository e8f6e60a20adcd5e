// All that people can do in the cache view.
import { createChanges } from "./change.js";
import { createDetailsReader, createTreeReader } from "./read.js";

export function createActions(app) {
  const { store } = app;
  const { select, readChanged, readAgain } = createDetailsReader(app);
  const { loadTree, zoomTo } = createTreeReader(app, { readChanged });
  // What keeps a part may have changed while the part itself has not.
  const reload = async () => {
    await loadTree();
    await readAgain();
  };
  const zoom = (id) => {
    select(id);
    return zoomTo(id);
  };
  const out = () => zoomTo(store.get().cache.trail.at(-2)?.id ?? null);
  const setColour = (colour) => store.dispatch({ type: "cache.colour", colour });
  return { loadTree, select, zoom, zoomTo, out, setColour, ...createChanges(app, reload) };
}
