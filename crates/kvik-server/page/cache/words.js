// What the parts of the cache are, in words.
import { count, plural } from "../numbers.js";

const TIERS = { ram: "RAM", disk: "disk", both: "RAM and disk", none: "on no tier" };

/** Where the tokens of a node are: "ram", "disk", "both" or "none". */
export function tierOf({ ram_tokens: ram, disk_tokens: disk }) {
  if (ram > 0) return disk > 0 ? "both" : "ram";
  return disk > 0 ? "disk" : "none";
}

export const tierInWords = (node) => TIERS[tierOf(node)];

/** 12.5 -> "12 s". */
export function span(seconds) {
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h`;
  return plural(Math.floor(seconds / 86_400), "day");
}

/** When a node was used last. */
export function useInWords(node) {
  if (node.in_use) return "in use now";
  if (node.age_s === null) return node.pinned ? "pinned" : "in use now";
  return `used ${span(node.age_s)} ago`;
}

/** What a screen reader says of a box of the picture. */
export function boxInWords({ node, folded }) {
  if (!node) return `${plural(folded.nodes, "part")} too small to draw, ${plural(folded.tokens, "token")}`;
  const parts = [
    `${plural(node.tokens, "token")} after ${count(node.start)}`,
    node.weight > node.tokens && `${count(node.weight)} with all that continue it`,
    tierInWords(node),
    useInWords(node),
    plural(node.reuses, "reuse"),
    node.pinned && node.age_s !== null && "pinned",
    node.tenant && `tenant ${node.tenant}`,
  ];
  return parts.filter(Boolean).join(", ");
}

/** The beginning of a node's text, or null where it is not known; a node that was split has another one than before. */
export function nameOf(texts, { id, start, tokens }) {
  const known = texts[id];
  return known && known.start === start && known.tokens === tokens ? known.text : null;
}

/** A text as one short line, without control tokens of the template. */
export function oneLine(text, most = 80) {
  const line = text
    .replace(/<\|[^|<>]{1,40}\|>/g, " ")
    .replace(/\s+/g, " ")
    .trim();
  const characters = [...line];
  return characters.length > most ? `${characters.slice(0, most).join("")}…` : line;
}
