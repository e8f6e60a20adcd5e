// Conversations beside what is said in the open one; without one, the models, or the text that one of them continues.
import { h } from "../dom.js";
import { modelsOf } from "../models/actions.js";
import { chats, modelOf } from "../models/chosen.js";
import { renderOnChange } from "../state.js";
import { chatOf } from "./chat.js";
import { mountComposer } from "./composer.js";
import { mountHead } from "./head.js";
import { mountList } from "./list.js";
import { mountMessages } from "./messages.js";
import { createModelLine } from "./model.js";
import { createStart } from "./start.js";
import { mountText } from "./text.js";

export { initial, reduce } from "./state.js";
export const name = "chat";
export const title = "Chat";

export function mount(root, app) {
  const chat = chatOf(app);
  const models = modelsOf(app);
  const list = mountList(app, chat);
  const head = mountHead(app, chat, () => list.toggle());
  const start = createStart(models, (model) => chat.useModel(null, model));
  const messages = mountMessages(app, chat, start.element);
  const composer = mountComposer(app, chat);
  const text = mountText(app);
  const line = createModelLine(app.store, chat.useModel);
  const parts = [head, messages, composer, text, line].map(({ element }) => element);
  root.append(list.element, h("section", { class: "conversation" }, parts));

  let opened; // the id that was asked for last
  const end = renderOnChange(app.store, (state) => {
    const { id } = state.route;
    if (state.route.view === name && id !== opened) {
      opened = id;
      chat.open(id);
      chat.list();
      // The header reads it first.
      if (state.models.shelf || state.models.error) models.read();
      list.close();
    }
    const model = modelOf(state, id);
    if (model !== null) models.describe(model);
    if (id === null && state.models.shelf?.can_pull) models.readOffers();
    const continues = id === null && !chats(state, model);
    messages.element.hidden = composer.element.hidden = continues;
    text.element.hidden = !continues;
    for (const part of [list, head, messages, composer]) part.render(state.chat, id, state);
    if (continues) text.render(state);
    else if (id === null) start.render(state);
    line.render(state, id);
  });
  return () => {
    end();
    messages.end();
    text.end();
  };
}
