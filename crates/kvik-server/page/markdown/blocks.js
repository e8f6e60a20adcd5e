// Markdown to blocks, as data. Each block has `start`, its place in the text, so that a text that grows is parsed
// from its last block on: what is before it stays as it is. Raw HTML has no meaning here. Each pattern has one way to read
// a line, so that a line made to be slow is not.

const DEPTH_MAX = 12;
const FENCE = /^ {0,3}(`{3,}|~{3,})/;
const HEADING = /^ {0,3}(#{1,6})\s+/;
const CLOSING_MARKS = /(?:^|\s)#+$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}>\s?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])( +|$)/;
const DELIMITER = /^:?-+:?$/;
// Short rows are filled up to the width of the head: a few kilobytes could be millions of cells.
const CELLS_MAX = 20_000;
const MATH = { "$$": "$$", "\\[": "\\]" };

/** The blocks of a text: `{type, start, ...}`. */
export function parseBlocks(text, depth = 0) {
  const lines = text.replaceAll("\r\n", "\n").split("\n");
  const starts = lineStarts(lines);
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (lines[at].trim() === "") {
      at += 1;
      continue;
    }
    const { block, next } = blockAt(lines, at, depth);
    blocks.push({ ...block, start: starts[at] });
    at = next;
  }
  return blocks;
}

function lineStarts(lines) {
  let start = 0;
  return lines.map((line) => {
    const here = start;
    start += line.length + 1;
    return here;
  });
}

function blockAt(lines, at, depth) {
  const readers = [fence, math, heading, rule, table];
  if (depth < DEPTH_MAX) readers.push(quote, list);
  for (const read of readers) {
    const found = read(lines, at, depth);
    if (found) return found;
  }
  return paragraph(lines, at, depth);
}

function fence(lines, at) {
  const opening = fenceOf(lines[at]);
  if (!opening) return null;
  const { mark, language } = opening;
  const closing = new RegExp(`^ {0,3}${mark[0]}{${mark.length},}\\s*$`);
  const end = lineWhere(lines, at + 1, (line) => closing.test(line));
  const text = lines.slice(at + 1, end).join("\n");
  return { block: { type: "code", language, text }, next: end + 1 };
}

/** The mark that opens code, and the first word behind it; null for a line with ticks further on. */
function fenceOf(line) {
  const match = FENCE.exec(line);
  const rest = match && line.slice(match[0].length);
  if (!match || rest.includes("`")) return null;
  return { mark: match[1], language: rest.trimStart().split(/\s/, 1)[0] };
}

function math(lines, at) {
  const line = lines[at].trim();
  const opening = Object.keys(MATH).find((mark) => line.startsWith(mark));
  if (!opening) return null;
  const closing = MATH[opening];
  if (line.length > 3 && line.indexOf(closing, 2) === line.length - 2) {
    return { block: { type: "math", text: line.slice(2, -2).trim() }, next: at + 1 };
  }
  if (line !== opening) return null;
  const end = lineWhere(lines, at + 1, (other) => other.trim() === closing);
  return { block: { type: "math", text: lines.slice(at + 1, end).join("\n") }, next: end + 1 };
}

function heading(lines, at) {
  const match = HEADING.exec(lines[at]);
  if (!match) return null;
  // Marks at the end close the heading; "C#" is a name.
  const text = lines[at].slice(match[0].length).trimEnd().replace(CLOSING_MARKS, "").trimEnd();
  return { block: { type: "heading", level: match[1].length, text }, next: at + 1 };
}

function rule(lines, at) {
  return RULE.test(lines[at]) ? { block: { type: "rule" }, next: at + 1 } : null;
}

function quote(lines, at, depth) {
  if (!QUOTE.test(lines[at])) return null;
  const end = lineWhere(lines, at, (line) => !QUOTE.test(line));
  const inner = lines.slice(at, end).map((line) => line.replace(QUOTE, ""));
  return { block: { type: "quote", blocks: parseBlocks(inner.join("\n"), depth + 1) }, next: end };
}

