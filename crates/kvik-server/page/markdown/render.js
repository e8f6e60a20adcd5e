// Blocks and their parts to elements. Everything that was written becomes text nodes.
//
// What has a side (the bar of a quote, the marks of a list, the first column of a table) has it by the direction of its
// text, `dir`. Paragraphs in it have none of their own, which would hide their text from it: style/markdown.css lets each
// of them run as it is written. Code runs from left to right.
import { copyText } from "../clipboard.js";
import { h } from "../dom.js";
import { parseBlocks } from "./blocks.js";
import { parseInline } from "./inline.js";

/** The elements of a text. */
export function renderMarkdown(text) {
  return parseBlocks(text).map(renderBlock);
}

/** The element of one block. */
export function renderBlock(block) {
  return BLOCKS[block.type](block);
}

const BLOCKS = {
  paragraph: ({ text }) => h("p", {}, inline(text)),
  // Below the heading of its message. Texts leave levels out as they like, so only their looks differ.
  heading: ({ level, text }) => h("h3", { class: `level-${level}` }, inline(text)),
  rule: () => h("hr"),
  math: ({ text }) => h("pre", { class: "math", dir: "ltr", tabindex: 0, "aria-label": "Formula" }, text),
  quote: ({ blocks }) => h("blockquote", { dir: "auto" }, blocks.map(renderBlock)),
  list: ({ ordered, from, items }) => h(ordered ? "ol" : "ul", { dir: "auto", start: ordered && from !== 1 ? from : null }, items.map(item)),
  code: renderCode,
  table: renderTable,
};

function item(blocks) {
  // An item that is one line needs no paragraph of its own.
  const [first, ...rest] = blocks;
  if (first?.type !== "paragraph") return h("li", {}, blocks.map(renderBlock));
  const task = /^\[([ xX])\] /.exec(first.text);
  const text = task ? `${task[1] === " " ? "☐" : "☑"} ${first.text.slice(4)}` : first.text;
  return h("li", {}, inline(text), rest.map(renderBlock));
}

function renderCode({ language, text }) {
  const copy = h("button", { class: "quiet small", type: "button" }, "Copy");
  const code = h("code", {}, text);
  copy.addEventListener("click", () => copyText(code.textContent, copy));
  const head = h("figcaption", {}, h("span", {}, language || "text"), copy);
  return h("figure", { class: "code", dir: "ltr" }, head, h("pre", { tabindex: 0, "aria-label": "Code" }, code));
}

function renderTable({ head, aligns, rows }) {
  const cells = (tag, row) => row.map((cell, column) => h(tag, { style: { "text-align": aligns[column] } }, inline(cell)));
  return h(
    "div",
    { class: "table", tabindex: 0, role: "group", "aria-label": "Table" },
    h("table", { dir: "auto" }, h("thead", {}, h("tr", {}, cells("th", head))), h("tbody", {}, rows.map((row) => h("tr", {}, cells("td", row))))),
  );
}

const inline = (text) => parseInline(text).map(renderPart);

function renderPart(part) {
  return typeof part === "string" ? part : PARTS[part.type](part);
}

const PARTS = {
  break: () => h("br"),
  code: ({ text }) => h("code", { dir: "ltr" }, text),
  math: ({ text }) => h("code", { class: "math", dir: "ltr" }, text),
  strong: ({ children }) => h("strong", {}, children.map(renderPart)),
  emphasis: ({ children }) => h("em", {}, children.map(renderPart)),
  struck: ({ children }) => h("s", {}, children.map(renderPart)),
  link: ({ url, children }) =>
    h("a", { href: url, target: "_blank", rel: "noopener noreferrer nofollow" }, children.map(renderPart)),
};
