// The state of the page: one value, changed by actions alone. action -> reduce -> state -> render.

/** A store that starts with `initial`; `reduce(state, action)` returns the next state and changes nothing itself. */
export function createStore(reduce, initial) {
  let state = initial;
  const listeners = new Set();
  return {
    get: () => state,
    dispatch(action) {
      const before = state;
      state = reduce(state, action);
      if (state !== before) for (const listener of [...listeners]) listener(state);
    },
    /** Calls `listener(state)` after each change; returns the function that ends it. */
    subscribe(listener) {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
  };
}

/** One reducer of several: each owns the part of the state that has its name. */
export function combine(reducers) {
  return (state, action) => {
    let next = state;
    for (const [name, reduce] of Object.entries(reducers)) {
      const part = reduce(state[name], action);
      if (part !== state[name]) next = { ...next, [name]: part };
    }
    return next;
  };
}

/** Calls `render(state)` now and at most once a frame after changes; returns the function that ends it. */
export function renderOnChange(store, render) {
  let frame = 0;
  const draw = () => {
    frame = 0;
    render(store.get());
  };
  const unsubscribe = store.subscribe(() => {
    frame ||= requestAnimationFrame(draw);
  });
  draw();
  return () => {
    cancelAnimationFrame(frame);
    unsubscribe();
  };
}
