// How often the page asks by itself. A key may be allowed so many requests a minute; the server says in each answer
// how many are left. What repeats takes at most a quarter of them, so that nobody is refused because a page is open.

const SHARE = 4;
const MINUTE_MS = 60_000;
const LIMIT = "x-ratelimit-limit-requests";
const REMAINING = "x-ratelimit-remaining-requests";

/** `{heard, sent, pauseMs, spare}` for the requests of one key. */
export function createPace() {
  let sent = 0;
  let limit = Infinity;
  let left = Infinity;
  /** How long so many requests take as a share of `number` a minute. */
  const shareMs = (requests, number) => (requests * SHARE * MINUTE_MS) / number;
  return {
    /** Notes what an answer says of the limit; a good one without a word of it says that there is none. */
    heard({ ok, headers }) {
      sent += 1;
      const number = (name) => Number(headers.get(name) ?? Infinity);
      if (ok || headers.has(REMAINING)) [limit, left] = [number(LIMIT), number(REMAINING)];
    },
    /** Requests that were answered so far. */
    sent: () => sent,
    /** The pause before what took so many requests is done again. In a minute what was used up is there again. */
    pauseMs: (requests, leastMs) => Math.max(leastMs, Math.min(shareMs(requests, left), shareMs(requests, limit) + MINUTE_MS)),
    /** How many requests may be sent for what is only nice to have. */
    spare: () => Math.floor(left / SHARE),
  };
}
