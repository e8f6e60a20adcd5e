// A question and its answer: send, stop, ask again, and what becomes of an answer that does not come to its end. An answer
// goes on at the server when its stream breaks off or the page is loaded again, and is followed from where it was.
import { within } from "../direction.js";
import { isShelf, modelOf } from "../models/chosen.js";
import { routeHash } from "../route.js";
import { nameOf, pathOf } from "./conversations.js";
import { contentOf, draftOfContent } from "./files.js";
import { recallDraft, rememberDraft, rememberReports, rememberSettings } from "./kept.js";
import { NEW, draftOf, questionBefore, settingsOf, systemOf, textOf } from "./state.js";

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
    const { id, name } = await conversations.begin({}, nameOf(draft.text || draft.files[0].name));
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

  /** Sends a question, or follows the answer to one that runs already, to its end. */
  async function answer(id, draft, messages, { follows = false } = {}) {
    const controller = new AbortController();
    const before = chat().open.messages.length;
    running.set(id, controller);
    const turn = { messages, text: "", reasoning: "", calls: [], sentAt: performance.now(), firstAt: null, follows };
    store.dispatch({ type: "asked", id, turn });
    if (!follows) rememberDraft(id, { ...draft, sentAt: before });
    const { signal } = controller;
    const path = pathOf(id, "/answer");
    const begin = () => (follows ? api.follow(path, { signal }) : api.stream("/v1/chat/completions", bodyOf(store.get(), id, messages), { signal }));
    try {
      await finish(id, messages, await read(id, begin, (from) => api.follow(`${path}?from=${from}`, { signal })));
    } catch (error) {
      await fail(id, draft, error, before);
    } finally {
      running.delete(id);
      tabs.changed(id);
      await conversations.list().catch(() => {}); // the list is old then; what failed was said above
    }
  }

  /** Shows the answer as it comes; returns the event that ends it, which has the numbers. */
  async function read(id, begin, goOn) {
    let last = {};
    let seen = 0;
    const asked = setInterval(() => sayWhy(id), WAITING_MS);
    const take = (event) => {
      clearInterval(asked);
      seen += 1;
      // Other tabs may follow it from now on.
      if (seen === 1 && !chat().turns[id].follows) tabs.changed(id);
      const choice = event.choices?.[0];
      if (choice?.delta) store.dispatch({ type: "answer grew", id, delta: choice.delta, at: performance.now() });
      last = { ...last, ...event, finish: choice?.finish_reason ?? last.finish };
    };
    try {
      for (let events = begin(); events; ) {
        try {
          for await (const event of events) take(event);
          events = null;
        } catch (error) {
          if (error.code !== "cut_off" || !(await runs(id))) throw error;
          events = goOn(seen);
        }
      }
    } finally {
      clearInterval(asked);
    }
    return last;
  }

  /** Whether the answer goes on at the server. */
  async function runs(id) {
    const { answering } = await api.get(pathOf(id)).catch(() => ({}));
    return Boolean(answering);
  }

  /** Says of an answer that does not begin that its model is loaded first, or waits for another's turn to end. */
  async function sayWhy(id) {
    const { models } = await api.get("/v1/shelf").catch(() => ({ models: [] }));
    const chosen = modelOf(store.get(), id);
    const model = models.find(({ name }) => name === chosen) ?? models.find(({ waiting }) => waiting > 0);
    if (!model || model.status === "loaded") return;
    const why = model.status === "loading" ? `The model ${within(model.name)} is loading` : `The model ${within(model.name)} waits until there is room for it`;
    store.dispatch({ type: "answer waits", id, why });
  }

  async function finish(id, messages, last) {
    const turn = chat().turns[id];
    const { name, messages: count } = last.kvik.conversation;
    // What was written in another tab meanwhile is no draft of this question.
    if (recallDraft(id)?.sentAt !== undefined) rememberDraft(id, null);
    store.dispatch({ type: "answered", id, messages: [...messages, messageOf(turn)], report: { ...reportOf(turn, last), model: isShelf(store.get()) ? last.model : null }, name, model: last.model, count });
    rememberReports(id, chat().reports[id]);
    // Another client has said something in it that this page did not know, or the server keeps less of a loop.
    const differs = chat().open?.messages.length !== count || last.kvik.loop;
    if (chat().open?.id === id && differs) await conversations.open(id);
  }

  async function fail(id, draft, error, before) {
    const { text, reasoning } = chat().turns[id];
    if (error.aborted) await api.delete(pathOf(id, "/answer")).catch(() => {}); // a server that is away computes nothing
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

  /** Asks in another version of a conversation: it shares the messages before `upto`, and differs from `at` on. */
  async function askInVersion(id, { upto, at, content }) {
    const begun = await conversations.version(id, upto, at);
    await answer(begun, draftOfContent(content), questionOf(content, begun));
  }

  return {
    send,

    /** Goes on with an answer that runs at the server: after a reload, or for another tab's question. */
    async resume(id, messages) {
      if (running.has(id)) return;
      await answer(id, draftOfContent(textOf(messages.at(-1))), messages, { follows: true });
    },

    stop: (id) => running.get(id)?.abort(),

    /** Asks the question of an answer again, in a version that has another answer. */
    async askAgain(id, index) {
      const { messages } = chat().open;
      const from = questionBefore(messages, index);
      await askInVersion(id, { upto: from, at: from + 1, content: textOf(messages[from]) });
    },

    /** Asks something else in the place of a question, in a version that has both. */
    edit: (id, index, content) => askInVersion(id, { upto: index, at: index, content }),

    /** Keeps a stopped answer as it is. */
    async keepRest(id) {
      const { text, question } = chat().rests[id];
      await api.post(pathOf(id, "/items"), { items: [{ role: "user", content: question }, { role: "assistant", content: text }] });
      store.dispatch({ type: "rest dropped", id });
      store.dispatch({ type: "draft changed", id, draft: { text: "", files: [], note: null } });
      rememberDraft(id, null);
      await conversations.open(id);
      tabs.changed(id);
      await conversations.list();
    },
  };
}

