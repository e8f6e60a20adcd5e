//! The answer of `/v1/chat/completions`: engine events become messages, or deltas of messages.

use std::time::Instant;

use kvik_engine::api::{Event, FinishReason, GeneratedToken};
use kvik_text::answer::AnswerDelta;
use serde::Serialize;
use serde_json::Value;

use super::head::{Completion, FrameEnd, Head, WholeEnd};
use crate::{
    api::{
        chat::{Assistant, AssistantMessage, CompactionItem, Function, Reply, Worded},
        logprobs::{Logprob, logprob},
        progress::Progress,
        reading::Reading,
    },
    app::{
        generation::Answer,
        report::{trailer::Trailer, usage::Usage},
        wire::Wire,
    },
    described::JsonSchema,
    http::answer::{value, words, written},
};

words! {
    ChatCompletion = "chat.completion";
    ChatCompletionChunk = "chat.completion.chunk";
}

/// A complete answer.
pub(super) type WholeChat = Completion<ChatCompletion, ChatChoice, WholeEnd>;
/// The data of an event.
pub(super) type ChatFrame = Completion<ChatCompletionChunk, DeltaChoice, FrameEnd>;

/// One of the answers.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ChatChoice {
    index: usize,
    message: AnswerMessage,
    logprobs: Option<Logprobs>,
    finish_reason: Option<ChatFinish>,
}

/// A message as an answer has it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct AnswerMessage {
    #[serde(flatten)]
    message: AssistantMessage,
    refusal: (),
    /// Where the conversation was compacted for this answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    compaction: Option<CompactionItem>,
}

/// What is new of one of the answers.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct DeltaChoice {
    index: u32,
    delta: Delta,
    logprobs: Option<Logprobs>,
    finish_reason: Option<ChatFinish>,
}

/// What is new of a message.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[schemars(inline)]
struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<Assistant>,
    /// Null where a message begins, as llama-server writes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<Option<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<CallDelta>,
    #[serde(skip_serializing_if = "Option::is_none")]
    compaction: Option<CompactionItem>,
}

/// A call that begins, or more of its arguments.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct CallDelta {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    r#type: Option<Function>,
    function: FunctionDelta,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct FunctionDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    arguments: String,
}

/// The log-probabilities of tokens.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct Logprobs {
    content: Vec<Logprob>,
    refusal: (),
}

/// Why an answer ends.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
enum ChatFinish {
    Stop,
    Length,
    ToolCalls,
}

/// The answer as generated so far.
#[derive(Debug)]
pub(crate) struct ChatAnswer {
    head: Head,
    shows: Shows,
    logprobs: bool,
    /// Whether log-probabilities are kept for the whole answer; a stream has sent them.
    keeps_logprobs: bool,
    /// The compaction item, for clients that asked for it.
    item: Option<CompactionItem>,
    choices: Vec<Choice>,
    /// The frame that ends the last choice; it is held back for the trailer, which it may carry.
    last: Option<ChatFrame>,
}

/// Optional contents of a stream.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shows {
    /// The stream ends with a frame of usage.
    pub(super) usage: bool,
    /// Start time for progress reports, if the client asked for them.
    pub(super) progress: Option<Instant>,
}

#[derive(Debug)]
struct Choice {
    reply: Reply,
    started: bool,
    logprobs: Vec<Logprob>,
    finish: Option<ChatFinish>,
}

impl ChatAnswer {
    pub(super) fn new(head: Head, worded: Worded, shows: Shows) -> ChatAnswer {
        let Worded { reading, item, logprobs, choices, .. } = worded;
        let choices = (0..choices).map(|_| Choice::new(&reading)).collect();
        ChatAnswer { head, shows, logprobs, keeps_logprobs: true, item, choices, last: None }
    }

