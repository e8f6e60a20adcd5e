//! A last message of the assistant that the answer goes on from: a prefill.
//!
//! The template knows how it writes such a message, and closes it. So it is rendered with a mark behind its content, and
//! the text after the mark is cut off. The prompt is a prefix of the one in which the message is complete, and is cached
//! like any other.

use kvik_text::answer::{AnswerPlace, AnswerStart, ReasoningForm};
use kvik_text::template::Prompt;
use serde_json::Value;

/// Stands behind the content while the template writes it. The characters are for private use, so that no template has an
/// opinion on them.
const MARK: &str = "\u{e000}end of the message\u{e001}";

/// The template changes the last message.
#[derive(Debug, thiserror::Error)]
#[error(
    "the chat template does not write the last message as it is and once, so that it cannot be continued"
)]
pub struct NotContinued;

/// The text with which the last of these messages ends, if it is the assistant's and can be continued.
pub fn continuable_text(messages: &Value) -> Option<&str> {
    let message = messages.as_array()?.last()?;
    let calls = message.get("tool_calls").is_some_and(|calls| !calls.is_null());
    if message["role"] != "assistant" || calls {
        return None;
    }
    let text = match &message["content"] {
        Value::Array(parts) => &parts.last()?["text"],
        content => content,
    };
    text.as_str().filter(|text| !text.is_empty())
}

/// Marks the end of the last message.
pub(crate) fn mark(messages: &mut Value) {
    let message = messages.as_array_mut().and_then(|messages| messages.last_mut());
    let content = message.and_then(|message| message.get_mut("content"));
    let text = match content {
        Some(Value::Array(parts)) => parts.last_mut().and_then(|part| part.get_mut("text")),
        content => content,
    };
    if let Some(Value::String(text)) = text {
        text.push_str(MARK);
    }
}

/// Cuts off the text that the template writes behind the mark.
pub(crate) fn cut(mut prompt: Prompt) -> Result<Prompt, NotContinued> {
    let end = prompt.text.find(MARK).filter(|&end| prompt.text.rfind(MARK) == Some(end));
    let end = end.ok_or(NotContinued)?;
    prompt.text.truncate(end);
    prompt.inputs.retain_mut(|range| {
        range.end = range.end.min(end);
        range.start < range.end
    });
    Ok(prompt)
}

/// The place where an answer to this prompt begins that goes on from the last message.
pub(crate) fn start(form: ReasoningForm, messages: &Value, prompt: &str) -> AnswerStart {
    match form.is_open_in(continuable_text(messages).unwrap_or_default()) {
        true => AnswerStart { form, place: AnswerPlace::Reasoning },
        // The message may contain the template's own tags, where the form is tags.
        false if form != ReasoningForm::Channels => AnswerStart { form, place: AnswerPlace::Begin },
        false => AnswerStart::after(form, prompt),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_messages_own_parts_end_where_the_prompt_does() {
        let text = format!("hi there{MARK}<end>");
        let inputs = vec![0..2, 3..text.len() - 5, text.len() - 5..text.len()];
        let prompt = cut(Prompt { text, inputs }).unwrap();
        assert_eq!(prompt, Prompt { text: "hi there".to_owned(), inputs: vec![0..2, 3..8] });
        assert!(cut(Prompt { text: format!("{MARK} twice {MARK}"), inputs: Vec::new() }).is_err());
        assert!(cut(Prompt::default()).is_err());
    }

    #[test]
    fn a_message_may_end_inside_a_thought() {
        let check = |content: &str, expect: bool| {
            let messages = json!([{"role": "assistant", "content": content}]);
            let start = start(ReasoningForm::default(), &messages, content);
            assert_eq!(start.in_reasoning(), expect, "{content}");
        };
        check("<think>so", true);
        check("<think>so</think>Once", false);
        check("<think>a</think><think>b", true);
        check("Once", false);
    }

    #[test]
    fn only_text_of_the_assistant_is_continued() {
        let check = |message: Value, expect: Option<&str>| {
            assert_eq!(continuable_text(&json!([message])), expect, "{message}");
        };
        check(json!({"role": "assistant", "content": "Once "}), Some("Once "));
        check(json!({"role": "assistant", "content": "", "tool_calls": []}), None);
        check(json!({"role": "user", "content": "Once"}), None);
        check(json!({"role": "assistant", "content": ""}), None);
    }
}
