// Vercel's `ai` through three of its providers: chat, stream, tools in a loop, structured output, cancel, errors.
import assert from "node:assert/strict";
import { test } from "node:test";

import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, generateObject, generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";

const { KVIK_URL: baseURL, KVIK_KEY: apiKey, KVIK_MODEL: name } = process.env;
const models = {
  "chat completions": createOpenAICompatible({ name: "kvik", baseURL, apiKey, supportsStructuredOutputs: true })(name),
  Responses: createOpenAI({ baseURL, apiKey }).responses(name),
  Messages: createAnthropic({ baseURL, apiKey })(name),
};
const prompt = "Your bill of 12.50 is due.";
const common = { prompt, temperature: 0, maxOutputTokens: 60, maxRetries: 0 };
const inputSchema = jsonSchema({
  type: "object",
  properties: { city: { type: "string", enum: ["Oslo", "Bergen"] } },
  required: ["city"],
  additionalProperties: false,
});

for (const [provider, model] of Object.entries(models)) {
  test(`${provider}: text and stream say the same`, async () => {
    const { text, usage } = await generateText({ model, ...common });
    const stream = streamText({ model, ...common });
    let streamed = "";
    for await (const part of stream.textStream) streamed += part;
    assert.ok(text);
    assert.equal(streamed, text);
    assert.ok(usage.inputTokens > 0 && usage.outputTokens > 0);
  });

  test(`${provider}: tools in a loop`, async () => {
    const asked = [];
    const lookup = tool({
      description: "Looks up a city.",
      inputSchema,
      execute: async ({ city }) => {
        asked.push(city);
        return `found ${city}`;
      },
    });
    const { steps } = await generateText({
      model,
      ...common,
      tools: { lookup },
      stopWhen: stepCountIs(2),
      prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? "required" : "none" }),
    });
    assert.equal(asked.length, 1);
    assert.ok(["Oslo", "Bergen"].includes(asked[0]));
    assert.equal(steps.length, 2);
  });

  test(`${provider}: structured output`, async () => {
    const { object } = await generateObject({ model, ...common, schema: inputSchema });
    assert.ok(["Oslo", "Bergen"].includes(object.city), JSON.stringify(object));
  });

  test(`${provider}: an answer that is stopped ends`, async () => {
    const controller = new AbortController();
    const stream = streamText({ model, ...common, maxOutputTokens: 1500, abortSignal: controller.signal, onError() {} });
    for await (const _ of stream.textStream) {
      controller.abort();
      break;
    }
    assert.ok((await generateText({ model, ...common })).text);
  });

  test(`${provider}: an error says what is wrong`, async () => {
    const long = generateText({ model, ...common, prompt: "word ".repeat(6000) });
    await assert.rejects(long, (error) => APICallError.isInstance(error) && error.statusCode === 400 && /2048/.test(error.message));
  });
}
