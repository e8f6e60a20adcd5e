//! Whether the answer goes on from the last message of a chat.

use kvik_session::continuable_text;
use serde_json::Value;

use crate::http::error::ApiError;

/// Whether the answer goes on from the last message: as vLLM's `continue_final_message` says, else, as
/// llama-server does, where the last message is the assistant's.
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
        (Some(true), _) if continuable_text(messages).is_none() => {
            refuse("needs a last message of the assistant that has text and no `tool_calls`")
        }
        (Some(asked), _) => Ok(asked),
        (None, Some(_)) => Ok(false),
        (None, None) => Ok(continuable_text(messages).is_some()),
    }
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
}
