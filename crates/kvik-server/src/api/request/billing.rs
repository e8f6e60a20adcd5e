//! Removal of a billing line from system prompts.
//!
//! One of the most used agents begins its system prompt with a line whose numbers change with every request;
//! they serve billing, not the model. Everything after the line would be computed again each time. Gateways
//! carry the line into other dialects.

use serde_json::Value;

/// Beginning of the line.
const BEGINS: &str = "x-anthropic-billing-header:";

/// Removes the line from the system messages of a conversation, and drops system messages that contain
/// nothing else.
pub(super) fn remove(messages: &mut Value) {
    let Value::Array(messages) = messages else { return };
    messages.retain_mut(|message| !is_system(message) || remove_from(&mut message["content"]));
}

fn is_system(message: &Value) -> bool {
    matches!(message["role"].as_str(), Some("system" | "developer"))
}

/// Removes the line from a content; returns false if nothing else was in it.
fn remove_from(content: &mut Value) -> bool {
    match content {
        Value::String(text) => remove_from_text(text),
        Value::Array(parts) => {
            let had_parts = !parts.is_empty();
            parts.retain_mut(|part| match part.get_mut("text") {
                Some(Value::String(text)) => remove_from_text(text),
                _ => true,
            });
            !had_parts || !parts.is_empty()
        }
        _ => true,
    }
}

/// Removes the line from one text, which may consist of joined blocks; the blank lines after it are removed
/// as well.
fn remove_from_text(text: &mut String) -> bool {
    if !text.contains(BEGINS) {
        return true;
    }
    let (mut kept, mut behind) = (String::with_capacity(text.len()), false);
    for line in text.split_inclusive('\n') {
        behind = line.trim_start().starts_with(BEGINS) || (behind && line.trim().is_empty());
        if !behind {
            kept.push_str(line);
        }
    }
    if behind {
        kept.truncate(kept.trim_end().len());
    }
    *text = kept;
    !text.is_empty()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const LINE: &str = "x-anthropic-billing-header: cc_version=2; cch=1f;";

    #[test]
    fn the_line_alone_is_removed_wherever_it_stands() {
        let check = |content: Value, expect: Option<Value>| {
            for role in ["system", "developer"] {
                let mut messages =
                    json!([{"role": role, "content": content}, {"role": "user", "content": "hi"}]);
                remove(&mut messages);
                let kept = messages.as_array().unwrap().split_last().unwrap().1;
                let kept = kept.first().map(|message| &message["content"]);
                assert_eq!(kept, expect.as_ref(), "{content}");
            }
        };
        let text = |text: &str| json!({"type": "text", "text": text});
        let behind = format!("{LINE}\nYou are kvik.\n\nBe brief.");
        check(json!(behind), Some(json!("You are kvik.\n\nBe brief.")));
        check(json!([text(&behind)]), Some(json!([text("You are kvik.\n\nBe brief.")])));
        check(json!(format!("{LINE}\r\n\r\nYou are kvik.")), Some(json!("You are kvik.")));
        check(json!([text(LINE), text("one"), text("two")]), Some(json!([text("one"), text("two")])));
        check(json!(format!("{LINE}\n\none\n\ntwo")), Some(json!("one\n\ntwo")));
        check(json!(format!("one\n\n{LINE}\n\ntwo")), Some(json!("one\n\ntwo")));
        check(json!(format!("one\n\n{LINE}")), Some(json!("one")));
        check(json!(LINE), None);
        check(json!([text(LINE)]), None);
        check(json!(""), Some(json!("")));
        check(json!([]), Some(json!([])));
        let inside = format!("Say what `{LINE}` means.");
        check(json!(inside), Some(json!(inside)));
    }

    #[test]
    fn others_may_say_it() {
        let messages = json!([{"role": "user", "content": LINE}, {"role": "assistant", "content": LINE}]);
        let mut same = messages.clone();
        remove(&mut same);
        assert_eq!(same, messages);
    }
}
