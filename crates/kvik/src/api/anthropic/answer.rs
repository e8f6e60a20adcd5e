//! The answer of `/v1/messages`: events become blocks of one message.

use kvik_engine::api::{Event, FinishReason, Report};
use kvik_engine::text::answer::AnswerDelta;
use serde_json::{Value, json};

use super::{body::Wanted, error};
use crate::{
    api::chat::{Reply, Worded},
    app::{
        generation::Answer,
        report::{
            comparison::{Diagnosis, Part},
            trailer::Trailer,
        },
        wire::Wire,
    },
    http::error::ApiError,
};

/// What the answer repeats of the request.
#[derive(Debug)]
pub(super) struct Spoken {
    pub(super) id: String,
    pub(super) model: String,
    pub(super) stop: Vec<String>,
    /// What is computed is left in the cache.
    pub(super) leaves: bool,
    /// Tokens of prompt and answer together at most.
    pub(super) context: usize,
    pub(super) wanted: Wanted,
}

/// The answer as far as it is known.
#[derive(Debug)]
pub(crate) struct MessageAnswer {
    spoken: Spoken,
    reply: Reply,
    /// Complete blocks, and the last one as far as it is known.
    blocks: Vec<Value>,
    /// The last block goes on.
    open: bool,
    /// Of the call that it is.
    arguments: String,
    started: bool,
    finish: Option<FinishReason>,
}

/// What stands behind a thought for clients that send it back: nothing is sealed, so nothing is to be checked.
const SIGNATURE: &str = "kvik";

impl MessageAnswer {
    pub(super) fn new(spoken: Spoken, worded: Worded) -> MessageAnswer {
        let mut answer = MessageAnswer {
            spoken,
            reply: Reply::new(&worded.reading),
            blocks: Vec::new(),
            open: false,
            arguments: String::new(),
            started: false,
            finish: None,
        };
        if let Some(item) = worded.item {
            answer.blocks.push(json!({"type": "compaction", "content": item["encrypted_content"]}));
        }
        answer
    }

    /// The first frame, once it is known what is reused.
    fn begin(&mut self, report: &Report, frames: &mut Vec<Value>) {
        if std::mem::replace(&mut self.started, true) {
            return;
        }
        let mut message = self.message_with(&[], report);
        message["stop_reason"] = Value::Null;
        frames.push(json!({"type": "message_start", "message": message}));
        if let Some(block) = self.blocks.first() {
            let delta = json!({"type": "compaction_delta", "content": block["content"]});
            frames.push(json!({"type": "content_block_start", "index": 0, "content_block": {"type": "compaction", "content": null}}));
            frames.push(json!({"type": "content_block_delta", "index": 0, "delta": delta}));
            frames.push(json!({"type": "content_block_stop", "index": 0}));
        }
    }

    fn deltas(&mut self, deltas: Vec<AnswerDelta>, frames: &mut Vec<Value>) {
        for delta in deltas {
            match delta {
                AnswerDelta::Content(text) => self.grow("text", "text", "text_delta", &text, frames),
                AnswerDelta::Reasoning(text) => {
                    self.grow("thinking", "thinking", "thinking_delta", &text, frames);
                }
                AnswerDelta::ToolCall { id, name, arguments, .. } => {
                    self.open_block(json!({"type": "tool_use", "id": id, "name": name, "input": {}}), frames);
                    self.grow_call(&arguments, frames);
                }
                AnswerDelta::Arguments { text, .. } => self.grow_call(&text, frames),
            }
        }
    }

    /// Adds text to the last block, or begins one of this kind.
    fn grow(&mut self, kind: &str, field: &str, delta: &str, text: &str, frames: &mut Vec<Value>) {
        let goes_on = self.open && self.blocks.last().is_some_and(|block| block["type"] == kind);
        if !goes_on {
            let mut block = json!({"type": kind, field: ""});
            if kind == "thinking" {
                block["signature"] = json!("");
            }
            self.open_block(block, frames);
        }
        let index = self.blocks.len() - 1;
        if let Some(Value::String(all)) = self.blocks[index].get_mut(field) {
            all.push_str(text);
        }
        frames.push(
            json!({"type": "content_block_delta", "index": index, "delta": {"type": delta, field: text}}),
        );
    }

    /// More arguments of the call that is the last block.
    fn grow_call(&mut self, text: &str, frames: &mut Vec<Value>) {
        let index = self.blocks.len() - 1;
        self.arguments.push_str(text);
        if !text.is_empty() {
            let delta = json!({"type": "input_json_delta", "partial_json": text});
            frames.push(json!({"type": "content_block_delta", "index": index, "delta": delta}));
        }
    }

    fn open_block(&mut self, block: Value, frames: &mut Vec<Value>) {
        self.close(frames);
        let index = self.blocks.len();
        frames.push(json!({"type": "content_block_start", "index": index, "content_block": block}));
        self.blocks.push(block);
        self.open = true;
    }

    fn close(&mut self, frames: &mut Vec<Value>) {
        if !std::mem::replace(&mut self.open, false) {
            return;
        }
        let index = self.blocks.len() - 1;
        if let Some(signature) = self.blocks[index].get_mut("signature") {
            *signature = json!(SIGNATURE);
            let delta = json!({"type": "signature_delta", "signature": SIGNATURE});
            frames.push(json!({"type": "content_block_delta", "index": index, "delta": delta}));
        }
        if let Some(input) = self.blocks[index].get_mut("input") {
            // Arguments that were cut off are no object, and clients want one.
            let whole = serde_json::from_str(&std::mem::take(&mut self.arguments)).ok();
            *input = whole.filter(Value::is_object).unwrap_or_else(|| json!({}));
        }
        frames.push(json!({"type": "content_block_stop", "index": index}));
    }

