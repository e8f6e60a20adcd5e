// What each of the last answers read, as bands whose widths are tokens: how memory changes as a conversation goes on.
import { h, replace } from "../dom.js";
import { count, plural } from "../numbers.js";
import { bandsOf } from "./state.js";

const ROWS = 24;

/** `{element, render}`. */
export function mountBands({ api }) {
  const now = h("div", { class: "now" });
  const rows = h("ol", { class: "band-rows", "aria-label": "What the last answers read" });
  const element = h("section", { class: "panel bands", "aria-label": "What is read" }, h("h2", {}, "What the last answer read"), now, rows);
  let models = []; // of the server, once known
  let shown = {};
  const draw = () => {
    const last = shown.turns.at(-1);
    const context = contextOf(models, last?.report.model);
    const most = Math.max(context, ...shown.turns.map(({ report }) => tokensOf(report.memory)));
    replace(now, last ? nowContent(last.report.memory, most, context) : nothingYet());
    replace(rows, shown.turns.slice(-ROWS, -1).reverse().map((turn) => rowOf(turn, most)));
    rows.hidden = shown.turns.length < 2;
  };
  api.get("/v1/models").then(({ data }) => {
    models = data;
    if (shown.turns) draw();
  }, () => {}); // without it the widest row is the measure
  return {
    element,
    render({ id, turns }) {
      if (id === shown.id && turns.length === shown.turns.length) return;
      shown = { id, turns };
      draw();
    },
  };
}

/** Tokens of the context of a model, or of the only one; 0 where the model is not in memory. */
const contextOf = (models, name) => models.find(({ id }) => !name || id === name)?.meta?.n_ctx ?? 0;

const tokensOf = ({ tokens }) => tokens.prefix + tokens.summary + tokens.recent;

function nothingYet() {
  return h("p", { class: "quiet-text" }, "No answer was given in this tab yet. The next one says what it read.");
}

function nowContent(memory, most, context) {
  const bands = bandsOf(memory);
  const of = context > 0 ? ` of the ${count(context)} of the context` : "";
  return [
    barOf(bands, most),
    h("ul", { class: "legend" }, bands.map(legendOf)),
    h("p", { class: "quiet-text" }, `${plural(tokensOf(memory), "token")}${of}${memory.quotes.length > 0 ? ", besides the quotes" : ""}. ${stateSentence(memory)}`),
  ];
}

function legendOf({ name, words, tokens, messages }) {
  const figures = tokens === null ? plural(messages, "message") : `${plural(tokens, "token")}${messages ? `, of ${plural(messages, "message")}` : ""}`;
  return h("li", {}, h("i", { class: `key ${name}` }), h("b", {}, words), ` ${figures}`);
}

function stateSentence({ messages, rebuilding, rebuilt, summary }) {
  if (summary?.failed) return "The model gave no summary; the beginning is gone.";
  if (rebuilding) return "The next summary is being made behind this answer.";
  if (rebuilt) return "It was the first to read the new summary.";
  if (messages.summarised + messages.let_go === 0) return "The whole conversation was read.";
  return messages.let_go > 0 ? `${plural(messages.let_go, "message")} were neither read nor summarised yet.` : "";
}

function rowOf({ index, report }, most) {
  const bands = bandsOf(report.memory);
  const said = bands.map(({ words, tokens, messages }) => `${words} ${tokens === null ? plural(messages, "message") : plural(tokens, "token")}`);
  return h("li", {}, h("span", { class: "number" }, count(index + 1)), barOf(bands, most), h("span", { class: "hidden-text" }, said.join(", ")));
}

function barOf(bands, most) {
  const parts = bands.map(({ name, tokens, words }) => {
    const width = tokens === null ? {} : { width: `${(100 * tokens) / most}%` };
    return h("span", { class: `band ${name}`, style: width, title: words });
  });
  return h("div", { class: "band-bar", "aria-hidden": "true" }, parts);
}
