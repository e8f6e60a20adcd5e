// From one box of the picture to the next: where an arrow key leads.

/** The box that `direction` leads to from the box `id`, or that box itself at an edge. */
export function neighbour(boxes, id, direction) {
  const here = boxes.find((box) => box.id === id) ?? boxes[0];
  return STEPS[direction](boxes, here) ?? here;
}

const STEPS = {
  below: (boxes, here) => boxes.find((box) => box.parent === here.id && here.node),
  above: (boxes, here) => boxes.find((box) => box.id === here.parent),
  before: (boxes, here) => row(boxes, here).findLast((box) => box.from < here.from),
  after: (boxes, here) => row(boxes, here).find((box) => box.from > here.from),
  first: (boxes, here) => row(boxes, here)[0],
  last: (boxes, here) => row(boxes, here).at(-1),
};

const row = (boxes, here) => boxes.filter((box) => box.row === here.row);

const KEYS = {
  ArrowDown: "below",
  ArrowUp: "above",
  ArrowLeft: "before",
  ArrowRight: "after",
  Home: "first",
  End: "last",
};
// On a narrow screen the picture is turned: rows become columns.
const TURNED = {
  ArrowRight: "below",
  ArrowLeft: "above",
  ArrowUp: "before",
  ArrowDown: "after",
  Home: "first",
  End: "last",
};

/** The direction of a key, or undefined. */
export const directionOf = (key, turned) => (turned ? TURNED : KEYS)[key];
