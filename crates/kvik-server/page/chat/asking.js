// A question and its answer: send, stop, ask again, and what becomes of an answer that does not come to its end. An answer
// goes on at the server when its stream breaks off or the page is loaded again, and is followed from where it was.
import { within } from "../direction.js";
import { isShelf, modelOf } from "../models/chosen.js";
import { routeHash } from "../route.js";
import { nameOf, pathOf } from "./conversations.js";
import { contentOf, draftOfContent } from "./files.js";
import { recallDraft, rememberDraft, rememberReports, rememberSettings } from "./kept.js";
import { NEW, NOT_TEXT, draftOf, isText, questionBefore, settingsOf, systemOf, textOf } from "./state.js";

const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"];
/** An answer that has not begun for so long says why. */
const WAITING_MS = 1000;
/** So long the server is looked for when a connection was lost, and then now and then. */
const LOOK_MS = 30_000;
const LOOK_AGAIN_MS = 1000;
const LOOK_LATER_MS = 5000;
const LOOKING = "The connection was lost. Looking for the server";
const STOPPED = "You stopped the answer, so neither it nor this question is kept.";
const LOST = "Whether the server has answered is seen when it is back; until then the question is here.";

/** The actions; `conversations` are those with conversations as wholes. */
export function createAsking({ store, api, navigate, notify }, conversations, tabs) {
  const chat = () => store.get().chat;
  const running = new Map(); // the controllers of answers on their way
  const beginning = new Set(); // conversations that another one is begun for; null is for a new one

  /** Sends the draft of a conversation, or of a new one. */
  async function send(id) {
    const draft = draftOf(chat(), id);
    const content = contentOf(draft);
    if (content === "" || running.has(id)) return;
    const begun = id ?? (await once(null, () => begin(draft)));
    if (begun !== null) await answer(begun, draft, questionOf(content, begun));
  }

  /** Begins a conversation once for who asks twice: the second time it is null. */
  async function once(id, begins) {
    if (beginning.has(id)) return null;
    beginning.add(id);
    return begins().finally(() => beginning.delete(id));
  }

  async function begin(draft) {
    const { id, name } = await conversations.begin({}, nameOf(draft.text || draft.files[0].name));
    store.dispatch({ type: "settings changed", id, settings: settingsOf(chat(), NEW) });
    store.dispatch({ type: "settings changed", id: null, settings: {} });
    store.dispatch({ type: "draft changed", id: null, draft: { text: "", files: [], note: null } });
    rememberSettings(id, settingsOf(chat(), id));
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
      await finish(id, messages, await read(id, begin, (from) => api.follow(`${path}?from=${from}`, { signal }), signal));
    } catch (error) {
      await fail(id, draft, error, before);
    } finally {
      running.delete(id);
      tabs.changed(id);
      await conversations.list().catch(() => {}); // the list is old then; what failed was said above
    }
  }

  /** Shows the answer as it comes; returns the event that ends it, which has the numbers. */
  async function read(id, begin, goOn, signal) {
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
          if (!isLost(error, seen > 0)) throw error;
          store.dispatch({ type: "answer waits", id, why: LOOKING });
          if (!(await look(id, { ms: LOOK_MS, signal }))?.answering) throw error;
          store.dispatch({ type: "answer waits", id, why: null });
          events = goOn(seen);
        }
      }
    } finally {
      clearInterval(asked);
    }
    return last;
  }

  /** A conversation as the server has it, which is asked again until it says so, for `ms`; null where it does not. */
  async function look(id, { ms = 0, signal } = {}) {
    for (const until = performance.now() + ms; ; await sleep(LOOK_AGAIN_MS)) {
      try {
        return await api.get(pathOf(id), { signal });
      } catch (error) {
        if (error.aborted) throw error;
        if (error.status === 404) return { messages: [] };
        if (performance.now() >= until) return null;
      }
    }
  }

  /** Reads the open conversation when the server is back: that shows what became of an answer that was lost. */
  async function readLater(id) {
    const waits = () => chat().open?.id === id && !running.has(id) && recallDraft(id)?.sentAt !== undefined;
    do {
      await sleep(LOOK_LATER_MS);
    } while (waits() && (await api.health()) !== "ready");
    if (waits()) await conversations.open(id);
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
    if (error.aborted) await api.delete(pathOf(id, "/answer")).catch(() => {}); // it may have ended, or the server is away
    const begun = error.aborted || text !== "" || isLost(error, reasoning !== "");
    const known = begun ? await look(id) : { messages: [] };
    if (known?.messages.length > before && known.messages.at(-1).role === "assistant") {
      rememberDraft(id, null);
      store.dispatch({ type: "answer failed", id, draft: {}, rest: null });
      if (chat().open?.id === id) await conversations.open(id);
      notify("The answer was complete at the server already, so it is kept.");
      return;
    }
    const lost = known === null || Boolean(known.answering);
    const note = lost ? `${within(error.message)} ${LOST}` : failureSentence(error);
    // By the messages that were there, whoever reads them later sees whether there is an answer.
    rememberDraft(id, { text: draft.text, files: draft.files, ...(lost && { sentAt: before }) });
    const rest = text || reasoning ? { text, reasoning, question: contentOf(draft), lost } : null;
    store.dispatch({ type: "answer failed", id, draft: { ...draft, note }, rest });
    if (lost) readLater(id); // nobody waits for it
  }

  /** Asks in another version of a conversation: it shares the messages before `upto`, and differs from `at` on. */
  async function askInVersion(id, { upto, at, content }) {
    const begun = await once(id, () => conversations.version(id, upto, at));
    if (begun !== null) await answer(begun, draftOfContent(content), questionOf(content, begun));
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
      if (!isText(messages[from])) throw new Error(NOT_TEXT);
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

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Whether an error says nothing of the answer; one that had begun may go on where the server is not reached. */
const isLost = ({ code }, hadBegun) => code === "cut_off" || (hadBegun && code === "away");

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
  if (error.aborted) return STOPPED;
  if (error.code === "conversation_busy") {
    return "Another tab or program is asking in this conversation. Send again when its answer is there.";
  }
  if (error.status === 429) {
    const when = error.retryAfter ? `Send again in ${error.retryAfter} s.` : "Send again in a moment.";
    return `Too many requests wait at the server. ${when}`;
  }
  return `${within(error.message)} Nothing of the answer is kept; the question is here to be sent again.`;
}

