//! The form in which a model writes tool calls: the texts around names and arguments.
//!
//! `template::learn` derives the form from the chat template. If that fails, it is one of the forms in `known`.

use serde_json::Value;

pub use crate::forms::ArgumentsForm;
use crate::forms::{CallForm, CallStart, Calls, JsonText};

/// Llama 3 and 4 may write these before a call that has no other tag.
const PYTHON_TAGS: [&str; 2] = ["<|python_tag|>", "<|python_start|>"];

/// The texts around the parts of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolForm {
    /// Text before the first call, between two, and after the last.
    pub opening: String,
    /// See `opening`.
    pub separator: String,
    /// See `opening`.
    pub closing: String,
    /// Text before the name, between it and the arguments, and after them.
    pub begin: String,
    /// See `begin`.
    pub middle: String,
    /// See `begin`.
    pub end: String,
    /// The form of the arguments.
    pub arguments: ArgumentsForm,
    /// Whether one answer may hold several calls.
    pub several: bool,
    /// Whether the model generates text between name and arguments, such as an identifier of the call.
    pub loose: bool,
}

impl ToolForm {
    /// A form without any text.
    pub(crate) fn empty() -> ToolForm {
        ToolForm::named("", "", "")
    }

    pub(super) fn named(begin: &str, middle: &str, end: &str) -> ToolForm {
        ToolForm {
            opening: String::new(),
            separator: String::new(),
            closing: String::new(),
            begin: begin.into(),
            middle: middle.into(),
            end: end.into(),
            arguments: ArgumentsForm::Json,
            several: false,
            loose: false,
        }
    }

    /// Text before the JSON object that holds the whole call; `None` if the name is outside of the JSON.
    pub(super) fn object_lead(&self) -> Option<&str> {
        let at = self.begin.rfind('{')?;
        self.begin[at + 1..].trim_start().starts_with('"').then_some(&self.begin[..at])
    }

    /// Text after the JSON object that holds the whole call, or after the arguments.
    pub(super) fn tail(&self) -> &str {
        match self.object_lead() {
            Some(_) => self.end.trim_start().strip_prefix('}').unwrap_or(&self.end),
            None => &self.end,
        }
    }

    /// Text before the first part of the first call that varies: its object, or its name.
    pub(super) fn approach(&self) -> String {
        [&self.opening, self.lead()].concat()
    }

    /// [`ToolForm::approach`] for calls after the first one.
    pub(super) fn lead(&self) -> &str {
        self.object_lead().unwrap_or(&self.begin)
    }

    /// The text that marks the beginning of a call; empty if calls begin with JSON, which counts as a call
    /// only at the start of an answer.
    pub fn marker(&self) -> &str {
        // Takes the marker from the opening, or from `begin` without one.
        let from = if self.opening.is_empty() { self.lead() } else { &self.opening };
        let end = match from.chars().next() {
            Some('<') => from.find('>').map(|at| at + 1),
            Some('[') => from.find(']').map(|at| at + 1),
            _ => None,
        };
        let end = end.or_else(|| from.find(|c: char| c.is_whitespace() || c == '{')).unwrap_or(from.len());
        if from[..end].trim_matches(['[', '{']).is_empty() { "" } else { &from[..end] }
    }

    /// The texts that may mark the beginning of a call.
    pub(super) fn markers(&self) -> Vec<&str> {
        match self.marker() {
            "" => PYTHON_TAGS.to_vec(),
            marker => vec![marker],
        }
    }

    /// Later tags of the text before a call, each with the byte after it in [`approach`](ToolForm::approach): a
    /// model that omits the tags before it begins its call with one of them.
    pub(super) fn later_tags(&self) -> Vec<(String, usize)> {
        let (approach, marker) = (self.approach(), self.marker());
        let tag = |at: usize| {
            let from = &approach[at..];
            let end = from.find('>').map(|end| end + 1);
            let end =
                end.or_else(|| from.find(|c: char| c.is_whitespace() || c == '{')).unwrap_or(from.len());
            (from[..end].to_owned(), at + end)
        };
        let begins = approach.match_indices('<').map(|(at, _)| at).filter(|at| *at >= marker.len());
        begins.map(tag).filter(|(text, _)| text.len() > 2 && text != marker).collect()
    }

