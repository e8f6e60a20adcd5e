// What the retention view asks of the server.
import { policyText } from "./policies.js";

const ANSWER_TOKENS = 64;

export function createActions({ store, api }) {
  const dispatch = (type, fields) => store.dispatch({ type: `retention.${type}`, ...fields });

  /** Asks `prompt` under a policy and shows what was kept. */
  const ask = async ({ prompt, ...choice }) => {
    dispatch("asked");
    const messages = [{ role: "user", content: prompt }];
    try {
      const [answer, pieces] = await Promise.all([chat(messages, choice), piecesOf(messages)]);
      dispatch("answered", {
        result: { text: answer.choices[0].message.content ?? "", retain: answer.kvik.retain, pieces },
      });
    } catch (error) {
      dispatch("failed", { message: error.message });
    }
  };

  const chat = (messages, choice) => {
    const [policy, ...options] = policyText(choice).split(",");
    const [name] = policy.split(":");
    const others = Object.fromEntries(options.map((option) => option.split("=")));
    const retain = { policy: name, keep: choice.keep, ...others, show: true };
    const body = { messages, max_tokens: ANSWER_TOKENS, temperature: 0, kvik: { retain, memory: false } };
    return api.post("/v1/chat/completions", body);
  };

  /** The prompt's tokens as texts; without them positions are still numbers. */
  const piecesOf = async (messages) => {
    try {
      const { prompt } = await api.post("/apply-template", { messages });
      const { tokens } = await api.post("/tokenize", { content: prompt, with_pieces: true });
      return tokens.map(({ piece }) => (typeof piece === "string" ? piece : "�"));
    } catch {
      return [];
    }
  };

  const readMeasured = async () => {
    try {
      const { measured } = await api.get("/v1/retention");
      dispatch("measured", { measured });
    } catch (error) {
      dispatch("failed", { message: error.message });
    }
  };

  const look = (position) => dispatch("position", { position });
  const choose = (policy) => dispatch("policy", { policy });
  return { ask, readMeasured, look, choose };
}
