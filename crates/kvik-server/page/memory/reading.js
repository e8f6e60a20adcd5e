// Which messages the last answer read whole, which stand in the summary, which were let go, which were quoted and why.
import { textOf } from "../chat/state.js";
import { within } from "../direction.js";
import { h, replace } from "../dom.js";
import { count, plural } from "../numbers.js";
import { readingOf, sharedWords } from "./state.js";

const WORDS = {
  prefix: "system prompt",
  summarised: "in the summary",
  let_go: "not read",
  recent: "read whole",
  quoted: "quoted",
};
const KEYS = { prefix: "prefix", summarised: "summary", let_go: "gone", recent: "recent", quoted: "quoted" };
const TEXT_MAX = 240;

/** `{element, render}`. */
export function mountReading() {
  const quotes = h("div");
  const rows = h("ol", { class: "reading", "aria-label": "Messages by how they were read", tabindex: 0 });
  const state = h("p", { class: "quiet-text" });
  const element = h("div", { class: "memory-parts" },
    h("section", { class: "panel", "aria-label": "Quotes" }, h("h2", {}, "Quoted"), quotes),
    h("section", { class: "panel", "aria-label": "Messages" }, h("h2", {}, "Messages"), state, rows));
  let shown = {};
  return {
    element,
    render({ open, turns }) {
      const last = turns.at(-1);
      const messages = open?.messages ?? [];
      if (messages === shown.messages && last?.report === shown.report) return;
      shown = { messages, report: last?.report };
      const memory = last?.report.memory;
      const reading = memory ? readingOf(memory, messages.length) : messages.map(() => null);
      replace(quotes, quotesContent(memory, messages, last));
      state.textContent = memory ? readingSentence(reading) : `${plural(messages.length, "message")}.`;
      replace(rows, messages.map((message, index) => rowOf(message, index, reading[index])));
    },
  };
}

function readingSentence(reading) {
  const counts = Object.keys(WORDS).map((name) => ({ name, number: reading.filter((one) => one === name).length }));
  return `${counts.filter(({ number }) => number > 0).map(({ name, number }) => `${count(number)} ${WORDS[name]}`).join(", ")}.`;
}

function rowOf(message, index, reading) {
  return h(
    "li",
    { class: reading ? `read-${reading}` : "" },
    h("span", { class: "number" }, count(index + 1)),
    reading && h("span", { class: "how" }, h("i", { class: `key ${KEYS[reading]}` }), WORDS[reading]),
    h("span", { class: "line" }, `${message.role}: `, h("bdi", {}, firstLine(message))),
  );
}

const firstLine = (message) => textOf(message).trim().split("\n")[0].slice(0, TEXT_MAX);

function quotesContent(memory, messages, last) {
  if (!memory) return h("p", { class: "quiet-text" }, "No answer was given in this tab yet.");
  if (memory.quotes.length === 0) return h("p", { class: "quiet-text" }, "The last answer quoted nothing: no old message was found by its question.");
  const question = textOf(messages[last.index - 1] ?? {});
  const quoted = memory.quotes.map(([from, to]) => quoteElement(messages, from, to, question));
  return [h("p", { class: "quiet-text" }, `Found by the question “${within(question.slice(0, TEXT_MAX))}”.`), quoted];
}

function quoteElement(messages, from, to, question) {
  const quoted = messages.slice(from, to);
  const words = sharedWords(question, quoted.map(textOf).join(" "));
  const why = words.length > 0 ? `shares ${words.map((word) => `“${word}”`).join(", ")} with the question` : "nearest to the question by the weight of its words";
  return h(
    "figure",
    { class: "quote" },
    quoted.map((message) => h("p", {}, `${message.role}: `, h("bdi", {}, marked(textOf(message).slice(0, 4 * TEXT_MAX), words)))),
    h("figcaption", {}, `Messages ${count(from + 1)} to ${count(to)}: ${why}.`),
  );
}

/** A text with some words of it marked. */
function marked(text, words) {
  const chosen = new Set(words);
  return text.split(/([\p{L}\p{M}\p{N}]+)/u).map((part) => (chosen.has(part.toLowerCase()) ? h("mark", {}, part) : part));
}
