// The official JavaScript client: chat, stream, tools in a loop, structured output, cancel, errors.
import assert from "node:assert/strict";
import { rm, writeFile } from "node:fs/promises";
import { test } from "node:test";
import { setTimeout as wait } from "node:timers/promises";

import OpenAI from "openai";
import { LengthFinishReasonError } from "openai/error";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

const { KVIK_URL: baseURL, KVIK_KEY: apiKey, KVIK_MODEL: model, KVIK_STALL: stall } = process.env;
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0, timeout: 60_000 });
const question = [{ role: "user", content: "Your bill of 12.50 is due." }];
const ask = (options) => client.chat.completions.create({ model, messages: question, max_tokens: 60, temperature: 0, ...options });

const parameters = {
  type: "object",
  properties: { city: { type: "string", enum: ["Oslo", "Bergen"] }, floor: { type: "integer", minimum: 0, maximum: 9 } },
  required: ["city", "floor"],
};
const tool = { type: "function", function: { name: "lookup", description: "Looks up what is on a floor.", parameters } };

function runTool(text) {
  const { city, floor } = JSON.parse(text);
  assert.ok(["Oslo", "Bergen"].includes(city) && floor >= 0 && floor <= 9, text);
  return JSON.stringify({ found: `${city} ${floor}` });
}

test("chat and stream say the same", async () => {
  const whole = (await ask({})).choices[0].message.content;
  let text = "";
  for await (const chunk of await ask({ stream: true })) text += chunk.choices[0]?.delta?.content ?? "";
  assert.ok(whole);
  assert.equal(text, whole);
});

for (const stream of [false, true]) {
  test(`tools in a loop, ${stream ? "streamed" : "whole"}`, async () => {
    const messages = [...question];
    for (const tool_choice of [{ type: "function", function: { name: "lookup" } }, "required", "none"]) {
      const options = { model, messages, tools: [tool], tool_choice, max_tokens: 80, temperature: 0 };
      const answer = stream
        ? await client.chat.completions.stream(options).finalChatCompletion()
        : await client.chat.completions.create(options);
      const { message, finish_reason } = answer.choices[0];
      messages.push(message);
      if (tool_choice === "none") {
        assert.ok(message.content && !message.tool_calls?.length);
        return;
      }
      assert.equal(finish_reason, "tool_calls");
      for (const call of message.tool_calls) {
        messages.push({ role: "tool", tool_call_id: call.id, content: runTool(call.function.arguments) });
      }
    }
  });
}

const shapes = {
  nested: z.object({ place: z.object({ city: z.enum(["Oslo", "Bergen"]), floor: z.number().int().min(0).max(9) }) }),
  nullable: z.object({ floor: z.number().int().min(0).max(9).nullable() }),
  list: z.object({ names: z.array(z.enum(["anna", "ben"])).max(3) }),
  // Without a precision the pattern has a fraction without end, in which a tiny model may stay.
  dated: z.object({ due: z.iso.datetime({ precision: 3 }), day: z.iso.date(), id: z.uuid() }),
  union: z.object({ what: z.union([z.literal("none"), z.object({ paid: z.boolean() })]) }),
};

for (const [name, shape] of Object.entries(shapes)) {
  test(`structured output: ${name}`, async () => {
    let ended = 0;
    for (const seed of [0, 1, 2, 3]) {
      const options = { model, messages: question, max_tokens: 300, temperature: 0.7, seed };
      try {
        const answer = await client.chat.completions.parse({ ...options, response_format: zodResponseFormat(shape, name) });
        assert.ok(answer.choices[0].message.parsed);
        ended += 1;
      } catch (error) {
        if (!(error instanceof LengthFinishReasonError)) throw error;
      }
    }
    assert.ok(ended > 0, "every answer was cut off at its length");
  });
}

test("formats that cannot be enforced while decoding are not refused", async () => {
  const shape = z.object({ mail: z.email(), link: z.url().max(30), when: z.iso.datetime() });
  const answer = await ask({ response_format: zodResponseFormat(shape, "formats"), max_tokens: 8 });
  assert.ok(answer.choices[0].message.content.startsWith("{"));
});

async function metric(name) {
  const metrics = await fetch(new URL("/metrics", baseURL), { headers: { authorization: `Bearer ${apiKey}` } });
  const values = (await metrics.text()).split("\n").filter((line) => line.startsWith(name));
  assert.ok(values.length > 0, name);
  return values.reduce((sum, line) => sum + Number(line.split(" ").at(-1)), 0);
}

// Tokens generated until nothing runs: those of an answer that was stopped are counted a moment later.
async function generatedAtRest() {
  for (let tries = 0; tries < 30; tries += 1) {
    const before = await metric("kvik_generated_tokens_total");
    await wait(300);
    const runs = (await metric("kvik_requests_running")) > 0;
    if (!runs && (await metric("kvik_generated_tokens_total")) === before) return before;
  }
  assert.fail("the answer is still computed");
}

// Reads three pieces, stops the engine and leaves. On a fast machine the answer may have ended before: false.
async function leaveInMidStream(max_tokens) {
  let [count, stands] = [0, false];
  for await (const _ of await ask({ stream: true, max_tokens, ignore_eos: true })) {
    count += 1;
    if (count < 3) continue;
    await writeFile(stall, "");
    stands = (await metric("kvik_requests_running")) === 1;
    break;
  }
  assert.equal(count, 3);
  return stands;
}

test("cancel in mid-stream", async () => {
  const max_tokens = 1800;
  for (let tries = 0; tries < 10; tries += 1) {
    const before = await generatedAtRest();
    const stood = await leaveInMidStream(max_tokens).finally(() => rm(stall, { force: true }));
    const generated = (await generatedAtRest()) - before;
    if (!stood) continue;
    assert.ok(generated < max_tokens, "it was computed to its end");
    return;
  }
  assert.fail("every answer ended before it was left");
});

const errors = [
  ["a wrong model", { model: "gpt-4o" }, OpenAI.NotFoundError, "model_not_found"],
  ["a wrong field", { temperature: "hot" }, OpenAI.BadRequestError, null],
  ["a prompt beyond the context", { messages: [{ role: "user", content: "word ".repeat(6000) }] }, OpenAI.BadRequestError, "context_length_exceeded"],
];

for (const [what, options, kind, code] of errors) {
  test(what, async () => {
    await assert.rejects(ask(options), (error) => error instanceof kind && (code === null || error.code === code));
  });
}

test("a wrong key", async () => {
  const stranger = new OpenAI({ baseURL, apiKey: "wrong", maxRetries: 0 });
  await assert.rejects(stranger.models.list(), OpenAI.AuthenticationError);
});

test("a key that was refused does not harm the next request on the connection", async () => {
  const stranger = new OpenAI({ baseURL, apiKey: "wrong", maxRetries: 0 });
  for (let i = 0; i < 40; i += 1) {
    await assert.rejects(stranger.chat.completions.create({ model, messages: question }), OpenAI.AuthenticationError);
    assert.ok((await ask({ max_tokens: 1 })).choices.length);
  }
});
