// A question and its answer: send, stop, ask again, and what becomes of an answer that does not come to its end.
import { routeHash } from "../route.js";
import { nameOf, pathOf } from "./conversations.js";
import { contentOf, draftOfContent } from "./files.js";
import { rememberDraft, rememberReports, rememberSettings } from "./kept.js";
import { NEW, draftOf, settingsOf, systemOf, textOf } from "./state.js";

const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"];
/** An answer that has not begun for so long says why. */
const WAITING_MS = 1000;
const STOPPED = "You stopped the answer, so neither it nor this question is kept.";

/** The actions; `conversations` are those with conversations as wholes. */
export function createAsking({ store, api, navigate, notify }, conversations, tabs) {
  const chat = () => store.get().chat;
  const running = new Map(); // the controllers of answers on their way

  /** Sends the draft of a conversation, or of a new one. */
  async function send(id) {
    const draft = draftOf(chat(), id);
    const content = contentOf(draft);
    if (content === "" || running.has(id)) return;
    const begun = id ?? (await begin(draft));
    await answer(begun, draft, questionOf(content, begun));
  }

  async function begin(draft) {
    const name = nameOf(draft.text || draft.files[0].name);
    const { id } = await conversations.begin({}, name);
    store.dispatch({ type: "settings changed", id, settings: settingsOf(chat(), NEW) });
    store.dispatch({ type: "settings changed", id: null, settings: {} });
    store.dispatch({ type: "draft changed", id: null, draft: { text: "", files: [], note: null } });
    rememberSettings(chat().settings);
    rememberDraft(null, null);
    store.dispatch({ type: "conversation opening", id });
    store.dispatch({ type: "conversation opened", id, name, messages: [] });
    navigate(routeHash("chat", id));
    return id;
  }

  /** The new messages: the question, and before it the system prompt where it was changed. */
  function questionOf(content, id) {
    const { system } = settingsOf(chat(), id);
    const known = chat().open?.id === id ? systemOf(chat().open.messages) : "";
    const question = { role: "user", content };
    return system === undefined || system === known ? [question] : [{ role: "system", content: system }, question];
  }

  async function answer(id, draft, messages) {
    const controller = new AbortController();
    const before = chat().open.messages.length;
    running.set(id, controller);
    const turn = { messages, text: "", reasoning: "", calls: [], sentAt: performance.now(), firstAt: null };
    store.dispatch({ type: "asked", id, turn });
    rememberDraft(id, { ...draft, sentAt: before });
    try {
      await finish(id, messages, await stream(id, messages, controller.signal));
    } catch (error) {
      await fail(id, draft, error, before);
    } finally {
      running.delete(id);
      tabs.changed(id);
      await conversations.list().catch(() => {}); // the list is old then; what failed was said above
    }
  }

  /** Shows the answer as it comes; returns the event that ends it, which has the numbers. */
  async function stream(id, messages, signal) {
    const body = bodyOf(messages, settingsOf(chat(), id), id);
    let last = {};
    const asked = setInterval(() => sayWhy(id), WAITING_MS);
    try {
      for await (const event of api.stream("/v1/chat/completions", body, { signal })) {
        clearInterval(asked);
        const choice = event.choices?.[0];
        if (choice?.delta) store.dispatch({ type: "answer grew", id, delta: choice.delta, at: performance.now() });
        last = { ...last, ...event, finish: choice?.finish_reason ?? last.finish };
      }
    } finally {
      clearInterval(asked);
    }
    return last;
  }

  /** Says of an answer that does not begin that its model is loaded first, or waits for another's turn to end. */
  async function sayWhy(id) {
    const { models } = await api.get("/v1/shelf").catch(() => ({ models: [] }));
    const { model: chosen } = settingsOf(chat(), id);
    const model = models.find(({ name }) => name === chosen) ?? models.find(({ waiting }) => waiting > 0);
    if (!model || model.status === "loaded") return;
    const why = model.status === "loading" ? `The model ${model.name} is loading` : `The model ${model.name} waits until there is room for it`;
    store.dispatch({ type: "answer waits", id, why });
  }

  async function finish(id, messages, last) {
    const turn = chat().turns[id];
    const { name, messages: count } = last.kvik.conversation;
    rememberDraft(id, null);
    store.dispatch({ type: "answered", id, messages: [...messages, messageOf(turn)], report: reportOf(turn, last), name, count });
    rememberReports(id, chat().reports[id]);
    // Another client has said something in it that this page did not know.
    if (chat().open?.id === id && chat().open.messages.length !== count) await conversations.open(id);
  }

  async function fail(id, draft, error, before) {
    const { text, reasoning } = chat().turns[id];
    if (text !== "" && (await isKept(id, before))) {
      rememberDraft(id, null);
      store.dispatch({ type: "answer failed", id, draft: {}, rest: null });
      if (chat().open?.id === id) await conversations.open(id);
      return notify("The answer was complete at the server already, so it is kept.");
    }
    const note = error.aborted ? STOPPED : failureSentence(error);
    rememberDraft(id, { text: draft.text, files: draft.files });
    const rest = text || reasoning ? { text, reasoning, question: contentOf(draft) } : null;
    return store.dispatch({ type: "answer failed", id, draft: { ...draft, note }, rest });
  }

  /** Whether the server wrote down an answer whose end did not arrive here. */
  async function isKept(id, before) {
    const kept = await api.get(pathOf(id)).catch(() => ({ messages: [] }));
    return kept.messages.length > before && kept.messages.at(-1).role === "assistant";
  }

  return {
    send,
    stop: (id) => running.get(id)?.abort(),

    /** Takes the last answer back and asks again; `keep` leaves what was said before as a branch. */
    async askAgain(id, { keep }) {
      const { messages } = chat().open;
      const from = messages.findLastIndex(({ role }) => role === "user");
      if (keep) await conversations.branch(id, messages.length);
      await api.delete(pathOf(id, `/messages?from=${from}`));
      store.dispatch({ type: "messages taken back", id, from });
      const draft = draftOfContent(textOf(messages[from]));
      await answer(id, draft, questionOf(textOf(messages[from]), id));
    },

    /** Begins a branch before a message, with that message to be edited. */
    async edit(id, index) {
      const message = chat().open.messages[index];
      const branch = await conversations.branch(id, index);
      store.dispatch({ type: "draft changed", id: branch, draft: draftOfContent(textOf(message)) });
      navigate(routeHash("chat", branch));
    },

    /** Keeps a stopped answer as it is: the conversation begins anew with it, under its old name. */
    async keepRest(id) {
      const { messages, name } = chat().open;
      const { text, question } = chat().rests[id];
      const said = [...messages, { role: "user", content: question }, { role: "assistant", content: text }];
      const begun = await api.post("/v1/conversations", { messages: said });
      store.dispatch({ type: "settings changed", id: begun.id, settings: settingsOf(chat(), id) });
      store.dispatch({ type: "rest dropped", id });
      store.dispatch({ type: "draft changed", id, draft: { text: "", files: [], note: null } });
      rememberReports(begun.id, chat().reports[id] ?? {});
      await conversations.forget(id);
      if (name !== null) await api.post(pathOf(begun.id), { name });
      await conversations.list();
      navigate(routeHash("chat", begun.id));
    },
  };
}