    /// The last frames: why it ends, what it cost, what the cache did.
    fn done(&mut self, trailer: &Trailer, frames: &mut Vec<Value>) {
        let report = trailer.total();
        self.begin(&report, frames);
        let (reason, sequence) = self.stop_reason(&report);
        let mut last = json!({
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": sequence},
            "usage": self.usage(&report),
        });
        self.add_trailer(&mut last, trailer);
        frames.push(last);
        frames.push(json!({"type": "message_stop"}));
    }

    fn message_with(&self, blocks: &[Value], report: &Report) -> Value {
        let (reason, sequence) = self.stop_reason(report);
        json!({
            "id": self.spoken.id,
            "type": "message",
            "role": "assistant",
            "model": self.spoken.model,
            "content": blocks,
            "stop_reason": reason,
            "stop_sequence": sequence,
            "usage": self.usage(report),
        })
    }

    fn add_trailer(&self, answer: &mut Value, trailer: &Trailer) {
        if self.spoken.wanted.context_management {
            answer["context_management"] = json!({"applied_edits": []});
        }
        if self.spoken.wanted.diagnostics {
            answer["diagnostics"] = diagnostics(trailer.diagnosis(), &trailer.total());
        }
        answer["kvik"] = trailer.kvik(0);
    }

    /// Why it has ended, and the sequence that ended it.
    fn stop_reason(&self, report: &Report) -> (Option<&'static str>, Option<&str>) {
        let Some(finish) = self.finish else { return (None, None) };
        let is_full = report.prompt_tokens + report.generated_tokens >= self.spoken.context;
        match finish {
            FinishReason::Length if is_full => (Some("model_context_window_exceeded"), None),
            FinishReason::Length => (Some("max_tokens"), None),
            _ if !self.reply.calls.is_empty() => (Some("tool_use"), None),
            FinishReason::StopString(i) => {
                (Some("stop_sequence"), self.spoken.stop.get(i).map(String::as_str))
            }
            FinishReason::Eos | FinishReason::ConstraintDone => (Some("end_turn"), None),
        }
    }

    /// Every token of the prompt once: read from the cache, computed and left there, or computed and not.
    fn usage(&self, report: &Report) -> Value {
        let computed = report.prompt_tokens - report.cached_tokens.min(report.prompt_tokens);
        let (created, not_left) = if self.spoken.leaves { (computed, 0) } else { (0, computed) };
        json!({
            "input_tokens": not_left,
            "cache_creation_input_tokens": created,
            "cache_read_input_tokens": report.cached_tokens,
            "cache_creation": {"ephemeral_5m_input_tokens": created, "ephemeral_1h_input_tokens": 0},
            "output_tokens": report.generated_tokens,
            "output_tokens_details": {"thinking_tokens": self.reply.reasoning_tokens},
            "service_tier": "standard",
        })
    }
}

impl Answer for MessageAnswer {
    const WIRE: Wire = Wire::Named { ping: Some("ping") };

    fn take(&mut self, _prompt: usize, event: Event, trailer: &Trailer, frames: &mut Vec<Value>) {
        match event {
            Event::Prefill { cached, total, .. } => {
                let report = Report { prompt_tokens: total, cached_tokens: cached, ..Report::default() };
                self.begin(&report, frames);
            }
            Event::Text { text, tokens, .. } => {
                let deltas = self.reply.push_tokens(&text, tokens.len());
                self.deltas(deltas, frames);
            }
            Event::Finished { reason, .. } => {
                self.finish = Some(reason);
                let rest = self.reply.finish();
                self.deltas(rest, frames);
                self.close(frames);
            }
            Event::Done(_) => self.done(trailer, frames),
            Event::Vector(_) | Event::Failed(_) => {}
        }
    }

    fn message(&self) -> Option<Value> {
        Some(self.reply.message())
    }

    fn whole(self, trailer: &Trailer) -> Value {
        let mut message = self.message_with(&self.blocks, &trailer.total());
        self.add_trailer(&mut message, trailer);
        message
    }

    fn failed(&self, error: &ApiError) -> Value {
        error::body(error)
    }
}

/// What has changed since the earlier answer, and what that cost.
fn diagnostics(found: Option<Diagnosis>, report: &Report) -> Value {
    let reason = match found {
        None => Value::Null,
        Some(Diagnosis::NotFound) => json!({"type": "previous_message_not_found"}),
        Some(Diagnosis::Several) => json!({"type": "unavailable"}),
        Some(Diagnosis::GoesOn { reusable }) if report.cached_tokens >= reusable => Value::Null,
        // The request is not to blame; `kvik.cache.reason` says what is.
        Some(Diagnosis::GoesOn { .. }) => json!({"type": "unavailable"}),
        Some(Diagnosis::Changed { part, common, reusable }) => json!({
            "type": match part {
                Part::Model => "model_changed",
                Part::Tools => "tools_changed",
                Part::System => "system_changed",
                Part::Settings | Part::Messages => "messages_changed",
            },
            "cache_missed_input_tokens": reusable - common,
        }),
    };
    json!({"cache_miss_reason": reason})
}
