// Which model answers in a conversation, and what is known of it.
import { settingsOf } from "../chat/state.js";

/** The models of the server; none before they were read. */
export const modelsIn = ({ models }) => models.shelf?.models ?? [];

/** Whether a conversation may choose among models. */
export const isShelf = ({ models }) => models.shelf !== null && models.shelf.bytes !== null;

/**
 * The name of the model that answers in a conversation: the one that was chosen, else the one that answered last, else
 * the one that answers whoever names none; null where there is none, or it is not known yet.
 */
export function modelOf(state, id) {
  const { shelf } = state.models;
  if (!shelf) return null;
  if (shelf.bytes === null) return shelf.default;
  const { model: chosen } = settingsOf(state.chat, id);
  if (chosen) return find(state, chosen)?.name ?? chosen;
  const { open } = state.chat;
  const last = open !== null && open.id === id ? open.model : null;
  return find(state, last)?.name ?? shelf.default;
}

/** The model of a name or an alias. */
export function find(state, name) {
  return modelsIn(state).find((model) => model.name === name || model.aliases.includes(name));
}

/** Whether a model answers questions; one without a chat template continues texts. True until it is known. */
export const chats = ({ models }, name) => models.templates[name] ?? true;

/** Whether a model could not be loaded when it was asked last. */
export const hasFailed = ({ status, failed }) => failed !== null && status === "unloaded";

/** Why a model cannot be loaded; most reasons begin with that. */
export const reasonOf = (failed) => (failed.includes("cannot be loaded") ? failed : `cannot be loaded: ${failed}`);
