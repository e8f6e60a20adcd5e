// "Why was this slow": what a request would find in the cache now, without running it.
import { h, replace, setText, uniqueId } from "../dom.js";
import { count, percent, plural } from "../numbers.js";
import { reasonSentence } from "../reasons.js";

const CONVERSATIONS_MOST = 50;

/** The body of a request from what was typed: a body in JSON as it is, any other text as one question. */
export function requestOf(text) {
  const typed = text.trim();
  if (!typed.startsWith("{")) return { messages: [{ role: "user", content: typed }] };
  const { stream, stream_options: options, ...body } = JSON.parse(typed);
  return body;
}

/** The messages up to the last question. */
export function lastQuestion(messages) {
  return messages.slice(0, messages.findLastIndex(({ role }) => role === "user") + 1);
}

/** Where the tokens of a prompt would come from: `[{kind, word, tokens}]`. */
export function sources({ prompt_tokens: all, cached_tokens: cached, by_tier: tiers }) {
  return [
    { kind: "ram", word: "from RAM", tokens: tiers.ram },
    { kind: "host", word: "from the host's memory", tokens: tiers.host ?? 0 },
    { kind: "disk", word: "from disk", tokens: tiers.disk },
    { kind: "remote", word: "from the shared store", tokens: tiers.remote ?? 0 },
    { kind: "computed", word: "computed", tokens: all - cached },
  ].filter(({ tokens }) => tokens > 0);
}

/** `{element, render(cache)}`. */
export function createExplain(app) {
  const explain = explainer(app);
  const { form, choose } = fields(explain);
  const answer = h("div", { class: "explanation", "aria-live": "polite" });
  const element = h(
    "section",
    { class: "panel explain", "aria-label": "Why was this slow" },
    h("h2", {}, "Why was this slow?"),
    form,
    answer,
  );
  let drawn = {};
  const render = ({ explanation, conversations }) => {
    if (drawn.conversations !== conversations) {
      replace(
        choose,
        new Option("a conversation …", ""),
        conversations.map(({ id, name }) => new Option(name ?? id, id)),
      );
      choose.disabled = conversations.length === 0;
    }
    if (drawn.explanation !== explanation) replace(answer, explanation ? explained(explanation) : null);
    drawn = { explanation, conversations };
  };
  explain.readConversations();
  return { element, render };
}

function explainer({ store, api }) {
  const dispatch = (type, fields) => store.dispatch({ type: `cache.${type}`, ...fields });
  const ask = async (request) => {
    try {
      const { kvik } = await api.post("/v1/cache/explain", await request());
      dispatch("explained", { explanation: { cache: kvik.cache } });
    } catch (error) {
      const message = error instanceof SyntaxError ? `This is not JSON: ${error.message}` : error.message;
      dispatch("explained", { explanation: { error: message } });
    }
  };
  return {
    text: (text) => ask(async () => requestOf(text)),
    conversation: (id) =>
      ask(async () => {
        const { messages } = await api.get(`/v1/conversations/${encodeURIComponent(id)}`);
        return { messages: lastQuestion(messages), kvik: { memory: true } };
      }),
    async readConversations() {
      const list = await api.get(`/v1/conversations?limit=${CONVERSATIONS_MOST}`).catch(() => ({ data: [] }));
      dispatch("conversations", { conversations: list.data });
    },
  };
}

function fields(explain) {
  const [textId, chooseId] = [uniqueId("request"), uniqueId("choose")];
  const text = h("textarea", {
    id: textId,
    dir: "auto",
    rows: 4,
    placeholder: "A question, or the body of a request as JSON",
    spellcheck: "false",
  });
  const choose = h("select", { id: chooseId });
  choose.addEventListener("change", () => choose.value && explain.conversation(choose.value));
  const submit = (event) => {
    event.preventDefault();
    if (text.value.trim()) explain.text(text.value);
  };
  const form = h(
    "form",
    { class: "explain-form", onsubmit: submit },
    h("label", { for: textId }, "What a request would find in the cache now. Nothing is computed."),
    text,
    h(
      "div",
      { class: "explain-row" },
      h("button", { class: "primary" }, "Explain"),
      h("label", { for: chooseId }, "or the last question of"),
      choose,
    ),
  );
  return { form, choose };
}

function explained({ cache, error }) {
  if (error) return h("p", { class: "error-text" }, error);
  return (Array.isArray(cache) ? cache : [cache]).map(oneExplained);
}

function oneExplained(cache) {
  const parts = sources(cache);
  const all = cache.prompt_tokens;
  return [
    h(
      "div",
      { class: "sources", "aria-hidden": "true" },
      parts.map(({ kind, tokens }) =>
        h("span", { class: "source", "data-kind": kind, style: { "flex-grow": tokens } }),
      ),
    ),
    h(
      "p",
      {},
      `${plural(all, "token")}: `,
      parts.map(({ kind, word, tokens }, at) => [
        at > 0 ? ", " : null,
        h("span", { class: "line-key", "data-kind": kind }, `${count(tokens)} ${word} (${percent(tokens, all)})`),
      ]),
      ".",
    ),
    h("p", { class: "reason" }, reasonSentence(cache)),
    cache.stopped_at ? divergence(cache.stopped_at) : null,
  ];
}

/** The text on both sides of the first token that would not be reused. */
function divergence({ token, message, role, before, after }) {
  const where = h("p", { class: "quiet-text" });
  setText(
    where,
    message === null ? `Token ${count(token)}:` : `Token ${count(token)}, in message ${message + 1} (${role}):`,
  );
  return [
    where,
    h(
      "pre",
      { class: "divergence", tabindex: 0, "aria-label": "Text around the first token that is not reused" },
      h("span", { class: "reused" }, before),
      h("mark", { class: "stop", title: "Reuse ends here" }, "┃"),
      h("span", { class: "not-reused" }, after),
    ),
  ];
}
