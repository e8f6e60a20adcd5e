// The strip below an answer: how much of its prompt came from each tier of the cache, what was computed, how long it
// took, and why it was not faster.
import { h } from "../dom.js";
import { count, duration, percent, plural, rate } from "../numbers.js";
import { reasonSentence } from "../reasons.js";

/** The strip of a report; nothing where there is none, as for answers of another day. It has a model where there is a choice. */
export function stripElement(report) {
  if (!report?.cache) return null;
  const sources = sourcesOf(report.cache);
  return h("div", { class: "strip" }, report.loop && h("p", { class: "quiet-text" }, LOOP), bar(sources, report.cache), h("p", { class: "figures" }, figures(report, sources)), why(report));
}

const LOOP = "The answer repeated itself, and was ended. The settings of the conversation let such answers go on.";

/** The tokens of the prompt by where they came from. Of some tiers a server says nothing, unless they had some. */
export function sourcesOf({ prompt_tokens: prompt, cached_tokens: cached, by_tier: { ram, host, disk, remote } }) {
  return [
    { name: "ram", tokens: ram, words: "from RAM" },
    { name: "host", tokens: host, words: "from the host's memory" },
    { name: "disk", tokens: disk, words: "from disk" },
    { name: "remote", tokens: remote, words: "from the shared store" },
    { name: "computed", tokens: prompt - cached, words: "computed" },
  ].filter(({ tokens }) => tokens !== undefined);
}

function bar(sources, { prompt_tokens: prompt, cached_tokens: cached }) {
  const label = `${percent(cached, prompt)} of ${plural(prompt, "prompt token")} reused`;
  const parts = sources.filter(({ tokens }) => tokens > 0);
  return h(
    "div",
    { class: "bar", role: "img", "aria-label": label },
    parts.map(({ name, tokens }) => h("span", { class: name, style: { "flex-grow": tokens } })),
  );
}

function figures({ model, cache, timings, firstMs }, sources) {
  const figure = (value, words, key) => h("span", { class: "figure" }, key && h("i", { class: `key ${key}` }), h("b", { class: "number" }, value), ` ${words}`);
  return [
    model && h("span", { class: "figure model" }, h("b", {}, model)),
    figure(count(cache.prompt_tokens), "prompt tokens"),
    sources.map(({ name, tokens, words }) => figure(count(tokens), words, name)),
    firstMs !== null && figure(duration(firstMs), "to the first token"),
    timings && figure(rate(timings.predicted_per_second ?? 0), "tokens/s"),
    timings && figure(count(timings.predicted_n), "generated"),
  ];
}

function why(report) {
  const details = h("details", { class: "why" }, h("summary", {}, "Why was this slow?"));
  // Made when it is asked for: a long conversation has many of them.
  details.addEventListener("toggle", () => details.childElementCount === 1 && details.append(...explanation(report)), { once: true });
  return details;
}

function explanation({ cache, timings, firstMs, memory, finish }) {
  const parts = [h("p", {}, reasonSentence(cache)), place(cache.stopped_at)];
  if (timings && firstMs !== null) parts.push(h("p", {}, timeSentence(timings, firstMs)));
  if (memory?.advice) parts.push(h("p", {}, `Advice: ${memory.advice}.`));
  if (memory?.rebuilt) parts.push(h("p", {}, "This is the first answer that read the new summary of the conversation."));
  if (memory?.quotes.length > 0) parts.push(h("p", {}, "Old messages were quoted at the question, which is computed each time."));
  if (finish === "length") parts.push(h("p", {}, "The answer ended because it reached the most tokens it may have."));
  return parts.filter(Boolean);
}

function timeSentence({ prompt_ms: prompt, prompt_n: computed, predicted_ms: generated }, firstMs) {
  const waited = Math.max(0, firstMs - prompt);
  return (
    `Of ${duration(firstMs)} to the first token, ${duration(prompt)} were spent on computing ${plural(computed, "token")}` +
    ` and ${duration(waited)} on waiting, reading and the way. Generating took ${duration(generated)}.`
  );
}

/** The place where reuse ended, with the text on both sides. */
function place(stopped) {
  if (!stopped) return null;
  const where = stopped.message === null ? "" : ` in message ${stopped.message + 1} (${stopped.role})`;
  return h(
    "figure",
    { class: "place" },
    h("figcaption", {}, `Reuse ended at token ${count(stopped.token)}${where}:`),
    h("pre", { class: "plain", tabindex: 0, "aria-label": "The text where reuse ended" }, h("span", { class: "reused" }, stopped.before), h("span", { class: "stop", role: "img", "aria-label": "here" }), h("mark", {}, stopped.after)),
  );
}
