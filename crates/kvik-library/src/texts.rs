//! Tokenizer and template of a model.

use kvik_memory::memory::MemoryModel;
use kvik_text::template::ChatTemplate;
use kvik_text::tokenizer::Tokenizer;

/// Conversion of a model's texts to tokens.
pub(crate) struct Texts {
    pub(crate) tokenizer: Tokenizer,
    pub(crate) template: Option<ChatTemplate>,
    /// Maximum tokens of a prompt and its answer together.
    pub(crate) context_tokens: usize,
}

impl MemoryModel for Texts {
    fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    fn template(&self) -> Option<&ChatTemplate> {
        self.template.as_ref()
    }

    fn context(&self) -> usize {
        self.context_tokens
    }
}
