// The title of a conversation and what can be done with it as a whole.
import { h, setText } from "../dom.js";
import { plural } from "../numbers.js";
import { routeHash } from "../route.js";
import { openSettings } from "./settings.js";
import { titleOf } from "./state.js";

/** `{element, render}`. */
export function mountHead(app, chat, toggleList) {
  const title = h("h1", { dir: "auto" });
  const state = h("span", { class: "quiet-text" });
  const toggle = h("button", { id: "list-toggle", class: "small list-toggle", "aria-controls": "conversations", "aria-expanded": "false", onclick: toggleList }, "Conversations");
  const id = () => app.store.get().route.id;
  const settings = h("button", { class: "quiet small", onclick: () => openSettings(app, id()) }, "Settings");
  const memory = h("a", { class: "button quiet small" }, "Memory");
  const more = moreMenu(chat, id);
  const element = h("header", { class: "conversation-head" }, toggle, h("div", { class: "titles" }, title, state), settings, memory, more);
  return {
    element,
    render({ open }, shown) {
      const ready = open?.status === "ready" && open.id === shown;
      setText(title, titleText(open, shown));
      setText(state, ready && open.messages.length > 0 ? plural(open.messages.length, "message") : "");
      memory.hidden = more.hidden = !ready;
      if (shown !== null) memory.setAttribute("href", routeHash("memory", shown));
    },
  };
}

function titleText(open, shown) {
  if (shown === null) return "New conversation";
  return open?.status === "ready" ? titleOf(open) : "Conversation";
}

function moreMenu(chat, id) {
  const item = (text, act, kind = "quiet") => {
    const button = h("button", { class: `${kind} small`, popovertarget: "more", popovertargetaction: "hide" }, text);
    button.addEventListener("click", act);
    return button;
  };
  return h(
    "div",
    { class: "menu" },
    h("button", { class: "quiet small", popovertarget: "more", "aria-label": "More actions with this conversation" }, "More"),
    h(
      "div",
      { id: "more", popover: "auto", class: "menu-items", role: "group", "aria-label": "Actions with this conversation" },
      item("Rename", () => chat.rename(id())),
      item("Export as Markdown", () => chat.export(id(), "markdown")),
      item("Export as JSON", () => chat.export(id(), "json")),
      item("Delete", () => chat.remove(id())),
    ),
  );
}
