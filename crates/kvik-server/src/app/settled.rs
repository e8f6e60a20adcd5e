//! [Settled](kvik_memory::settle) prompts of chats: system messages and descriptions of tools. The notes stand at the end
//! of what is said before the first answer, which follows both, and of which agents have constant text too.

use kvik_memory::{
    context::leading_systems,
    settle::{Learning, Note, Settled},
};
use kvik_session::Chat;
use serde::Serialize;
use serde_json::{Value, json};

use super::state::App;
use crate::described::JsonSchema;

/// A piece of a system message or of a tool's description that is read elsewhere, because it changes between requests.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "Settled")]
pub(crate) struct SettledPiece {
    /// The number by which the text refers to it.
    note: u32,
    /// The piece.
    text: String,
}

/// Moves what changes in the system messages and tools of a tenant's chat to the end of what is said before the first answer, if the
/// request or else the server wants it, and returns what was moved. A chat in which the user says nothing stays as it is.
pub(crate) fn settle(
    (app, tenant): (&App, &str),
    chat: &mut Chat,
    wanted: Option<bool>,
    learning: Learning,
) -> Vec<SettledPiece> {
    let notes = if wanted.unwrap_or(app.config.settle_prompts) {
        moved(chat, |text, is_last| app.server.settler.settle(tenant, text, is_last, learning))
    } else {
        Vec::new()
    };
    notes.into_iter().map(|Note { place, text }| SettledPiece { note: place, text }).collect()
}

/// Moves what `settle` takes out of the system messages and tools to the end of what is said before the first answer.
fn moved(chat: &mut Chat, settle: impl Fn(&str, bool) -> Option<Settled>) -> Vec<Note> {
    let Value::Array(messages) = &mut chat.messages else { return Vec::new() };
    let systems = leading_systems(messages);
    let is = |role: &'static str| move |message: &Value| message["role"] == role;
    let before = messages.iter().position(is("assistant")).unwrap_or(messages.len());
    if !messages[systems.min(before)..before].iter().any(is("user")) {
        return Vec::new();
    }
    let mut texts: Vec<&mut Value> = messages[..systems].iter_mut().flat_map(texts).collect();
    let last = texts.len().checked_sub(1).filter(|_| chat.tools.offered.is_none());
    texts.extend(chat.tools.offered.iter_mut().flat_map(descriptions));
    let mut notes = Vec::new();
    for (index, text) in texts.iter_mut().enumerate() {
        if let Some(settled) = settle(text.as_str().unwrap_or_default(), last == Some(index)) {
            **text = Value::String(settled.text);
            notes.extend(settled.notes);
        }
    }
    if !notes.is_empty() {
        append(&mut messages[before - 1]["content"], &written(&notes));
    }
    notes
}

/// The descriptions of tools and of their parameters.
fn descriptions(tools: &mut Value) -> Vec<&mut Value> {
    match tools {
        Value::Array(values) => values.iter_mut().flat_map(descriptions).collect(),
        Value::Object(fields) => {
            let described =
                fields.iter_mut().map(|(name, value)| (name == "description" && value.is_string(), value));
            described
                .flat_map(|(is_text, value)| if is_text { vec![value] } else { descriptions(value) })
                .collect()
        }
        _ => Vec::new(),
    }
}

/// The texts of a message.
fn texts(message: &mut Value) -> Vec<&mut Value> {
    match message.get_mut("content") {
        Some(Value::Array(parts)) => {
            let texts = parts.iter_mut().filter(|part| part["type"] == "text");
            texts.filter_map(|part| part.get_mut("text")).filter(|text| text.is_string()).collect()
        }
        Some(text) if text.is_string() => vec![text],
        _ => Vec::new(),
    }
}

/// Notes as the model reads them.
fn written(notes: &[Note]) -> String {
    notes.iter().map(|note| format!("\n\n[note {}]\n{}", note.place, note.text)).collect()
}

