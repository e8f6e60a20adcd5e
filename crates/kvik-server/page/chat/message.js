// One message, with what can be done with it.
import { copyText } from "../clipboard.js";
import { within } from "../direction.js";
import { h } from "../dom.js";
import { renderMarkdown } from "../markdown/render.js";
import { plural } from "../numbers.js";
import { routeHash } from "../route.js";
import { editQuestion } from "./editing.js";
import { partsOf } from "./files.js";
import { NOT_TEXT, isText, questionBefore, textOf } from "./state.js";
import { stripElement } from "./strip.js";

const WHO = { user: "You", assistant: "Answer", system: "System prompt", developer: "System prompt", tool: "Result of a tool" };

/** The element of the message of this index of the open conversation; `versions` are the arrows between its versions. */
export function messageElement(app, chat, index, versions) {
  const { open, reports } = app.store.get().chat;
  const message = open.messages[index];
  const folded = ["system", "developer", "tool"].includes(message.role);
  const content = CONTENT[message.role] ?? plainContent;
  const who = WHO[message.role] ?? message.role;
  return h(
    "article",
    { class: `message ${message.role}`, "data-index": index, "aria-label": who },
    !folded && hiddenHeading(who),
    folded ? foldedText(who, textOf(message)) : content(message),
    message.role === "assistant" && stripElement(reports[open.id]?.[index]),
    !folded && h("div", { class: "message-actions" }, versions, ACTIONS[message.role]?.(app, chat, open, index)),
  );
}

/** By which a screen reader goes from message to message. */
export function hiddenHeading(who) {
  return h("h2", { class: "hidden-text" }, who);
}

/** A question: what was written stays as it was written, files are folded. */
export function plainContent(message) {
  const parts = partsOf(textOf(message)).map(({ name, text }) => (name ? foldedText(`File ${within(name)}`, text) : h("p", { class: "plain", dir: "auto" }, text)));
  return h("div", { class: "content" }, parts);
}

function answerContent(message) {
  return [
    message.reasoning_content && foldedText("Thoughts", message.reasoning_content),
    h("div", { class: "content markdown" }, renderMarkdown(textOf(message))),
    callElements(message.tool_calls ?? []),
  ];
}

const CONTENT = { user: plainContent, assistant: answerContent };

export function foldedText(title, text) {
  return h("details", { class: "folded" }, h("summary", {}, title), h("pre", { class: "plain", dir: "auto", tabindex: 0, "aria-label": title }, text));
}

/** Calls of tools, as they were asked for: a conversation may have begun with calls of which nothing is said. */
export function callElements(calls) {
  return calls.map((call) => foldedText(`Calls ${call?.function?.name ?? "no tool"}`, readable(call?.function?.arguments ?? "")));
}

function readable(given) {
  try {
    return JSON.stringify(JSON.parse(given), null, 2);
  } catch {
    return given;
  }
}

const ACTIONS = { user: questionActions, assistant: answerActions };

const action = (text, label, act) => h("button", { class: "quiet small", "aria-label": label, title: label, onclick: act }, text);

function questionActions(app, chat, { id, messages }, index) {
  const text = textOf(messages[index]);
  const begin = () => editQuestion(edit, text, (content) => chat.edit(id, index, content));
  const edit = action("Edit", "Edit this question; this version stays", () => (isText(messages[index]) ? begin() : app.notify(NOT_TEXT, "error")));
  return [edit, copyAction(text, "Copy this question")];
}

function answerActions(app, chat, { id, messages }, index) {
  return [
    copyAction(textOf(messages[index]), "Copy this answer"),
    action("Branch", "Branch from here into a conversation of its own", () => branch(app, chat, id, index + 1)),
    questionBefore(messages, index) >= 0 && action("Ask again", "Ask again; this answer stays as a version", () => chat.askAgain(id, index)),
  ];
}

function copyAction(text, label) {
  const button = action("Copy", label, () => copyText(text, button));
  return button;
}

async function branch(app, chat, id, upto) {
  const begun = await chat.branch(id, upto);
  if (begun) app.navigate(routeHash("chat", begun));
}

/** What an answer had said when it ended too early. */
export function restElement({ text, reasoning, lost }, keep) {
  const who = lost ? "Answer that broke off" : "Answer that is not kept";
  return h(
    "article",
    { class: "message assistant rest", "aria-label": who },
    hiddenHeading(who),
    reasoning && foldedText("Thoughts", reasoning),
    h("div", { class: "content markdown" }, renderMarkdown(text)),
    h(
      "p",
      { class: "quiet-text rest-end" },
      h("span", {}, `The answer ${lost ? "broke off" : "ended"} here, after ${plural(text.length, "character")}.${lost ? "" : " It is not kept."}`),
      text && !lost && h("button", { class: "small", onclick: keep }, "Keep it as it is"),
    ),
  );
}
