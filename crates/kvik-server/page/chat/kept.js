// What this browser keeps of a conversation beside the server: settings for good, and until the tab is closed drafts,
// questions without an answer, and the numbers of answers.
import { recall, remember } from "../storage.js";
import { NEW } from "./state.js";

const REPORTS_MAX = 200;

export const recallSettings = () => recall("settings", {});

/** Keeps the settings of all conversations; those of one that is gone are dropped with it. */
export function rememberSettings(settings) {
  const set = Object.entries(settings).filter(([id, one]) => id !== NEW && Object.keys(one ?? {}).length > 0);
  remember("settings", set.length > 0 ? Object.fromEntries(set) : null);
}

/** The draft, with `sentAt` (messages that were there) where it was sent and its answer did not come. */
export const recallDraft = (id) => recall(`draft.${id ?? NEW}`, null, sessionStorage);
export const rememberDraft = (id, draft) => remember(`draft.${id ?? NEW}`, draft, sessionStorage);

export const recallReports = (id) => recall(`reports.${id}`, {}, sessionStorage);

export function rememberReports(id, reports) {
  const last = Object.entries(reports).slice(-REPORTS_MAX);
  remember(`reports.${id}`, last.length > 0 ? Object.fromEntries(last) : null, sessionStorage);
}
