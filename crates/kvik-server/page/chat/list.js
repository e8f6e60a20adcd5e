// The conversations of the server, those that were changed last first, and a search in what was said in them.
import { composes, h, replace, setText } from "../dom.js";
import { ago, plural } from "../numbers.js";
import { routeHash } from "../route.js";
import { titleOf } from "./state.js";
import { rootOf } from "./versions.js";

const SHOWN_MAX = 300;
/** So many characters have no more bytes than the server looks for. */
const QUERY_MAX = 80;
/** Characters that are shown before what was found. */
const BEFORE_MAX = 16;

/** `{element, render, toggle, close}`; on a narrow page the list lies over the conversation. */
export function mountList(app, chat) {
  const search = h("input", { type: "search", dir: "auto", placeholder: "Search", maxlength: QUERY_MAX, "aria-label": "Search conversations" });
  search.addEventListener("input", () => chat.search(search.value));
  const rows = h("ul", { class: "rows", "aria-label": "Conversations" });
  const found = h("p", { class: "quiet-text", role: "status" });
  const fresh = h("a", { class: "button", href: routeHash("chat") }, "New conversation");
  const begin = h("div", { class: "list-begin" }, fresh, h("button", { onclick: () => chooseFile(chat.import), title: "Import a conversation that was exported as JSON" }, "Import"));
  const element = h("aside", { class: "list", id: "conversations", "aria-label": "Conversations" }, begin, search, found, rows);

  const setOpen = (open) => {
    element.toggleAttribute("data-open", open);
    document.getElementById("list-toggle")?.setAttribute("aria-expanded", String(open));
  };
  element.addEventListener("keydown", (event) => {
    if (composes(event) || event.key !== "Escape" || !element.hasAttribute("data-open")) return;
    setOpen(false);
    document.getElementById("list-toggle").focus();
  });

  let shown = {};
  const render = ({ list, turns }, open) => {
    // Turns change with every token; which conversations are answered does not.
    const answering = Object.keys(turns).filter((id) => turns[id]).join();
    if (list === shown.list && answering === shown.answering && open === shown.open) return;
    shown = { list, answering, open };
    const searches = list.query.trim() !== "";
    const matching = searches ? list.items.filter((item) => item.id in list.found || matches(item, list.query)) : withoutVersions(list.items, open);
    setText(found, foundText(list, matching));
    replace(rows, matching.slice(0, SHOWN_MAX).map((item) => rowOf(item, list.found[item.id], item.id === open, Boolean(turns[item.id]))));
  };
  return {
    element,
    render,
    toggle: () => {
      setOpen(!element.hasAttribute("data-open"));
      if (element.hasAttribute("data-open")) search.focus();
    },
    close: () => setOpen(false),
  };
}

const matches = (item, query) => folded(titleOf(item)).includes(folded(query.trim()));

/** A text as the server compares it. */
const folded = (text) => text.normalize("NFKC").toLowerCase().replaceAll("ς", "σ");

/** Of the versions of a conversation the open one, else the one that was changed last. */
function withoutVersions(items, open) {
  const shown = new Map();
  for (const item of items) {
    const root = rootOf(item);
    if (!shown.has(root) || item.id === open) shown.set(root, item);
  }
  return [...shown.values()];
}

/** Lets a person choose a file for `take`. */
function chooseFile(take) {
  const input = h("input", { type: "file", accept: ".json,application/json" });
  input.addEventListener("change", () => input.files.length > 0 && take(input.files[0]));
  input.click();
}

function foundText({ items, ready, query, searching }, matching) {
  if (!ready) return "";
  if (items.length === 0) return "No conversations yet.";
  if (searching) return "Searching in what was said";
  if (query.trim() !== "" && matching.length === 0) return "Nothing was found.";
  if (matching.length > SHOWN_MAX) return `The newest ${SHOWN_MAX} of ${plural(matching.length, "conversation")}. Search for others.`;
  return "";
}

function rowOf(item, found, open, answering) {
  const state = answering ? "answering" : ago(item.updated);
  const link = h(
    "a",
    { href: routeHash("chat", item.id, found?.message ?? null), "aria-current": open ? "true" : null, title: plural(item.messages, "message") },
    h("span", { class: "name", dir: "auto" }, titleOf(item)),
    h("span", { class: "age" }, state),
    found && h("span", { class: "excerpt", dir: "auto" }, endOf(oneLine(found.before)), h("mark", {}, oneLine(found.text)), oneLine(found.after)),
  );
  return h("li", {}, link);
}

const oneLine = (text) => text.replaceAll(/\s+/g, " ");

/** Where a row is narrow, what was found comes into sight all the same. */
const endOf = (text) => (text.length <= BEFORE_MAX ? text : `…${text.slice(-BEFORE_MAX)}`);
