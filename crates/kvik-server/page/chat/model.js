// Which model answers, always in sight at the question; with several models, the choice of another one.
import { h, replace, setText, uniqueId } from "../dom.js";
import { find, isShelf, modelOf, modelsIn } from "../models/chosen.js";
import { routeHash } from "../route.js";

/** `{element, render(state, id)}`; `choose(id, name)` makes a model that of a conversation. */
export function createModelLine(store, choose) {
  const id = uniqueId("answers");
  const select = h("select", { id, onchange: () => choose(store.get().route.id, select.value) });
  const label = h("label", { for: id }, "Model");
  const only = h("b");
  const fetch = h("a", { href: routeHash("models") }, "Models");
  const element = h("div", { class: "model-line" }, label, select, only, fetch);
  let drawn = null;
  return {
    element,
    render(state, open) {
      const name = modelOf(state, open);
      const key = JSON.stringify([name, isShelf(state), modelsIn(state).map((model) => model.name)]);
      if (key === drawn) return;
      drawn = key;
      const several = isShelf(state) && modelsIn(state).length > 0;
      select.hidden = label.hidden = !several;
      only.hidden = several;
      setText(only, several ? "" : (name ?? (state.models.shelf ? "No model yet" : "")));
      if (several) replace(select, optionsOf(state, name));
    },
  };
}

function optionsOf(state, name) {
  const names = modelsIn(state).map((model) => model.name);
  // An adapter, or a model that was removed.
  if (name !== null && !find(state, name)) names.unshift(name);
  return names.map((one) => h("option", { value: one, selected: one === name }, one));
}
