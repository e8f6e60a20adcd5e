//! The answer of `/v1/chat/completions`: events become messages, or deltas of messages.

use kvik_engine::api::{Event, FinishReason, GeneratedToken, TokenLogprob};
use kvik_engine::text::answer::AnswerDelta;
use serde_json::{Map, Value, json};

use super::head::{Head, frame};
use crate::{
    api::reading::{Reader, Reading, finite},
    app::{generation::Answer, report::trailer::Trailer},
};

/// The answer as far as it is known.
#[derive(Debug)]
pub(crate) struct ChatAnswer {
    head: Head,
    /// The stream ends with a frame of usage.
    include_usage: bool,
    logprobs: bool,
    /// What stands for all that was said before, for clients that want it.
    item: Option<Value>,
    choices: Vec<Choice>,
    /// The frame that ends the last choice; it waits for the trailer, which it may carry.
    last: Option<Value>,
}

#[derive(Debug)]
struct Choice {
    reader: Reader,
    started: bool,
    content: String,
    reasoning: String,
    calls: Vec<Value>,
    logprobs: Vec<Value>,
    finish: Option<&'static str>,
}

impl ChatAnswer {
    pub(crate) fn new(
        head: Head,
        choices: u32,
        reading: Reading,
        logprobs: bool,
        include_usage: bool,
    ) -> ChatAnswer {
        let choices = (0..choices).map(|_| Choice::new(&reading)).collect();
        ChatAnswer { head, include_usage, logprobs, item: None, choices, last: None }
    }

    /// With a compaction item in its messages.
    pub(crate) fn with_item(self, item: Option<Value>) -> ChatAnswer {
        ChatAnswer { item, ..self }
    }

    fn text(&mut self, choice: u32, text: &str, tokens: &[GeneratedToken], frames: &mut Vec<Value>) {
        let logprobs: Vec<Value> =
            if self.logprobs { tokens.iter().filter_map(logprob).collect() } else { Vec::new() };
        let Some(state) = self.choices.get_mut(choice as usize) else { return };
        state.logprobs.extend_from_slice(&logprobs);
        let mut deltas = state.push(text);
        // Tokens may arrive before the text they are part of; their log-probabilities are not kept back.
        if deltas.is_empty() && !logprobs.is_empty() {
            deltas.push(json!({"content": ""}));
        }
        self.deltas(choice, deltas, logprobs, frames);
    }

    /// Frames for these deltas; the first carries the log-probabilities of the tokens behind them.
    fn deltas(&mut self, choice: u32, deltas: Vec<Value>, logprobs: Vec<Value>, frames: &mut Vec<Value>) {
        let mut logprobs =
            if self.logprobs { json!({"content": logprobs, "refusal": null}) } else { Value::Null };
        for delta in deltas {
            let state = &mut self.choices[choice as usize];
            if !std::mem::replace(&mut state.started, true) {
                let mut first = json!({"role": "assistant", "content": ""});
                if let Some(item) = &self.item {
                    first["compaction"] = item.clone();
                }
                frames.push(self.chunk(choice, first, Value::Null, None));
            }
            frames.push(self.chunk(choice, delta, logprobs.take(), None));
        }
    }

    fn finished(&mut self, choice: u32, reason: FinishReason, frames: &mut Vec<Value>) {
        let Some(state) = self.choices.get_mut(choice as usize) else { return };
        let mut rest = state.flush();
        let reason = match reason {
            FinishReason::Length => "length",
            _ if !state.calls.is_empty() => "tool_calls",
            _ => "stop",
        };
        state.finish = Some(reason);
        if !state.started && rest.is_empty() {
            rest.push(json!({"content": ""}));
        }
        self.deltas(choice, rest, Vec::new(), frames);
        let end = self.chunk(choice, json!({}), Value::Null, Some(reason));
        if self.choices.iter().all(|choice| choice.finish.is_some()) {
            self.last = Some(end);
        } else {
            frames.push(end);
        }
    }

    /// The last frame carries the trailer: the end of the last choice, or the usage after it.
    fn done(&mut self, trailer: &Trailer, frames: &mut Vec<Value>) {
        frames.extend(self.last.take());
        if self.include_usage {
            let mut chunk = self.frame("chat.completion.chunk", Vec::new());
            chunk.insert("usage".to_owned(), trailer.usage());
            frames.push(Value::Object(chunk));
        }
        if let Some(Value::Object(last)) = frames.last_mut() {
            trailer.add_to(last);
        }
    }

