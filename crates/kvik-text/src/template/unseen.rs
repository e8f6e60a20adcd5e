//! Images, sounds and files in earlier messages: agents send them back with every turn.
//!
//! A question about an image is refused, since an answer would be a guess. An image that a tool returned, or that
//! precedes an answer, does not end the conversation: it is replaced by words.

use serde_json::{Value, json};

/// The replacement text for a part of this type, with the type names of all APIs; `None` for other types.
pub fn unseen(kind: &str) -> Option<&'static str> {
    match kind {
        "image" | "image_url" | "input_image" => Some("[an image, which this model cannot see]"),
        "audio" | "audio_url" | "input_audio" => Some("[a sound, which this model cannot hear]"),
        "video" | "video_url" | "input_video" => Some("[a video, which this model cannot see]"),
        "document" | "file" | "input_file" | "container_upload" => {
            Some("[a file, which this model cannot read]")
        }
        _ => None,
    }
}

/// The text of a part as prompts have it before the question: its own, or the words in its place; `None` for types that no
/// prompt takes.
pub fn text_of_part(part: &Value) -> Option<&str> {
    let kind = part.get("type").and_then(Value::as_str).unwrap_or_default();
    let field = if kind == "refusal" { "refusal" } else { "text" };
    unseen(kind).or_else(|| part.get(field)?.as_str())
}

/// True if a content has no text, and nothing that words replace.
pub fn says_nothing(content: &Value) -> bool {
    match content {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(parts) => parts.iter().all(|part| text_of_part(part) == Some("")),
        _ => false,
    }
}

/// True if a message has images beside its content, as in Ollama's API. No template reads them.
pub fn has_images(message: &Value) -> bool {
    let images = &message["images"];
    !images.is_null() && !images.as_array().is_some_and(Vec::is_empty)
}

/// Removes what no prompt has of the messages: the data of parts in whose place words stand, and images beside a content.
pub fn drop_unseen(messages: &mut Value) {
    for message in messages.as_array_mut().into_iter().flatten() {
        if let Some(images) = message.get_mut("images") {
            *images = Value::Null;
        }
        let parts = message.get_mut("content").and_then(Value::as_array_mut);
        for part in parts.into_iter().flatten() {
            let kind = part.get("type").and_then(Value::as_str).filter(|kind| unseen(kind).is_some());
            if let Some(kind) = kind {
                *part = json!({"type": kind});
            }
        }
    }
}

/// The index of the first message of the question, given the role of each message: the message after the last
/// answer. A question that begins with a tool's result is about that result, and has no first message.
pub fn question_start<'a>(roles: impl Iterator<Item = &'a str>) -> usize {
    let (mut start, mut all) = (0, 0);
    let mut has_result = false;
    for role in roles {
        all += 1;
        match role {
            "assistant" => (start, has_result) = (all, false),
            "tool" | "function" => has_result = true,
            _ => {}
        }
    }
    if has_result { all } else { start }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_what_words_replace_its_type_is_left() {
        let data = json!({"url": "data:image/png;base64,AAAA"});
        let text = json!({"type": "text", "text": "Look.", "cache_control": {"type": "ephemeral"}});
        let mut messages = json!([
            {"role": "user", "content": [text, {"type": "image_url", "image_url": data}], "images": ["AAAA"]},
            {"role": "assistant", "content": "I see.", "tool_calls": [{"id": "a"}]},
            {"role": "tool", "content": null},
            7,
        ]);
        drop_unseen(&mut messages);
        assert_eq!(
            messages,
            json!([
                {"role": "user", "content": [text, {"type": "image_url"}], "images": null},
                {"role": "assistant", "content": "I see.", "tool_calls": [{"id": "a"}]},
                {"role": "tool", "content": null},
                7,
            ])
        );
        assert!(!has_images(&messages[0]));
        assert_eq!(text_of_part(&messages[0]["content"][1]), unseen("image_url"));
    }

    #[test]
    fn a_part_has_the_text_that_prompts_have() {
        let image = "[an image, which this model cannot see]";
        for (part, expect) in [
            (json!({"type": "text", "text": "a"}), Some("a")),
            (json!({"type": "input_text", "text": "a"}), Some("a")),
            (json!({"text": "a"}), Some("a")),
            (json!({"type": "refusal", "refusal": "no"}), Some("no")),
            (json!({"type": "image_url", "image_url": {"url": "x"}}), Some(image)),
            (json!({"type": "image_url", "text": "photo"}), Some(image)),
            (json!({"type": "thinking", "thinking": "so"}), None),
            (json!({"type": "text", "text": 7}), None),
            (json!(7), None),
        ] {
            assert_eq!(text_of_part(&part), expect, "{part}");
        }
    }

    #[test]
    fn a_question_follows_the_last_answer_and_no_result() {
        for (roles, expect) in [
            (vec![], 0),
            (vec!["system", "user"], 0),
            (vec!["user", "assistant", "user"], 2),
            (vec!["user", "assistant"], 2),
            (vec!["user", "assistant", "tool"], 3),
            (vec!["user", "assistant", "tool", "user"], 4),
            (vec!["user", "assistant", "tool", "assistant", "user"], 4),
        ] {
            assert_eq!(question_start(roles.iter().copied()), expect, "{roles:?}");
        }
    }
}
