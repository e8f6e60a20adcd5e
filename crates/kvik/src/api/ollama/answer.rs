//! The answer of `/api/chat` and `/api/generate`: events become lines of JSON.

use kvik_cache::Token;
use kvik_engine::api::{Event, FinishReason, GeneratedToken, Report};
use kvik_engine::text::answer::AnswerDelta;
use serde_json::{Value, json};

use super::error;
use crate::{
    api::{
        chat::{Reply, Worded},
        logprobs::logprob,
    },
    app::{generation::Answer, report::trailer::Trailer, wire::Wire},
    clock::now_rfc3339,
    http::error::ApiError,
};

/// Where the text of an answer stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// In `message`.
    Chat,
    /// In `response`.
    Generate,
}

/// The answer as far as it is known.
#[derive(Debug)]
pub(crate) struct OllamaAnswer {
    form: Form,
    model: String,
    reply: Reply,
    logprobs: Option<Vec<Value>>,
    /// Tokens of prompt and answer, where the client is given them to go on from.
    context: Option<Vec<Token>>,
    finish: Option<FinishReason>,
    /// Calls that the client was told.
    told_calls: usize,
}

impl Form {
    /// What is answered where nothing was asked.
    pub(super) fn loaded(self, model: &str) -> Value {
        let mut line = self.line(model, &json!({}));
        line["done_reason"] = json!("load");
        line["done"] = json!(true);
        line
    }

    /// A line that says this much more.
    fn line(self, model: &str, delta: &Value) -> Value {
        let text = |name: &str| delta.get(name).cloned();
        let content = text("content").unwrap_or_else(|| json!(""));
        let mut line = json!({"model": model, "created_at": now_rfc3339()});
        match self {
            Form::Chat => {
                let mut message = json!({"role": "assistant", "content": content});
                for name in ["thinking", "tool_calls"] {
                    if let Some(value) = text(name) {
                        message[name] = value;
                    }
                }
                line["message"] = message;
            }
            Form::Generate => {
                line["response"] = content;
                if let Some(thinking) = text("thinking") {
                    line["thinking"] = thinking;
                }
            }
        }
        line["done"] = json!(false);
        line
    }
}

impl OllamaAnswer {
    pub(super) fn new(form: Form, model: String, worded: Worded) -> OllamaAnswer {
        OllamaAnswer {
            form,
            model,
            reply: Reply::new(&worded.reading),
            logprobs: worded.logprobs.then(Vec::new),
            context: None,
            finish: None,
            told_calls: 0,
        }
    }

    /// The same, which gives the client the tokens of this prompt and its answer to go on from.
    pub(super) fn behind(self, prompt: &[Token]) -> OllamaAnswer {
        OllamaAnswer { context: Some(prompt.to_vec()), ..self }
    }

    fn text(&mut self, text: &str, tokens: &[GeneratedToken], frames: &mut Vec<Value>) {
        if let Some(context) = &mut self.context {
            context.extend(tokens.iter().map(|token| token.token));
        }
        let entries: Option<Vec<Value>> =
            self.logprobs.is_some().then(|| tokens.iter().filter_map(logprob).collect());
        if let (Some(all), Some(entries)) = (&mut self.logprobs, &entries) {
            all.extend_from_slice(entries);
        }
        let mut lines = self.lines(|reply| reply.push(text));
        // Tokens may arrive before the text they are part of; their log-probabilities are not kept back.
        if lines.is_empty() && entries.as_ref().is_some_and(|entries| !entries.is_empty()) {
            lines.push(self.form.line(&self.model, &json!({})));
        }
        if let (Some(entries), Some(line)) = (entries, lines.first_mut()) {
            line["logprobs"] = Value::Array(entries);
        }
        frames.extend(lines);
    }

    fn lines(&mut self, read: impl FnOnce(&mut Reply) -> Vec<AnswerDelta>) -> Vec<Value> {
        let deltas = read(&mut self.reply);
        deltas.into_iter().flat_map(|delta| self.worded(delta)).collect()
    }

