//! A prompt with the options of the answers that read it.

use kvik_cache::Token;
use kvik_session::Texts;
use serde_json::Value;

use crate::error::Error;
use crate::message::Message;
use crate::options::AnswerOptions;
use crate::prompt::Prompt;

/// A prompt as answers with certain options read it: a template may write their tools and their switch for reasoning
/// anywhere, also before the system text. A prompt on its own is that of answers without options; a pair,
/// `(prompt, &options)`, that of answers with these.
#[derive(Debug, Clone, PartialEq)]
pub struct AskedPrompt {
    /// The prompt.
    pub prompt: Prompt,
    /// The options of the answers: tools, reasoning and constraint determine what is read, and retention how much of it
    /// may come from the cache, which [`explain`](crate::Model::explain) tells.
    pub options: AnswerOptions,
}

impl<P: Into<Prompt>> From<(P, &AnswerOptions)> for AskedPrompt {
    fn from((prompt, options): (P, &AnswerOptions)) -> AskedPrompt {
        AskedPrompt { prompt: prompt.into(), options: options.clone() }
    }
}

macro_rules! asked_without_options {
    ($($prompt:ty),*) => {$(
        impl From<$prompt> for AskedPrompt {
            fn from(prompt: $prompt) -> AskedPrompt {
                AskedPrompt { prompt: prompt.into(), options: AnswerOptions::RECOMMENDED }
            }
        }
    )*};
}

asked_without_options!(Prompt, &str, String, Vec<Message>, &[Message]);

impl AskedPrompt {
    /// Its tokens as it is answered.
    pub(crate) fn tokens(&self, texts: &Texts) -> Result<Vec<Token>, Error> {
        Ok(self.prompt.encode(texts, &self.options.asked()?)?.tokens)
    }

    /// The tokens with which all prompts begin that continue it.
    pub(crate) fn shared_tokens(&self, texts: &Texts) -> Result<Vec<Token>, Error> {
        match self.prompt.messages() {
            None => self.tokens(texts),
            Some(messages) => {
                let chat = self.options.asked()?.chat(Value::Array(messages));
                Ok(texts.shared_tokens(&chat)?)
            }
        }
    }
}
