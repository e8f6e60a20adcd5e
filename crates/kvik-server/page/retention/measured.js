// What was measured of this model: the share that a policy keeps against what it loses.
import { h, replace, svg } from "../dom.js";
import { count, percent } from "../numbers.js";
import { families, family } from "./policies.js";

const WIDTH = 100;
const HEIGHT = 60;

/** `{element, render(state)}`. */
export function createMeasured() {
  const body = h("div", { class: "measured-body" });
  const element = h(
    "section",
    { class: "panel measured", "aria-label": "Measured loss" },
    h("h2", {}, "What policies lose on this model"),
    body,
  );
  let drawn = [];
  const render = ({ measured, policy }) => {
    if (drawn[0] === measured && drawn[1] === policy) return;
    drawn = [measured, policy];
    replace(body, contents(measured, policy));
  };
  return { element, render };
}

function contents(measured, policy) {
  if (measured === null) return h("p", { class: "quiet-text" }, "Reading …");
  if (measured.length === 0)
    return h(
      "p",
      {},
      "Nothing was measured on this model yet. ",
      h("code", {}, "kvik eval"),
      " measures it and keeps the result for this page.",
    );
  const groups = families(measured);
  return [chart(groups, policy, highestLoss(measured)), table(groups, policy)];
}

const highestLoss = (measured) => Math.max(1, ...measured.map(({ worst_percent: worst }) => worst));
const isChosen = ({ points }, policy) => family(points[0].policy).split(",")[0] === policy.split(",")[0];

/** All policies in grey, the chosen one in colour: twenty colours could not be told apart. */
function chart(groups, policy, highest) {
  const chosen = groups.filter((group) => isChosen(group, policy));
  const others = groups.filter((group) => !isChosen(group, policy));
  const drawing = svg(
    "svg",
    {
      class: "loss",
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
      preserveAspectRatio: "none",
      role: "img",
      "aria-label": "Loss by share kept; the table has the same numbers",
    },
    [0, 0.25, 0.5, 0.75, 1].map((part) =>
      svg("line", { class: "gridline", x1: 0, x2: WIDTH, y1: part * HEIGHT, y2: part * HEIGHT }),
    ),
    others.map((group) => curve(group, "mean_percent", "other", highest)),
    chosen.map((group) => [
      curve(group, "worst_percent", "worst", highest),
      curve(group, "mean_percent", "mean", highest),
    ]),
  );
  const key = [
    chosen.length > 0
      ? [
          h("span", { class: "loss-key mean" }, `${policy.split(",")[0]}, mean`),
          h("span", { class: "loss-key worst" }, "worst task"),
        ]
      : h("span", {}, `${policy} was not measured`),
    h("span", { class: "loss-key other" }, "other policies, mean"),
  ];
  return h(
    "figure",
    { class: "loss-figure" },
    h("figcaption", { class: "loss-keys" }, key),
    h("div", { class: "loss-plot" }, h("span", { class: "loss-top" }, `${count(highest)}% lost`), drawing),
    h(
      "div",
      { class: "loss-scale", "aria-hidden": "true" },
      h("span", {}, "nothing kept"),
      h("span", {}, "half"),
      h("span", {}, "everything kept"),
    ),
  );
}

/** A line through the points of a policy; a short stroke where it has one point only. */
function curve({ points }, field, kind, highest) {
  const place = (point) =>
    `${(point.share_kept * WIDTH).toFixed(1)} ${(HEIGHT - (Math.max(0, point[field]) / highest) * HEIGHT).toFixed(1)}`;
  const [first, ...rest] = points.map(place);
  return svg("path", {
    class: `loss-line ${kind}`,
    d: `M${first}${rest.map((at) => `L${at}`).join("")}${rest.length > 0 ? "" : "h1.5"}`,
    "vector-effect": "non-scaling-stroke",
  });
}

function table(groups, policy) {
  const head = h(
    "tr",
    {},
    ["Policy", "KV", "Kept", "Mean loss", "Worst loss", "Worst task", "Cases"].map((name) =>
      h("th", { scope: "col" }, name),
    ),
  );
  const row = (point, chosen) =>
    h(
      "tr",
      { class: chosen ? "chosen" : null },
      h("th", { scope: "row" }, family(point.policy)),
      [
        point.kv,
        percent(point.share_kept, 1),
        loss(point.mean_percent),
        loss(point.worst_percent),
        point.worst_task,
        count(point.cases),
      ].map((value) => h("td", {}, value)),
    );
  const rows = groups
    .toSorted((a, b) => Number(isChosen(b, policy)) - Number(isChosen(a, policy)))
    .flatMap((group) => group.points.map((point) => row(point, isChosen(group, policy))));
  return h(
    "div",
    { class: "table-scroll", tabindex: 0, role: "region", "aria-label": "Measured losses" },
    h("table", { class: "numbers" }, h("thead", {}, head), h("tbody", {}, rows)),
  );
}

const loss = (number) => `${number.toFixed(1)}%`;
