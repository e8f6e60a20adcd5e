//! The answer of `/api/chat` and `/api/generate`: engine events become lines of JSON.

use std::time::Duration;

use kvik_cache::Token;
use kvik_engine::api::{Event, FinishReason, GeneratedToken, Request};
use kvik_text::answer::AnswerDelta;
use serde::Serialize;
use serde_json::{Map, Value};

use super::ErrorLine;
use crate::{
    api::{
        chat::{Assistant, Reply, ToolCall, Worded, arguments_object},
        logprobs::{Logprob, logprob},
    },
    app::{
        generation::Answer,
        report::trailer::{KvikReport, Trailer},
        wire::Wire,
    },
    clock::now_rfc3339,
    described::JsonSchema,
    http::{
        answer::{value, written},
        error::ApiError,
    },
};

/// An answer of `/api/chat`, or a line of one.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OllamaChat")]
pub(super) struct ChatLine {
    model: String,
    created_at: String,
    message: ChatMessage,
    #[serde(flatten)]
    end: LineEnd,
}

/// What is said, or what is new of it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct ChatMessage {
    role: Assistant,
    content: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    thinking: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Call>,
}

/// An answer of `/api/generate`, or a line of one.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OllamaGenerated")]
pub(super) struct GenerateLine {
    model: String,
    created_at: String,
    response: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    thinking: Option<String>,
    #[serde(flatten)]
    end: LineEnd,
}

/// A call as Ollama has it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OllamaCall")]
struct Call {
    id: String,
    function: CalledFunction,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct CalledFunction {
    index: usize,
    name: String,
    /// What the tool is called with.
    arguments: Map<String, Value>,
}

/// What every line ends with; the last one says more.
#[derive(Debug, Default, Serialize, JsonSchema)]
struct LineEnd {
    done: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    done_reason: Option<DoneReason>,
    /// Tokens of prompt and answer, to go on from.
    #[serde(skip_serializing_if = "Option::is_none")]
    context: Option<Vec<Token>>,
    #[serde(flatten)]
    times: Option<Times>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kvik: Option<KvikReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<Vec<Logprob>>,
}

#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub(super) enum DoneReason {
    Load,
    Unload,
    Length,
    Stop,
}

/// Counts of tokens, and times in nanoseconds.
#[derive(Debug, Serialize, JsonSchema)]
struct Times {
    total_duration: u64,
    load_duration: u64,
    prompt_eval_count: usize,
    prompt_eval_duration: u64,
    eval_count: usize,
    eval_duration: u64,
}

/// A line of either endpoint.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Line {
    Chat(ChatLine),
    Generate(GenerateLine),
}

/// The field that holds the text of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// The field `message`.
    Chat,
    /// The field `response`.
    Generate,
}

/// The content of a line.
#[derive(Debug, Default)]
struct Said {
    content: String,
    thinking: Option<String>,
    calls: Vec<Call>,
}

/// The answer as generated so far.
#[derive(Debug)]
pub(crate) struct OllamaAnswer {
    form: Form,
    model: String,
    reply: Reply,
    logprobs: Option<Vec<Logprob>>,
    /// Whether log-probabilities are kept for the whole answer; a stream has sent them.
    keeps_logprobs: bool,
    /// Tokens of prompt and answer, which the client can send back to continue.
    context: Option<Vec<Token>>,
    finish: Option<FinishReason>,
    /// Number of calls that were sent to the client.
    told_calls: usize,
}

impl Form {
    /// Returns the answer to a request that asks for nothing, which loads the model only, or unloads it.
    pub(super) fn of_nothing(self, model: &str, reason: DoneReason) -> Line {
        let end = LineEnd { done: true, done_reason: Some(reason), ..LineEnd::default() };
        self.line(model, Said::default(), end)
    }