    /// The tags that end calls. A lone one after a call is ignored.
    pub(super) fn closing_tags(&self) -> Vec<&str> {
        let tags = tags_of(self.tail()).into_iter().chain(tags_of(&self.closing));
        tags.filter(|tag| tag.len() > 2 && tag.starts_with(['<', '['])).collect()
    }

    /// Whether a call after the first one begins with a name, as this text does.
    pub(super) fn begins_with_name(&self, text: &str) -> bool {
        let is_name = |c: char| c.is_alphabetic() || c == '_';
        self.arguments == ArgumentsForm::Python && self.begin.is_empty() && text.starts_with(is_name)
    }

    /// The texts of the form. Control tokens in them are part of the answer.
    pub fn texts(&self) -> Vec<&str> {
        let mut texts =
            vec![&*self.opening, &*self.separator, &*self.closing, &*self.begin, &*self.middle, &*self.end];
        texts.extend(self.arguments.texts());
        if self.marker().is_empty() {
            texts.extend(PYTHON_TAGS);
        }
        texts
    }

    /// The constraint that enforces this form; `None` if it cannot be enforced.
    pub fn constraint(
        &self,
        tools: &[(String, Value)],
        forced: Option<ForcedCall>,
        max: usize,
    ) -> Option<Calls> {
        let start = self.start(forced)?;
        let tool = |(name, schema): &(String, Value)| CallForm {
            begin: format!("{}{name}{}", self.begin, self.middle),
            arguments: self.arguments.clone(),
            schema: schema.clone(),
            end: self.end.clone(),
        };
        Some(Calls {
            start,
            tools: tools.iter().map(tool).collect(),
            opening: self.opening.clone(),
            separator: self.separator.clone(),
            closing: self.closing.clone(),
            calls_max: if self.several { max } else { 1 },
            reasoning: None,
        })
    }

    /// The condition on which an answer becomes a call in this form; `None` if that cannot be enforced.
    fn start(&self, forced: Option<ForcedCall>) -> Option<CallStart> {
        let trigger = self.marker();
        match forced {
            // The model chooses a part of the call. A tag begins no other text, so that it says what follows.
            Some(ForcedCall { after, instead: Some(instead) }) if self.loose => trigger
                .starts_with(['<', '['])
                .then(|| CallStart::Free { after, trigger: trigger.to_owned(), instead }),
            _ if self.loose => None,
            Some(ForcedCall { after, instead }) => Some(CallStart::Forced { after, instead }),
            // The grammar of other arguments fixes their order, and if the answer consists of messages, every message
            // begins like a call.
            None if self.arguments != ArgumentsForm::Json || *self == ToolForm::channels() => None,
            None if trigger.is_empty() => Some(CallStart::LazyAtStart),
            None => Some(CallStart::Lazy { trigger: trigger.to_owned() }),
        }
    }
}

/// The tags of a text, and the texts between them.
pub(super) fn tags_of(text: &str) -> Vec<&str> {
    let mut tags = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let end = match rest.find('<') {
            Some(0) => rest.find('>').map_or(rest.len(), |at| at + 1),
            other => other.unwrap_or(rest.len()),
        };
        tags.push(rest[..end].trim_end());
        rest = rest[end..].trim_start();
    }
    tags
}

/// The tag at the beginning of a text, or the whole text.
pub(super) fn first_tag(text: &str) -> &str {
    let text = text.trim();
    match text.starts_with('<').then(|| text.find('>')).flatten() {
        Some(at) => &text[..=at],
        None => text,
    }
}

/// Requires the answer to be a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForcedCall {
    /// The end of free text that may precede the call.
    pub after: Option<String>,
    /// A JSON text that the answer may be in place of a call.
    pub instead: Option<Box<JsonText>>,
}
