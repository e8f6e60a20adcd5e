// Which positions were kept: pure functions of `kvik.retain.positions` ({layers, heads, tokens, kept}).
// `kept` has an entry for each head of each layer, layer by layer: ranges [from, to) in order.

/** Whether `ranges` hold a position. */
export const holds = (ranges, position) => ranges.some(([from, to]) => from <= position && position < to);

export const countOf = (ranges) => ranges.reduce((sum, [from, to]) => sum + to - from, 0);

/** For each position, by how many heads of all layers it was kept. */
export function headsOf({ tokens, kept }) {
  // Only the borders of ranges are visited, then summed up: a long prompt has few ranges for its length.
  const change = new Array(tokens + 1).fill(0);
  for (const ranges of kept) {
    for (const [from, to] of ranges) {
      change[from] += 1;
      change[to] -= 1;
    }
  }
  let heads = 0;
  return change.slice(0, tokens).map((step) => (heads += step));
}

/** `{layer, head, ranges, count}` for each row of the picture. */
export function rowsOf({ heads, kept }) {
  return kept.map((ranges, at) => ({
    layer: Math.floor(at / heads),
    head: at % heads,
    ranges,
    count: countOf(ranges),
  }));
}

/** The rows as outlines for one SVG path each, in units of a position and a row. */
export const outline = (ranges, row) =>
  ranges.map(([from, to]) => `M${from} ${row}h${to - from}v0.85h${from - to}z`).join("");

/** "2, 3, 5 to 8" */
export function numbersInWords(numbers) {
  const runs = [];
  for (const number of numbers) {
    const last = runs.at(-1);
    if (last && last[1] === number - 1) last[1] = number;
    else runs.push([number, number]);
  }
  return runs.map(([from, to]) => (from === to ? `${from}` : `${from} to ${to}`)).join(", ");
}

/** Who keeps a position: "5 of 12 heads: layer 0 head 1; layer 3 heads 0 to 1". */
export function keepersInWords(positions, position) {
  const keepers = rowsOf(positions).filter(({ ranges }) => holds(ranges, position));
  const all = positions.kept.length;
  if (keepers.length === 0) return `dropped by all ${all} heads`;
  if (keepers.length === all) return `kept by all ${all} heads`;
  const layers = Map.groupBy(keepers, ({ layer }) => layer);
  const each = [...layers].map(
    ([layer, rows]) =>
      `layer ${layer} head${rows.length > 1 ? "s" : ""} ${numbersInWords(rows.map(({ head }) => head))}`,
  );
  return `kept by ${keepers.length} of ${all} heads: ${each.join("; ")}`;
}
