// Numbers as people read them.

const COUNT = new Intl.NumberFormat("en");
const ONE_DIGIT = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

/** 12345 -> "12,345". */
export const count = (number) => COUNT.format(Math.round(number));

/** "1 token", "2 tokens". */
export const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

/** Milliseconds -> "31 ms", "2.4 s", "3 min". */
export function duration(ms) {
  if (ms < 1000) return `${ONE_DIGIT.format(ms < 10 ? ms : Math.round(ms))} ms`;
  if (ms < 60_000) return `${ONE_DIGIT.format(ms / 1000)} s`;
  return `${Math.round(ms / 60_000)} min`;
}

/** A rate with at most one digit behind the point. */
export const rate = (number) => ONE_DIGIT.format(number < 100 ? number : Math.round(number));

/** A share of a whole -> "94%"; what is not all is never shown as 100%. */
export function percent(part, whole) {
  if (whole === 0) return "0%";
  return `${part === whole ? 100 : Math.min(99, Math.round((100 * part) / whole))}%`;
}

/** 1536 -> "1.5 KiB". */
export function bytes(number) {
  let unit = 0;
  // From 1,000 on the next unit is shorter.
  while (number >= 1000 && unit < UNITS.length - 1) {
    number /= 1024;
    unit += 1;
  }
  return `${ONE_DIGIT.format(number)} ${UNITS[unit]}`;
}

/** How long ago a moment in Unix seconds was, for a list. */
export function ago(seconds, now = Date.now() / 1000) {
  const passed = Math.max(0, now - seconds);
  if (passed < 60) return "now";
  if (passed < 3600) return `${Math.floor(passed / 60)} min`;
  if (passed < 86_400) return `${Math.floor(passed / 3600)} h`;
  return new Date(seconds * 1000).toLocaleDateString("en", { month: "short", day: "numeric" });
}
