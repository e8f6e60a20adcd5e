// What the cache view changes on the server: pins and evictions. `reload` reads the tree afterwards.
import { plural } from "../numbers.js";

/** `{pin, unpin, evict}`; what cannot be taken back is asked for first. */
export function createChanges({ api, confirm, notify }, reload) {
  const change = async (work) => {
    try {
      notify(await work());
    } catch (error) {
      notify(error.message, "error");
    }
    await reload();
  };

  const pin = ({ prompt }) =>
    change(async () => {
      const { tokens } = await api.post("/v1/cache/pin", { prompt });
      return `Pinned: ${plural(tokens, "token")} stay until the pin is removed.`;
    });

  const unpin = async ({ id, tokens }) => {
    if (!(await confirm(`Remove the pin of ${plural(tokens, "token")}?`, { action: "Unpin" }))) return;
    await change(async () => {
      await api.delete(`/v1/cache/pins/${id}`);
      return "Unpinned.";
    });
  };

  const evict = async ({ prompt }) => {
    const question = "Evict this part and all that continues it? Pins of it are removed. What is in use stays.";
    if (!(await confirm(question, { action: "Evict", danger: true }))) return;
    await change(async () => {
      const { tokens, blocks, pins } = await api.post("/v1/cache/evict", { prompt });
      return `Evicted ${plural(tokens, "token")} in ${plural(blocks, "block")}; ${plural(pins, "pin")} removed.`;
    });
  };
  return { pin, unpin, evict };
}
