// Every request that the page makes, and the one kind of error that they end in.
import { documentsOf, eventsOf } from "./events.js";
import { createPace } from "./pace.js";

/** What went wrong, as a program (`status`, `code`) and as a person (`message`) reads it. */
export class ApiError extends Error {
  constructor({ status = 0, code = null, message, retryAfter = null }) {
    super(message);
    this.name = "ApiError";
    this.status = status;
    this.code = code;
    this.retryAfter = retryAfter;
  }

  /** The request was given up by the page itself. */
  get aborted() {
    return this.code === "aborted";
  }
}

/** Requests with the key of `keys` ({get, turn, ask}); a key that is missing or refused is asked for once, for all of them. */
export function createApi(keys) {
  const pace = createPace();
  const send = async (method, path, { body, signal, accept = "application/json" } = {}) => {
    let asked = false;
    for (;;) {
      const key = keys.get();
      const sent = keys.turn();
      const response = await reach(method, path, { body, signal, accept, key });
      pace.heard(response);
      if (response.ok) return response;
      const error = await errorOf(response);
      // Only the first refusal says that a key is missing: every later one says that it was wrong.
      if (error.status !== 401 || !(await keys.ask({ refused: asked || Boolean(key), tried: key, sent }))) throw error;
      asked = true;
    }
  };
  const json = async (...request) => {
    const response = await send(...request);
    return response.json().catch(() => {
      throw new ApiError({ status: response.status, code: "no_json", message: "The server's answer was cut off." });
    });
  };
  return {
    pace,
    get: (path, options) => json("GET", path, options),
    post: (path, body, options) => json("POST", path, { ...options, body }),
    delete: (path, options) => json("DELETE", path, options),
    /** A whole answer as text. */
    text: async (path, options) => (await send("GET", path, { ...options, accept: "*/*" })).text(),
    /** The events of a streamed answer, as an async generator; `signal` ends it. */
    async *stream(path, body, { signal } = {}) {
      yield* eventsIn(await send("POST", path, { body, signal, accept: "text/event-stream" }), signal);
    },
    /** The same of an answer that runs already. */
    async *follow(path, { signal } = {}) {
      yield* eventsIn(await send("GET", path, { signal, accept: "text/event-stream" }), signal);
    },
    /** The documents of an answer that has one a line, as an async generator; `signal` ends it. */
    async *lines(path, body, { signal } = {}) {
      const response = await send("POST", path, { body, signal, accept: "application/x-ndjson" });
      try {
        yield* documentsOf(response.body);
      } catch (error) {
        throw unreached(error, signal, cutOff);
      }
    },
    /** Whether the server serves requests, without a key: "ready", "loading" or "away". */
    async health() {
      const response = await fetch("/health", { cache: "no-store" }).catch(() => null);
      if (!response) return "away";
      return response.ok ? "ready" : "loading";
    },
  };
}

async function* eventsIn(response, signal) {
  try {
    for await (const event of eventsOf(response.body, cutOff)) {
      if (event.error) throw new ApiError({ ...event.error, status: response.status });
      yield event;
    }
  } catch (error) {
    throw error instanceof ApiError ? error : unreached(error, signal, cutOff);
  }
}

async function reach(method, path, { body, signal, accept, key }) {
  const headers = { Accept: accept };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (key) headers.Authorization = `Bearer ${key}`;
  const options = { method, headers, signal, cache: "no-store", credentials: "omit" };
  try {
    return await fetch(path, { ...options, body: body === undefined ? undefined : JSON.stringify(body) });
  } catch (error) {
    throw unreached(error, signal, away);
  }
}

function unreached(error, signal, otherwise) {
  if (signal?.aborted || error.name === "AbortError") return new ApiError({ code: "aborted", message: "Stopped." });
  return otherwise();
}

const away = () => new ApiError({ code: "away", message: "The server does not answer. Does it still run?" });
const cutOff = () => new ApiError({ code: "cut_off", message: "The connection ended in the middle of the answer." });

async function errorOf(response) {
  const { error } = await response.json().catch(() => ({}));
  const seconds = Number(response.headers.get("Retry-After"));
  return new ApiError({
    status: response.status,
    code: error?.code ?? null,
    message: error?.message ?? `The server answered ${response.status}.`,
    retryAfter: seconds > 0 ? seconds : null,
  });
}
