//! Windows of text: a part of the first half is retained, the second half is predicted.

use std::fs;
use std::path::Path;

use anyhow::Context;
use kvik_cache::Token;
use kvik_text::tokenizer::Tokenizer;
use serde::Deserialize;
use serde_json::Value;

use super::held_out;
use super::written::content;

/// Kinds of windows of the embedded model, with descriptions.
pub(crate) const KINDS: [(&str, &str); 2] =
    [("chat", "perplexity of chats with facts and questions"), ("story", "perplexity of stories")];

/// Stories that the embedded model has not read, as a text for any model.
#[cfg(feature = "embedded-model")]
pub(crate) const STORIES: Option<&str> = Some(include_str!("../../../../models/tiny/eval-text.txt"));
#[cfg(not(feature = "embedded-model"))]
pub(crate) const STORIES: Option<&str> = None;

/// Tokens of a window of the embedded model.
const WINDOW_TOKENS: usize = 1024;

/// A piece of text whose second half is predicted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Window {
    /// The tokens, at least 4; the first is the begin-of-text token if the model requires it.
    pub(crate) tokens: Vec<Token>,
    /// Whether each token is part of an answer about earlier text, `[tokens]`.
    pub(crate) answers: Vec<bool>,
    /// Index at which the second half begins.
    pub(crate) middle: usize,
}

/// A line of `eval-windows.jsonl`.
#[derive(Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum WindowLine {
    /// A conversation, and the indices of its messages that are answers.
    Chat { messages: Vec<Value>, answers: Vec<usize> },
    /// A text.
    Story { text: String },
}

/// The first `count` windows of a kind, of the embedded model's own chats and stories.
///
/// # Errors
/// If the file cannot be read.
pub(crate) fn own(
    directory: &Path,
    kind: &str,
    count: usize,
    tokenizer: &Tokenizer,
) -> anyhow::Result<Vec<Window>> {
    let path = directory.join("eval-windows.jsonl");
    let mut windows = Vec::new();
    for (line, number) in held_out::read(&path)?.lines().zip(1..) {
        let line: WindowLine = serde_json::from_str(line)
            .with_context(|| format!("line {number} of {} is no window", path.display()))?;
        let is_chat = matches!(line, WindowLine::Chat { .. });
        if is_chat == (kind == "chat") {
            let window = line.window(tokenizer);
            let (path, tokens) = (path.display(), window.tokens.len());
            anyhow::ensure!(tokens > window.middle + 1, "line {number} of {path} has only {tokens} tokens");
            windows.push(window);
        }
    }
    windows.truncate(count);
    Ok(windows)
}

/// The first `count` windows of `length` tokens of a user's text.
///
/// # Errors
/// If the file cannot be read or is shorter than a window.
pub(crate) fn of_file(
    path: &Path,
    length: usize,
    count: usize,
    tokenizer: &Tokenizer,
) -> anyhow::Result<Vec<Window>> {
    let text = fs::read_to_string(path)
        .with_context(|| format!("--text: {} cannot be read; it must be UTF-8", path.display()))?;
    of_text(&text, length, count, tokenizer).with_context(|| format!("--text {}", path.display()))
}

/// The first `count` windows of `length` tokens of [`STORIES`].
///
/// # Errors
/// If they are not in this kvik, or are shorter than a window.
pub(crate) fn of_stories(length: usize, count: usize, tokenizer: &Tokenizer) -> anyhow::Result<Vec<Window>> {
    let text = STORIES.context("this kvik was built without its stories; give a text with --text FILE")?;
    of_text(text, length, count, tokenizer)
}

/// The windows of a text. The begin-of-text token replaces the first token of each if the model requires it, as in the
/// windows of `kvik perplexity`.
fn of_text(text: &str, length: usize, count: usize, tokenizer: &Tokenizer) -> anyhow::Result<Vec<Window>> {
    let (tokens, bos) = (tokenizer.encode(text, true, false), tokenizer.required_bos());
    let window = |tokens: &[Token]| {
        let mut tokens = tokens.to_vec();
        tokens[0] = bos.unwrap_or(tokens[0]);
        Window { tokens, answers: vec![false; length], middle: length / 2 }
    };
    let windows: Vec<Window> = tokens.chunks_exact(length).take(count).map(window).collect();
    anyhow::ensure!(
        !windows.is_empty(),
        "the text has {} tokens, and a window has {length}; take a longer text or a shorter --length",
        tokens.len()
    );
    Ok(windows)
}

impl WindowLine {
    fn window(&self, tokenizer: &Tokenizer) -> Window {
        let mut tokens: Vec<Token> = tokenizer.required_bos().into_iter().collect();
        let mut answers = vec![false; tokens.len()];
        let mut add = |text: &str, is_answer: bool| {
            tokens.extend(tokenizer.encode(text, false, true));
            answers.resize(tokens.len(), is_answer);
        };
        match self {
            WindowLine::Story { text } => add(text, false),
            WindowLine::Chat { messages, answers } => {
                for (index, message) in messages.iter().enumerate() {
                    let role = message["role"].as_str().unwrap_or_default();
                    add(&format!("<|im_start|>{role}\n"), false);
                    add(&format!("{}<|im_end|>", content(message)), answers.contains(&index));
                    add("\n", false);
                }
            }
        }
        tokens.truncate(WINDOW_TOKENS);
        answers.truncate(WINDOW_TOKENS);
        Window { tokens, answers, middle: WINDOW_TOKENS / 2 }
    }
}

#[cfg(test)]
mod tests {
    use kvik_text::files::bytes::FileBytes;
    use kvik_text::files::gguf::Gguf;

    use super::*;

    /// The tokenizer of a small model, of which texts begin with the begin-of-text token if `requires_bos`.
    fn tokenizer(requires_bos: bool) -> Tokenizer {
        let mut bytes = fs::read(kvik_testing::golden("arch-qwen3.gguf")).unwrap();
        let key = b"tokenizer.ggml.add_bos_token";
        let at = bytes.windows(key.len()).position(|part| part == key).unwrap();
        // Between a key and its value are the four bytes of its type.
        bytes[at + key.len() + 4] = u8::from(requires_bos);
        Tokenizer::from_gguf(&Gguf::from_bytes(FileBytes::Owned(bytes)).unwrap()).unwrap()
    }

    #[test]
    fn a_window_begins_as_texts_of_the_model_do() {
        let text = "a letter and a story. ".repeat(10);
        let plain = of_text(&text, 32, 9, &tokenizer(false)).unwrap();
        assert!(plain.len() > 2, "{} windows", plain.len());
        let written = tokenizer(false).encode(&text, false, false);
        let plain: Vec<Token> = plain.into_iter().flat_map(|window| window.tokens).collect();
        assert_eq!(plain, written[..plain.len()]);

        let tokenizer = tokenizer(true);
        let bos = tokenizer.bos().unwrap();
        let windows = of_text(&text, 32, 9, &tokenizer).unwrap();
        assert!(windows.iter().all(|window| window.tokens[0] == bos && window.tokens.len() == 32));
        assert_eq!(windows[0].tokens[1..], written[..31], "the first window has the text from its beginning");
        assert_eq!(windows[1].tokens[1..], written[32..63], "later windows lose a token of the text to it");

        let story = WindowLine::Story { text }.window(&tokenizer);
        assert_eq!((story.tokens[0], story.tokens.len()), (bos, story.answers.len()));
        assert_eq!(story.tokens[1..], written);
    }
}
