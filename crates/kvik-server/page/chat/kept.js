// What this browser keeps of a conversation beside the server: settings for good, and until the tab is closed drafts,
// questions without an answer, and the numbers of answers.
import { TAB, recall, remember } from "../storage.js";
import { NEW } from "./state.js";

const REPORTS_MAX = 200;

export const recallSettings = () => recall("settings", {});

/** Keeps the settings of one conversation beside those that other tabs keep; empty ones forget them. */
export function rememberSettings(id, settings) {
  if (id === null) return; // of the conversation that has not begun
  const { [id]: _, ...others } = recallSettings();
  const all = Object.keys(settings).length > 0 ? { ...others, [id]: settings } : others;
  remember("settings", Object.keys(all).length > 0 ? all : null);
}

/** The draft, with `sentAt` (messages that were there) where it was sent and its answer did not come. */
export const recallDraft = (id) => recall(`draft.${id ?? NEW}`, null, TAB);
export const rememberDraft = (id, draft) => remember(`draft.${id ?? NEW}`, draft, TAB);

export const recallReports = (id) => recall(`reports.${id}`, {}, TAB);

export function rememberReports(id, reports) {
  const last = Object.entries(reports).slice(-REPORTS_MAX);
  remember(`reports.${id}`, last.length > 0 ? Object.fromEntries(last) : null, TAB);
}