function bodyOf(state, id, messages) {
  const settings = settingsOf(state.chat, id);
  const body = { messages, stream: true, ...numbersOf(settings), kvik: { conversation: id, resume: true } };
  // Said where there is a choice, so that the one that is shown answers.
  const model = isShelf(state) ? modelOf(state, id) : settings.model;
  if (model) body.model = model;
  if (settings.thinking === "off") body.chat_template_kwargs = { enable_thinking: false };
  if (settings.memory === "off") body.kvik.memory = false;
  if (settings.stopLoops !== "off") body.kvik.stop_loops = true;
  return body;
}

/** The sampling and the length that settings say. */
export function numbersOf(settings) {
  return Object.fromEntries(NUMBERS.filter((name) => settings[name] !== undefined).map((name) => [name, settings[name]]));
}

function messageOf({ text, reasoning, calls }) {
  const message = { role: "assistant", content: text };
  if (reasoning) message.reasoning_content = reasoning;
  if (calls.length > 0) message.tool_calls = calls;
  return message;
}

/** What is shown of an answer besides its text. */
function reportOf(turn, { kvik, timings, finish }) {
  // When a question was asked elsewhere, or before a reload, is not known here.
  const firstMs = turn.firstAt === null || turn.follows ? null : turn.firstAt - turn.sentAt;
  return { cache: kvik?.cache ?? null, memory: kvik?.memory ?? null, loop: kvik?.loop ?? null, timings: timings ?? null, finish, firstMs };
}

function failureSentence(error) {
  if (error.code === "conversation_busy") {
    return "Another tab or program is asking in this conversation. Send again when its answer is there.";
  }
  if (error.status === 429) {
    const when = error.retryAfter ? `Send again in ${error.retryAfter} s.` : "Send again in a moment.";
    return `Too many requests wait at the server. ${when}`;
  }
  return `${within(error.message)} Nothing of the answer is kept; the question is here to be sent again.`;
}

