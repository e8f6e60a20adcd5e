//! Converts conversations in OpenAI's shape to the shape that templates expect.

use serde_json::{Map, Value, json};

use super::TemplateError;
use super::ids::{self, CallIds};
use super::unseen::{has_images, question_start, says_nothing, unseen};
use crate::arguments::{complete_arguments, whole_surrogates};

/// The form in which a template expects the arguments of earlier tool calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arguments {
    /// JSON text as the model wrote it, unchanged if possible: the prompt then repeats exactly the generated
    /// tokens, whose keys and values are in the cache.
    Text,
    /// JSON text, even if the request sent an object: the template concatenates it with other texts.
    TextOnly,
    /// Parsed.
    Object,
}

/// The format of messages that a template expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MessageFormat {
    pub(super) arguments: Arguments,
    /// Whether a message with nothing but calls has null content instead of empty content.
    pub(super) null_content: bool,
    /// The location of a message's reasoning.
    pub(super) reasoning: ReasoningField,
    /// The identifiers of calls that the template accepts.
    pub(super) ids: CallIds,
}

/// The location where a template expects the reasoning of an earlier answer. Requests have it in
/// `reasoning_content`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReasoningField {
    /// In `reasoning_content`, or nowhere.
    Usual,
    /// In a field of this name.
    Named(&'static str),
    /// In `thinking`; with calls there may be no content as well.
    ThinkingAlone,
    /// In a part of the content.
    Part,
}

impl ReasoningField {
    fn guess(source: &str) -> ReasoningField {
        let reads = |name: &str| {
            [format!(".{name}"), format!("['{name}']"), format!("[\"{name}\"]"), format!("get('{name}')")]
                .iter()
                .any(|access| source.contains(access))
        };
        match () {
            () if source.contains("reasoning_content") => ReasoningField::Usual,
            () if source.contains("Cannot pass both content and thinking") => ReasoningField::ThinkingAlone,
            () if source.contains("block['thinking']") => ReasoningField::Part,
            () if reads("thinking") => ReasoningField::Named("thinking"),
            () if reads("reasoning") => ReasoningField::Named("reasoning"),
            () => ReasoningField::Usual,
        }
    }

    /// Moves the reasoning of a message to the location that the template expects.
    fn place(self, message: &mut Map<String, Value>) {
        let reasoning = message.get("reasoning_content").and_then(Value::as_str);
        let Some(reasoning) = reasoning.filter(|text| !text.is_empty()).map(str::to_owned) else { return };
        let content = message.get("content").and_then(Value::as_str).unwrap_or_default().to_owned();
        match self {
            ReasoningField::Usual => {}
            ReasoningField::Named(name) => {
                message.entry(name).or_insert(reasoning.into());
            }
            ReasoningField::ThinkingAlone if message.contains_key("tool_calls") && !content.is_empty() => {
                message.insert("thinking".into(), [reasoning, content].join("\n").into());
                message.insert("content".into(), "".into());
            }
            ReasoningField::ThinkingAlone => {
                message.entry("thinking").or_insert(reasoning.into());
            }
            ReasoningField::Part => {
                let mut parts = vec![json!({"type": "thinking", "thinking": reasoning})];
                parts.extend((!content.is_empty()).then(|| json!({"type": "text", "text": content})));
                message.insert("content".into(), parts.into());
            }
        }
    }
}

impl MessageFormat {
    /// Guesses the format from the template's source.
    pub(super) fn guess(source: &str) -> MessageFormat {
        let arguments = match source.contains("arguments is string") {
            true => Arguments::Text,
            false => Arguments::Object,
        };
        // Templates that do not check for none print the content, even if it is none.
        let squeezed: String = source.split_whitespace().collect();
        let asks = [
            "content']isnotnone",
            "content\"]isnotnone",
            ".contentisnotnone",
            "content']isnone",
            ".contentisnone",
        ];
        MessageFormat {
            arguments,
            null_content: asks.iter().any(|question| squeezed.contains(question)),
            reasoning: ReasoningField::guess(source),
            ids: CallIds::Any,
        }
    }
}

pub(super) fn normalise(messages: &Value, expected: MessageFormat) -> Result<Vec<Value>, TemplateError> {
    let list = messages.as_array().ok_or_else(|| bad("messages".into(), "an array is needed"))?;
    let question = question_in(list);
    let messages = list.iter().enumerate();
    let messages =
        messages.map(|(i, entry)| message(&format!("messages[{i}]"), entry, expected, i >= question));
    let mut messages = messages.collect::<Result<Vec<_>, _>>()?;
    ids::tell(&mut messages, expected.ids);
    Ok(messages)
}

/// Checks that the question with which these messages end is text.
///
/// # Errors
/// At a part of the question that is not text.
pub fn check_question(messages: &[Value]) -> Result<(), TemplateError> {
    let mut asked = messages.iter().enumerate().skip(question_in(messages));
    asked.try_for_each(|(i, message)| said(&format!("messages[{i}]"), message, true).map(drop))
}

