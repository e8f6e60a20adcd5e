// A question that is edited where it stands, and asked in another version of its conversation. Enter asks, Shift+Enter
// begins a line, Escape leaves it as it was.
import { within } from "../direction.js";
import { composes, h } from "../dom.js";
import { contentOf, draftOfContent } from "./files.js";

/** Puts a field in the place of the question that has this button; `ask(content)` asks what was written. */
export function editQuestion(button, content, ask) {
  const question = button.closest(".message");
  const { text, files } = draftOfContent(content);
  const field = h("textarea", { dir: "auto", rows: 1, value: text, "aria-label": "The question, edited" });
  const close = () => {
    form.remove();
    question.classList.remove("is-edited");
    button.focus();
  };
  const cancel = h("button", { type: "button", class: "quiet", onclick: close }, "Cancel");
  const names = files.length > 0 && h("p", { class: "quiet-text" }, `With ${files.map(({ name }) => within(name)).join(", ")}`);
  const form = h("form", { class: "editing" }, field, names, h("div", { class: "editing-actions" }, h("button", { class: "primary" }, "Ask"), cancel));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const edited = contentOf({ text: field.value, files });
    if (edited === "") return;
    close();
    ask(edited);
  });
  field.addEventListener("keydown", (event) => {
    if (composes(event)) return;
    if (event.key === "Escape") close();
    if (event.key !== "Enter" || event.shiftKey) return;
    event.preventDefault();
    if (!event.repeat) form.requestSubmit();
  });
  question.classList.add("is-edited");
  question.append(form);
  field.focus();
}
