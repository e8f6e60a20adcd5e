//! A line for billing at the beginning of a system prompt.
//!
//! One of the most used agents puts a line before its system prompt whose numbers change with every request: for the one
//! who bills, not for the model. All behind it would be computed anew each time. Gateways carry it into other dialects.

use serde_json::Value;

/// How the line begins.
const BEGINS: &str = "x-anthropic-billing-header:";

/// Removes the line from the system messages of a conversation, and system messages that are nothing else.
pub(super) fn remove(messages: &mut Value) {
    let Value::Array(messages) = messages else { return };
    messages.retain_mut(|message| !is_system(message) || remove_from(&mut message["content"]));
}

fn is_system(message: &Value) -> bool {
    matches!(message["role"].as_str(), Some("system" | "developer"))
}

/// Removes it from a content; false where that was nothing else.
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

/// The same of one text, in which blocks may have been joined: the empty lines behind the line are removed with it.
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
