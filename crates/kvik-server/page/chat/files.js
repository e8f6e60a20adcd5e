// Files that are given to a question are texts in it. They are written so that the page can fold them again.
import { within } from "../direction.js";

const BYTES_MAX = 1 << 20;
/** What the server keeps of one conversation at most. */
const CONVERSATION_BYTES_MAX = 32 << 20;
const BEGINS = "[file ";
const ENDS = "[end of file ";

/** The text of a file; throws a sentence where it has none. */
export async function readFile(file) {
  if (file.size > BYTES_MAX) throw new Error(`${within(file.name)} is larger than 1 MiB.`);
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    if (text.includes("\0")) throw new Error();
    return { name: file.name.replaceAll(/[\n\r\]]/g, " "), text };
  } catch {
    throw new Error(`${within(file.name)} is not a text.`);
  }
}

/** The `{name, messages}` of an exported conversation; throws a sentence where a file has none. */
export async function readConversation(file) {
  if (file.size > CONVERSATION_BYTES_MAX) throw new Error(`${within(file.name)} is larger than a conversation may be, which is 32 MiB.`);
  const { name = null, messages } = (await file.text().then(JSON.parse).catch(() => null)) ?? {};
  if (!Array.isArray(messages)) throw new Error(`${within(file.name)} is not a conversation: those exported as JSON can be imported.`);
  return { name: typeof name === "string" ? name : null, messages };
}

/** What is sent: the files, then what was written. */
export function contentOf({ text, files }) {
  const parts = files.map(({ name, text: inside }) => `${BEGINS}${name}]\n${inside}\n${ENDS}${name}]`);
  return [...parts, text.trim()].filter(Boolean).join("\n\n");
}

/** The parts of a content: `{text}` and `{name, text}`. */
export function partsOf(content) {
  const lines = content.split("\n");
  const joined = (from, to) => lines.slice(from, to).join("\n");
  const ends = endsOf(lines);
  const parts = [];
  let from = 0; // the first line that is in no part yet
  for (let at = 0; at < lines.length; at += 1) {
    const name = nameIn(lines[at], BEGINS);
    const end = name && nextIn(ends.get(name), at + 2);
    if (!end) continue;
    parts.push({ text: joined(from, at).trim() }, { name, text: joined(at + 1, end) });
    at = end;
    from = end + 1;
  }
  parts.push({ text: joined(from).trim() });
  return parts.filter(({ name, text }) => name || text);
}

/** By the name of a file the lines that end one of it, the last line first. */
function endsOf(lines) {
  const ends = new Map();
  for (let at = lines.length - 1; at >= 0; at -= 1) {
    const name = nameIn(lines[at], ENDS);
    if (!name) continue;
    if (!ends.has(name)) ends.set(name, []);
    ends.get(name).push(at);
  }
  return ends;
}

/** The first of these lines from `at` on; those before it are of no use any more. */
function nextIn(ends, at) {
  while (ends?.at(-1) < at) ends.pop();
  return ends?.at(-1);
}

const nameIn = (line, mark) => (line.startsWith(mark) && line.endsWith("]") ? line.slice(mark.length, -1) : "");

/** The draft that a content was made of. */
export function draftOfContent(content) {
  const parts = partsOf(content);
  const files = parts.filter(({ name }) => name);
  const text = parts.filter(({ name }) => !name).map((part) => part.text).join("\n\n");
  return { text, files, note: null };
}
