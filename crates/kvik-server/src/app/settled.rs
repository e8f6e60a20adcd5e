//! [Settled](kvik_memory::settle) prompts of chats: the notes stand at the end of what is said before the first
//! answer, which follows the system message and the tools, and of which agents have constant text too.

use kvik_memory::{
    context::leading_systems,
    settle::{Learning, Note, Settled},
};
use kvik_session::Chat;
use serde::Serialize;
use serde_json::{Value, json};

use super::state::App;
use crate::described::JsonSchema;

/// A piece of a system message that is read elsewhere, because it changes between requests.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "Settled")]
pub(crate) struct SettledPiece {
    /// The number by which the system message refers to it.
    note: u32,
    /// The piece.
    text: String,
}

/// Moves what changes in the system messages of a tenant's chat to the end of what is said before the first answer, if the
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

/// Moves what `settle` takes out of the system messages to the end of what is said before the first answer.
fn moved(chat: &mut Chat, settle: impl Fn(&str, bool) -> Option<Settled>) -> Vec<Note> {
    let Value::Array(messages) = &mut chat.messages else { return Vec::new() };
    let systems = leading_systems(messages);
    let is = |role: &'static str| move |message: &Value| message["role"] == role;
    let before = messages.iter().position(is("assistant")).unwrap_or(messages.len());
    if !messages[systems.min(before)..before].iter().any(is("user")) {
        return Vec::new();
    }
    let mut texts: Vec<&mut Value> = messages[..systems].iter_mut().flat_map(texts).collect();
    let (count, has_tools) = (texts.len(), chat.tools.offered.is_some());
    let mut notes = Vec::new();
    for (index, text) in texts.iter_mut().enumerate() {
        let is_last = index + 1 == count && !has_tools;
        if let Some(settled) = settle(text.as_str().unwrap_or_default(), is_last) {
            **text = Value::String(settled.text);
            notes.extend(settled.notes);
        }
    }
    if !notes.is_empty() {
        append(&mut messages[before - 1]["content"], &written(&notes));
    }
    notes
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
    use kvik_text::tools::Tools;

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
