// What the memory view knows besides the conversation: the summary, as the server has it, and who reads what.

export const initial = { id: null, ready: false, summary: null, error: null };

const REDUCE = {
  "memory opening": (memory, { id }) => (memory.id === id ? memory : { ...initial, id }),
  "memory read": (memory, { id, summary }) => (memory.id === id ? { ...memory, ready: true, summary, error: null } : memory),
  "memory missing": (memory, { id, error }) => (memory.id === id ? { ...memory, ready: true, summary: null, error } : memory),
};

export function reduce(memory, action) {
  const change = REDUCE[action.type];
  return change ? change(memory, action) : memory;
}

/** The answers of a conversation that say what they read, oldest first: `{index, report}`. */
export function turnsOf(reports) {
  const all = Object.entries(reports ?? {}).map(([index, report]) => ({ index: Number(index), report }));
  return all.filter(({ report }) => report?.memory).sort((one, other) => one.index - other.index);
}

/** The parts of what an answer read, in the order of its prompt. Quotes have messages and no number of tokens. */
export function bandsOf({ tokens, messages, quotes }) {
  const quoted = quotes.reduce((sum, [from, to]) => sum + to - from, 0);
  return [
    { name: "prefix", words: "system prompt", tokens: tokens.prefix, messages: messages.prefix },
    { name: "summary", words: "summary", tokens: tokens.summary, messages: messages.summarised },
    { name: "recent", words: "recent messages, whole", tokens: tokens.recent, messages: messages.recent },
    { name: "quoted", words: "quoted at the question", tokens: null, messages: quoted },
  ].filter(({ tokens: some, messages: any }) => some || any);
}

/** How an answer read each message of the conversation: "prefix", "summarised", "let_go", "recent", or "quoted". */
export function readingOf({ messages, quotes }, count) {
  const reading = [];
  for (const name of ["prefix", "summarised", "let_go", "recent"]) for (let left = messages[name]; left > 0; left -= 1) reading.push(name);
  while (reading.length < count) reading.push("recent"); // the answer itself
  for (const [from, to] of quotes) for (let index = from; index < to; index += 1) reading[index] = "quoted";
  return reading.slice(0, count);
}

/** The words of a question that a message has too: they are why it was quoted. */
export function sharedWords(question, text) {
  const asked = new Set(wordsOf(question));
  return [...new Set(wordsOf(text))].filter((word) => asked.has(word));
}

const COMMON = new Set("a about an and are as at be but by can do for from have how i in is it me my not of on or please so that the then this to was we what when where which who why will with you your".split(" "));

function wordsOf(text) {
  return (text.toLowerCase().match(/[\p{L}\p{M}\p{N}]+/gu) ?? []).filter((word) => !COMMON.has(word));
}
