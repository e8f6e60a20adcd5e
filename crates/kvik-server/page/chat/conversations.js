// What is done with conversations as wholes: list, search, open, begin, branch, rename, delete, export, import.
import { askForText } from "../dialogs.js";
import { within } from "../direction.js";
import { plural } from "../numbers.js";
import { routeHash } from "../route.js";
import { readConversation } from "./files.js";
import { recallDraft, recallReports, rememberDraft, rememberReports, rememberSettings } from "./kept.js";
import { leadingSystems, settingsOf, titleOf } from "./state.js";
import { familyOf, versionMetadata } from "./versions.js";

const LISTED = 1000;
const NAME_MAX = 60;
/** The server's limit. */
const NAME_BYTES_MAX = 128;
const NAME_TRIES = 1000;
/** While somebody types, only the text at which they rest is searched for. */
const REST_MS = 250;
const UNFINISHED = "The answer to this was not finished. Nothing of it is kept. Send it again.";
const NOT_THERE = "There is no such conversation: it was deleted, or it belongs to another key.";

export const pathOf = (id, rest = "") => `/v1/conversations/${encodeURIComponent(id)}${rest}`;

/** The actions; `tabs` tells the other tabs of them, `resume(id, question)` goes on with an answer that runs. */
export function createConversations({ store, api, navigate, notify, confirm }, tabs, resume) {
  const chat = () => store.get().chat;
  let searching = new AbortController();
  const self = {
    async list() {
      const items = [];
      for (let more = true; more; ) {
        const after = items.length > 0 ? `&after=${items.at(-1).id}` : "";
        const page = await api.get(`/v1/conversations?limit=${LISTED}${after}`);
        items.push(...page.data);
        more = page.has_more;
      }
      store.dispatch({ type: "conversations listed", items });
    },

    /** Shows the conversations with this text in their name at once, and those with it in a message as they are found. */
    async search(query) {
      searching.abort();
      searching = new AbortController();
      const { signal } = searching;
      store.dispatch({ type: "list searched", query });
      if (query.trim() === "") return;
      await sleep(REST_MS);
      if (signal.aborted) return;
      try {
        for await (const { found, more } of searchPages(api, query, signal)) {
          store.dispatch({ type: "list found", query, found, searching: more });
        }
      } catch (error) {
        if (signal.aborted) return;
        store.dispatch({ type: "list found", query, found: {}, searching: false });
        throw error;
      }
    },

    /** Reads a conversation, and what this tab keeps of it. */
    async open(id) {
      if (id === null) return store.dispatch({ type: "conversation closed" });
      store.dispatch({ type: "conversation opening", id });
      const { messages: before } = chat().open;
      store.dispatch({ type: "reports recalled", id, reports: { ...recallReports(id), ...chat().reports[id] } });
      try {
        const { name, model, messages, answering } = await api.get(pathOf(id));
        // What was answered here meanwhile is newer than what was read.
        if (chat().open?.messages !== before) return;
        store.dispatch({ type: "conversation opened", id, name, model, messages });
        if (answering) resume(id, answering);
        else recover(store, id, messages);
      } catch (error) {
        unread(id, error);
      }
    },

    /** Begins one under a name that is free: "Name", "Name (2)", ... */
    async begin(fields, name) {
      if (!chat().list.ready) await self.list();
      const taken = new Set(chat().list.items.map((item) => item.name));
      for (let number = 1; number <= NAME_TRIES; number += 1) {
        if (taken.has(numbered(name, number))) continue;
        try {
          return await api.post("/v1/conversations", { ...fields, name: numbered(name, number) });
        } catch (error) {
          if (error.code !== "conversation_exists") throw error;
        }
      }
      return api.post("/v1/conversations", fields);
    },

    /** Begins another conversation as this one did, up to a message; its settings go with it. */
    async branch(id, upto, metadata) {
      const name = chat().open.name ?? "Branch";
      const begun = await self.begin({ from: id, upto, metadata }, name.replace(/ \(\d+\)$/, ""));
      store.dispatch({ type: "settings changed", id: begun.id, settings: settingsOf(chat(), id) });
      rememberSettings(begun.id, settingsOf(chat(), id));
      const reports = Object.entries(chat().reports[id] ?? {}).filter(([index]) => Number(index) < upto);
      rememberReports(begun.id, Object.fromEntries(reports));
      await changed(begun.id);
      return begun.id;
    },

    /** Begins a version that has the messages before `upto`, and shows it; what it says differs from the message `at` on. */
    async version(id, upto, at) {
      if (!chat().list.ready) await self.list();
      const { name, model, messages } = chat().open;
      const item = chat().list.items.find((one) => one.id === id) ?? { id };
      const begun = await self.branch(id, upto, versionMetadata(item, at - leadingSystems(messages).length));
      store.dispatch({ type: "conversation opening", id: begun });
      store.dispatch({ type: "conversation opened", id: begun, name, model, messages: messages.slice(0, upto) });
      navigate(routeHash("chat", begun));
      return begun;
    },

    async rename(id) {
      const { name } = chat().open;
      let given = name ?? "";
      let text = null;
      do {
        given = await askForText({ title: "Rename the conversation", text, label: "Name", value: given, maxlength: NAME_BYTES_MAX });
        if (given === null || given === name) return;
        text = `A name has ${NAME_BYTES_MAX} bytes at most, and this one has ${bytesOf(given)}. Letters that are not English take two or more.`;
      } while (bytesOf(given) > NAME_BYTES_MAX);
      await api.post(pathOf(id), { name: given });
      store.dispatch({ type: "conversation renamed", id, name: given });
      await changed(id);
    },

    async remove(id) {
      const others = familyOf(chat().list.items, id).map((item) => item.id).filter((other) => other !== id);
      const all = others.length > 0 ? ` and its ${plural(others.length, "other version")}` : "";
      const more = others.length > 0 ? [{ value: "one", text: "Delete this version only" }] : [];
      const chosen = await confirm(`Delete “${within(titleOf(chat().open))}”${all}, with what is remembered of it?`, { action: "Delete", danger: true, more });
      if (!chosen) return;
      const left = chosen === "one" ? others : [];
      let pending = false;
      for (const one of [id, ...others]) if (!left.includes(one)) pending = (await self.forget(one)) || pending;
      navigate(routeHash("chat", left[0] ?? null));
      const rest = pending ? " What was computed for it goes as soon as that can be done." : "";
      notify((chosen === "one" ? "The version is deleted." : "The conversation is deleted.") + rest);
    },

    /** Deletes without asking. Returns whether something that was computed for it is left for now. */
    async forget(id) {
      const { pending = false } = await api.delete(pathOf(id));
      rememberDraft(id, null);
      rememberReports(id, {});
      store.dispatch({ type: "settings changed", id, settings: {} });
      rememberSettings(id, {});
      tabs.deleted(id);
      await self.list();
      return pending;
    },

    async export(id, format) {
      const text = await api.text(pathOf(id, `/export?format=${format}`));
      const name = titleOf(chat().open).replaceAll(/[^\p{L}\p{M}\p{N} ()-]/gu, "_");
      download(`${name}.${format === "markdown" ? "md" : "json"}`, text);
    },

    /** Begins a conversation as a file has it that was exported as JSON. */
    async import(file) {
      const { name, messages } = await readConversation(file);
      const { id } = await (name === null ? api.post("/v1/conversations", { messages }) : self.begin({ messages }, name));
      await changed(id);
      navigate(routeHash("chat", id));
    },
  };

  /** Says that a conversation was not read; what is shown of it stays, unless the server says that there is none. */
  const unread = (id, error) => {
    const { open } = chat();
    if (error.status === 404) store.dispatch({ type: "conversation missing", id, error: NOT_THERE });
    else if (open?.id !== id) return;
    else if (open.status === "ready") notify(`The conversation could not be read again. ${within(error.message)}`, "error");
    else store.dispatch({ type: "conversation unread", id, error: `The conversation could not be read. ${within(error.message)}` });
  };
  const changed = async (id) => {
    tabs.changed(id);
    await self.list();
  };
  return self;
}

