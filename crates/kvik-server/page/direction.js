// Texts of others within sentences of the page: their direction of writing ends with them.

/** What turns the direction, and letters that are written from the right. */
const TURNS = /[\u202a-\u202e\u2066-\u2069]/g;
const FROM_RIGHT = /[\u0590-\u08ff\u200f\ufb1d-\ufdff\ufe70-\ufefc]/;

/** A text of others, behind which the sentence keeps its direction. */
export function within(text) {
  const still = text.replaceAll(TURNS, "");
  return still === text && !FROM_RIGHT.test(text) ? text : `\u2068${still}\u2069`;
}
