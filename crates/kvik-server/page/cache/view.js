// The cache view: the prefix tree as a picture, what is selected in it, live numbers, and explanations.
import { h, replace } from "../dom.js";
import { count, plural } from "../numbers.js";
import { renderOnChange } from "../state.js";
import { watch } from "../watch.js";
import { createActions } from "./actions.js";
import { CHOICES, colouring, legend } from "./colours.js";
import { createCurves } from "./curves.js";
import { createDetails } from "./details.js";
import { createExplain } from "./explain.js";
import { createPicture } from "./picture.js";
import { oneLine } from "./words.js";

export const name = "cache";
export const title = "Cache";
export { initial, reduce } from "./state.js";

const STATS_MS = 1000;
const CRUMB_CHARACTERS = 30;

export function mount(root, app) {
  const actions = createActions(app);
  const head = createHead(actions);
  const parts = [head, createPicture(actions), createDetails(actions), createCurves(), createExplain(app)];
  const [, picture, details, live, explain] = parts.map(({ element }) => element);
  const tree = h(
    "section",
    { class: "tree-and-node", "aria-label": "Prefixes in the cache" },
    h("div", { class: "tree" }, head.element, picture, head.legend),
    details,
  );
  root.append(h("div", { class: "sheet cache" }, h("h1", {}, title), tree, live, explain));
  const stopWatching = watchServer(app, actions);
  const stopRendering = renderOnChange(app.store, ({ cache }) => parts.forEach((part) => part.render(cache)));
  return () => {
    stopWatching();
    stopRendering();
  };
}

/** Reads the numbers each second, or as often as the key may, and the tree when they have changed. */
function watchServer({ store, api }, actions) {
  let seen = null;
  return watch(async (signal) => {
    try {
      const stats = await api.get("/v1/stats", { signal });
      store.dispatch({ type: "cache.stats", stats, slow: api.pace.pauseMs(1, STATS_MS) > STATS_MS });
      const now = JSON.stringify([stats.started, stats.tokens, stats.kv]);
      if (now !== seen || store.get().cache.treeError) await actions.loadTree();
      seen = now;
    } catch (error) {
      if (error.aborted) return;
      store.dispatch({ type: "cache.statsFailed", message: error.message });
      if (!store.get().cache.tree) await actions.loadTree();
    }
  }, STATS_MS, api.pace);
}

/** What stands over the picture: how much there is, where one is, and the choice of colours; and the legend. */
function createHead(actions) {
  const amount = h("p", { class: "quiet-text" });
  const trail = h("nav", { class: "trail", "aria-label": "Zoom" });
  const keys = h("ul", { class: "colours", "aria-label": "Colours" });
  const choose = h(
    "select",
    { onchange: () => actions.setColour(choose.value) },
    CHOICES.map(({ value, text }) => new Option(text, value)),
  );
  const element = h("div", { class: "tree-head" }, amount, h("label", {}, "Colour ", choose), trail);
  let drawn = [];
  const render = ({ tree, treeError, colour, texts, trail: steps }) => {
    const key = [tree, treeError, colour, steps, texts];
    if (drawn.length > 0 && key.every((value, at) => value === drawn[at])) return;
    drawn = key;
    choose.value = colour;
    replace(amount, h("span", { class: treeError ? "error-text" : null }, treeError ?? amountInWords(tree)));
    replace(trail, crumbs(steps, texts, actions));
    const nodes = tree?.nodes ?? [];
    replace(
      keys,
      legend(colouring(colour, nodes), nodes).map(({ kind, word }) =>
        h("li", {}, h("span", { class: "swatch", "data-kind": kind }), word),
      ),
      fixedKeys(nodes),
    );
  };
  return { element, legend: keys, render };
}

function amountInWords(tree) {
  if (!tree) return "Reading …";
  if (tree.nodes_total === 0) return "The cache is empty. Each prompt that is answered appears here.";
  const amount = `${plural(tree.nodes_total, "part")} with ${plural(tree.tokens_total, "token")}`;
  return `${amount}, in blocks of ${count(tree.block_tokens)}. Length is tokens; what continues a prompt lies below it.`;
}

function crumbs(steps, texts, actions) {
  if (steps.length === 0) return null;
  const words = ({ id, label }) => oneLine(texts[id]?.text ?? "", CRUMB_CHARACTERS) || label;
  const crumb = (text, id) => h("button", { class: "small quiet", onclick: () => actions.zoomTo(id) }, text);
  const between = steps.slice(0, -1).map((step) => [crumb(words(step), step.id), "›"]);
  return [crumb("All", null), "›", between, h("span", { "aria-current": "location" }, words(steps.at(-1)))];
}

function fixedKeys(nodes) {
  if (nodes.length === 0) return null;
  return [
    h("li", {}, h("span", { class: "swatch", "data-kind": "folded" }), "Many small parts"),
    h("li", {}, "◆ pinned"),
    h("li", {}, "● in use"),
  ];
}
