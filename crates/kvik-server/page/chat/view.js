// Conversations beside what is said in the open one.
import { h } from "../dom.js";
import { renderOnChange } from "../state.js";
import { chatOf } from "./chat.js";
import { mountComposer } from "./composer.js";
import { mountHead } from "./head.js";
import { mountList } from "./list.js";
import { mountMessages } from "./messages.js";

export { initial, reduce } from "./state.js";
export const name = "chat";
export const title = "Chat";

export function mount(root, app) {
  const chat = chatOf(app);
  const list = mountList(app, chat);
  const head = mountHead(app, chat, () => list.toggle());
  const messages = mountMessages(app, chat);
  const composer = mountComposer(app, chat);
  root.append(list.element, h("section", { class: "conversation" }, head.element, messages.element, composer.element));

  let opened; // the id that was asked for last
  const end = renderOnChange(app.store, (state) => {
    const { id } = state.route;
    if (state.route.view === name && id !== opened) {
      opened = id;
      chat.open(id);
      chat.list();
      list.close();
    }
    for (const part of [list, head, messages, composer]) part.render(state.chat, id);
  });
  return () => {
    end();
    messages.end();
  };
}
