// The models view: which there are, which are in memory and what they hold there, and how new ones come.
import { h } from "../dom.js";
import { renderOnChange } from "../state.js";
import { watch } from "../watch.js";
import { modelsOf } from "./actions.js";
import { createList } from "./list.js";
import { createPulls } from "./pulls.js";

export const name = "models";
export const title = "Models";
export { initial, reduce } from "./state.js";

const PERIOD_MS = 2000;

export function mount(root, app) {
  const actions = modelsOf(app);
  actions.readOffers();
  const parts = [createList(actions), createPulls(actions)];
  const words = "A model is loaded when somebody asks for it, and keeps what it knows when it makes way for another.";
  root.append(
    h("div", { class: "sheet models" }, h("h1", {}, title), h("p", { class: "quiet-text" }, words), parts.map(({ element }) => element)),
  );
  const unwatch = watch(actions.read, PERIOD_MS, app.api.pace);
  const unrender = renderOnChange(app.store, ({ models }) => parts.forEach((part) => part.render(models)));
  return () => {
    unwatch();
    unrender();
  };
}
