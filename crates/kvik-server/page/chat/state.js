// What the chat knows: the list of conversations, the one that is open, answers on their way, drafts, settings.
// Conversations themselves are the server's; this is what the page has read of them.

/** Under this name drafts and settings stand that belong to a conversation which has not begun. */
export const NEW = "new";

const EMPTY_DRAFT = { text: "", files: [], note: null };

export const initial = {
  // `found` has what a search found in messages, by conversation; `searching` says that more may come.
  list: { items: [], ready: false, query: "", found: {}, searching: false },
  open: null, // {id, name, model, messages, status: "loading" | "ready" | "missing" | "unread", error}
  turns: {}, // answers on their way, by conversation
  rests: {}, // what an answer had said when it was stopped, by conversation; `lost` where nobody knows whether it is kept
  drafts: {},
  settings: {},
  text: { value: "", before: null, running: false, error: null, figures: null }, // what a model without a chat template continues
  reports: {}, // by conversation, then by the index of the answer: what it reused and how long it took
};

export const draftOf = (chat, id) => chat.drafts[id ?? NEW] ?? EMPTY_DRAFT;
export const settingsOf = (chat, id) => chat.settings[id ?? NEW] ?? {};
/** Whether a conversation is there, as far as is known: one that could not be read may be another than it seems. */
export const mayBeAsked = ({ open }, id) => id === null || !["missing", "unread"].includes(open?.status);
export const titleOf = ({ name, id }) => name ?? `Unnamed ${id.slice(-4)}`;

/** The text of the system messages that a conversation begins with. */
export const systemOf = (messages) => leadingSystems(messages).map(textOf).join("\n\n");

/** The index of the question that the message of this index answers; -1 where it answers none. */
export function questionBefore(messages, index) {
  let at = index - 1;
  while (at >= 0 && messages[at].role !== "user") at -= 1;
  return at;
}

/** Whether a message is a text, also in parts; of others, asking again would ask less. */
export const isText = ({ content, images }) => !images?.length && (!Array.isArray(content) || content.every(({ type }) => type === "text"));

/** Why a question that is not a text is not asked again. */
export const NOT_TEXT = "This question has a part that is not text, such as a picture, and would be asked without it. Ask it in words.";

/** The text of a message, also where its content is in parts. */
export function textOf({ content }) {
  if (Array.isArray(content)) return content.map((part) => part.text ?? `(${part.type})`).join("\n");
  return content ?? "";
}

const REDUCE = {
  "text changed": (chat, { type: _, ...fields }) => ({ ...chat, text: { ...chat.text, ...fields } }),
  "conversations listed": (chat, { items }) => ({ ...chat, list: { ...chat.list, items, ready: true } }),
  "list searched": (chat, { query }) => ({ ...chat, list: { ...chat.list, query, found: {}, searching: query.trim() !== "" } }),
  "list found": (chat, { query, found, searching }) =>
    query === chat.list.query ? { ...chat, list: { ...chat.list, found: { ...chat.list.found, ...found }, searching } } : chat,
  "conversation opening": (chat, { id }) => ({
    ...chat,
    open: chat.open?.id === id ? chat.open : { id, name: null, model: null, messages: [], status: "loading", error: null },
  }),
  "conversation opened": whereOpen((chat, { id, name, model = null, messages }) => ({
    ...chat,
    open: { id, name, model, messages, status: "ready", error: null },
  })),
  "conversation missing": whereOpen((chat, { id, error }) => ({
    ...chat,
    open: { id, name: null, model: null, messages: [], status: "missing", error },
  })),
  "conversation unread": whereOpen((chat, { error }) => ({ ...chat, open: { ...chat.open, status: "unread", error } })),
  "conversation closed": (chat) => ({ ...chat, open: null }),
  "conversation renamed": whereOpen((chat, { name }) => ({ ...chat, open: { ...chat.open, name } })),
  "draft changed": (chat, { id, draft }) => ({ ...chat, drafts: changed(chat.drafts, id ?? NEW, draft) }),
  "settings changed": (chat, { id, settings }) => ({ ...chat, settings: { ...chat.settings, [id ?? NEW]: settings } }),
  "reports recalled": (chat, { id, reports }) => ({ ...chat, reports: { ...chat.reports, [id]: reports } }),
  "rest dropped": (chat, { id }) => ({ ...chat, rests: { ...chat.rests, [id]: null } }),
  asked: (chat, { id, turn }) => ({
    ...chat,
    turns: { ...chat.turns, [id]: turn },
    rests: { ...chat.rests, [id]: null },
    drafts: turn.follows ? chat.drafts : { ...chat.drafts, [id]: EMPTY_DRAFT },
  }),
  "answer grew": (chat, { id, delta, at }) => ({ ...chat, turns: { ...chat.turns, [id]: grown(chat.turns[id], delta, at) } }),
  "answer waits": (chat, { id, why }) => (chat.turns[id] ? { ...chat, turns: { ...chat.turns, [id]: { ...chat.turns[id], why } } } : chat),
  answered: (chat, { id, ...turn }) => appended(without(chat, id), id, turn),
  "answer failed": (chat, { id, draft, rest }) => ({
    ...without(chat, id),
    drafts: changed(chat.drafts, id, draft),
    rests: { ...chat.rests, [id]: rest },
  }),
};

export function reduce(chat, action) {
  const change = REDUCE[action.type];
  return change ? change(chat, action) : chat;
}

/** A change of the open conversation; of another one it is none. */
function whereOpen(change) {
  return (chat, action) => (chat.open?.id === action.id ? change(chat, action) : chat);
}

function changed(drafts, id, draft) {
  return { ...drafts, [id]: { ...EMPTY_DRAFT, ...drafts[id], ...draft } };
}

function without(chat, id) {
  return { ...chat, turns: { ...chat.turns, [id]: undefined } };
}

function grown(turn, { content, reasoning_content: reasoning, tool_calls: calls }, at) {
  if (!content && !reasoning && !calls) return turn;
  return {
    ...turn,
    why: null,
    firstAt: turn.firstAt ?? at,
    text: turn.text + (content ?? ""),
    reasoning: turn.reasoning + (reasoning ?? ""),
    calls: (calls ?? []).reduce(withCall, turn.calls),
  };
}

/** A call arrives in pieces: its name first, then its arguments. */
function withCall(calls, { index, id, function: part }) {
  const next = [...calls];
  const before = next[index] ?? { id, type: "function", function: { name: "", arguments: "" } };
  const name = before.function.name + (part?.name ?? "");
  next[index] = { ...before, function: { name, arguments: before.function.arguments + (part?.arguments ?? "") } };
  return next;
}

/** The conversation with what was said in a turn, which has `count` messages now. */
function appended(chat, id, { messages: added, report, name, model, count }) {
  const reports = { ...chat.reports, [id]: { ...chat.reports[id], [count - 1]: report } };
  if (chat.open?.id !== id || chat.open.status !== "ready") return { ...chat, reports };
  const messages = joined(chat.open.messages, added);
  return { ...chat, reports, open: { ...chat.open, name: name ?? chat.open.name, model: model ?? chat.open.model, messages } };
}

/** System messages that are said anew replace those that the conversation began with. */
function joined(messages, added) {
  const systems = leadingSystems(added);
  if (systems.length === 0) return [...messages, ...added];
  return [...systems, ...messages.slice(leadingSystems(messages).length), ...added.slice(systems.length)];
}

/** The system messages that a conversation begins with. */
export function leadingSystems(messages) {
  const end = messages.findIndex(({ role }) => role !== "system" && role !== "developer");
  return end < 0 ? messages : messages.slice(0, end);
}
