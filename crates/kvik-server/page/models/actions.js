// What the models view asks of the server.

export function createActions({ store, api, confirm, notify }) {
  const dispatch = (type, fields) => store.dispatch({ type: `models.${type}`, ...fields });
  const running = new Map();

  const read = async (signal) => {
    try {
      dispatch("read", { shelf: await api.get("/v1/shelf", { signal }) });
    } catch (error) {
      if (!error.aborted) dispatch("failed", { message: error.message });
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
    const question = `Remove ${model}? Its files are deleted, unless another name uses them.`;
    if (await confirm(question, { action: "Remove", danger: true })) await does(() => api.delete("/api/delete", { body: { model } }));
  };

  /** Fetches a model; a step comes for each piece that is there. */
  const pull = async (source) => {
    if (running.has(source)) return;
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
  };

  const stop = (source) => running.get(source)?.abort();
  const close = (source) => dispatch("pull closed", { source });
  return { read, load, unload, reload, remove, pull, stop, close };
}