    fn text(&mut self, choice: u32, text: &str, tokens: &[GeneratedToken], frames: &mut Vec<Value>) {
        let logprobs: Vec<Logprob> =
            if self.logprobs { tokens.iter().filter_map(logprob).collect() } else { Vec::new() };
        let Some(state) = self.choices.get_mut(choice as usize) else { return };
        if self.keeps_logprobs {
            state.logprobs.extend_from_slice(&logprobs);
        }
        let mut deltas = worded(state.reply.push_tokens(text, tokens.len()));
        // Tokens may arrive before the text that they are part of; their log-probabilities are not held back.
        if deltas.is_empty() && !logprobs.is_empty() {
            deltas.push(Delta::content(String::new()));
        }
        self.deltas(choice, deltas, logprobs, frames);
    }

    /// Sends frames for these deltas; the first carries the log-probabilities of their tokens.
    fn deltas(&mut self, choice: u32, deltas: Vec<Delta>, logprobs: Vec<Logprob>, frames: &mut Vec<Value>) {
        let mut logprobs = self.logprobs.then_some(Logprobs { content: logprobs, refusal: () });
        for delta in deltas {
            let state = &mut self.choices[choice as usize];
            if !std::mem::replace(&mut state.started, true) {
                let compaction = self.item.clone();
                let first =
                    Delta { role: Some(Assistant), content: Some(None), compaction, ..Delta::default() };
                frames.push(value(&self.chunk(choice, first, None, None)));
            }
            frames.push(value(&self.chunk(choice, delta, logprobs.take(), None)));
        }
    }

    fn finished(&mut self, choice: u32, reason: FinishReason, frames: &mut Vec<Value>) {
        let Some(state) = self.choices.get_mut(choice as usize) else { return };
        let mut rest = worded(state.reply.finish(reason));
        let reason = match reason {
            FinishReason::Length => ChatFinish::Length,
            // The last call may be incomplete.
            FinishReason::Loop(_) => ChatFinish::Stop,
            _ if !state.reply.calls.is_empty() => ChatFinish::ToolCalls,
            _ => ChatFinish::Stop,
        };
        state.finish = Some(reason);
        if !state.started && rest.is_empty() {
            rest.push(Delta::content(String::new()));
        }
        self.deltas(choice, rest, Vec::new(), frames);
        let end = self.chunk(choice, Delta::default(), None, Some(reason));
        if self.choices.iter().all(|choice| choice.finish.is_some()) {
            self.last = Some(end);
        } else {
            frames.push(value(&end));
        }
    }

    /// Sends the last frame, which carries the trailer: the end of the last choice, or the usage after it.
    fn done(&mut self, trailer: &Trailer, frames: &mut Vec<Value>) {
        let mut last = self.last.take();
        if self.shows.usage {
            frames.extend(last.as_ref().map(value));
            last = Some(self.head.completion(Vec::new(), FrameEnd::usage(self.usage(trailer))));
        }
        if let Some(last) = &mut last {
            last.end.ending = Some(trailer.ending());
        }
        frames.extend(last.as_ref().map(value));
    }

    fn chunk(
        &self,
        index: u32,
        delta: Delta,
        logprobs: Option<Logprobs>,
        finish_reason: Option<ChatFinish>,
    ) -> ChatFrame {
        let choice = DeltaChoice { index, delta, logprobs, finish_reason };
        self.head.completion(vec![choice], FrameEnd::open(self.shows.usage))
    }

    /// Formats the prompt's progress, if the client asked for it.
    fn progress(&self, progress: Progress) -> Option<Value> {
        let prompt_progress = Some(progress.since(self.shows.progress?));
        let end = FrameEnd { prompt_progress, ..FrameEnd::default() };
        let frame: ChatFrame = self.head.completion(Vec::new(), end);
        Some(value(&frame))
    }

    /// Returns the usage, including the tokens of reasoning.
    fn usage(&self, trailer: &Trailer) -> Usage {
        trailer.usage_with_thoughts(self.choices.iter().map(|choice| choice.reply.reasoning_tokens).sum())
    }
}

impl Answer for ChatAnswer {
    const WIRE: Wire = Wire::Data { last: Some("[DONE]") };

