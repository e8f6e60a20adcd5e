//! The form in which a model writes tool calls: the texts around names and arguments.
//!
//! `template::learn` learns the form from the chat template. If that fails, it is one of the known forms; a
//! new one is a row of [`KNOWN`].

use serde_json::Value;

use crate::api::{CallForm, CallStart, Calls};

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

/// The form of the arguments of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ArgumentsForm {
    /// A JSON object.
    Json,
    /// One after the other: a key and a value with text around them.
    Parameters {
        /// Text before a key, between it and its value, and after the value.
        key: String,
        /// See `key`.
        value: String,
        /// See `key`.
        end: String,
    },
}

type Form = fn() -> ToolForm;

/// Forms by a text that a template contains if its model was trained on them.
const KNOWN: [(&str, Form); 5] = [
    ("<tool_call>", ToolForm::tagged),
    ("[TOOL_CALLS]", || ToolForm::objects("[TOOL_CALLS][", ", ", "]", "arguments")),
    ("<|tool_call|>", || ToolForm::objects("<|tool_call|>[", ", ", "]", "arguments")),
    ("<|python_tag|>", || ToolForm::objects("", "; ", "", "parameters")),
    ("<function=", || ToolForm { several: true, ..ToolForm::named("<function=", ">", "</function>") }),
];

impl ToolForm {
    /// The form of a template that mentions its tag without rendering calls.
    pub fn mentioned_in(source: &str) -> Option<ToolForm> {
        KNOWN.iter().find(|(text, _)| source.contains(text)).map(|(_, form)| form())
    }

    /// JSON objects in tags, as Hermes and Qwen write them. Models that were trained on no form are asked
    /// for this one too.
    pub fn tagged() -> ToolForm {
        ToolForm {
            separator: "\n".into(),
            several: true,
            ..ToolForm::named("<tool_call>\n{\"name\": \"", "\", \"arguments\": ", "}\n</tool_call>")
        }
    }

    fn objects(opening: &str, separator: &str, closing: &str, arguments: &str) -> ToolForm {
        ToolForm {
            opening: opening.into(),
            separator: separator.into(),
            closing: closing.into(),
            several: true,
            ..ToolForm::named("{\"name\": \"", &format!("\", \"{arguments}\": "), "}")
        }
    }

    /// A form without any text.
    pub(crate) fn empty() -> ToolForm {
        ToolForm::named("", "", "")
    }

    fn named(begin: &str, middle: &str, end: &str) -> ToolForm {
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

    /// The same for calls after the first one.
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

    /// The texts of the form. A control token in one of them is part of the answer.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        let parts = [&self.opening, &self.separator, &self.closing, &self.begin, &self.middle, &self.end];
        let untagged = self.marker().is_empty().then_some(super::PYTHON_TAG);
        parts.into_iter().map(String::as_str).chain(untagged)
    }

    /// The constraint that enforces this form; `None` if its arguments are not JSON.
    pub fn constraint(
        &self,
        tools: &[(String, Value)],
        forced: Option<ForcedCall>,
        max: usize,
    ) -> Option<Calls> {
        if self.arguments != ArgumentsForm::Json || self.loose {
            return None;
        }
        let tool = |(name, schema): &(String, Value)| CallForm {
            begin: format!("{}{name}{}", self.begin, self.middle),
            schema: schema.clone(),
            end: self.end.clone(),
        };
        let start = match (forced, self.marker()) {
            (Some(ForcedCall { after }), _) => CallStart::Forced { after },
            (None, "") => CallStart::LazyAtStart { trigger: self.first_key()? },
            (None, marker) => CallStart::Lazy { trigger: marker.into() },
        };
        Some(Calls {
            start,
            tools: tools.iter().map(tool).collect(),
            opening: self.opening.clone(),
            separator: self.separator.clone(),
            closing: self.closing.clone(),
            calls_max: if self.several { max } else { 1 },
        })
    }

    /// The beginning that all calls share if they are plain JSON, such as `{"name"`.
    fn first_key(&self) -> Option<String> {
        let whole = [&*self.opening, &self.begin].concat();
        let mut quotes = whole.match_indices('"').map(|(at, _)| at);
        let end = quotes.nth(1)?;
        Some(whole[..=end].to_owned())
    }
}

/// Requires the answer to be a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForcedCall {
    /// The end of free text that may precede the call.
    pub after: Option<String>,
}