    /// Formats a line with this content.
    fn line(self, model: &str, said: Said, end: LineEnd) -> Line {
        let (model, created_at) = (model.to_owned(), now_rfc3339());
        let Said { content, thinking, calls } = said;
        match self {
            Form::Chat => {
                let message = ChatMessage { role: Assistant, content, thinking, tool_calls: calls };
                Line::Chat(ChatLine { model, created_at, message, end })
            }
            Form::Generate => {
                Line::Generate(GenerateLine { model, created_at, response: content, thinking, end })
            }
        }
    }
}

impl OllamaAnswer {
    pub(super) fn new(form: Form, model: String, worded: Worded) -> OllamaAnswer {
        OllamaAnswer {
            form,
            model,
            reply: Reply::new(&worded.reading),
            logprobs: worded.logprobs.then(Vec::new),
            keeps_logprobs: true,
            context: None,
            finish: None,
            told_calls: 0,
        }
    }

    /// Makes the answer return the tokens of its prompt and text, from which the client can continue.
    pub(super) fn with_context(self) -> OllamaAnswer {
        OllamaAnswer { context: Some(Vec::new()), ..self }
    }

    fn text(&mut self, text: &str, tokens: &[GeneratedToken], frames: &mut Vec<Value>) {
        if let Some(context) = &mut self.context {
            context.extend(tokens.iter().map(|token| token.token));
        }
        let entries: Option<Vec<Logprob>> =
            self.logprobs.is_some().then(|| tokens.iter().filter_map(logprob).collect());
        if let (true, Some(all), Some(entries)) = (self.keeps_logprobs, &mut self.logprobs, &entries) {
            all.extend_from_slice(entries);
        }
        let mut said = self.said(|reply| reply.push(text));
        // Tokens may arrive before the text that they are part of; their log-probabilities are not held back.
        if said.is_empty() && entries.as_ref().is_some_and(|entries| !entries.is_empty()) {
            said.push(Said::default());
        }
        self.lines(said, entries, frames);
    }

    /// Formats one line per entry; the first one carries the log-probabilities.
    fn lines(&self, said: Vec<Said>, mut logprobs: Option<Vec<Logprob>>, frames: &mut Vec<Value>) {
        for said in said {
            let end = LineEnd { logprobs: logprobs.take(), ..LineEnd::default() };
            frames.push(value(&self.form.line(&self.model, said, end)));
        }
    }

    fn said(&mut self, read: impl FnOnce(&mut Reply) -> Vec<AnswerDelta>) -> Vec<Said> {
        let deltas = read(&mut self.reply);
        deltas.into_iter().flat_map(|delta| self.worded(delta)).collect()
    }

    /// Converts a delta to lines: a call is sent as a whole, once it is complete.
    fn worded(&mut self, delta: AnswerDelta) -> Vec<Said> {
        let said = match delta {
            AnswerDelta::Content(content) => Said { content, ..Said::default() },
            AnswerDelta::Reasoning(text) => Said { thinking: Some(text), ..Said::default() },
            AnswerDelta::ToolCall { index, .. } => return self.calls(index),
            AnswerDelta::Arguments { .. } => return Vec::new(),
        };
        let mut all = self.calls(self.reply.calls.len());
        all.push(said);
        all
    }

    /// Returns the calls before `until` that were not sent yet, one per line.
    fn calls(&mut self, until: usize) -> Vec<Said> {
        let from = self.told_calls.min(until);
        self.told_calls = self.told_calls.max(until);
        let calls = self.reply.calls[from..until].iter().enumerate();
        calls.map(|(at, call)| Said { calls: vec![Call::of(from + at, call)], ..Said::default() }).collect()
    }

    /// Formats the last line: stop reason, usage and cache report.
    fn end(&self, trailer: &Trailer, said: Said, logprobs: Option<Vec<Logprob>>) -> Line {
        let is_full = self.finish == Some(FinishReason::Length);
        let end = LineEnd {
            done: true,
            done_reason: Some(if is_full { DoneReason::Length } else { DoneReason::Stop }),
            context: self.context.clone().filter(|_| self.form == Form::Generate),
            times: Some(Times::of(trailer)),
            kvik: Some(trailer.kvik(0)),
            logprobs,
        };
        self.form.line(&self.model, said, end)
    }
}

