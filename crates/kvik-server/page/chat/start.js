// The first screen: which models there are, which one is to answer, and others that may be fetched.
import { within } from "../direction.js";
import { h, replace, setText } from "../dom.js";
import { hasFailed, isShelf, modelOf, modelsIn, reasonOf } from "../models/chosen.js";
import { createOffers } from "../models/offers.js";
import { createPullList } from "../models/pulls.js";
import { bytes } from "../numbers.js";

const EMBEDDED = "kvik-tiny";

/** `{element, render(state)}`; `choose(name)` makes a model that of the new conversation. */
export function createStart(models, choose) {
  const fetch = async (name) => {
    if (!(await models.pull(name))) return;
    models.close(name);
    choose(name);
  };
  const words = h("p", { class: "quiet-text" }, "What you ask is answered on this machine. The server keeps the conversation; nothing leaves it.");
  const heading = h("h2");
  const failed = h("p", { class: "error-text", role: "alert" });
  const list = h("ul", { class: "own-models", "aria-label": "Models of this server" });
  const demonstration = h("p", {}, `${EMBEDDED} is a demonstration that comes with kvik: it knows very little.`);
  const code = (text) => h("code", {}, text);
  const none = h("p", {}, "Start the server with ", code("kvik serve --shelf"), " to fetch other models on this page, or fetch one with ", code("kvik pull qwen3:0.6b"), " and serve it with ", code("kvik serve qwen3:0.6b"), ".");
  const pulls = createPullList(models);
  const offers = createOffers(fetch);
  const element = h("div", { class: "start" }, heading, failed, list, demonstration, none, pulls.element, offers.element, words);
  let drawn = null;
  return {
    element,
    render(state) {
      const { shelf, error, pulls: running, offers: offered } = state.models;
      const key = [shelf, error, running, offered, modelOf(state, null)];
      if (drawn && key.every((value, at) => value === drawn[at])) return;
      drawn = key;
      const own = modelsIn(state);
      heading.hidden = !shelf;
      setText(failed, error === null ? "" : `The server does not say which models it has. ${error}`);
      failed.hidden = error === null;
      if (shelf) setText(heading, headingText(own));
      replace(list, isShelf(state) && own.map((model) => rowOf(model, model.name === modelOf(state, null), choose)));
      list.hidden = !isShelf(state) || own.length === 0;
      demonstration.hidden = !own.some(({ name }) => name === EMBEDDED);
      none.hidden = demonstration.hidden || shelf.can_pull;
      pulls.render(state.models);
      offers.render(state.models);
    },
  };
}

function headingText(own) {
  if (own.length === 0) return "Fetch a model to begin";
  return own.length === 1 ? `${within(own[0].name)} answers` : "Which model is to answer?";
}

function rowOf(model, isChosen, choose) {
  const button = h("button", { class: "own-model", "aria-pressed": String(isChosen), onclick: () => choose(model.name) }, h("b", {}, model.name), h("span", { class: hasFailed(model) ? "quiet-text error-text" : "quiet-text" }, stateText(model)));
  return h("li", {}, button);
}

function stateText(model) {
  if (hasFailed(model)) return reasonOf(model.failed);
  const { status, bytes: most, bytes_used: used } = model;
  if (used !== null) return `${status}, ${bytes(used)} in memory`;
  // A tenant is not told what a model in memory takes.
  return status === "loaded" ? status : `takes up to ${bytes(most)} when it is asked`;
}
