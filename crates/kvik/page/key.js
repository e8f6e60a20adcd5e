// The key of a server that asks for one. It is kept in this browser's localStorage and sent to this server only.
import { askForText } from "./dialogs.js";
import { recall, remember } from "./storage.js";

/** `{get, ask}`: the key that is known, and the question for one. */
export function createKeys() {
  let asking = null;
  return {
    get: () => recall("key", null),
    /** Resolves to whether there is another key to try. Requests that fail together share one question. */
    ask({ refused, tried }) {
      if (recall("key", null) !== tried) return Promise.resolve(true);
      asking ??= askForKey(refused).finally(() => {
        asking = null;
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
