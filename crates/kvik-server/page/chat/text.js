// A text that a model without a chat template continues. It is this tab's until that is closed.
import { copyText } from "../clipboard.js";
import { composes, h, setText } from "../dom.js";
import { modelOf } from "../models/chosen.js";
import { plural, rate } from "../numbers.js";
import { TAB, recall, remember } from "../storage.js";
import { numbersOf } from "./asking.js";
import { settingsOf } from "./state.js";

/** A text has no end of its own, so a part of it does. */
const TOKENS = 200;
const KEY = "text";
const WORDS =
  "This model has no chat template, as base models have none: it answers no questions and continues texts. " +
  "A server that is started with --chat-template FILE chats with it too.";

/** `{element, render(state, shows)}`. */
export function mountText({ store, api }) {
  const dispatch = (fields) => store.dispatch({ type: "text changed", ...fields });
  const text = () => store.get().chat.text;
  let controller = null;

  const goOn = async () => {
    if (controller) return;
    controller = new AbortController();
    const before = text().value;
    dispatch({ before, running: true, error: null, figures: null });
    try {
      for await (const { choices, timings } of api.stream("/v1/completions", bodyOf(store.get(), before), controller)) {
        const more = choices?.[0]?.text;
        if (more) dispatch({ value: text().value + more });
        if (timings) dispatch({ figures: `${plural(timings.predicted_n, "token")}, ${rate(timings.predicted_per_second ?? 0)} a second` });
      }
    } catch (error) {
      if (!error.aborted) dispatch({ error: error.message });
    }
    controller = null;
    dispatch({ running: false });
    remember(KEY, text().value || null, TAB);
  };

  const field = h("textarea", { dir: "auto", "aria-label": "Text to continue", placeholder: "Once upon a time" });
  field.addEventListener("input", () => {
    dispatch({ value: field.value, before: null });
    remember(KEY, field.value || null, TAB);
  });
  field.addEventListener("keydown", (event) => {
    if (composes(event) || event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    if (!event.repeat) goOn();
  });
  const go = h("button", { class: "primary", onclick: goOn, title: "Ctrl+Enter" }, "Continue");
  const stop = h("button", { onclick: () => controller?.abort() }, "Stop");
  const back = h("button", { class: "quiet", onclick: () => dispatch({ value: text().before, before: null }) }, "Take back");
  const copy = h("button", { class: "quiet", onclick: () => copyText(text().value, copy) }, "Copy");
  const state = h("span", { class: "quiet-text" });
  const error = h("p", { class: "error-text", role: "alert" });
  const element = h("div", { class: "text" }, h("p", { class: "quiet-text", role: "status" }, WORDS), field, error, h("div", { class: "text-actions" }, go, stop, back, copy, state));
  dispatch({ value: recall(KEY, "", TAB) });

  return {
    element,
    render({ chat: { text: shown } }) {
      if (field.value !== shown.value) field.value = shown.value;
      if (shown.running) field.scrollTop = field.scrollHeight;
      field.readOnly = shown.running;
      go.hidden = shown.running;
      stop.hidden = !shown.running;
      back.hidden = shown.running || shown.before === null;
      copy.hidden = shown.value === "";
      setText(error, shown.error ?? "");
      error.hidden = shown.error === null;
      setText(state, shown.running ? "Going on" : (shown.figures ?? ""));
    },
    /** The text stays; what is still coming is not wanted any more. */
    end: () => controller?.abort(),
  };
}

function bodyOf(state, prompt) {
  return { model: modelOf(state, null), prompt, stream: true, max_tokens: TOKENS, ...numbersOf(settingsOf(state.chat, null)) };
}