function bodyOf(messages, settings, id) {
  const body = { messages, stream: true, kvik: { conversation: id } };
  if (settings.model) body.model = settings.model;
  for (const name of NUMBERS) if (settings[name] !== undefined) body[name] = settings[name];
  if (settings.thinking === "off") body.chat_template_kwargs = { enable_thinking: false };
  if (settings.memory === "off") body.kvik.memory = false;
  return body;
}

function messageOf({ text, reasoning, calls }) {
  const message = { role: "assistant", content: text };
  if (reasoning) message.reasoning_content = reasoning;
  if (calls.length > 0) message.tool_calls = calls;
  return message;
}

/** What is shown of an answer besides its text. */
function reportOf(turn, { kvik, timings, finish }) {
  const firstMs = turn.firstAt === null ? null : turn.firstAt - turn.sentAt;
  return { cache: kvik?.cache ?? null, memory: kvik?.memory ?? null, timings: timings ?? null, finish, firstMs };
}

function failureSentence(error) {
  if (error.code === "conversation_busy") {
    return "Another tab or program is asking in this conversation. Send again when its answer is there.";
  }
  if (error.status === 429) {
    const when = error.retryAfter ? `Send again in ${error.retryAfter} s.` : "Send again in a moment.";
    return `Too many requests wait at the server. ${when}`;
  }
  return `${error.message} Nothing of the answer is kept; the question is here to be sent again.`;
}