/** What a search finds in messages, by conversation: a part of them at a time, the newest first. */
async function* searchPages(api, query, signal) {
  const path = `/v1/conversations?search=${encodeURIComponent(query.trim())}&limit=${LISTED}`;
  for (let after = ""; after !== null; ) {
    const page = await api.get(path + after, { signal });
    yield { found: Object.fromEntries(page.data.map(({ id, found }) => [id, found])), more: page.has_more };
    after = page.has_more ? `&after=${page.next}` : null;
    if (page.has_more) await sleep(api.pace.pauseMs(1, 0));
  }
}

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** The first words of a text, as the name of what begins with it. */
export function nameOf(text) {
  const line = text.trim().split("\n")[0].replaceAll(/[\s\p{Cc}]+/gu, " ").replace(/^(conv_)+/, "");
  const cut = [...line].slice(0, NAME_MAX).join("");
  if (cut === line) return line || "Conversation";
  const words = cut.replace(/\s+\S*$/, "");
  // Where words are not spaced, the last blank may be far before the end.
  return `${words.length * 2 < cut.length ? cut : words}…`;
}

const bytesOf = (text) => new TextEncoder().encode(text).length;

function numbered(name, number) {
  const end = number === 1 ? "" : ` (${number})`;
  return name.slice(0, new TextEncoder().encodeInto(name, new Uint8Array(NAME_BYTES_MAX - end.length)).read) + end;
}

/** Gives a question that was sent and not answered back as a draft, and forgets one that was answered meanwhile. */
function recover(store, id, messages) {
  const draft = recallDraft(id);
  const { turns, drafts, rests } = store.get().chat;
  if (!draft || turns[id]) return;
  const { text, files, sentAt } = draft;
  if (sentAt === undefined) {
    if (!drafts[id]) store.dispatch({ type: "draft changed", id, draft: { text, files, note: null } });
  } else if (messages.length > sentAt) {
    rememberDraft(id, null);
    store.dispatch({ type: "answer failed", id, draft: { text: "", files: [], note: null }, rest: null });
  } else {
    // What others say in it from now on is no answer to this.
    rememberDraft(id, { text, files });
    const rest = rests[id] ? { ...rests[id], lost: false } : null;
    store.dispatch({ type: "answer failed", id, draft: { text, files, note: UNFINISHED }, rest });
  }
}

function download(name, text) {
  const url = URL.createObjectURL(new Blob([text]));
  const link = Object.assign(document.createElement("a"), { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
