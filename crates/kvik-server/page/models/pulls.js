// Fetches models of the hub, and shows how far each is.
import { h, replace, uniqueId } from "../dom.js";
import { bytes, percent } from "../numbers.js";
import { createOffers } from "./offers.js";
import { progressOf } from "./state.js";

/** `{element, render(models)}`: a source to type, downloads, and models to choose. */
export function createPulls(actions) {
  const source = h("input", { id: uniqueId("source"), required: true, autocomplete: "off", spellcheck: "false", placeholder: "hf.co/Qwen/Qwen3-0.6B-GGUF:Q8_0" });
  const submit = (event) => {
    event.preventDefault();
    actions.pull(source.value.trim());
    source.value = "";
  };
  const label = h("label", { for: source.id }, "A model of the Hugging Face hub");
  const form = h("form", { class: "pull-form", onsubmit: submit }, label, source, h("button", { class: "primary" }, "Fetch"));
  const none = h("p", { class: "quiet-text" }, "This server serves what it was started with; ", h("code", {}, "kvik serve --shelf"), " serves all models that are fetched.");
  const parts = [createPullList(actions), createOffers(actions.pull)];
  const element = h("section", { class: "panel", "aria-label": "Fetch a model" }, h("h2", {}, "Fetch a model"), form, none, parts.map((part) => part.element));
  return {
    element,
    render(models) {
      form.hidden = !models.shelf?.can_pull;
      none.hidden = !models.shelf || models.shelf.can_pull;
      parts.forEach((part) => part.render(models));
    },
  };
}

/** `{element, render(models)}`: the downloads of this tab. */
export function createPullList(actions) {
  const element = h("div", { class: "pulls" });
  let drawn = null;
  return {
    element,
    render({ pulls }) {
      if (pulls === drawn) return;
      drawn = pulls;
      element.hidden = pulls.length === 0;
      replace(element, pulls.map((pull) => shown(pull, actions)));
    },
  };
}

function shown(pull, actions) {
  const { status, done, total } = progressOf(pull);
  const known = total > 0;
  const bar = h("progress", { "aria-label": `How much of ${pull.source} is there`, max: known ? total : null, value: known ? done : null });
  const end = () => (pull.done ? actions.close : actions.stop)(pull.source);
  return h(
    "div",
    { class: "pull", role: "group", "aria-label": pull.source },
    h("span", { class: "pull-source" }, pull.source),
    !pull.done && bar,
    h("span", { class: pull.failed ? "error-text" : "quiet-text", role: "status" }, known && !pull.done ? `${percent(done, total)} of ${bytes(total)}` : status),
    h("button", { class: "quiet small", "aria-label": `${pull.done ? "Close" : "Stop"} ${pull.source}`, onclick: end }, pull.done ? "Close" : "Stop"),
  );
}
