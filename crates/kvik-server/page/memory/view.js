// What is read of a conversation that is longer than the context: system prompt, summary, recent messages, quotes.
import { chatOf } from "../chat/chat.js";
import { titleOf } from "../chat/state.js";
import { h, replace, setText } from "../dom.js";
import { modelOf } from "../models/chosen.js";
import { routeHash } from "../route.js";
import { renderOnChange } from "../state.js";
import { watch } from "../watch.js";
import { createMemory } from "./actions.js";
import { mountBands } from "./bands.js";
import { mountReading } from "./reading.js";
import { turnsOf } from "./state.js";
import { mountSummary } from "./summary.js";

export { initial, reduce } from "./state.js";
export const name = "memory";
export const title = "Memory";

const CHOICES = 100;
const CHOOSE = "Choose a conversation to see what the model reads of it.";
const BEGIN = "Begin a conversation in Chat; what the model reads of it is shown here.";
const LOOK_AGAIN_MS = 2000;

export function mount(root, app) {
  const chat = chatOf(app);
  const memory = createMemory(app);
  const chooser = mountChooser(app);
  const parts = [mountBands(app), mountSummary(memory), mountReading()];
  const content = h("div", { class: "memory-parts" }, parts.map(({ element }) => element));
  root.append(h("div", { class: "sheet" }, chooser.element, content));

  let shown = {};
  const end = renderOnChange(app.store, (state) => {
    if (state.route.view !== name) return;
    const id = state.route.id ?? state.chat.open?.id ?? null;
    const turns = turnsOf(state.chat.reports[id]);
    if (id !== null && id !== shown.id) {
      app.store.dispatch({ type: "memory opening", id });
      chat.open(id);
    }
    // Each answer may have a newer summary than the one before, and another model another one.
    const about = knowsModel(state, id) ? JSON.stringify([id, turns.length, modelOf(state, id)]) : null;
    if (about !== null && about !== shown.about) memory.read(id);
    shown = { id, about, rebuilding: turns.at(-1)?.report.memory.rebuilding };
    chooser.render(state.chat, id);
    content.hidden = id === null;
    const open = state.chat.open?.id === id && state.chat.open.status === "ready" ? state.chat.open : null;
    for (const part of parts) part.render({ id, open, turns, memory: state.memory });
  });
  // A summary is made behind the answer; it is there some time after it.
  const stopLooking = watch(async () => shown.rebuilding && memory.read(shown.id), LOOK_AGAIN_MS, app.api.pace);
  chat.list();
  return () => {
    end();
    stopLooking();
  };
}

/** Whether it is known which model answers in a conversation, as far as the server says. */
function knowsModel({ models, chat: { open } }, id) {
  return id !== null && open?.id === id && open.status !== "loading" && (models.shelf !== null || models.error !== null);
}

/** The conversation whose memory is shown. */
function mountChooser({ navigate }) {
  const select = h("select", { id: "memory-of", onchange: () => navigate(routeHash(name, select.value)) });
  const back = h("a", { class: "quiet-text" }, "Open in Chat");
  const none = h("p", { class: "empty" });
  const label = h("label", { for: select.id }, "Conversation");
  const element = h("header", { class: "memory-head" }, h("h1", {}, title), label, select, back, none);
  let listed;
  return {
    element,
    render({ list, open }, id) {
      none.hidden = id !== null || !list.ready;
      setText(none, list.items.length > 0 ? CHOOSE : BEGIN);
      back.hidden = id === null;
      select.hidden = label.hidden = list.items.length === 0;
      if (id !== null) back.setAttribute("href", routeHash("chat", id));
      if (listed !== list.items || select.value !== (id ?? "")) {
        replace(select, optionsOf(list.items, open, id));
        select.value = id ?? "";
      }
      listed = list.items;
    },
  };
}

function optionsOf(items, open, id) {
  const shown = items.slice(0, CHOICES);
  if (id === null) shown.unshift({ id: "", name: "Choose one" });
  else if (!shown.some((item) => item.id === id)) shown.unshift({ id, name: open?.id === id ? titleOf(open) : id });
  return shown.map((item) => h("option", { value: item.id }, titleOf(item)));
}