/// The messages without those at the end in which the assistant says and calls nothing: they answer no question.
pub fn without_empty_answers(messages: &[Value]) -> &[Value] {
    let is_empty = |message: &Value| {
        said_by(message) == "assistant" && calls_of(message).is_none() && says_nothing(&message["content"])
    };
    let count = messages.iter().rposition(|message| !is_empty(message)).map_or(0, |last| last + 1);
    &messages[..count]
}

/// The index of the first message of the question.
fn question_in(messages: &[Value]) -> usize {
    question_start(without_empty_answers(messages).iter().map(said_by))
}

/// The calls of a message, if it has any.
fn calls_of(message: &Value) -> Option<&Value> {
    let is_none = |calls: &Value| calls.is_null() || calls.as_array().is_some_and(Vec::is_empty);
    message.get("tool_calls").filter(|calls| !is_none(calls))
}

fn said_by(message: &Value) -> &str {
    message.get("role").and_then(Value::as_str).unwrap_or_default()
}

/// The messages with additions that some templates require: results have the name of their tool, and an empty
/// answer, which was cut off, becomes a space.
pub(super) fn explicit(messages: &[Value]) -> Vec<Value> {
    let mut messages = messages.to_vec();
    ids::name_results(&mut messages);
    for message in &mut messages {
        let calls = !message["tool_calls"].is_null();
        if message["role"] == "assistant" && !calls && message["content"] == "" {
            message["content"] = " ".into();
        }
    }
    messages
}

/// Whether a conversation has a system message.
pub(super) fn has_system(messages: &[Value]) -> bool {
    messages.iter().any(|message| message["role"] == "system")
}

/// The messages without system messages, for templates that do not render them: their texts are at the beginning of the
/// next message of the user, or else at the end of the last one.
pub(super) fn fold_system(messages: Vec<Value>) -> Vec<Value> {
    let mut folded: Vec<Value> = Vec::with_capacity(messages.len());
    let mut texts: Vec<String> = Vec::new();
    for mut message in messages {
        if message["role"] == "system" {
            texts.push(text_of(&message));
            continue;
        }
        if message["role"] == "user" && !texts.is_empty() {
            texts.push(text_of(&message));
            message["content"] = paragraphs(std::mem::take(&mut texts)).into();
        }
        folded.push(message);
    }
    if texts.is_empty() {
        return folded;
    }
    match folded.iter_mut().rfind(|message| message["role"] == "user") {
        Some(last) => {
            texts.insert(0, text_of(last));
            last["content"] = paragraphs(texts).into();
        }
        None => folded.insert(0, json!({"role": "user", "content": paragraphs(texts)})),
    }
    folded
}

fn text_of(message: &Value) -> String {
    message["content"].as_str().unwrap_or_default().to_owned()
}

fn paragraphs(mut texts: Vec<String>) -> String {
    texts.retain(|text| !text.is_empty());
    texts.join("\n\n")
}

/// The messages with every text as a list of one part, for templates that read nothing else. Some read the first part
/// without checking for one, so an empty text is a part too.
pub(super) fn in_parts(messages: &[Value]) -> Vec<Value> {
    let mut messages = messages.to_vec();
    for message in &mut messages {
        if message["content"].is_string() {
            let text = message["content"].take();
            message["content"] = json!([{"type": "text", "text": text}]);
        }
    }
    messages
}

fn message(
    field: &str,
    entry: &Value,
    expected: MessageFormat,
    is_asked: bool,
) -> Result<Value, TemplateError> {
    let fields = entry.as_object().ok_or_else(|| bad(field.into(), "an object is needed"))?;
    let mut out = fields.clone();
    out.insert("role".into(), role(field, fields)?.into());
    out.insert("content".into(), said(field, entry, is_asked)?.into());
    if let Some(calls) = calls_of(entry) {
        out.insert(
            "tool_calls".into(),
            tool_calls(&format!("{field}.tool_calls"), calls, expected.arguments)?,
        );
        if expected.null_content && out["content"] == "" {
            out.insert("content".into(), Value::Null);
        }
    } else {
        out.remove("tool_calls");
    }
    if out["role"] == "assistant" {
        name_reasoning(&mut out);
        expected.reasoning.place(&mut out);
    }
    Ok(Value::Object(out))
}

/// Renames the field `reasoning`, which clients of vLLM use.
fn name_reasoning(message: &mut Map<String, Value>) {
    let says = |text: &Value| text.as_str().is_some_and(|text| !text.is_empty());
    if !message.get("reasoning_content").is_some_and(says) && message.get("reasoning").is_some_and(says) {
        let reasoning = message.shift_remove("reasoning").unwrap_or_default();
        message.insert("reasoning_content".into(), reasoning);
    }
}

