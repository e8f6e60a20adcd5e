// The retention view: what a policy keeps of a prompt, head by head, and what policies lose on this model.
import { h } from "../dom.js";
import { renderOnChange } from "../state.js";
import { createActions } from "./actions.js";
import { createForm } from "./form.js";
import { createMeasured } from "./measured.js";
import { createPositions } from "./positions.js";

export const name = "retention";
export const title = "Retention";
export { initial, reduce } from "./state.js";

export function mount(root, app) {
  const actions = createActions(app);
  const parts = [createForm(actions), createPositions(actions), createMeasured()];
  const words =
    "Each head may forget a part of what it stores. Ask a question under a policy and see which positions were kept.";
  root.append(
    h(
      "div",
      { class: "sheet retention" },
      h("h1", {}, title),
      h("p", { class: "quiet-text" }, words),
      parts.map(({ element }) => element),
    ),
  );
  actions.readMeasured();
  return renderOnChange(app.store, ({ retention }) => parts.forEach((part) => part.render(retention)));
}
