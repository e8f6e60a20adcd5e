// What the page asks of the server about models, one set for all views: a download goes on while another one is shown.
import { within } from "../direction.js";

const made = new WeakMap();

/** The actions; failures are shown as notices, and those of reading in the views. */
export function modelsOf(app) {
  if (!made.has(app)) made.set(app, createActions(app));
  return made.get(app);
}

function createActions({ store, api, confirm, notify }) {
  const dispatch = (type, fields) => store.dispatch({ type: `models.${type}`, ...fields });
  const running = new Map();
  const described = new Set();
  let offers = null;

  const read = async (signal) => {
    try {
      dispatch("read", { shelf: await api.get("/v1/shelf", { signal }) });
    } catch (error) {
      if (!error.aborted) dispatch("failed", { message: error.message, refused: error.status === 401 });
    }
  };

  /** Reads once which models the hub has under short names. */
  const readOffers = () => {
    offers ??= api.get("/v1/shelf/short-names").then(
      (read) => dispatch("offered", { offers: read }),
      () => {
        offers = null;
      },
    );
  };

  /** Reads once whether a model has a chat template; it is not loaded for that. */
  const describe = async (name) => {
    if (described.has(name)) return;
    described.add(name);
    try {
      const { template } = await api.post("/api/show", { model: name });
      dispatch("described", { name, chats: template !== "" });
    } catch {
      described.delete(name); // its file cannot be read now; asking it says why
    }
  };

  /** Does something to the shelf and shows what it is then. */
  const does = async (action) => {
    try {
      await action();
    } catch (error) {
      notify(error.message, "error");
    }
    await read();
  };

  const load = (model) => does(() => api.post("/v1/shelf/load", { model }));
  const unload = (model) => does(() => api.post("/v1/shelf/unload", { model }));
  const reload = () => does(() => api.post("/v1/shelf/reload"));

  const remove = async (model) => {
    const question = `Remove ${within(model)}? Its files are deleted, unless another name uses them.`;
    if (await confirm(question, { action: "Remove", danger: true })) await does(() => api.delete("/api/delete", { body: { model } }));
  };

  /** Fetches a model; a step comes for each piece that is there. Returns whether all of it is. */
  const pull = async (source) => {
    if (running.has(source)) return false;
    const controller = new AbortController();
    running.set(source, controller);
    dispatch("pull begun", { source });
    let failed = null;
    try {
      for await (const step of api.lines("/api/pull", { model: source }, { signal: controller.signal })) {
        if (step.error) failed = step.error;
        else dispatch("pull went on", { source, step });
      }
    } catch (error) {
      failed = error.aborted ? "Stopped; it goes on from here when it is fetched again." : error.message;
    }
    running.delete(source);
    dispatch("pull ended", { source, failed });
    await read();
    return failed === null;
  };

  const stop = (source) => running.get(source)?.abort();
  const close = (source) => dispatch("pull closed", { source });
  return { read, readOffers, describe, load, unload, reload, remove, pull, stop, close };
}
