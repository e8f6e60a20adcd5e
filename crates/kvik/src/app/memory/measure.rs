//! How long messages are, in tokens.

use kvik_engine::conversation::chain::text_of;
use serde_json::Value;

use crate::app::state::App;

/// Tokens that a template writes around a message, at most with the usual ones.
pub(super) const AROUND_MESSAGE: usize = 8;

/// Tokens of a message, about.
pub(super) fn message(app: &App, message: &Value) -> usize {
    let calls = message.get("tool_calls").map_or_else(String::new, Value::to_string);
    text(app, &text_of(message)) + text(app, &calls) + AROUND_MESSAGE
}

/// Tokens of a text; of one that is too long to be looked at, at least a whole context.
pub(super) fn text(app: &App, text: &str) -> usize {
    match text.len() <= app.text_bytes_max() {
        true => app.serving.tokenizer.encode(text, false, false).len(),
        false => app.serving.tokenizer.tokens_at_least(text.len()).max(app.serving.model.context),
    }
}
