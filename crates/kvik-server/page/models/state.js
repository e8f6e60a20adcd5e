// What the page knows of the server's models: those that are there, those that may be fetched, downloads.
export const initial = {
  /** The answer of `/v1/shelf`; null while it is read. */
  shelf: null,
  error: null,
  /** Whether it is not told because a key is missing. */
  refused: false,
  /** Models of the hub by short names: the answer of `/v1/shelf/short-names`; null until it is asked for. */
  offers: null,
  /** Whether a model has a chat template, by its name. */
  templates: {},
  /** Downloads of this tab, the newest first: `{source, steps, failed, done}`; `steps` has the last line of each file. */
  pulls: [],
};

const REDUCERS = {
  "models.read": (state, { shelf }) => ({ ...state, shelf, error: null, refused: false }),
  "models.failed": (state, { message, refused }) => ({ ...state, error: message, refused }),
  "models.offered": (state, { offers }) => ({ ...state, offers }),
  "models.described": (state, { name, chats }) => ({ ...state, templates: { ...state.templates, [name]: chats } }),
  "models.pull begun": (state, { source }) => ({
    ...state,
    pulls: [{ source, steps: {}, failed: null, done: false }, ...state.pulls.filter((pull) => pull.source !== source)],
  }),
  "models.pull went on": (state, { source, step }) =>
    change(state, source, (pull) => ({ ...pull, steps: { ...pull.steps, [step.digest ?? ""]: step } })),
  "models.pull ended": (state, { source, failed }) => change(state, source, (pull) => ({ ...pull, failed, done: true })),
  "models.pull closed": (state, { source }) => ({ ...state, pulls: state.pulls.filter((pull) => pull.source !== source) }),
};

function change(state, source, next) {
  return { ...state, pulls: state.pulls.map((pull) => (pull.source === source ? next(pull) : pull)) };
}

export function reduce(state, action) {
  return REDUCERS[action.type]?.(state, action) ?? state;
}

/** What is known of a download: its status in words, and bytes of all its files. */
export function progressOf({ steps, failed, done }) {
  const files = Object.values(steps).filter(({ digest }) => digest !== undefined);
  const sum = (name) => files.reduce((all, file) => all + (file[name] ?? 0), 0);
  const status = failed ?? (done ? "There" : (files.find(({ status }) => status.startsWith("verifying"))?.status ?? "Fetching"));
  return { status, done: sum("completed"), total: sum("total") };
}
