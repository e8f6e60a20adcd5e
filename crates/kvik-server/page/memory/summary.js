// The summary, to read and to correct.
import { h, replace, setText } from "../dom.js";
import { duration, plural } from "../numbers.js";

// How a summary was made, by its kind.
const MADE = { summary: "made", facts: "made as a list of facts", extracted: "extracted" };

/** `{element, render}`; `memory` has the actions. */
export function mountSummary(memory) {
  const state = h("p", { class: "quiet-text" });
  const body = h("div");
  const element = h("section", { class: "panel", "aria-label": "Summary" }, h("h2", {}, "Summary"), state, body);
  let shown = {};
  return {
    element,
    render({ id, memory: known }) {
      if (known.id !== id || known === shown.known) return;
      setText(state, sentence(known));
      state.classList.toggle("error-text", Boolean(known.error));
      // A text that is being corrected is not taken away by the same summary, read again.
      if (id !== shown.id || known.summary?.text !== shown.text) replace(body, known.summary && form(memory, id, known.summary));
      shown = { id, known, text: known.summary?.text };
    },
  };
}

function sentence({ ready, summary, error }) {
  if (error) return error;
  if (!ready) return "";
  if (!summary) return "There is none: nothing was let go, so nothing had to be summarised.";
  const [from, to] = summary.messages;
  const made = summary.corrected ? "corrected" : MADE[summary.kind];
  return `Stands for messages ${from + 1} to ${to}, ${made} ${duration(summary.age_s * 1000)} ago; ${plural(summary.updates, "update")}.`;
}

function form(memory, id, { text, failed }) {
  const field = h("textarea", { dir: "auto", rows: 6, value: text ?? "", "aria-label": "Text of the summary" });
  const save = h("button", { class: "primary", disabled: true }, "Correct the summary");
  field.addEventListener("input", () => {
    save.disabled = field.value.trim() === "" || field.value === text;
  });
  const element = h("form", { class: "summary-form" }, failed && h("p", { class: "error-text" }, "The model gave no summary."), field, save);
  element.addEventListener("submit", async (event) => {
    event.preventDefault();
    save.disabled = true;
    if (!(await memory.correct(id, field.value.trim()))) save.disabled = false;
  });
  return element;
}
