// The key of a server that asks for one. It is kept in this browser's localStorage and sent to this server only.
import { askForText } from "./dialogs.js";
import { recall, remember } from "./storage.js";

/** `{get, turn, ask}`: the key that is known, how often the question for one was answered, and that question. */
export function createKeys() {
  let asking = null;
  let turn = 0;
  return {
    get: () => recall("key", null),
    turn: () => turn,
    /**
     * Resolves to whether there is another key to try. Requests that fail together share one question, and one that was
     * sent before its answer (in turn `sent`) and is refused after it shares the answer.
     */
    ask({ refused, tried, sent }) {
      if (recall("key", null) !== tried) return Promise.resolve(true);
      if (sent !== turn) return Promise.resolve(false);
      asking ??= askForKey(refused).finally(() => {
        asking = null;
        turn += 1;
      });
      return asking;
    },
  };
}

async function askForKey(refused) {
  const key = await askForText({
    title: "This server requires a key",
    text: refused
      ? "The server refused the key. Enter another one."
      : "It was set when the server was started, with --api-key or a tenant. It stays in this browser.",
    label: "Key",
    type: "password",
    action: "Use this key",
  });
  if (key === null) return false;
  remember("key", key);
  return true;
}
