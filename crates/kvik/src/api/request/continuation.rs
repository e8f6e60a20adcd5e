//! Prefill: the answer continues a last message of the assistant.
//!
//! The template closes such a message in its own way. It is therefore rendered with a mark after the content,
//! and everything after the mark is cut off. The prompt is a prefix of the one with the complete message, and
//! is cached like any other.

use kvik_text::{
    answer::{AnswerPlace, AnswerStart, ReasoningForm},
    template::Prompt,
};
use serde_json::Value;

use crate::http::error::ApiError;

/// Mark after the content during rendering. Its characters are for private use, so that no template treats
/// them specially.
const MARK: &str = "\u{e000}end of the message\u{e001}";

/// Decides whether the answer continues the last message: as vLLM's `continue_final_message` says, or else,
/// as in llama-server, if the last message is the assistant's.
pub(crate) fn is_wanted(
    asked: Option<bool>,
    messages: &Value,
    add_generation_prompt: Option<bool>,
) -> Result<bool, ApiError> {
    let field = "continue_final_message";
    let refuse = |message: &str| Err(ApiError::field(field, format!("`{field}` {message}")));
    match (asked, add_generation_prompt) {
        (Some(true), Some(true)) => {
            refuse("and `add_generation_prompt` say opposite things; send one of them")
        }
        (Some(true), _) if content_end(messages).is_none() => {
            refuse("needs a last message of the assistant that has text and no `tool_calls`")
        }
        (Some(asked), _) => Ok(asked),
        (None, Some(_)) => Ok(false),
        (None, None) => Ok(content_end(messages).is_some()),
    }
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

/// Cuts off the text that the template writes after the mark.
pub(crate) fn cut(mut prompt: Prompt) -> Result<Prompt, ApiError> {
    let Some(end) = prompt.text.find(MARK).filter(|&end| prompt.text.rfind(MARK) == Some(end)) else {
        let message = "the chat template does not write the last message as it is and once, so that it cannot be continued; send `continue_final_message: false`";
        return Err(ApiError::field("messages", message));
    };
    prompt.text.truncate(end);
    prompt.inputs.retain_mut(|range| {
        range.end = range.end.min(end);
        range.start < range.end
    });
    Ok(prompt)
}

/// Returns the state in which an answer begins that continues the last message.
pub(crate) fn start(form: ReasoningForm, messages: &Value, prompt: &str) -> AnswerStart {
    match form.is_open_in(content_end(messages).unwrap_or_default()) {
        true => AnswerStart { form, place: AnswerPlace::Reasoning },
        // The message may resemble the template's own text if the format uses tags.
        false if form != ReasoningForm::Channels => AnswerStart { form, place: AnswerPlace::Begin },
        false => AnswerStart::after(form, prompt),
    }
}

/// Returns the text at the end of the last message, if the message can be continued.
fn content_end(messages: &Value) -> Option<&str> {
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

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use kvik_text::template::ChatTemplate;
    use serde_json::json;

    use super::*;
    use crate::api::request::conversation::conversation_prompt;

    const TEMPLATE: &str = "{% for m in messages %}[{{ m.role }}]{{ (m.content.split('</think>')|last)|trim }}[end]{% endfor %}\
        {% if add_generation_prompt %}[assistant]{% endif %}";

    fn prompt(last: Value, more: Value) -> Result<String, ApiError> {
        let template = ChatTemplate::new(TEMPLATE, "", "").unwrap();
        let mut body = json!({"messages": [{"role": "user", "content": "hi"}, last]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        conversation_prompt(body, &template, SystemTime::UNIX_EPOCH).map(|prompt| prompt.text)
    }

    #[test]
    fn the_answer_goes_on_where_the_last_message_ends() {
        let check = |content: Value, more: Value, expect: &str| {
            let last = json!({"role": "assistant", "content": content});
            assert_eq!(prompt(last, more).as_deref(), Ok(expect), "{content}");
        };
        let (open, closed) = ("[user]hi[end][assistant]Once ", "[user]hi[end][assistant]Once[end]");
        check(json!("Once "), json!({}), open);
        check(json!("Once "), json!({"continue_final_message": true}), open);
        check(json!("Once "), json!({"continue_final_message": true, "add_generation_prompt": false}), open);
        check(json!([{"type": "text", "text": "Once "}]), json!({}), open);
        check(json!("<think>so</think>Once "), json!({}), open);
        check(json!("Once "), json!({"add_generation_prompt": false}), closed);
        check(json!("Once "), json!({"add_generation_prompt": true}), &format!("{closed}[assistant]"));
        check(json!("Once "), json!({"continue_final_message": false}), &format!("{closed}[assistant]"));
    }

    #[test]
    fn what_cannot_be_continued_is_answered_or_refused() {
        let user = json!({"role": "user", "content": "there"});
        assert_eq!(prompt(user.clone(), json!({})).unwrap(), "[user]hi[end][user]there[end][assistant]");
        let refused = |last: Value, more: Value| {
            let error = prompt(last, more).unwrap_err().body();
            assert_eq!(error["error"]["param"], "continue_final_message", "{error}");
        };
        refused(user, json!({"continue_final_message": true}));
        let calls = json!({"role": "assistant", "content": "", "tool_calls": []});
        refused(calls, json!({"continue_final_message": true}));
        let text = json!({"role": "assistant", "content": "Once"});
        refused(text, json!({"continue_final_message": true, "add_generation_prompt": true}));
    }

    #[test]
    fn what_the_request_wrote_ends_where_the_prompt_does() {
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
}
