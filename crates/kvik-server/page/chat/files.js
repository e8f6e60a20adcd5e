// Files that are given to a question are texts in it. They are written so that the page can fold them again.
import { within } from "../direction.js";

const BYTES_MAX = 1 << 20;
/** What the server keeps of one conversation at most. */
const CONVERSATION_BYTES_MAX = 32 << 20;
const FILE = /^\[file (.+)\]\n([\s\S]*?)\n\[end of file \1\]$/m;

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
  const parts = files.map((file) => `[file ${file.name}]\n${file.text}\n[end of file ${file.name}]`);
  return [...parts, text.trim()].filter(Boolean).join("\n\n");
}

/** The parts of a content: `{text}` and `{name, text}`. */
export function partsOf(content) {
  const parts = [];
  let rest = content;
  for (let match = FILE.exec(rest); match; match = FILE.exec(rest)) {
    parts.push({ text: rest.slice(0, match.index).trim() }, { name: match[1], text: match[2] });
    rest = rest.slice(match.index + match[0].length);
  }
  parts.push({ text: rest.trim() });
  return parts.filter(({ name, text }) => name || text);
}

/** The draft that a content was made of. */
export function draftOfContent(content) {
  const parts = partsOf(content);
  const files = parts.filter(({ name }) => name);
  const text = parts.filter(({ name }) => !name).map((part) => part.text).join("\n\n");
  return { text, files, note: null };
}
