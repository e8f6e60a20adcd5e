// Where each part of the prefix tree is drawn: an icicle, in shares of the picture's length and in rows.
//
// A part is as long as its weight (the tokens of it and of all below it), and its children lie below it, heaviest
// first. What would be too narrow to see is folded into one box with what the server folded.

/** A box shorter than this share of the picture is folded: two pixels and a half of a thousand. */
export const NARROWEST = 1 / 400;

/**
 * The boxes of `tree` (`GET /v1/cache/tree`), row by row from the left:
 * `{id, node, folded, parent, from, size, row, position, siblings}`. A folded box has no node but
 * `folded: {nodes, tokens}`, and an id of its own.
 */
export function layout(tree, narrowest = NARROWEST) {
  const below = childrenOf(tree.nodes);
  const counts = countsOf(tree.nodes, below);
  const roots = below.get(null) ?? [];
  const total = Math.max(1, weightOf(roots), tree.under ? 0 : tree.tokens_total);
  const boxes = [];
  const place = (nodes, folded, parent, from, to, row) => {
    const wide = nodes.filter((node) => node.weight / total >= narrowest);
    const rest = fold(nodes.slice(wide.length), folded, counts);
    const siblings = wide.length + (rest.nodes > 0 ? 1 : 0);
    wide.forEach((node, at) => {
      const size = node.weight / total;
      boxes.push({ id: node.id, node, folded: null, parent, from, size, row, position: at + 1, siblings });
      place(below.get(node.id) ?? [], node.folded, node.id, from, from + size, row + 1);
      from += size;
    });
    if (rest.nodes === 0) return;
    const size = Math.min(to - from, Math.max(rest.tokens / total, narrowest));
    boxes.push({
      id: `${parent ?? ""}+`,
      node: null,
      folded: rest,
      parent,
      from,
      size,
      row,
      position: siblings,
      siblings,
    });
  };
  place(roots, outside(tree, roots, counts), null, 0, 1, 0);
  return boxes.sort((a, b) => a.row - b.row || a.from - b.from);
}

/** The children of each node, heaviest first; a node whose parent is not in the list is a root. */
function childrenOf(nodes) {
  const known = new Set(nodes.map((node) => node.id));
  const below = new Map();
  for (const node of nodes) {
    const parent = known.has(node.parent) ? node.parent : null;
    if (!below.has(parent)) below.set(parent, []);
    below.get(parent).push(node);
  }
  for (const children of below.values()) children.sort((a, b) => b.weight - a.weight);
  return below;
}

/** How many nodes each node stands for: itself, those below it, and those that the server folded. */
function countsOf(nodes, below) {
  const counts = new Map();
  // A parent comes before its children, so from the end each child is counted before its parent.
  for (const node of [...nodes].reverse()) {
    const children = below.get(node.id) ?? [];
    const parts = children.reduce((sum, child) => sum + counts.get(child.id), 0);
    counts.set(node.id, 1 + (node.folded?.nodes ?? 0) + parts);
  }
  return counts;
}

function fold(narrow, folded, counts) {
  return {
    nodes: (folded?.nodes ?? 0) + narrow.reduce((sum, node) => sum + counts.get(node.id), 0),
    tokens: (folded?.tokens ?? 0) + weightOf(narrow),
  };
}

/** What the server folded beside the roots. */
function outside(tree, roots, counts) {
  if (tree.under) return null;
  const shown = roots.reduce((sum, node) => sum + counts.get(node.id), 0);
  return { nodes: Math.max(0, tree.nodes_total - shown), tokens: Math.max(0, tree.tokens_total - weightOf(roots)) };
}

const weightOf = (nodes) => nodes.reduce((sum, node) => sum + node.weight, 0);