    /// The lines that a delta makes: a call is told as a whole, when it is known that no more of it comes.
    fn worded(&mut self, delta: AnswerDelta) -> Vec<Value> {
        let text = match delta {
            AnswerDelta::Content(text) => json!({"content": text}),
            AnswerDelta::Reasoning(text) => json!({"thinking": text}),
            AnswerDelta::ToolCall { index, .. } => return self.calls(index),
            AnswerDelta::Arguments { .. } => return Vec::new(),
        };
        let mut lines = self.calls(self.reply.calls.len());
        lines.push(self.form.line(&self.model, &text));
        lines
    }

    /// Lines of the calls before this one that were not told yet.
    fn calls(&mut self, until: usize) -> Vec<Value> {
        let from = self.told_calls.min(until);
        self.told_calls = self.told_calls.max(until);
        let calls = self.reply.calls[from..until].iter().enumerate();
        let line =
            |(at, call)| self.form.line(&self.model, &json!({"tool_calls": [tool_call(from + at, call)]}));
        calls.map(line).collect()
    }

    /// The last line: why it ends, what it cost, what the cache did.
    fn end(&self, trailer: &Trailer, delta: &Value) -> Value {
        let report = trailer.total();
        let mut line = self.form.line(&self.model, delta);
        line["done"] = json!(true);
        line["done_reason"] =
            json!(if self.finish == Some(FinishReason::Length) { "length" } else { "stop" });
        if let (Form::Generate, Some(context)) = (self.form, &self.context) {
            line["context"] = json!(context);
        }
        add_times(&mut line, &report);
        line["kvik"] = trailer.kvik(0);
        line
    }
}

impl Answer for OllamaAnswer {
    const WIRE: Wire = Wire::Lines;

    fn take(&mut self, _prompt: usize, event: Event, trailer: &Trailer, frames: &mut Vec<Value>) {
        match event {
            Event::Text { text, tokens, .. } => self.text(&text, &tokens, frames),
            Event::Finished { reason, .. } => {
                self.finish = Some(reason);
                let rest = self.lines(Reply::finish);
                frames.extend(rest);
                let calls = self.calls(self.reply.calls.len());
                frames.extend(calls);
            }
            Event::Done(_) => frames.push(self.end(trailer, &json!({}))),
            Event::Prefill { .. } | Event::Vector(_) | Event::Failed(_) => {}
        }
    }

    fn message(&self) -> Option<Value> {
        Some(self.reply.message())
    }

    fn whole(self, trailer: &Trailer) -> Value {
        let mut delta = json!({"content": self.reply.content});
        if !self.reply.reasoning.is_empty() {
            delta["thinking"] = json!(self.reply.reasoning);
        }
        if !self.reply.calls.is_empty() {
            let calls = self.reply.calls.iter().enumerate();
            delta["tool_calls"] = calls.map(|(i, call)| tool_call(i, call)).collect();
        }
        let mut line = self.end(trailer, &delta);
        if let Some(logprobs) = self.logprobs {
            line["logprobs"] = Value::Array(logprobs);
        }
        line
    }

    fn failed(&self, failure: &ApiError) -> Value {
        error(failure)
    }
}

/// A call as Ollama has it: its arguments are an object.
fn tool_call(index: usize, call: &Value) -> Value {
    let function = &call["function"];
    let arguments = function["arguments"].as_str().and_then(|text| serde_json::from_str::<Value>(text).ok());
    let arguments = arguments.filter(Value::is_object).unwrap_or_else(|| json!({}));
    json!({
        "id": call["id"],
        "function": {"index": index, "name": function["name"], "arguments": arguments},
    })
}

/// Counts of tokens, and times in nanoseconds.
fn add_times(line: &mut Value, report: &Report) {
    let total = report.queued + report.prefill + report.decode;
    let nanos = |time: std::time::Duration| json!(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    line["total_duration"] = nanos(total);
    line["load_duration"] = json!(0);
    line["prompt_eval_count"] = json!(report.prompt_tokens);
    line["prompt_eval_duration"] = nanos(report.prefill);
    line["eval_count"] = json!(report.generated_tokens);
    line["eval_duration"] = nanos(report.decode);
}