/** Items of one kind; what is indented as the text of an item belongs to it, as does a line that merely goes on. */
function list(lines, at, depth) {
  const first = ITEM.exec(lines[at]);
  if (!first || first[1].length > 3) return null;
  const ordered = /\d/.test(first[2]);
  const items = [];
  while (at < lines.length) {
    const match = itemOf(lines[at], first[1].length, ordered);
    if (!match) break;
    const end = itemEnd(lines, at + 1, match.indent);
    const inner = [lines[at].slice(match.width), ...lines.slice(at + 1, end).map((line) => outdent(line, match.width))];
    items.push(parseBlocks(inner.join("\n"), depth + 1));
    at = lineWhere(lines, end, (line) => line.trim() !== "");
    // Blank lines at the end belong to nobody, unless another item follows them.
    if (at >= lines.length || !itemOf(lines[at], first[1].length, ordered)) {
      at = end;
      break;
    }
  }
  return { block: { type: "list", ordered, from: ordered ? parseInt(first[2], 10) : 1, items }, next: at };
}

function itemOf(line, indent, ordered) {
  const match = ITEM.exec(line);
  if (!match || match[1].length > indent + 1 || /\d/.test(match[2]) !== ordered || RULE.test(line)) return null;
  return { width: match[0].length, indent: match[1].length + 2 };
}

function itemEnd(lines, at, indent) {
  return lineWhere(lines, at, (line, place) => {
    if (line.trim() === "") return !(indentOf(lines[place + 1] ?? "") >= indent);
    return indentOf(line) < indent && (lines[place - 1].trim() === "" || ITEM.test(line) || startsBlock(lines, place));
  });
}

const indentOf = (line) => (line.trim() === "" ? -1 : line.length - line.trimStart().length);
const outdent = (line, indent) => line.slice(Math.min(indent, Math.max(0, indentOf(line))));

function table(lines, at) {
  if (!lines[at].includes("|") || !lines[at + 1]?.includes("-")) return null;
  const delimiters = cells(lines[at + 1]);
  if (!delimiters.every((cell) => DELIMITER.test(cell))) return null;
  const head = cells(lines[at]);
  const aligns = delimiters.map(alignment);
  if (head.length !== aligns.length) return null;
  const end = lineWhere(lines, at + 2, (line) => line.trim() === "" || !line.includes("|"));
  if (head.length * (end - at) > CELLS_MAX) return null;
  const rows = lines.slice(at + 2, end).map((line) => fitted(cells(line), head.length));
  return { block: { type: "table", head, aligns, rows }, next: end };
}

function cells(line) {
  const inner = line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "");
  return inner.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

const fitted = (row, width) => Array.from({ length: width }, (_, column) => row[column] ?? "");

function alignment(cell) {
  if (cell.endsWith(":")) return cell.startsWith(":") ? "center" : "right";
  return cell.startsWith(":") ? "left" : "start";
}

function paragraph(lines, at, depth) {
  const end = lineWhere(lines, at + 1, (line, place) => line.trim() === "" || (depth < DEPTH_MAX && startsBlock(lines, place)));
  return { block: { type: "paragraph", text: lines.slice(at, end).map((line) => line.trim()).join("\n") }, next: end };
}

/** Whether a line ends a paragraph by beginning something else. */
function startsBlock(lines, at) {
  const line = lines[at];
  const item = ITEM.exec(line);
  return (
    [HEADING, RULE, QUOTE].some((pattern) => pattern.test(line)) ||
    fenceOf(line) !== null ||
    // "1986. A good year" in the middle of a paragraph is no list.
    (item !== null && item[3] !== "" && (!/\d/.test(item[2]) || parseInt(item[2], 10) === 1)) ||
    table(lines, at) !== null ||
    line.trim() === "$$" ||
    line.trim() === "\\["
  );
}

function lineWhere(lines, from, holds) {
  let at = from;
  while (at < lines.length && !holds(lines[at], at)) at += 1;
  return at;
}