/// The role of a message; `developer`, which newer clients use, becomes `system`.
fn role<'a>(field: &str, fields: &'a Map<String, Value>) -> Result<&'a str, TemplateError> {
    match fields.get("role").and_then(Value::as_str) {
        Some("developer") => Ok("system"),
        Some(role) => Ok(role),
        None => Err(bad(format!("{field}.role"), "a string is needed")),
    }
}

/// The text of a message. Images beside it are left out, unless the question is about them.
fn said(field: &str, message: &Value, is_asked: bool) -> Result<String, TemplateError> {
    if is_asked && has_images(message) {
        return Err(bad(format!("{field}.images"), "images are not supported; send text"));
    }
    content(&format!("{field}.content"), message.get("content"), is_asked)
}

/// A string unchanged, parts one per line as in llama.cpp and vLLM, missing content as an empty string. Parts
/// other than text are replaced by words, unless the question is about them.
fn content(field: &str, content: Option<&Value>, is_asked: bool) -> Result<String, TemplateError> {
    match content {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(parts)) => {
            let texts =
                parts.iter().enumerate().map(|(i, part)| part_text(&format!("{field}[{i}]"), part, is_asked));
            Ok(texts.collect::<Result<Vec<&str>, TemplateError>>()?.join("\n"))
        }
        Some(_) => Err(bad(field.into(), "a string or an array of text parts is needed")),
    }
}

fn part_text<'a>(field: &str, part: &'a Value, is_asked: bool) -> Result<&'a str, TemplateError> {
    match part.get("type").and_then(Value::as_str) {
        Some(name @ ("text" | "refusal")) => part
            .get(name)
            .and_then(Value::as_str)
            .ok_or_else(|| bad(format!("{field}.{name}"), "a string is needed")),
        Some(other) => unseen(other)
            .filter(|_| !is_asked)
            .ok_or_else(|| bad(format!("{field}.type"), &format!("{other:?} is not supported; send text"))),
        None => Err(bad(format!("{field}.type"), "a string is needed")),
    }
}

fn tool_calls(field: &str, calls: &Value, arguments: Arguments) -> Result<Value, TemplateError> {
    let list = calls.as_array().ok_or_else(|| bad(field.into(), "an array is needed"))?;
    let calls = list.iter().enumerate().map(|(i, call)| tool_call(&format!("{field}[{i}]"), call, arguments));
    calls.collect()
}

fn tool_call(field: &str, call: &Value, arguments: Arguments) -> Result<Value, TemplateError> {
    let function = call.get("function").unwrap_or(call);
    let field = format!("{field}.function");
    if function.get("name").and_then(Value::as_str).is_none() {
        return Err(bad(format!("{field}.name"), "a string is needed"));
    }
    let mut function = function.clone();
    function["arguments"] = told_arguments(&field, function.get("arguments"), arguments)?;
    let mut call = call.clone();
    match call.get("function") {
        Some(_) => call["function"] = function,
        None => call = function,
    }
    Ok(call)
}

/// The arguments of an earlier call in the form that the template expects. For a call that was cut off, its
/// complete arguments: the model wrote them, so they may be in the prompt.
fn told_arguments(field: &str, given: Option<&Value>, arguments: Arguments) -> Result<Value, TemplateError> {
    match (given, arguments) {
        (None | Some(Value::Null), Arguments::Object) => Ok(json!({})),
        (None | Some(Value::Null), _) => Ok("{}".into()),
        (Some(Value::String(text)), _) => told_text(field, text, arguments),
        (Some(Value::Object(given)), Arguments::TextOnly) => Ok(json!(given).to_string().into()),
        (Some(given), _) => Ok(given.clone()),
    }
}

fn told_text(field: &str, text: &str, arguments: Arguments) -> Result<Value, TemplateError> {
    let text: &str = &whole_surrogates(text);
    let error = match serde_json::from_str::<Value>(text) {
        Ok(Value::Null) => return told_arguments(field, None, arguments),
        Ok(value) if arguments == Arguments::Object => return Ok(value),
        // Unchanged, so that the prompt repeats what the model wrote.
        Ok(_) => return Ok(text.into()),
        Err(error) => error,
    };
    if text.trim().is_empty() {
        return told_arguments(field, None, arguments);
    }
    match complete_arguments(text).filter(|_| error.is_eof()) {
        Some(complete) => told_text(field, &complete, arguments),
        // The template writes it verbatim.
        None if arguments == Arguments::Text => Ok(text.into()),
        // It has to be JSON: the model should read only text that it could have written.
        None => Err(bad(format!("{field}.arguments"), &format!("not valid JSON: {error}"))),
    }
}

fn bad(field: String, reason: &str) -> TemplateError {
    TemplateError::BadMessages { field, reason: reason.into() }
}
