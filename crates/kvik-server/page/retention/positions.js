// The picture of what was kept: a row for each head of each layer, a column for each position, and the prompt below.
import { h, replace, setText, svg, uniqueId } from "../dom.js";
import { count, percent } from "../numbers.js";
import { headsOf, keepersInWords, outline, rowsOf } from "./kept.js";

/** `{element, render(state)}`. */
export function createPositions(actions) {
  const element = h("section", { class: "panel positions", "aria-label": "What was kept", hidden: true });
  let drawn = null;
  let look = () => {};
  const render = ({ result, position }) => {
    if (result !== drawn) {
      drawn = result;
      element.hidden = !result;
      look = result ? fill(element, result, actions) : () => {};
    }
    look(position);
  };
  return { element, render };
}

function fill(element, { text, retain, pieces }, actions) {
  const { positions } = retain ?? {};
  const answer = [h("h2", {}, "Answer"), h("p", { class: "retention-answer" }, text)];
  if (!positions) {
    replace(
      element,
      answer,
      h("p", { class: "quiet-text" }, retain ? "The server does not show positions." : "Everything was kept."),
    );
    return () => {};
  }
  const { grid, line } = drawGrid(positions, actions);
  const { prompt, spans } = drawPrompt(positions, pieces, actions);
  const { slider, label } = drawSlider(positions, actions);
  const says = h("p", { class: "position-says" });
  replace(
    element,
    answer,
    summary(retain),
    h("h2", {}, "Positions"),
    grid,
    label,
    slider,
    says,
    prompt,
    table(positions),
  );
  return (position) => {
    line.setAttribute("x", position);
    slider.value = position;
    prompt.querySelector(".looked-at")?.classList.remove("looked-at");
    spans[position]?.classList.add("looked-at");
    const piece = pieces[position] === undefined ? "" : ` “${pieces[position].trim() || "space"}”`;
    const words = `Position ${count(position)}${piece}: ${keepersInWords(positions, position)}.`;
    setText(says, words);
    slider.setAttribute("aria-valuetext", words);
  };
}

function summary(retain) {
  const { policy, tokens, share_kept: share, smallest_head: least, largest_head: most } = retain;
  const kept = `${policy} kept ${percent(share, 1)} of what ${count(tokens)} tokens store; `;
  return h("p", {}, kept, `a head kept ${count(least)} to ${count(most)} positions. `, lossInWords(retain));
}

function lossInWords({ measured, loss }) {
  if (measured === false || !loss) return "What this costs was not measured on this model.";
  const { mean_percent: mean, worst_percent: worst, worst_task: task } = loss;
  return `Measured loss: ${mean.toFixed(1)}% on average, ${worst.toFixed(1)}% in the worst task (${task}).`;
}

/** Outlines that the browser scales: one path a row, whatever the size, the theme or the zoom. */
function drawGrid(positions, actions) {
  const { tokens, kept } = positions;
  const line = svg("rect", { class: "cursor", y: 0, width: 1, height: kept.length });
  const rows = rowsOf(positions).map(({ ranges, layer }, at) =>
    svg("path", { class: layer % 2 ? "odd" : "even", d: outline(ranges, at) }),
  );
  const label = `${kept.length} rows, the heads of ${positions.layers} layers; ${tokens} columns, the positions`;
  const drawing = svg(
    "svg",
    { viewBox: `0 0 ${tokens} ${kept.length}`, preserveAspectRatio: "none", role: "img", "aria-label": label },
    rows,
    line,
  );
  const at = (event) => {
    const { left, width } = drawing.getBoundingClientRect();
    actions.look(Math.max(0, Math.min(tokens - 1, Math.floor(((event.clientX - left) / width) * tokens))));
  };
  drawing.addEventListener("pointermove", at);
  drawing.addEventListener("pointerdown", at);
  const grid = h(
    "div",
    { class: "grid", style: { "--grid-rows": kept.length } },
    h("span", { class: "grid-axis", "aria-hidden": "true" }, "layers ↓ positions →"),
    drawing,
  );
  return { grid, line };
}

/** The keys' way to a position. */
function drawSlider({ tokens }, actions) {
  const id = uniqueId("position");
  const slider = h("input", {
    id,
    type: "range",
    min: 0,
    max: tokens - 1,
    value: 0,
    oninput: () => actions.look(Number(slider.value)),
  });
  return { slider, label: h("label", { class: "hidden-text", for: id }, "Position") };
}

/** The prompt: the more heads keep a token, the stronger its ground; what no head keeps is struck through. */
function drawPrompt(positions, pieces, actions) {
  const heads = headsOf(positions);
  const all = positions.kept.length;
  const token = (piece, at) => {
    const share = (heads[at] ?? 0) / all;
    const name = share === 0 ? "token dropped" : "token";
    return h("span", { class: name, "data-at": at, style: { "--share": `${Math.round(share * 45)}%` } }, piece);
  };
  const spans = pieces.slice(0, positions.tokens).map(token);
  const prompt = h("p", { class: "prompt" }, spans);
  prompt.addEventListener("pointerover", ({ target }) => {
    if (target.dataset.at) actions.look(Number(target.dataset.at));
  });
  return { prompt, spans };
}

function table(positions) {
  const head = h(
    "tr",
    {},
    ["Layer", "Head", "Kept", "Share"].map((name) => h("th", { scope: "col" }, name)),
  );
  const row = ({ layer, head: at, count: kept }) =>
    h(
      "tr",
      {},
      [layer, at, count(kept), percent(kept, positions.tokens)].map((value) => h("td", {}, String(value))),
    );
  return h(
    "details",
    {},
    h("summary", {}, "As a table"),
    h("table", { class: "numbers" }, h("thead", {}, head), h("tbody", {}, rowsOf(positions).map(row))),
  );
}
