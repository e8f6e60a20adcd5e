//! How every dialect reads the text of an answer: reasoning, content and tool calls are told apart.

use std::sync::Arc;

use kvik_engine::text::answer::{AnswerDelta, AnswerParser, AnswerStart, Offer};
use serde_json::Value;

use crate::random::random;

/// How the text of an answer is read.
#[derive(Debug, Clone)]
pub(crate) enum Reading {
    /// Reasoning, content and tool calls are told apart in the form of the model.
    Tagged {
        /// The form, and where the answer begins in it.
        start: AnswerStart,
        /// Tools that the request brought.
        offer: Option<Arc<Offer>>,
    },
    /// A constraint shapes the answer: all of it is content.
    Plain,
    /// A constraint makes the whole answer one call: `{"name": ..., "arguments": {...}}`.
    ForcedCall,
}

/// Reads the text of one choice as it comes.
#[derive(Debug)]
pub(crate) enum Reader {
    Tagged(Box<AnswerParser>),
    Plain,
    ForcedCall(String),
}

impl Reading {
    /// A reader for one choice.
    pub(crate) fn reader(&self) -> Reader {
        // Calls of different answers must have different ids: their results name them.
        let salt = format!("{:016x}", random());
        match self {
            Reading::Tagged { start, offer } => {
                Reader::Tagged(Box::new(AnswerParser::new(*start, offer.clone(), &salt)))
            }
            Reading::Plain => Reader::Plain,
            Reading::ForcedCall => Reader::ForcedCall(String::new()),
        }
    }
}

impl Reader {
    /// Reads more text; returns the deltas it makes.
    pub(crate) fn push(&mut self, text: &str) -> Vec<AnswerDelta> {
        match self {
            Reader::Tagged(parser) => parser.push(text),
            Reader::Plain if text.is_empty() => Vec::new(),
            Reader::Plain => vec![AnswerDelta::Content(text.to_owned())],
            Reader::ForcedCall(json) => {
                json.push_str(text);
                Vec::new()
            }
        }
    }

    /// What was held back, now that no more text comes.
    pub(crate) fn finish(&mut self) -> Vec<AnswerDelta> {
        match self {
            Reader::Tagged(parser) => parser.finish(),
            Reader::Plain => Vec::new(),
            Reader::ForcedCall(json) => vec![forced_call(json)],
        }
    }
}

/// The call that a constrained answer spells; text that was cut short by `max_tokens` stays content.
fn forced_call(json: &str) -> AnswerDelta {
    let call: Option<Value> = serde_json::from_str(json).ok();
    let name = call.as_ref().and_then(|call| call["name"].as_str());
    match (name, &call) {
        (Some(name), Some(call)) => AnswerDelta::ToolCall {
            index: 0,
            id: format!("call_{:016x}", random()),
            name: name.to_owned(),
            arguments: call["arguments"].to_string(),
        },
        _ => AnswerDelta::Content(json.to_owned()),
    }
}