    /// A stream sends log-probabilities with their tokens, and never again.
    fn start(&mut self, _frames: &mut Vec<Value>) {
        self.keeps_logprobs = false;
    }

    fn take(&mut self, _prompt: usize, event: Event, trailer: &Trailer, frames: &mut Vec<Value>) {
        match event {
            Event::Text { choice, text, tokens } => self.text(choice, &text, &tokens, frames),
            Event::Finished { choice, reason } => self.finished(choice, reason, frames),
            Event::Done(_) => self.done(trailer, frames),
            Event::Unconstrained(_) => self.choices.iter_mut().for_each(|choice| choice.reply.unconstrain()),
            Event::Prefill { cached, done, total } => {
                frames.extend(self.progress(Progress { cached, done, total }));
            }
            Event::Vector(_) | Event::Failed(_) => {}
        }
    }

    /// Returns the message as a client stores it.
    fn message(&self) -> Option<Value> {
        self.choices.first().map(|choice| choice.reply.message())
    }

    fn whole(self, trailer: &Trailer) -> Vec<u8> {
        let end = WholeEnd { usage: self.usage(trailer), ending: trailer.ending() };
        let (logprobs, item) = (self.logprobs, self.item);
        let choices = self.choices.into_iter().enumerate();
        let choices = choices.map(|(i, choice)| choice.whole(i, logprobs, item.clone())).collect();
        let whole: WholeChat = self.head.completion(choices, end);
        written(&whole)
    }
}

impl Choice {
    fn new(reading: &Reading) -> Choice {
        Choice { reply: Reply::new(reading), started: false, logprobs: Vec::new(), finish: None }
    }

    fn whole(self, index: usize, logprobs: bool, compaction: Option<CompactionItem>) -> ChatChoice {
        ChatChoice {
            index,
            message: AnswerMessage { message: self.reply.said(), refusal: (), compaction },
            logprobs: logprobs.then_some(Logprobs { content: self.logprobs, refusal: () }),
            finish_reason: self.finish,
        }
    }
}

impl Delta {
    fn content(text: String) -> Delta {
        Delta { content: Some(Some(text)), ..Delta::default() }
    }

    fn call(call: CallDelta) -> Delta {
        Delta { tool_calls: vec![call], ..Delta::default() }
    }
}

fn worded(deltas: Vec<AnswerDelta>) -> Vec<Delta> {
    deltas.into_iter().map(delta).collect()
}

/// Converts a delta of the answer to that of a frame.
fn delta(delta: AnswerDelta) -> Delta {
    match delta {
        AnswerDelta::Content(text) => Delta::content(text),
        AnswerDelta::Reasoning(text) => Delta { reasoning_content: Some(text), ..Delta::default() },
        AnswerDelta::ToolCall { index, id, name, arguments } => {
            let function = FunctionDelta { name: Some(name), arguments };
            Delta::call(CallDelta { index, id: Some(id), r#type: Some(Function), function })
        }
        AnswerDelta::Arguments { index, text } => {
            let function = FunctionDelta { name: None, arguments: text };
            Delta::call(CallDelta { index, id: None, r#type: None, function })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::tests::token;

    #[test]
    fn a_stream_holds_no_log_probabilities() {
        for (is_stream, held) in [(true, 0), (false, 1000)] {
            let head = Head { id: String::new(), created: 0, model: String::new() };
            let (reading, choices) = (Reading::Plain, 1);
            let worded = Worded { reading, item: None, conversation: None, logprobs: true, choices };
            let mut answer = ChatAnswer::new(head, worded, Shows { usage: false, progress: None });
            let mut frames = Vec::new();
            if is_stream {
                answer.start(&mut frames);
            }
            for id in 0..1000 {
                answer.text(0, "x", &[token(id, "x", true)], &mut frames);
            }
            assert_eq!(answer.choices[0].logprobs.len(), held);
            let sent =
                frames.iter().filter_map(|frame| frame["choices"][0]["logprobs"]["content"].as_array());
            assert_eq!(sent.map(Vec::len).sum::<usize>(), 1000);
        }
    }
}
