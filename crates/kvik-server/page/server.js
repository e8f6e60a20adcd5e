// Says in the header which model is served, and that the server loads it or is away.
import { setText } from "./dom.js";
import { plural } from "./numbers.js";

const RETRY_MS = 1000;

/** Shows the server in `element`; asks again until it is ready. */
export function mountServer(element, app) {
  const look = async () => {
    const health = await app.api.health();
    if (health === "ready") return setText(element, await modelName(app));
    setText(element, health === "loading" ? "The model is loading" : "The server is away");
    setTimeout(look, RETRY_MS);
  };
  look();
}

async function modelName({ api, store }) {
  try {
    const { data } = await api.get("/v1/models");
    const models = data.filter(({ parent }) => !parent);
    if (models.length !== 1) return plural(models.length, "model");
    const { chat_template: template } = await api.get("/props");
    if (template === null) store.dispatch({ type: "no template" });
    return models[0].id;
  } catch (error) {
    return error.status === 401 ? "No key" : "";
  }
}
