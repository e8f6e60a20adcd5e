// What this browser remembers between visits. A browser that refuses storage only forgets.

/** The JSON value under `name`, or `otherwise`. */
export function recall(name, otherwise, storage = localStorage) {
  try {
    return JSON.parse(storage.getItem(`kvik.${name}`)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

/** Remembers a JSON value under `name`; null forgets it. */
export function remember(name, value, storage = localStorage) {
  try {
    if (value === null) storage.removeItem(`kvik.${name}`);
    else storage.setItem(`kvik.${name}`, JSON.stringify(value));
  } catch {
    // Full or forbidden: nothing that is on the server depends on it.
  }
}
