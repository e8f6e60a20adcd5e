// Questions and notices over the page. A dialog is closed by Escape, which answers "no".
import { h, uniqueId } from "./dom.js";

const NOTICE_MS = 6000;

/** Asks yes or no, or which of `more`; resolves to "yes", one of their values, or null. */
export function confirm(question, { action = "Yes", danger = false, more = [] } = {}) {
  return ask({
    content: [h("p", { class: "dialog-text" }, question)],
    action,
    danger,
    more,
    label: question,
    answer: (value) => value,
  });
}

/** Asks for a line of text; null where none is given. */
export function askForText({ title, text = null, label, value = "", type = "text", action = "Save", maxlength = null }) {
  const id = uniqueId("field");
  const field = h("input", { id, type, dir: "auto", value, maxlength, required: true, autocomplete: "off", spellcheck: "false" });
  return ask({
    content: [h("h2", {}, title), text && h("p", { class: "dialog-text" }, text), h("label", { for: id }, label), field],
    action,
    label: title,
    answer: () => field.value.trim() || null,
    focus: field,
  });
}

/** A dialog with content, a button that does and one that does not; resolves to `answer()` or null. */
export function ask({ content, action, label, answer, danger = false, focus = null, more = [] }) {
  return new Promise((resolve) => {
    const form = h("form", { method: "dialog" }, content, actions({ action, danger, more }));
    const dialog = h("dialog", { "aria-label": label }, form);
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "" || dialog.returnValue === "no" ? null : answer(dialog.returnValue));
    });
    document.body.append(dialog);
    dialog.showModal();
    (focus ?? dialog.querySelector("button[value=yes]")).focus();
    focus?.select?.();
  });
}

function actions({ action, danger, more }) {
  // The first button of a form is what Enter presses, so the one that does comes first in the document.
  return h(
    "div",
    { class: "dialog-actions" },
    h("button", { value: "yes", class: danger ? "danger" : "primary" }, action),
    more.map(({ value, text }) => h("button", { value }, text)),
    h("button", { value: "no", formnovalidate: true, class: "quiet" }, "Cancel"),
  );
}

/** Shows a sentence for some seconds: `kind` is "info" or "error". Errors stay until they are closed. */
export function notify(text, kind = "info") {
  const area = document.getElementById("notices");
  const close = h("button", { class: "quiet small", "aria-label": "Close this notice" }, "×");
  const notice = h("div", { class: `notice ${kind}`, role: kind === "error" ? "alert" : "status" }, h("p", {}, text), close);
  close.addEventListener("click", () => notice.remove());
  area.append(notice);
  if (kind !== "error") setTimeout(() => notice.remove(), NOTICE_MS);
}
