// What is inside a paragraph, as data: texts, emphasis, code, maths, links. Every scan is bounded, so that a text made
// to be slow is not.

const LABEL_MAX = 300;
const URL_MAX = 2000;
const OPEN_MAX = 32;
const SCHEMES = ["http:", "https:", "mailto:"];
/** Ends at quotes and at the punctuation of East Asia too, behind which no blank follows. */
const BARE_URL = /https?:\/\/[^\s<>"'`\u2018-\u201f\u3000-\u303f\uff01-\uff0f\uff1a-\uff20\uff3b-\uff65]{1,2000}/y;
const PUNCTUATION = /[!-/:-@[-`{-~]/;
const WORD = /[\p{L}\p{M}\p{N}_]/u;

/** The parts of a text: strings, and `{type, children | text, url}`. */
export function parseInline(text, { links = true } = {}) {
  const frames = [{ mark: "", children: [] }];
  const failed = new Set(); // closing marks that do not occur any more
  const put = (part) => frames.at(-1).children.push(part);
  let plain = 0;
  let at = 0;
  const flush = () => plain < at && put(text.slice(plain, at));
  while (at < text.length) {
    const found = readPart(text, at, links, failed);
    const mark = found ? null : emphasisMark(text, at, frames.at(-1).mark);
    if (!found && !mark) {
      at += 1;
      continue;
    }
    flush();
    if (found) put(found.part);
    else toggle(frames, mark, text, at);
    at += found ? found.length : mark.length;
    plain = at;
  }
  flush();
  while (frames.length > 1) giveUp(frames);
  return joined(frames[0].children);
}

/** The address if a link may lead there, else null. */
export function safeUrl(address) {
  try {
    const url = new URL(address);
    return SCHEMES.includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

function readPart(text, at, links, failed) {
  switch (text[at]) {
    case "\\":
      return escape(text, at, failed);
    case "`":
      return code(text, at, failed);
    case "$":
      return dollars(text, at, failed);
    case "\n":
      return { part: { type: "break" }, length: 1 };
    case "[":
      return links ? link(text, at) : null;
    case "!":
      return links && text[at + 1] === "[" ? image(text, at) : null;
    case "<":
      return links ? bracketed(text, at) : null;
    case "h":
      // A letter that is not Latin may stand right before an address.
      return links && !/\w/.test(text[at - 1] ?? " ") ? bare(text, at) : null;
    default:
      return null;
  }
}

function escape(text, at, failed) {
  if (text[at + 1] === "(") return between(text, at, "\\(", "\\)", "math", failed);
  if (text[at + 1] === "[") return between(text, at, "\\[", "\\]", "math", failed);
  return PUNCTUATION.test(text[at + 1] ?? "") ? { part: text[at + 1], length: 2 } : null;
}

function code(text, at, failed) {
  const mark = /^`+/.exec(text.slice(at, at + 32))[0];
  const found = between(text, at, mark, mark, "code", failed);
  // Ticks that open nothing are text, all of them together.
  return found ?? { part: mark, length: mark.length };
}

function dollars(text, at, failed) {
  if (text[at + 1] === "$") return between(text, at, "$$", "$$", "math", failed);
  if (/\s/.test(text[at + 1] ?? " ")) return null; // "$ 5"
  const found = between(text, at, "$", "$", "math", failed);
  if (!found || /\n|^$|\s$/.test(found.part.text) || /\d/.test(text[at + found.length] ?? "")) return null; // "$5 or $6"
  return found;
}

function between(text, at, opening, closing, type, failed) {
  if (failed.has(closing)) return null;
  const from = at + opening.length;
  const end = text.indexOf(closing, from);
  if (end < 0) {
    failed.add(closing);
    return null;
  }
  const inner = text.slice(from, end);
  return { part: { type, text: type === "code" ? codeText(inner) : inner }, length: end + closing.length - at };
}

/** The text of a code span, without the space on each side that keeps it from its ticks. */
function codeText(inner) {
  const line = inner.replaceAll("\n", " ");
  const padded = line.startsWith(" ") && line.endsWith(" ") && line.trim() !== "";
  return padded ? line.slice(1, -1) : line;
}

function link(text, at) {
  const parsed = labelAndUrl(text, at);
  if (!parsed) return null;
  const children = parseInline(parsed.label, { links: false });
  return { part: { type: "link", url: parsed.url, children }, length: parsed.length };
}

/** An image is a link to it: the page asks no other server for anything. */
function image(text, at) {
  const parsed = labelAndUrl(text, at + 1);
  if (!parsed) return null;
  const children = [`Image: ${parsed.label || parsed.url}`];
  return { part: { type: "link", url: parsed.url, children }, length: parsed.length + 1 };
}

function labelAndUrl(text, at) {
  const end = closingBracket(text, at);
  if (end < 0 || text[end + 1] !== "(") return null;
  const target = balanced(text.slice(end + 1, end + 1 + URL_MAX));
  const match = /^<?([^\s<>]*)>?(?:\s+(?:"[^"\n]*"|'[^'\n]*'))?$/.exec(target.slice(1, -1).trim());
  const url = match && safeUrl(match[1]);
  return url ? { label: text.slice(at + 1, end), url, length: end + 1 + target.length - at } : null;
}

function closingBracket(text, at) {
  let depth = 0;
  for (let end = at; end < Math.min(text.length, at + LABEL_MAX); end += 1) {
    if (text[end] === "\\") end += 1;
    else if (text[end] === "[") depth += 1;
    else if (text[end] === "]" && (depth -= 1) === 0) return end;
  }
  return -1;
}

/** A text up to the parenthesis that closes its first one. */
function balanced(text) {
  let depth = 0;
  for (let end = 0; end < text.length; end += 1) {
    if (text[end] === "(") depth += 1;
    if (text[end] === ")" && (depth -= 1) === 0) return text.slice(0, end + 1);
    if (text[end] === "\n") break;
  }
  return "";
}

function bracketed(text, at) {
  const match = /^<((?:https?:\/\/|mailto:)[^\s<>]+)>/i.exec(text.slice(at, at + URL_MAX));
  const url = match && safeUrl(match[1]);
  return url ? { part: { type: "link", url, children: [match[1]] }, length: match[0].length } : null;
}

function bare(text, at) {
  BARE_URL.lastIndex = at;
  const match = BARE_URL.exec(text);
  if (!match) return null;
  // A sentence's own end is not part of the address, nor a parenthesis that was opened before it.
  let address = withoutEnd(match[0], ".,;:!?*_~]");
  if (address.endsWith(")") && !address.includes("(")) address = withoutEnd(address, ").,;:!?");
  const url = safeUrl(address);
  return url ? { part: { type: "link", url, children: [address] }, length: address.length } : null;
}

/** A text without those of these characters that it ends with. */
function withoutEnd(text, characters) {
  let end = text.length;
  while (end > 0 && characters.includes(text[end - 1])) end -= 1;
  return text.slice(0, end);
}

const EMPHASIS = { "**": "strong", __: "strong", "*": "emphasis", _: "emphasis", "~~": "struck" };

function emphasisMark(text, at, open) {
  const two = text.slice(at, at + 2);
  // "***" closes what was opened last, first.
  if (open.length === 1 && text.slice(at, at + 3) === open.repeat(3)) return open;
  if (two in EMPHASIS) return two;
  return "*_".includes(text[at]) ? text[at] : null;
}

/** Opens or closes an emphasis; a mark that can do neither is text. */
function toggle(frames, mark, text, at) {
  const before = text[at - 1] ?? " ";
  const after = text[at + mark.length] ?? " ";
  const word = mark[0] === "_"; // snake_case is no emphasis
  const closes = !/\s/.test(before) && !(word && WORD.test(after));
  const opens = !/\s/.test(after) && !(word && WORD.test(before)) && frames.length < OPEN_MAX;
  const opener = frames.findLastIndex((frame) => frame.mark === mark);
  if (closes && opener > 0) {
    while (frames.length > opener + 1) giveUp(frames);
    const { children } = frames.pop();
    frames.at(-1).children.push({ type: EMPHASIS[mark], children: joined(children) });
  } else if (opens) {
    frames.push({ mark, children: [] });
  } else {
    frames.at(-1).children.push(mark);
  }
}

/** An emphasis that is never closed is its mark and what follows. */
function giveUp(frames) {
  const { mark, children } = frames.pop();
  frames.at(-1).children.push(mark, ...children);
}

function joined(parts) {
  const merged = [];
  for (const part of parts) {
    if (typeof part === "string" && typeof merged.at(-1) === "string") merged.push(merged.pop() + part);
    else merged.push(part);
  }
  return merged;
}