    fn chunk(&self, index: u32, delta: Value, logprobs: Value, finish_reason: Option<&str>) -> Value {
        let choice =
            json!({"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason});
        let mut chunk = self.frame("chat.completion.chunk", vec![choice]);
        if self.include_usage {
            chunk.insert("usage".to_owned(), Value::Null);
        }
        Value::Object(chunk)
    }

    fn frame(&self, object: &str, choices: Vec<Value>) -> Map<String, Value> {
        frame(&self.head, object, choices)
    }
}

impl Answer for ChatAnswer {
    const LAST: Option<&'static str> = Some("[DONE]");

    fn take(&mut self, _prompt: usize, event: Event, trailer: &Trailer, frames: &mut Vec<Value>) {
        match event {
            Event::Text { choice, text, tokens } => self.text(choice, &text, &tokens, frames),
            Event::Finished { choice, reason } => self.finished(choice, reason, frames),
            Event::Done(_) => self.done(trailer, frames),
            Event::Prefill { .. } | Event::Failed(_) => {}
        }
    }

    /// As a client keeps it.
    fn message(&self) -> Option<Value> {
        let mut message = self.choices.first()?.message();
        message.as_object_mut()?.remove("refusal");
        Some(message)
    }

    fn whole(self, trailer: &Trailer) -> Value {
        let logprobs = self.logprobs;
        let mut choices: Vec<Value> =
            self.choices.into_iter().enumerate().map(|(i, choice)| choice.whole(i, logprobs)).collect();
        if let Some(item) = self.item {
            choices.iter_mut().for_each(|choice| choice["message"]["compaction"] = item.clone());
        }
        let mut answer = frame(&self.head, "chat.completion", choices);
        answer.insert("usage".to_owned(), trailer.usage());
        trailer.add_to(&mut answer);
        Value::Object(answer)
    }
}

impl Choice {
    fn new(reading: &Reading) -> Choice {
        Choice {
            reader: reading.reader(),
            started: false,
            content: String::new(),
            reasoning: String::new(),
            calls: Vec::new(),
            logprobs: Vec::new(),
            finish: None,
        }
    }

    /// Reads more text; returns the deltas it makes.
    fn push(&mut self, text: &str) -> Vec<Value> {
        let deltas = self.reader.push(text);
        self.keep(deltas)
    }

    /// What was held back, now that no more text comes.
    fn flush(&mut self) -> Vec<Value> {
        let deltas = self.reader.finish();
        self.keep(deltas)
    }

    fn keep(&mut self, deltas: Vec<AnswerDelta>) -> Vec<Value> {
        deltas.into_iter().map(|delta| self.keep_one(delta)).collect()
    }

    fn keep_one(&mut self, delta: AnswerDelta) -> Value {
        match delta {
            AnswerDelta::Content(text) => {
                self.content.push_str(&text);
                json!({"content": text})
            }
            AnswerDelta::Reasoning(text) => {
                self.reasoning.push_str(&text);
                json!({"reasoning_content": text})
            }
            AnswerDelta::ToolCall { index, id, name, arguments } => {
                let function = json!({"name": name, "arguments": arguments});
                self.calls.push(json!({"id": id, "type": "function", "function": function}));
                let call = json!({"index": index, "id": id, "type": "function", "function": function});
                json!({"tool_calls": [call]})
            }
        }
    }

    /// The message that it is.
    fn message(&self) -> Value {
        let only_calls = self.content.is_empty() && !self.calls.is_empty();
        let content = if only_calls { Value::Null } else { json!(self.content) };
        let mut message = json!({"role": "assistant", "content": content, "refusal": null});
        if !self.reasoning.is_empty() {
            message["reasoning_content"] = json!(self.reasoning);
        }
        if !self.calls.is_empty() {
            message["tool_calls"] = json!(self.calls);
        }
        message
    }

    fn whole(self, index: usize, logprobs: bool) -> Value {
        let message = self.message();
        let logprobs =
            if logprobs { json!({"content": self.logprobs, "refusal": null}) } else { Value::Null };
        json!({"index": index, "message": message, "logprobs": logprobs, "finish_reason": self.finish})
    }
}

/// The message that a whole text is, as a client sends it back.
pub(super) fn message(reading: &Reading, text: &str) -> Value {
    let mut choice = Choice::new(reading);
    choice.push(text);
    choice.flush();
    choice.message()
}

/// OpenAI's entry of one token, when the engine was asked for log-probabilities.
fn logprob(token: &GeneratedToken) -> Option<Value> {
    let (chosen, likeliest) = token.logprob.as_ref()?;
    let mut entry = token_logprob(chosen);
    entry["top_logprobs"] = likeliest.iter().map(token_logprob).collect();
    Some(entry)
}

fn token_logprob(token: &TokenLogprob) -> Value {
    json!({
        "token": String::from_utf8_lossy(&token.bytes),
        "logprob": finite(token.logprob),
        "bytes": token.bytes,
    })
}
