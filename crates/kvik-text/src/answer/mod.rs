//! Splits a model's answer into reasoning, content and tool calls while it streams.
//!
//! The result does not depend on how the text was cut into pieces. Text is held back only while it can
//! still become a tag or a call, and none is lost: text that resembles a call and is not one becomes
//! content. Line breaks next to tags belong to the format, not to the text, and are dropped.

mod arguments;
mod channels;
mod forced;
mod form;
mod json;
mod known;
mod parameters;
mod read;
mod reading;
mod reasoning;
mod search;
mod sent;
mod skip;
mod tagged;
mod trial;
mod typed;
mod values;
mod waiting;

use std::sync::Arc;

use channels::Channels;
use tagged::Tagged;

pub use forced::ForcedCallParser;
pub use form::{ArgumentsForm, ForcedCall, ToolForm};
pub use read::Offer;
pub use reading::{Reader, Reading};
pub use reasoning::{AnswerPlace, AnswerStart, ReasoningForm, ReasoningTags};

/// A piece of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AnswerDelta {
    /// More reasoning.
    Reasoning(String),
    /// More content.
    Content(String),
    /// A tool call, with its arguments or their beginning.
    ToolCall {
        /// Position among the calls of this answer, from 0.
        index: usize,
        /// Identifier of this call, under which the client returns its result.
        id: String,
        /// The tool.
        name: String,
        /// Its arguments as JSON text, exactly as the model wrote them if it wrote JSON. If a constraint enforces
        /// the form of calls, these are the first characters, and [`Arguments`](AnswerDelta::Arguments) follow.
        arguments: String,
    },
    /// More arguments of the last call.
    Arguments {
        /// Position of the call among the calls of this answer.
        index: usize,
        /// The continuation of its arguments.
        text: String,
    },
}

/// Parses one answer.
#[derive(Debug)]
pub struct AnswerParser(Parser);

#[derive(Debug)]
enum Parser {
    Tagged(Box<Tagged>),
    Channels(Channels),
}

impl AnswerParser {
    /// A parser for an answer; without an `offer` calls are content. `salt` makes the ids of this answer's calls
    /// differ from those of other answers.
    pub fn new(start: AnswerStart, offer: Option<Arc<Offer>>, salt: &str) -> AnswerParser {
        AnswerParser(match start.form {
            ReasoningForm::Tags(tags) => {
                Parser::Tagged(Box::new(Tagged::new(tags, start.in_reasoning(), offer, salt)))
            }
            ReasoningForm::Channels => Parser::Channels(Channels::new(start.place, offer, salt)),
        })
    }

    /// Reads calls as those of an answer that no constraint holds to their form, before any text: what begins like a call
    /// may be none.
    pub fn unconstrain(&mut self) {
        match &mut self.0 {
            Parser::Tagged(parser) => parser.unconstrain(),
            Parser::Channels(parser) => parser.unconstrain(),
        }
    }

    /// Adds text; returns the parts that it completes.
    pub fn push(&mut self, text: &str) -> Vec<AnswerDelta> {
        match &mut self.0 {
            Parser::Tagged(parser) => parser.push(text),
            Parser::Channels(parser) => parser.push(text),
        }
    }

    /// Ends the answer; returns the text that was held back.
    pub fn finish(&mut self) -> Vec<AnswerDelta> {
        match &mut self.0 {
            Parser::Tagged(parser) => parser.finish(),
            Parser::Channels(parser) => parser.finish(),
        }
    }

    /// Bytes at the end of the text so far that are in no delta yet.
    pub fn held_bytes(&self) -> usize {
        match &self.0 {
            Parser::Tagged(parser) => parser.held_bytes(),
            Parser::Channels(parser) => parser.held_bytes(),
        }
    }
}

/// The identifier of a call of an answer.
fn call_id(salt: &str, index: usize, name: &str) -> String {
    let parts = [salt, "\0", name].concat();
    format!("call_{index}_{}", &blake3::hash(parts.as_bytes()).to_hex()[..16])
}

/// Length of the longest suffix of `text` that is a proper prefix of `tag`.
fn partial_tag(text: &str, tag: &str) -> usize {
    let longest = text.len().min(tag.len() - 1);
    (1..=longest).rev().find(|&len| text.as_bytes().ends_with(&tag.as_bytes()[..len])).unwrap_or(0)
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_families;
#[cfg(test)]
mod tests_markup;
