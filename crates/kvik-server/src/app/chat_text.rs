//! Prompts of chats, with errors at the fields of a request.

use kvik_cache::Token;
use kvik_session::{Chat, ChatError};
use kvik_text::template::{Prompt, TemplateError};

use crate::http::error::{ApiError, Overflow};
use kvik_serving::Serving;

/// The prompt of a chat, and the parts of it that are the messages' own.
///
/// # Errors
/// At the field that is at fault.
pub(crate) fn render(serving: &Serving, chat: &Chat) -> Result<Prompt, ApiError> {
    serving.texts.render(chat).map_err(|error| refused_by(serving, error))
}

/// The tokens of a chat.
///
/// # Errors
/// As [`render`].
pub(crate) fn tokens(serving: &Serving, chat: &Chat) -> Result<Vec<Token>, ApiError> {
    serving.texts.tokens(chat).map_err(|error| refused_by(serving, error))
}

/// The tokens with which all chats begin that go on from these messages.
///
/// # Errors
/// As [`render`].
pub(crate) fn shared_tokens(serving: &Serving, chat: &Chat) -> Result<Vec<Token>, ApiError> {
    serving.texts.shared_tokens(chat).map_err(|error| refused_by(serving, error))
}

fn refused_by(serving: &Serving, error: ChatError) -> ApiError {
    match (error, serving.chat_template()) {
        (ChatError::NoTemplate, Err(no_template)) => ApiError::field("messages", no_template.to_string()),
        (error, _) => refused(error),
    }
}

/// Words why a chat has no prompt, at the field that is at fault.
pub(crate) fn refused(error: ChatError) -> ApiError {
    let message = error.to_string();
    match error {
        ChatError::Template(TemplateError::BadMessages { field, .. }) => ApiError::field(field, message),
        ChatError::Template(TemplateError::Reserved { name }) => {
            ApiError::field(format!("chat_template_kwargs.{name}"), message)
        }
        ChatError::TooLong { tokens_min: prompt_tokens, context_tokens } => {
            Overflow { prompt_tokens, context_tokens, is_at_least: true }.into()
        }
        ChatError::NotContinued(_) => {
            ApiError::field("messages", format!("{message}; send `continue_final_message: false`"))
        }
        _ => ApiError::field("messages", message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_is_too_long_is_told_the_fewest_tokens_that_it_has() {
        let error = refused(ChatError::TooLong { tokens_min: 4097, context_tokens: 4096 }).to_string();
        for words in ["has at least 4097", "4096", "--context"] {
            assert!(error.contains(words), "{error} says {words}");
        }
    }
}
