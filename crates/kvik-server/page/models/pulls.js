// Fetches models of the hub, and shows how far each is.
import { h, replace, uniqueId } from "../dom.js";
import { bytes, percent } from "../numbers.js";
import { progressOf } from "./state.js";

/** `{element, render(state)}`. */
export function createPulls(actions) {
  const source = h("input", { id: uniqueId("source"), required: true, autocomplete: "off", spellcheck: "false", placeholder: "hf.co/Qwen/Qwen3-0.6B-GGUF:Q8_0" });
  const submit = (event) => {
    event.preventDefault();
    actions.pull(source.value.trim());
    source.value = "";
  };
  const label = h("label", { for: source.id }, "A model of the Hugging Face hub");
  const form = h("form", { class: "pull-form", onsubmit: submit }, label, source, h("button", { class: "primary" }, "Fetch"));
  const list = h("div", { class: "pulls" });
  const none = h("p", { class: "quiet-text" }, "This server serves what it was started with; ", h("code", {}, "kvik serve --shelf"), " serves all models that are fetched.");
  const element = h("section", { class: "panel", "aria-label": "Fetch a model" }, h("h2", {}, "Fetch a model"), form, none, list);
  let drawn = null;
  const render = ({ shelf, pulls }) => {
    form.hidden = !shelf?.can_pull;
    none.hidden = !shelf || shelf.can_pull;
    if (pulls === drawn) return;
    drawn = pulls;
    replace(list, pulls.map((pull) => shown(pull, actions)));
  };
  return { element, render };
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