/// Puts a text behind the content of a message.
fn append(content: &mut Value, text: &str) {
    match content {
        Value::String(said) => said.push_str(text),
        Value::Array(parts) => parts.push(json!({"type": "text", "text": text})),
        _ => *content = Value::String(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use kvik_text::tools::{OfferedTool, ToolChoice, Tools};

    use super::*;

    /// A chat whose sentences with `/a` are moved.
    fn settled(messages: Value, tools: Tools) -> (Value, usize) {
        let mut chat = Chat::new(messages, tools, None);
        let notes = moved(&mut chat, |text, is_last| {
            let is_moved = text.contains("/a") && !is_last;
            let note = Note { place: 3, text: text.to_owned() };
            is_moved.then(|| Settled { text: "[see note 3]\n".to_owned(), notes: vec![note] })
        });
        (chat.messages, notes.len())
    }

    fn message(role: &str, content: impl Into<Value>) -> Value {
        json!({"role": role, "content": content.into()})
    }

    #[test]
    fn what_is_moved_stands_behind_the_first_question() {
        let part = |text: &str| json!({"type": "text", "text": text});
        let check = |question: Value, expect: Value| {
            let rules = message("system", vec![part("In /a."), part("Be brief.")]);
            let (found, notes) = settled(json!([rules, message("user", question)]), Tools::none());
            let rules = message("system", vec![part("[see note 3]\n"), part("Be brief.")]);
            assert_eq!((found, notes), (json!([rules, message("user", expect)]), 1));
        };
        check("Hi!".into(), "Hi!\n\n[note 3]\nIn /a.".into());
        check(json!([part("Hi!")]), json!([part("Hi!"), part("\n\n[note 3]\nIn /a.")]));
    }

    #[test]
    fn descriptions_of_tools_are_settled_at_every_depth() {
        let tool = |text: &str, parameter: &str| {
            let description = json!({"type": "string", "description": parameter});
            let parameters = json!({"type": "object", "properties": {"description": description}});
            OfferedTool { name: "run".to_owned(), description: Some(text.to_owned()), parameters }
        };
        let tools = |text: &str, parameter: &str| {
            Tools::offered(vec![tool(text, parameter)], ToolChoice::Auto, None).unwrap()
        };
        let mut chat = Chat::new(json!([message("user", "Hi!")]), tools("In /a.", "A path in /a."), None);
        let notes = moved(&mut chat, |text, is_last| {
            let note = Note { place: 1, text: text.to_owned() };
            (text.contains("/a") && !is_last)
                .then(|| Settled { text: "[see note 1]\n".to_owned(), notes: vec![note] })
        });
        assert_eq!(notes.len(), 2);
        assert_eq!(chat.tools.offered, tools("[see note 1]\n", "[see note 1]\n").offered);
        let said = chat.messages[0]["content"].as_str().unwrap();
        assert!(
            said.starts_with("Hi!") && said.contains("In /a.") && said.contains("A path in /a."),
            "{said}"
        );
    }

    #[test]
    fn all_that_is_said_before_the_first_answer_comes_before_what_is_moved() {
        let said = |role: &str, text: &str| message(role, text);
        let rest = [said("assistant", "Hi!"), said("user", "Bye!")];
        let messages = |system: &str, second: &str| {
            let begin = [
                said("system", system),
                said("system", "Be kind."),
                said("user", "1"),
                said("system", second),
            ];
            Value::Array([&begin[..], &rest[..]].concat())
        };
        let (found, _) = settled(messages("In /a.", "2"), Tools::none());
        assert_eq!(found, messages("[see note 3]\n", "2\n\n[note 3]\nIn /a."));
    }

    #[test]
    fn a_chat_stays_as_it_is_without_a_question_and_where_nothing_follows() {
        for messages in [
            json!([message("system", "In /a.")]),
            json!([message("system", "In /a."), message("assistant", "Hi!")]),
            json!([message("system", "In /a."), message("user", "Hi!")]),
            json!([message("user", "In /a.")]),
            json!([{"role": "system"}, message("user", "In /a.")]),
            json!("In /a."),
        ] {
            assert_eq!(settled(messages.clone(), Tools::none()), (messages, 0));
        }
    }
}
