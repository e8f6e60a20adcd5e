// Reads and corrects what the server remembers of a conversation.
import { pathOf } from "../chat/conversations.js";

/** `{read, correct}`. */
export function createMemory({ store, api, notify }) {
  return {
    async read(id) {
      store.dispatch({ type: "memory opening", id });
      try {
        const { summary } = await api.get(pathOf(id, "/memory"));
        store.dispatch({ type: "memory read", id, summary });
      } catch (error) {
        store.dispatch({ type: "memory missing", id, error: error.message });
      }
    },
    /** Whether the server took the new text. */
    async correct(id, text) {
      try {
        const { summary } = await api.post(pathOf(id, "/memory"), { summary: text });
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
