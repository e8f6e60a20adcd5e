// What this browser remembers between visits. What it refuses to remember is held as long as the page lives.

/** Where a value is kept: by the browser, or until its tab is closed. A browser may refuse even to name the place. */
export const BROWSER = () => localStorage;
export const TAB = () => sessionStorage;

const held = new Map(); // what was refused, as it would stand in its place

/** The JSON value under `name`, or `otherwise`. */
export function recall(name, otherwise, place = BROWSER) {
  try {
    return JSON.parse(held.get(name) ?? place().getItem(`kvik.${name}`)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

/** Remembers a JSON value under `name`, which is of one place alone; null forgets it. */
export function remember(name, value, place = BROWSER) {
  try {
    if (value === null) place().removeItem(`kvik.${name}`);
    else place().setItem(`kvik.${name}`, JSON.stringify(value));
    held.delete(name);
  } catch {
    held.set(name, JSON.stringify(value)); // full or forbidden
  }
}
