//! Parsing of an answer's text into reasoning, content and tool calls.

use std::sync::Arc;

use serde_json::Value;

use super::{AnswerDelta, AnswerParser, AnswerStart, Offer};

/// The way in which the text of an answer is parsed.
#[derive(Debug, Clone)]
pub enum Reading {
    /// Reasoning, content and tool calls are separated according to the model's form.
    Tagged {
        /// The form, and the place at which the answer begins.
        start: AnswerStart,
        /// The offered tools.
        offer: Option<Arc<Offer>>,
    },
    /// A constraint shapes the answer: all of it is content.
    Plain,
    /// A constraint makes the whole answer one call: `{"name": ..., "arguments": {...}}`.
    ForcedCall,
}

/// Parses the text of one answer as it arrives.
#[derive(Debug)]
pub enum Reader {
    /// See [`Reading::Tagged`].
    Tagged(Box<AnswerParser>),
    /// See [`Reading::Plain`].
    Plain,
    /// See [`Reading::ForcedCall`].
    ForcedCall {
        /// The id of the call.
        id: String,
        /// Its text so far.
        json: String,
    },
}

impl Reading {
    /// A reader for one answer. `salt` makes the ids of its calls differ from those of other answers, since
    /// results refer to ids.
    pub fn reader(&self, salt: &str) -> Reader {
        match self {
            Reading::Tagged { start, offer } => {
                Reader::Tagged(Box::new(AnswerParser::new(*start, offer.clone(), salt)))
            }
            Reading::Plain => Reader::Plain,
            Reading::ForcedCall => Reader::ForcedCall { id: format!("call_{salt}"), json: String::new() },
        }
    }

    /// The texts around reasoning and calls: control tokens among them are part of the answer's text.
    pub fn texts(&self) -> Vec<&str> {
        let Reading::Tagged { start, offer } = self else { return Vec::new() };
        let offered = offer.iter().flat_map(|offer| offer.form.texts());
        start.form.texts().into_iter().chain(offered).collect()
    }
}

impl Reader {
    /// Parses more text; returns the resulting deltas.
    pub fn push(&mut self, text: &str) -> Vec<AnswerDelta> {
        match self {
            Reader::Tagged(parser) => parser.push(text),
            Reader::Plain if text.is_empty() => Vec::new(),
            Reader::Plain => vec![AnswerDelta::Content(text.to_owned())],
            Reader::ForcedCall { json, .. } => {
                json.push_str(text);
                Vec::new()
            }
        }
    }

    /// The deltas of held-back text, at the end of the answer.
    pub fn finish(&mut self) -> Vec<AnswerDelta> {
        match self {
            Reader::Tagged(parser) => parser.finish(),
            Reader::Plain => Vec::new(),
            // Nothing was generated, as `max_tokens` 0 asks for.
            Reader::ForcedCall { json, .. } if json.is_empty() => Vec::new(),
            Reader::ForcedCall { id, json } => vec![forced_call(id, json)],
        }
    }
}

/// The call that a constrained answer consists of; text that was cut off by `max_tokens` stays content.
fn forced_call(id: &str, json: &str) -> AnswerDelta {
    let call: Option<Value> = serde_json::from_str(json).ok();
    let name = call.as_ref().and_then(|call| call["name"].as_str());
    match (name, &call) {
        (Some(name), Some(call)) => AnswerDelta::ToolCall {
            index: 0,
            id: id.to_owned(),
            name: name.to_owned(),
            arguments: call["arguments"].to_string(),
        },
        _ => AnswerDelta::Content(json.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_without_text_says_nothing() {
        for reading in [Reading::Plain, Reading::ForcedCall] {
            assert!(reading.reader("x").finish().is_empty(), "{reading:?}");
        }
    }
}
