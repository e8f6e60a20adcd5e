// The retention view's part of the state.
export const initial = {
  /** Whether an answer is being made. */
  asking: false,
  error: null,
  /** `{text, retain, pieces}`: the answer, what was kept, and the texts of the prompt's tokens. */
  result: null,
  /** The position that is looked at. */
  position: 0,
  /** The choice of policy that is highlighted in the measured curves. */
  policy: "keydiff",
  /** The list of `/v1/retention`; null while it is read. */
  measured: null,
};

const REDUCERS = {
  "retention.asked": (state) => ({ ...state, asking: true, error: null }),
  "retention.answered": (state, { result }) => ({ ...state, asking: false, result, position: 0 }),
  "retention.failed": (state, { message }) => ({ ...state, asking: false, error: message }),
  "retention.position": (state, { position }) => (position === state.position ? state : { ...state, position }),
  "retention.policy": (state, { policy }) => ({ ...state, policy }),
  "retention.measured": (state, { measured }) => ({ ...state, measured }),
};

export function reduce(state, action) {
  return REDUCERS[action.type]?.(state, action) ?? state;
}
