// Streams of JSON documents: server-sent events, `data:` lines with `[DONE]` at the end, or one document a line.

/** The documents of a stream as they come; ends at `[DONE]`, throws `cut` where the stream ends without it. */
export async function* eventsOf(body, cut) {
  for await (const line of linesOf(body)) {
    if (!line.startsWith("data:")) continue;
    const data = line.slice(5).trim();
    if (data === "[DONE]") return;
    yield JSON.parse(data);
  }
  throw cut();
}

/** The documents of a stream that has one a line, as they come. */
export async function* documentsOf(body) {
  for await (const line of linesOf(body)) if (line !== "") yield JSON.parse(line);
}

async function* linesOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) yield line.replace(/\r$/, "");
    }
  } finally {
    // A reader that stops early tells the server so: what nobody reads need not be computed.
    reader.cancel().catch(() => {});
  }
}
