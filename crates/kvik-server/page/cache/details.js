// The panel about the selected part: its text, where it is, why it is kept, and what can be done with it.
import { h, replace } from "../dom.js";
import { bytes, count, plural } from "../numbers.js";
import { oneLine, span, tierOf, tierInWords, useInWords } from "./words.js";

/** `{element, render(cache)}`. */
export function createDetails(actions) {
  const body = h("div", { class: "node-body", tabindex: -1 });
  const element = h("section", { class: "panel node", "aria-label": "Selected part" }, body);
  let drawn = null;
  const render = (cache) => {
    const { node, pins, selected, tree } = cache;
    const key = [node, pins, selected, tree?.block_tokens];
    if (drawn?.every((value, at) => value === key[at])) return;
    // A button that is pressed is drawn anew afterwards; the focus stays with what it was about.
    const held = body.contains(document.activeElement) ? document.activeElement.dataset.does : null;
    drawn = key;
    replace(body, contents(cache, actions));
    if (held) (body.querySelector(`[data-does="${held}"]`) ?? body.querySelector("button") ?? body).focus();
  };
  return { element, render };
}

function contents({ node, pins, selected, tree }, actions) {
  if (selected === null) return h("p", { class: "quiet-text" }, "Choose a part of the picture to read it.");
  if (node === null) return h("p", { class: "quiet-text" }, "Reading …");
  if (node.gone)
    return h("p", {}, "This part is no longer in the cache: it was evicted, or replaced by longer or shorter parts.");
  if (node.error) return h("p", { class: "error-text" }, node.error);
  return [
    h("h2", {}, plural(node.tokens, "token"), h("span", { class: "quiet-text" }, ` after ${count(node.start)}`)),
    h("p", { class: "node-why" }, node.why.sentence),
    textOf(node),
    factsOf(node, tree),
    h("div", { class: "node-actions" }, buttons(node, pins, actions)),
  ];
}

function textOf(node) {
  // Why a text is not shown is said where it is said why the part is kept.
  if (node.text === null) return null;
  return [
    h("pre", { class: "node-text", tabindex: 0, "aria-label": "Text of this part" }, node.text),
    node.text_truncated ? h("p", { class: "quiet-text" }, "The text is longer; this is its beginning.") : null,
  ];
}

function factsOf(node, tree) {
  const blockBytes = tree ? (node.tokens / tree.block_tokens) * tree.block_bytes : null;
  const facts = [
    [
      "Tier",
      tierOf(node) === "both"
        ? `RAM ${count(node.ram_tokens)}, disk ${count(node.disk_tokens)} tokens`
        : tierInWords(node),
    ],
    ["Size", blockBytes === null ? null : bytes(blockBytes)],
    ["Last use", useInWords(node)],
    ["Reuses", count(node.reuses)],
    ["Priority", node.priority === 0 ? "normal" : String(node.priority)],
    ["Expires", node.expires_s === null ? "never" : `in ${span(node.expires_s)}`],
  ];
  return h(
    "dl",
    { class: "facts" },
    facts.filter(([, value]) => value !== null).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
  );
}

function buttons(node, pins, actions) {
  if (!node.prompt) return null;
  const unpin = (pin) => {
    const what = pins.length > 1 ? `Unpin ${count(pin.tokens)} tokens` : "Unpin";
    return h("button", { "data-does": "unpin", title: oneLine(pin.text), onclick: () => actions.unpin(pin) }, what);
  };
  return [
    node.pinned ? pins.map(unpin) : h("button", { "data-does": "pin", onclick: () => actions.pin(node) }, "Pin"),
    h("button", { "data-does": "evict", onclick: () => actions.evict(node) }, "Evict …"),
  ];
}
