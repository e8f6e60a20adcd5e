//! Whether the answer goes on from the last message of a chat.

use kvik_session::continuable_text;
use kvik_text::template::without_empty_answers;
use serde_json::Value;

use crate::http::error::ApiError;

/// The messages before the one that the answer goes on from, where a dialect goes on from each that can be continued: the
/// last one is no answer to the question before it yet. One that says nothing is none either.
pub(crate) fn before_answer(messages: &Value) -> &[Value] {
    let all = messages.as_array().map_or(&[][..], Vec::as_slice);
    without_empty_answers(&all[..all.len() - usize::from(continuable_text(messages).is_some())])
}

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
    fn a_picture_in_the_question_is_refused_behind_a_beginning_of_the_answer() {
        let template = ChatTemplate::new(TEMPLATE, "", "").unwrap();
        let check = |more: &[Value], begins_anew: bool, expect: Option<&str>| {
            let image = json!({"type": "image_url", "image_url": {"url": "x"}});
            let question = json!([{"type": "text", "text": "What is on it?"}, image]);
            let begun = json!({"role": "assistant", "content": "The picture shows"});
            let messages = [&[json!({"role": "user", "content": question})], more, &[begun]].concat();
            let mut body = json!({"messages": messages});
            if begins_anew {
                body["continue_final_message"] = json!(false);
            }
            let prompt = conversation_prompt(body, &template, SystemTime::UNIX_EPOCH);
            assert_eq!(prompt.as_ref().err().and_then(ApiError::param), expect, "{prompt:?}");
        };
        check(&[], false, Some("messages[0].content[1].type"));
        check(&[json!({"role": "assistant", "content": ""})], false, Some("messages[0].content[1].type"));
        check(&[], true, None);
        let answered =
            [json!({"role": "assistant", "content": "A dog."}), json!({"role": "user", "content": "And?"})];
        check(&answered, false, None);
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
