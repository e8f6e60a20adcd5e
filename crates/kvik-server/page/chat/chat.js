// The actions of the chat, one set for the whole page: an answer goes on while another view is shown.
import { createAsking } from "./asking.js";
import { createConversations } from "./conversations.js";
import { recallSettings, rememberSettings } from "./kept.js";
import { settingsOf } from "./state.js";
import { createTabs } from "./tabs.js";

const made = new WeakMap();

/** The actions with failures shown as notices. */
export function chatOf(app) {
  if (!made.has(app)) made.set(app, createChat(app));
  return made.get(app);
}

function createChat(app) {
  const { store } = app;
  for (const [id, settings] of Object.entries(recallSettings())) store.dispatch({ type: "settings changed", id, settings });
  const tabs = createTabs(({ id, deleted }) => {
    const { open, turns } = store.get().chat;
    actions.list();
    if (deleted) store.dispatch({ type: "conversation missing", id, error: "This conversation was deleted in another tab." });
    else if (open?.id === id && !turns[id]) actions.open(id);
  });
  const conversations = createConversations(app, tabs, (id, question) => asking.resume(id, question));
  const asking = createAsking(app, conversations, tabs);
  const actions = saying(app.notify, { ...conversations, ...asking, useModel: (id, name) => useModel(store, id, name) });
  // Other clients change conversations too; what a person comes back to is read again.
  document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && actions.list());
  return actions;
}

/** Makes a model the one of a conversation, or of the new one. */
function useModel(store, id, name) {
  const settings = { ...settingsOf(store.get().chat, id), model: name };
  store.dispatch({ type: "settings changed", id, settings });
  rememberSettings(id, settings);
}

/** Actions that say what went wrong, so that no caller forgets it. */
function saying(notify, actions) {
  const said = ([name, action]) => [
    name,
    async (...of) => {
      try {
        return await action(...of);
      } catch (error) {
        notify(error.message, "error");
        return undefined;
      }
    },
  ];
  return Object.fromEntries(Object.entries(actions).map(said));
}
