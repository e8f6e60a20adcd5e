// The retention policies that can be chosen, and what each goes by (docs/retention.md).
export const POLICIES = [
  { name: "keydiff", text: "keys least like the mean key" },
  { name: "knorm", text: "keys of the smallest norm" },
  { name: "knorm,order=large", text: "keys of the largest norm" },
  { name: "vnorm", text: "values of the largest norm" },
  { name: "snapkv", text: "what the last rows attend to" },
  { name: "h2o", text: "what was attended to most since the beginning" },
  { name: "scissorhands", text: "what stayed important through a window" },
  { name: "window", text: "what was attended to most in a window" },
  { name: "decay", text: "what was attended to, recent rows first" },
  { name: "expected", text: "what queries to come will attend to" },
  { name: "kvzip", text: "what is needed to repeat the prompt" },
  { name: "gated", text: "what trained gates expect to be needed" },
  { name: "sinks", text: "the first positions and the latest" },
  { name: "sample", text: "an evenly thinned middle" },
  { name: "random", text: "positions at random" },
];

export const BUDGETS = [
  { value: "head", text: "the same for each head" },
  { value: "layer", text: "one for each layer" },
  { value: "all", text: "one for the whole cache" },
  { value: "pyramid", text: "more for early layers" },
  { value: "calibrated", text: "by calibrated heads" },
];

/** "knorm,order=large" with a share of 0.3 -> the policy as a request says it, "knorm:0.3,order=large,budget=all". */
export function policyText({ policy, keep, budget }) {
  const [name, ...options] = policy.split(",");
  return [`${name}:${keep}`, ...options, `budget=${budget}`].join(",");
}

/** A measured policy without its share: "knorm:0.3,order=large" -> "knorm,order=large". */
export const family = (text) => text.replace(/:[^,]*/, "");

/** The measured points of each family, by what they keep. */
export function families(measured) {
  const groups = Map.groupBy(measured, ({ policy, kv }) => `${family(policy)} (${kv})`);
  return [...groups].map(([name, points]) => ({
    name,
    points: points.toSorted((a, b) => a.share_kept - b.share_kept),
  }));
}
