//! The prompt that asks a model to repeat its input, as its own chat template writes it.

use std::time::SystemTime;

use kvik_cache::Token;
use kvik_text::template::{ChatTemplate, RenderInput};
use kvik_text::tokenizer::Tokenizer;
use serde_json::json;

use super::repeat::RepeatPrompt;

/// Placeholder for a prompt, to find what the template writes before and after one.
const DUMMY: &str = "dummy context";
/// The text before an answer if there is no template.
const PLAIN_SUFFIX: &str = "\n";

impl RepeatPrompt {
    /// The words for a model with this tokenizer, in its template where it has one.
    pub fn new(tokenizer: &Tokenizer, template: Option<&ChatTemplate>) -> RepeatPrompt {
        let (prefix, suffix) =
            template.and_then(around).unwrap_or_else(|| (String::new(), PLAIN_SUFFIX.to_owned()));
        let control = |text: &str| tokenizer.encode(text, false, true);
        let plain = |text: &str| -> Vec<Token> { tokenizer.encode(text, false, false) };
        RepeatPrompt {
            prefix: tokenizer.encode_chat(&prefix, &[]),
            ask: plain(RepeatPrompt::ASK),
            ask_more: plain(RepeatPrompt::ASK_MORE),
            suffix: control(&suffix),
        }
    }
}

/// The text that a template writes before a user message, and after it up to an answer.
fn around(template: &ChatTemplate) -> Option<(String, String)> {
    let input = RenderInput {
        messages: json!([{"role": "user", "content": DUMMY}]),
        tools: None,
        add_generation_prompt: true,
        enable_thinking: Some(false),
        kwargs: serde_json::Map::new(),
        now: SystemTime::UNIX_EPOCH,
    };
    let text = template.render(&input).ok()?.text;
    let (before, behind) = text.split_once(DUMMY)?;
    Some((before.to_owned(), behind.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvik_model::load::LoadedModel;

    #[test]
    fn the_words_are_those_of_the_template() {
        let loaded = LoadedModel::open(&kvik_testing::tiny_model()).unwrap();
        let (tokenizer, template) = (&loaded.tokenizer, loaded.template(None).unwrap());
        let words = RepeatPrompt::new(tokenizer, Some(&template));
        assert_eq!(words.prefix, tokenizer.encode("<|im_start|>user\n", false, true));
        let suffix = tokenizer.decode(&words.suffix);
        assert_eq!(suffix, "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n");
        assert_eq!(tokenizer.decode(&words.ask), RepeatPrompt::ASK);
        let plain = RepeatPrompt::new(tokenizer, None);
        assert_eq!((plain.prefix, tokenizer.decode(&plain.suffix)), (Vec::new(), "\n".to_owned()));
    }
}
