// The answer on its way: the question, thoughts, and a text that grows by its end alone.
import { h, replace, setText } from "../dom.js";
import { createLiveMarkdown } from "../markdown/live.js";
import { callElements, hiddenHeading, plainContent } from "./message.js";

/** Shows a turn in `root`; nothing without one. */
export function mountAnswer(root) {
  let parts = null;
  return {
    render(turn) {
      if (!turn) {
        if (parts) root.replaceChildren();
        parts = null;
        return;
      }
      if (parts?.sentAt !== turn.sentAt) parts = begin(root, turn);
      update(parts, turn);
    },
  };
}

function begin(root, turn) {
  const question = turn.messages.at(-1);
  const status = h("p", { class: "waiting", role: "status" });
  const thoughts = h("pre", { class: "plain", dir: "auto" });
  const folded = h("details", { class: "folded", open: true, hidden: true }, h("summary", {}, "Thoughts"), thoughts);
  const content = h("div", { class: "content markdown" });
  const calls = h("div");
  replace(
    root,
    h("article", { class: "message user", "aria-label": "You" }, hiddenHeading("You"), plainContent(question)),
    h("article", { class: "message assistant answering", "aria-label": "Answer", "aria-busy": "true" }, hiddenHeading("Answer"), folded, content, calls, status),
  );
  return { sentAt: turn.sentAt, shown: {}, status, thoughts, folded, content, calls, text: createLiveMarkdown(content) };
}

function update(parts, turn) {
  const { shown } = parts;
  if (turn.text !== shown.text) parts.text.update(turn.text);
  if (turn.reasoning !== shown.reasoning) setText(parts.thoughts, turn.reasoning);
  if (turn.calls !== shown.calls) replace(parts.calls, callElements(turn.calls));
  parts.folded.hidden = turn.reasoning === "";
  // Thoughts are read while they come; the answer folds them.
  if (turn.text !== "" && !shown.text) parts.folded.open = false;
  setText(parts.status, turn.why ?? (turn.firstAt === null ? "Waiting for the first token" : ""));
  parts.shown = turn;
}
