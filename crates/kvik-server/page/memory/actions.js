// Reads and corrects what the server remembers of a conversation. A summary belongs to the model that made it.
import { pathOf } from "../chat/conversations.js";
import { within } from "../direction.js";
import { modelOf } from "../models/chosen.js";

/** `{read, correct}`. */
export function createMemory({ store, api, notify }) {
  const pathOfSummary = (id) => {
    const model = modelOf(store.get(), id);
    return pathOf(id, `/memory${model === null ? "" : `?model=${encodeURIComponent(model)}`}`);
  };
  return {
    async read(id) {
      store.dispatch({ type: "memory opening", id });
      try {
        const { summary } = await api.get(pathOfSummary(id));
        store.dispatch({ type: "memory read", id, summary });
      } catch (error) {
        store.dispatch({ type: "memory missing", id, error: sentenceOf(error, modelOf(store.get(), id)) });
      }
    },
    /** Whether the server took the new text. */
    async correct(id, text) {
      try {
        const { summary } = await api.post(pathOfSummary(id), { summary: text });
        store.dispatch({ type: "memory read", id, summary });
        notify("The next answer reads the corrected summary.");
        return true;
      } catch (error) {
        notify(error.message, "error");
        return false;
      }
    },
  };
}

/** Reading loads no model. */
function sentenceOf(error, model) {
  if (error.code !== "model_not_loaded") return error.message;
  return `The summary is read with its model ${within(model)}, which is not in memory. An answer loads it, as does Load in Models.`;
}
