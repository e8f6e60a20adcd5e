// Says in the header which model is served, and that the server loads it or is away.
import { setText } from "./dom.js";
import { modelsOf } from "./models/actions.js";
import { plural } from "./numbers.js";
import { renderOnChange } from "./state.js";

const RETRY_MS = 1000;

/** Shows the server in `element`; asks again until it is ready. */
export function mountServer(element, app) {
  const look = async () => {
    const health = await app.api.health();
    if (health === "ready") {
      await modelsOf(app).read();
      return renderOnChange(app.store, ({ models }) => setText(element, modelText(models)));
    }
    setText(element, health === "loading" ? "The model is loading" : "The server is away");
    return setTimeout(look, RETRY_MS);
  };
  look();
}

function modelText({ shelf, refused }) {
  if (!shelf) return refused ? "No key" : "";
  return shelf.bytes === null ? shelf.default : plural(shelf.models.length, "model");
}
