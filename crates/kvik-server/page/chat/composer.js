// Where a question is written. Files may be chosen, dropped or pasted; Enter sends, Shift+Enter begins a line,
// Escape stops the answer.
import { composes, h, replace, setText } from "../dom.js";
import { chats, modelOf, modelsIn } from "../models/chosen.js";
import { bytes } from "../numbers.js";
import { readFile } from "./files.js";
import { recallDraft, rememberDraft } from "./kept.js";
import { draftOf, mayBeAsked } from "./state.js";

const NO_MODEL = "This server has no model yet: fetch one first.";
const NO_TEMPLATE =
  "This model has no chat template, so it answers no questions. A new conversation has a field for texts that it continues; " +
  "a server that is started with --chat-template FILE chats with it too.";

/** `{element, render}`. */
export function mountComposer({ store, notify }, chat) {
  const id = () => store.get().route.id;
  const draft = () => draftOf(store.get().chat, id());
  const change = (part) => {
    store.dispatch({ type: "draft changed", id: id(), draft: part });
    const { text, files } = draft();
    rememberDraft(id(), text || files.length > 0 ? { text, files } : null);
  };
  const send = () => {
    const state = store.get().chat;
    if (!state.turns[id()] && mayBeAsked(state, id())) chat.send(id());
  };

  const text = h("textarea", { dir: "auto", rows: 1, placeholder: "Ask something", "aria-label": "Your question" });
  text.addEventListener("input", () => change({ text: text.value }));
  text.addEventListener("keydown", (event) => {
    if (composes(event)) return;
    if (event.key === "Escape" && store.get().chat.turns[id()]) chat.stop(id());
    if (event.key !== "Enter" || event.shiftKey) return;
    event.preventDefault();
    if (!event.repeat) send();
  });
  const addFiles = async (chosen) => {
    for (const file of chosen) {
      try {
        const read = await readFile(file);
        change({ files: [...draft().files, read] });
      } catch (error) {
        notify(error.message, "error");
      }
    }
    text.focus();
  };
  const note = h("p", { class: "note", role: "status" });
  const files = h("ul", { class: "files", "aria-label": "Files" });
  const sendButton = h("button", { class: "primary", type: "submit" }, "Send");
  const stopButton = h("button", { type: "button", onclick: () => chat.stop(id()) }, "Stop");
  const element = h("form", { class: "composer" }, note, files, h("div", { class: "writing" }, fileButton(addFiles), text, sendButton, stopButton));
  element.addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  acceptDrops(element, addFiles);
  recallNew(store);

  let shown = {};
  return {
    element,
    render(state, open, all) {
      const answering = Boolean(state.turns[open]);
      const { text: written, files: given, note: said } = draftOf(state, open);
      if (text.value !== written) text.value = written;
      const noModel = all.models.shelf !== null && modelsIn(all).length === 0;
      const shows = noModel ? NO_MODEL : chats(all, modelOf(all, open)) ? said : NO_TEMPLATE;
      setText(note, shows ?? "");
      note.hidden = !shows;
      if (given !== shown.given) {
        replace(files, given.map((file) => fileRow(file, () => change({ files: draft().files.filter((other) => other !== file) }))));
        files.hidden = given.length === 0;
      }
      swap(sendButton, stopButton, answering);
      sendButton.disabled = noModel || (written.trim() === "" && given.length === 0) || !mayBeAsked(state, open);
      // Who was led to a message reads it.
      if (shown.open !== open && all.route.at === null) text.focus({ preventScroll: true });
      shown = { open, given };
    },
  };
}

/** One of two buttons in one place; the focus stays there. */
function swap(send, stop, answering) {
  const focused = document.activeElement === (answering ? send : stop);
  send.hidden = answering;
  stop.hidden = !answering;
  if (focused) (answering ? stop : send).focus();
}

function recallNew(store) {
  const draft = recallDraft(null);
  if (draft) store.dispatch({ type: "draft changed", id: null, draft });
}

function fileButton(addFiles) {
  const input = h("input", { type: "file", multiple: true, class: "hidden-text", tabindex: -1, "aria-hidden": "true" });
  input.addEventListener("change", () => {
    addFiles([...input.files]);
    input.value = "";
  });
  const button = h("button", { type: "button", class: "quiet", "aria-label": "Add files as text", title: "Add files as text", onclick: () => input.click() }, "+");
  return [input, button];
}

function acceptDrops(element, addFiles) {
  const target = element.ownerDocument.getElementById("view");
  const hasFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
  target.ondragover = (event) => hasFiles(event) && event.preventDefault();
  target.ondrop = (event) => {
    if (!hasFiles(event) || !element.isConnected) return;
    event.preventDefault();
    addFiles([...event.dataTransfer.files]);
  };
  element.addEventListener("paste", (event) => {
    if (event.clipboardData.files.length === 0) return;
    event.preventDefault();
    addFiles([...event.clipboardData.files]);
  });
}

function fileRow(file, remove) {
  const size = bytes(new Blob([file.text]).size);
  const button = h("button", { type: "button", class: "quiet small", "aria-label": `Remove ${file.name}`, onclick: remove }, "×");
  return h("li", {}, h("span", { class: "name", dir: "auto" }, file.name), h("span", { class: "quiet-text" }, size), button);
}
