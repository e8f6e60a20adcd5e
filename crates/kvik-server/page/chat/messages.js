// What was said, and the answer on its way. Messages stay where they are while a text grows below them: only the
// answer's last block is rendered again. A long conversation shows its end first; the rest follows when nothing else
// is to do, and what is out of sight costs no layout (content-visibility).
import { h, replace, setText } from "../dom.js";
import { mountAnswer } from "./answer.js";
import { mountArrows } from "./arrows.js";
import { messageElement, restElement } from "./message.js";

const FIRST_SHOWN = 30;
/** Messages of a group. */
const GROUP = 16;
const NEAR_END_PX = 80;
const IDLE_LEFT_MS = 3;

/** `{element, render, end}`; `start` is shown where no conversation is open. */
export function mountMessages(app, chat, start) {
  const list = h("div", { class: "said" });
  const live = h("div", { class: "live" });
  const coming = h("div", { class: "coming" });
  const state = h("div", { class: "state" });
  const column = h("div", { class: "column" }, list, live, coming, state);
  // A screen reader hears when an answer begins and ends, and not each of its words.
  const spoken = h("p", { class: "hidden-text", role: "status" });
  const element = h("div", { class: "messages", tabindex: 0, role: "region", "aria-label": "Messages" }, column, spoken);
  const arrows = mountArrows(app, list, coming);
  const messages = createList(list, (index) => messageElement(app, chat, index, arrows.element(index)));
  const answer = mountAnswer(live);
  const end = stayAtEnd(element, column);

  let shown = {};
  let wanted = null; // the index of a message that the address names, until it is there
  return {
    element,
    render(chatState, id, { route }) {
      const open = chatState.open?.id === id ? chatState.open : null;
      const turn = chatState.turns[id];
      const rest = chatState.rests[id];
      if (id !== shown.id || (turn && !shown.answering)) end.go(id !== null);
      arrows.update(chatState.list.items, open);
      messages.show(id, open?.messages ?? []);
      if (id !== shown.id || route.at !== shown.at) wanted = route.at;
      let version = null;
      if (wanted !== null && open?.status === "ready") {
        end.leave();
        messages.goTo(wanted);
        version = arrows.arrive(id);
        wanted = null;
      }
      answer.render(turn);
      column.classList.toggle("is-answering", Boolean(turn));
      if (id !== shown.id || open?.status !== shown.status || rest !== shown.rest || Boolean(turn) !== shown.answering) {
        replace(state, id === null ? start : stateContent(open, turn, () => chat.open(id)), rest && !turn && restElement(rest, () => chat.keepRest(id)));
      }
      if (version) setText(spoken, version);
      else if (id !== shown.id && !turn) setText(spoken, "");
      else if (id !== shown.id || Boolean(turn) !== shown.answering) setText(spoken, spokenText(turn, rest));
      shown = { id, rest, at: route.at, status: open?.status, answering: Boolean(turn) };
    },
    end() {
      messages.end();
      end.stop();
    },
  };
}

function spokenText(turn, rest) {
  if (turn) return "The answer is on its way.";
  return rest ? "The answer ended too early." : "The answer is there.";
}

/** Keeps the end of `column` in sight while it grows, for a reader who is there; who reads further up is left there. */
function stayAtEnd(scroller, column) {
  let atEnd = true;
  let follows = true; // the first screen is read from its beginning
  const toEnd = () => {
    scroller.scrollTop = scroller.scrollHeight;
  };
  const go = (isConversation) => {
    [atEnd, follows] = [true, isConversation];
    if (follows) toEnd();
    else scroller.scrollTop = 0;
  };
  scroller.addEventListener("scroll", () => {
    atEnd = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < NEAR_END_PX;
  });
  // Heights that were estimated become real, and earlier messages come above: the end moves without anybody scrolling.
  const sizes = new ResizeObserver(() => atEnd && follows && toEnd());
  sizes.observe(column);
  sizes.observe(scroller);
  const leave = () => {
    atEnd = false;
  };
  return { go, leave, stop: () => sizes.disconnect() };
}

function stateContent(open, turn, again) {
  if (open === null || open.status === "loading") return h("p", { class: "empty", role: "status" }, "Reading the conversation");
  if (open.status === "missing") return h("p", { class: "empty error-text", role: "alert" }, open.error);
  if (open.status === "unread") {
    return h("div", { class: "empty" }, h("p", { class: "error-text", role: "alert" }, open.error), h("button", { onclick: again }, "Try again"));
  }
  if (open.messages.length === 0 && !turn) return h("p", { class: "empty" }, "Nothing was said yet.");
  return null;
}

/** The elements of a list of messages; those that did not change stay. `create(index)` makes one. */
function createList(root, create) {
  let shown = { id: null, messages: [], first: 0 };
  let idle = 0;

  const addOne = () => {
    shown.first -= 1;
    firstGroup(root, shown.first).prepend(create(shown.first));
  };
  /** Adds earlier messages while there is time. */
  const addEarlier = (deadline) => {
    for (let some = false; shown.first > 0 && (!some || deadline.timeRemaining() > IDLE_LEFT_MS); some = true) addOne();
    idle = shown.first > 0 ? requestIdle(addEarlier) : 0;
  };
  return {
    show(id, messages) {
      if (id === shown.id && messages === shown.messages) return;
      const same = id === shown.id ? commonStart(messages, shown.messages) : 0;
      if (same <= shown.first) {
        shown.first = Math.max(0, messages.length - FIRST_SHOWN);
        root.replaceChildren();
      }
      removeFrom(root, same);
      const from = Math.max(same, shown.first);
      shown = { id, messages, first: shown.first };
      for (let index = from; index < messages.length; index += 1) lastGroup(root, index).append(create(index));
      if (shown.first > 0 && !idle) idle = requestIdle(addEarlier);
    },
    /** Brings the message of this index into sight, with those that are still to be shown. */
    goTo(index) {
      while (shown.first > index) addOne();
      root.querySelector(`[data-index="${index}"]`)?.scrollIntoView({ block: "center" });
    },
    end: () => cancelIdle(idle),
  };
}

// A browser looks at each element with content-visibility several times a frame, so it stands on groups of messages.

const groupOf = (index) => Math.floor(index / GROUP);

/** The first group, or a new one before it, where the message of this index belongs. */
function firstGroup(root, index) {
  if (root.firstElementChild?.dataset.group !== String(groupOf(index))) root.prepend(newGroup(index));
  return root.firstElementChild;
}

/** The last group, or a new one behind it. */
function lastGroup(root, index) {
  if (root.lastElementChild?.dataset.group !== String(groupOf(index))) root.append(newGroup(index));
  return root.lastElementChild;
}

const newGroup = (index) => h("div", { class: "group", "data-group": groupOf(index) });

/** Removes the messages from this index on. */
function removeFrom(root, index) {
  for (let group = root.lastElementChild; group; group = root.lastElementChild) {
    while (Number(group.lastElementChild?.dataset.index ?? -1) >= index) group.lastElementChild.remove();
    if (group.childElementCount > 0) return;
    group.remove();
  }
}

const requestIdle = globalThis.requestIdleCallback ?? ((run) => setTimeout(() => run({ timeRemaining: () => 0 }), 20));
const cancelIdle = globalThis.cancelIdleCallback ?? clearTimeout;

function commonStart(messages, others) {
  const end = Math.min(messages.length, others.length);
  for (let index = 0; index < end; index += 1) {
    if (messages[index] !== others[index] && JSON.stringify(messages[index]) !== JSON.stringify(others[index])) return index;
  }
  return end;
}
