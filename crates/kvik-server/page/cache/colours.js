// By what the boxes of the picture are coloured. Every colour has a word, in the legend and in the box.
import { span, tierOf } from "./words.js";

const TIERS = { ram: "RAM", disk: "Disk", both: "RAM and disk", none: "Neither" };
const AGES = [60, 600, 3600];
const TENANTS_MOST = 6;

/** The choices, for a select. */
export const CHOICES = [
  { value: "tier", text: "Tier" },
  { value: "age", text: "Last use" },
  { value: "tenant", text: "Tenant" },
];

/** `{kind, word}` for each node, by the choice; `kind` is the name of a style. */
export function colouring(choice, nodes) {
  if (choice === "age") return ageOf;
  if (choice === "tenant") return tenantOf(nodes);
  return (node) => ({ kind: tierOf(node), word: TIERS[tierOf(node)] });
}

/** Those kinds that occur, in a fixed order. */
export function legend(colour, nodes) {
  const found = new Map(nodes.map((node) => colour(node)).map((entry) => [entry.kind, entry]));
  return [...found.values()].sort((a, b) => order(a.kind) - order(b.kind));
}

const ORDER = ["ram", "both", "disk", "none", "now", "age-0", "age-1", "age-2", "age-3", "held"];
const order = (kind) => (ORDER.includes(kind) ? ORDER.indexOf(kind) : ORDER.length + Number(kind.split("-")[1] ?? 99));

function ageOf(node) {
  if (node.in_use) return { kind: "now", word: "In use" };
  if (node.age_s === null) return { kind: "held", word: "Pinned" };
  const at = AGES.findIndex((most) => node.age_s < most);
  if (at < 0) return { kind: `age-${AGES.length}`, word: `${span(AGES.at(-1))} or older` };
  return { kind: `age-${at}`, word: `Under ${span(AGES[at])}` };
}

/** The tenants with most tokens have colours of their own. */
function tenantOf(nodes) {
  const tokens = new Map();
  for (const { tenant, tokens: own } of nodes) tokens.set(tenant, (tokens.get(tenant) ?? 0) + own);
  const largest = [...tokens]
    .sort((a, b) => b[1] - a[1])
    .slice(0, TENANTS_MOST)
    .map(([tenant]) => tenant);
  return ({ tenant }) => {
    const at = largest.indexOf(tenant);
    if (at < 0) return { kind: "others", word: "Others" };
    return { kind: `tenant-${at}`, word: tenant ?? "You" };
  };
}
