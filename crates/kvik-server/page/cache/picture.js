// The prefix tree as a picture: boxes in a tree of ARIA, walked with the arrow keys.
//
// The boxes are ordinary elements, placed in shares of the picture, so text, focus and themes are the browser's.
// 2,000 nodes make 850 boxes. On two busy cores these take 60 ms, the same in SVG 45 (without their labels), on a
// canvas 5, and 30 more for the second, invisible tree that keys and screen readers would need beside it.
import { h, replace, setText } from "../dom.js";
import { count } from "../numbers.js";
import { colouring } from "./colours.js";
import { layout } from "./layout.js";
import { directionOf, neighbour } from "./walk.js";
import { boxInWords, nameOf } from "./words.js";

/** In a box that is a smaller share of the picture nothing could be read. */
const LABELLED = 1 / 30;

/** `{element, render(cache)}`; `select(id)`, `zoom(id)` and `out()` are what people do with it. */
export function createPicture({ select, zoom, out }) {
  const element = h("div", { class: "icicle", role: "tree", "aria-label": "Prefix tree" });
  let drawn = {};
  let boxes = [];
  const focus = (id) => element.querySelector(`[data-id="${CSS.escape(id)}"]`)?.focus();
  const open = (id) => {
    const box = boxes.find((one) => one.id === id);
    if (box.node && box.node.children > 0) zoom(box.id);
    else if (!box.node && box.parent) zoom(box.parent);
  };
  const onKey = (event) => {
    const id = event.target.dataset.id;
    const direction = directionOf(event.key, isTurned(element));
    if (direction) focus(neighbour(boxes, id, direction).id);
    else if (event.key === "Enter") open(id);
    else if (event.key === "Escape" || event.key === "Backspace") out();
    else return;
    event.preventDefault();
  };
  element.addEventListener("keydown", onKey);
  element.addEventListener("click", ({ target }) => {
    const box = target.closest("[data-id]");
    if (box) open(box.dataset.id);
  });
  element.addEventListener("focusin", ({ target }) => {
    moveStop(element, target);
    if (target.dataset.kind !== "folded") select(target.dataset.id);
  });
  const render = ({ tree, colour, texts, selected }) => {
    if (drawn.tree !== tree || drawn.colour !== colour || drawn.texts !== texts) {
      const focused = element.contains(document.activeElement) ? document.activeElement.dataset.id : null;
      boxes = tree ? layout(tree) : [];
      draw(element, boxes, colouring(colour, tree?.nodes ?? []), texts);
      drawn = { tree, colour, texts };
      keepFocus(element, focused, selected);
    }
    mark(element, selected);
  };
  return { element, render };
}

const isTurned = (element) => getComputedStyle(element).getPropertyValue("--turned").trim() === "1";

/** Changes boxes in place while they are the same ones, so that a click or the focus is never lost for a new text. */
function draw(element, boxes, colour, texts) {
  const rows = 1 + boxes.reduce((most, box) => Math.max(most, box.row), 0);
  element.style.setProperty("--rows", rows);
  const fresh = boxes.map((box) => boxElement(box, colour, box.node && nameOf(texts, box.node)));
  const old = [...element.children];
  if (old.length === fresh.length && old.every((box, at) => box.dataset.id === fresh[at].dataset.id)) {
    old.forEach((box, at) => become(box, fresh[at]));
  } else {
    replace(element, fresh);
  }
}

function become(box, fresh) {
  for (const { name, value } of fresh.attributes) {
    if (name !== "tabindex" && name !== "style" && box.getAttribute(name) !== value) box.setAttribute(name, value);
  }
  // The page's policy forbids the attribute, not the property.
  if (box.style.cssText !== fresh.style.cssText) box.style.cssText = fresh.style.cssText;
  setText(box.firstElementChild, fresh.textContent);
}

function boxElement(box, colour, text) {
  const { kind, word } = box.node ? colour(box.node) : { kind: "folded", word: "" };
  const shown = boxText(box, word, text);
  const words = boxInWords(box);
  const attributes = {
    class: box.size < LABELLED ? "box thin" : "box",
    "data-kind": kind,
    role: "treeitem",
    tabindex: -1,
    title: words,
    // What is seen comes first, so that the box can be called by it.
    "aria-label": `${shown}, ${words}`,
    "aria-level": box.row + 1,
    "aria-posinset": box.position,
    "aria-setsize": box.siblings,
    "aria-expanded": box.node && box.node.children > 0 ? "true" : null,
    "aria-selected": "false",
    "data-id": box.id,
    style: { "--from": box.from, "--size": box.size, "--row": box.row },
  };
  return h("div", attributes, h("span", { class: "box-text" }, shown));
}

function boxText({ node, folded }, word, text) {
  if (!node) return `+ ${count(folded.nodes)}`;
  const marks = (node.pinned ? "◆ " : "") + (node.in_use ? "● " : "");
  return `${marks}${count(node.tokens)} ${word} ${text ?? ""}`.trim();
}

/** One box can be reached with Tab: the focused one, else the selected one, else the first. */
function keepFocus(element, focused, selected) {
  const find = (id) => (id === null ? null : element.querySelector(`[data-id="${CSS.escape(id)}"]`));
  const stop = find(focused) ?? find(selected) ?? element.firstElementChild;
  if (!stop) return;
  moveStop(element, stop);
  if (focused !== null) stop.focus({ preventScroll: true });
}

function moveStop(element, box) {
  element.querySelector('[tabindex="0"]')?.setAttribute("tabindex", "-1");
  box.setAttribute("tabindex", "0");
}

function mark(element, selected) {
  element.querySelector('[aria-selected="true"]')?.setAttribute("aria-selected", "false");
  if (selected) element.querySelector(`[data-id="${CSS.escape(selected)}"]`)?.setAttribute("aria-selected", "true");
}