impl Answer for OllamaAnswer {
    const THOUGHTS_RETURN: bool = true;
    const WIRE: Wire = Wire::Lines;

    /// A stream sends log-probabilities with their tokens, and never again.
    fn start(&mut self, _frames: &mut Vec<Value>) {
        self.keeps_logprobs = false;
    }

    fn asks(&mut self, requests: &[Request]) {
        if let (Some(context), [request]) = (&mut self.context, requests) {
            context.clone_from(&request.prompt);
        }
    }

    fn take(&mut self, _prompt: usize, event: Event, trailer: &Trailer, frames: &mut Vec<Value>) {
        match event {
            Event::Text { text, tokens, .. } => self.text(&text, &tokens, frames),
            Event::Finished { reason, .. } => {
                self.finish = Some(reason);
                let mut rest = self.said(|reply| reply.finish(reason));
                rest.extend(self.calls(self.reply.calls.len()));
                self.lines(rest, None, frames);
            }
            Event::Done(_) => frames.push(value(&self.end(trailer, Said::default(), None))),
            Event::Unconstrained(_) => self.reply.unconstrain(),
            Event::Prefill { .. } | Event::Vector(_) | Event::Failed(_) => {}
        }
    }

    fn message(&self) -> Option<Value> {
        Some(self.reply.message())
    }

    fn whole(mut self, trailer: &Trailer) -> Vec<u8> {
        let logprobs = self.logprobs.take();
        let reply = &self.reply;
        let said = Said {
            content: reply.content.clone(),
            thinking: (!reply.reasoning.is_empty()).then(|| reply.reasoning.clone()),
            calls: reply.calls.iter().enumerate().map(|(i, call)| Call::of(i, call)).collect(),
        };
        written(&self.end(trailer, said, logprobs))
    }

    fn failed(&self, failure: &ApiError) -> Value {
        value(&ErrorLine::from(failure))
    }
}

impl Call {
    /// Converts a call; its arguments are an object, whatever the model wrote.
    fn of(index: usize, call: &ToolCall) -> Call {
        let arguments = arguments_object(&call.function.arguments);
        let function = CalledFunction { index, name: call.function.name.clone(), arguments };
        Call { id: call.id.clone(), function }
    }
}

/// A time as Ollama writes it.
pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Times {
    /// The times of an answer, and its token counts in the scale of its client.
    fn of(trailer: &Trailer) -> Times {
        let (report, scale) = (trailer.total(), trailer.scale());
        let (prompt, computed) = (report.prompt_tokens, report.queued + report.prefill + report.decode);
        Times {
            total_duration: nanos(trailer.elapsed().max(computed)),
            load_duration: nanos(trailer.loading()),
            prompt_eval_count: scale.told(prompt),
            prompt_eval_duration: nanos(report.prefill),
            eval_count: scale.between(prompt, prompt + report.generated_tokens),
            eval_duration: nanos(report.decode),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{reading::Reading, tests::token};

    #[test]
    fn a_stream_holds_no_log_probabilities() {
        for (is_stream, held) in [(true, 0), (false, 1000)] {
            let (reading, choices) = (Reading::Plain, 1);
            let worded = Worded { reading, item: None, conversation: None, logprobs: true, choices };
            let mut answer = OllamaAnswer::new(Form::Chat, String::new(), worded);
            let mut frames = Vec::new();
            if is_stream {
                answer.start(&mut frames);
            }
            for id in 0..1000 {
                answer.text("x", &[token(id, "x", true)], &mut frames);
            }
            assert_eq!(answer.logprobs.as_ref().map(Vec::len), Some(held));
            let sent = frames.iter().filter_map(|frame| frame["logprobs"].as_array());
            assert_eq!(sent.map(Vec::len).sum::<usize>(), 1000);
        }
    }
}
