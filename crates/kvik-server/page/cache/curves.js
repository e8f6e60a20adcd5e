// The live curves: one small chart a subject, the last five minutes, with the numbers of now in words.
import { h, replace, svg } from "../dom.js";
import { bytes, count, percent, rate } from "../numbers.js";
import { curves, eachSecond } from "./rates.js";
import { SAMPLES_MOST } from "./state.js";
import { span } from "./words.js";

const FORMATS = { rate, share: (share) => percent(share, 1), bytes, count };
/** Seconds in the picture while there are fewer. */
const WIDTH_LEAST = 60;
const HEIGHT = 60;

/** `{element, render(cache)}`. */
export function createCurves() {
  const body = h("div", { class: "curves" });
  const word = h("p", { class: "quiet-text", role: "status" });
  const element = h("section", { "aria-label": "Live numbers" }, h("h2", {}, "Now"), word, body);
  let drawn = null;
  const render = ({ samples, slow, statsError }) => {
    if (samples === drawn) return;
    drawn = samples;
    const text = statsError ?? scopeInWords(samples.findLast(Boolean), slow);
    if (word.textContent !== text) word.textContent = text;
    word.className = statsError ? "error-text" : "quiet-text";
    replace(body, curves(eachSecond(samples, SAMPLES_MOST)).map(chart));
  };
  return { element, render };
}

function scopeInWords(stats, slow) {
  if (!stats) return "Reading …";
  const scope =
    stats.scope === "server"
      ? "Of the whole server, the last five minutes."
      : "Of your requests, the last five minutes. Queue and tiers are left out: they would tell of other tenants.";
  return slow ? `${scope} This key may send few requests, so they are read less often than each second.` : scope;
}

function chart({ title, unit, top = 0, capacity = null, lines }) {
  const format = FORMATS[unit];
  const width = Math.max(WIDTH_LEAST, lines[0].values.length);
  const highest = Math.max(top, ...lines.flatMap(({ values }) => values.map((value) => value ?? 0))) || 1;
  const drawing = {
    class: "chart",
    viewBox: `0 0 ${width} ${HEIGHT}`,
    preserveAspectRatio: "none",
    "aria-hidden": "true",
  };
  return h(
    "figure",
    { class: "curve" },
    h("figcaption", {}, h("h3", {}, title), numbers(lines, format, capacity)),
    svg(
      "svg",
      drawing,
      svg("line", { class: "axis", x1: 0, x2: width, y1: HEIGHT, y2: HEIGHT }),
      lines.map((line) => path(line, width, highest)),
    ),
    h(
      "div",
      { class: "scale", "aria-hidden": "true" },
      h("span", {}, `${span(width)} ago`),
      h("span", {}, `top ${format(highest)}`),
      h("span", {}, "now"),
    ),
  );
}

/** What the curve says now, and at most: the same for eyes and for screen readers. */
function numbers(lines, format, capacity) {
  const say = (value) => (value === null || value === undefined ? "–" : format(value));
  const row = ({ name, kind, values }) =>
    h(
      "tr",
      {},
      h("th", { scope: "row", class: "line-key", "data-kind": kind }, name),
      h("td", {}, say(values.at(-1))),
      h("td", {}, say(highestOf(values))),
    );
  const full =
    capacity === null
      ? null
      : h("tr", {}, h("th", { scope: "row" }, "Capacity"), h("td", {}, format(capacity)), h("td", {}, ""));
  const head = h("tr", {}, h("td", {}), h("th", { scope: "col" }, "now"), h("th", { scope: "col" }, "highest"));
  return h("table", { class: "numbers" }, h("thead", {}, head), h("tbody", {}, lines.map(row), full));
}

function highestOf(values) {
  const known = values.filter((value) => value !== null);
  return known.length > 0 ? Math.max(...known) : null;
}

/** A line that ends at the right edge and has a gap where nothing is known. */
function path({ kind, values }, width, highest) {
  return svg("path", {
    class: "line",
    "data-kind": kind,
    d: pathData(values, width, highest),
    "vector-effect": "non-scaling-stroke",
  });
}

export function pathData(values, width, highest) {
  let pen = "M";
  let data = "";
  values.forEach((value, at) => {
    if (value === null) {
      pen = "M";
      return;
    }
    const x = width - (values.length - 1 - at);
    data += `${pen}${x} ${(HEIGHT - 1 - (value / highest) * (HEIGHT - 2)).toFixed(1)}`;
    pen = "L";
  });
  return data;
}
