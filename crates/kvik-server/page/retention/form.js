// The question, and the policy under which it is asked.
import { h, setText, uniqueId } from "../dom.js";
import { BUDGETS, POLICIES } from "./policies.js";

const EXAMPLE =
  "Please remember that my daughter is called Anna. My dog is called Bolt. The meeting about the roof is on Tuesday. " +
  "My favourite fruit is the plum. The code of the shed is 4711. What is my dog called?";

/** `{element, render(state)}`. */
export function createForm(actions) {
  const prompt = h("textarea", { dir: "auto", rows: 5, value: EXAMPLE, spellcheck: "false" });
  const policy = h(
    "select",
    { onchange: () => actions.choose(policy.value) },
    POLICIES.map(({ name, text }) => new Option(`${name}: ${text}`, name)),
  );
  const budget = h(
    "select",
    {},
    BUDGETS.map(({ value, text }) => new Option(text, value)),
  );
  const shown = h("output", {}, "50%");
  const keep = h("input", {
    type: "range",
    min: 5,
    max: 100,
    step: 5,
    value: 50,
    oninput: () => setText(shown, `${keep.value}%`),
  });
  const button = h("button", { class: "primary" }, "Ask");
  const error = h("p", { class: "error-text", role: "alert" });
  const submit = (event) => {
    event.preventDefault();
    const text = prompt.value.trim();
    if (text) actions.ask({ prompt: text, policy: policy.value, keep: keep.value / 100, budget: budget.value });
  };
  const fields = h(
    "div",
    { class: "retention-fields" },
    labelled("Policy", policy),
    labelled("Budget", budget),
    h("div", { class: "keep" }, labelled("Keep", keep), shown),
    button,
  );
  const element = h(
    "form",
    { class: "panel retention-form", onsubmit: submit },
    labelled("Prompt, with its question at the end", prompt),
    fields,
    error,
  );
  const render = ({ asking, error: message, policy: chosen }) => {
    policy.value = chosen;
    button.disabled = asking;
    setText(button, asking ? "Asking …" : "Ask");
    setText(error, message ?? "");
  };
  return { element, render };
}

function labelled(text, field) {
  field.id = uniqueId("retention");
  return h("div", { class: "labelled" }, h("label", { for: field.id }, text), field);
}
