//! Prompts that ask for the middle of a text, in the order of the tokens that a model of code was trained on.

use kvik_cache::Token;
use kvik_text::tokenizer::{FillTokens, Tokenizer};
use serde::Deserialize;

use super::prompt::Prompt;
use crate::{
    app::state::App,
    described::JsonSchema,
    http::{error::ApiError, json::Body},
};

type Result<T> = std::result::Result<T, ApiError>;

/// llama-server's separator between chunks, for vocabularies without a token for it.
const SNIPPET: &str = "\n\n--- snippet ---\n\n";

/// The text whose middle is wanted.
pub(crate) struct Fill<'a> {
    /// What stands before the middle.
    pub(crate) before: &'a str,
    /// How the middle begins.
    pub(crate) begin: &'a str,
    /// What stands after the middle.
    pub(crate) after: &'a str,
    /// Parts of other files, those that matter most last.
    pub(crate) chunks: &'a [Chunk],
}

/// A part of a file.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Chunk {
    text: String,
    /// Name of the file.
    filename: Option<String>,
}

/// The tokens that delimit the parts of the text; three of them are required.
pub(crate) struct Marks {
    prefix: Token,
    suffix: Token,
    middle: Token,
    repository: Option<Token>,
    file: Option<Token>,
}

impl Marks {
    /// Returns those of the model, or an error that names the missing ones.
    pub(crate) fn of(app: &App) -> Result<Marks> {
        let FillTokens { prefix, suffix, middle, repository, file } =
            app.serving.texts.tokenizer.fill_tokens();
        if let (Some(prefix), Some(suffix), Some(middle)) = (prefix, suffix, middle) {
            return Ok(Marks { prefix, suffix, middle, repository, file });
        }
        let missing = [(prefix, "prefix"), (suffix, "suffix"), (middle, "middle")];
        let missing = missing.iter().filter(|(token, _)| token.is_none());
        let missing: String = missing.map(|(_, name)| format!("{name} token is missing. ")).collect();
        Err(ApiError::not_supported(format!("Infill is not supported by this model: {missing}").trim_end()))
    }

    /// Returns the prompt for a middle of at most `max_tokens`. A long text is cut, so that the prompt fits in the rest
    /// of the context, or in a quarter of it; what cannot fit is not tokenized before.
    pub(crate) fn prompt(
        &self,
        app: &App,
        fill: &Fill<'_>,
        max_tokens: usize,
        body: &Body,
    ) -> Result<Prompt> {
        let names = fill.chunks.iter().filter_map(|chunk| chunk.filename.as_deref());
        names.chain([fill.begin]).try_for_each(|text| app.check_length(text))?;
        body.still_wanted()?;
        let context = app.serving.model.context;
        let room = context.saturating_sub(max_tokens.min(context - context / 4));
        let tokens = self.tokens(&app.serving.texts.tokenizer, fill, (room, app.text_bytes_max()));
        Ok(Prompt::of_tokens(tokens))
    }

    /// Assembles the prompt in llama-server's order, in at most `room` tokens, of at most `bytes_max` bytes of each
    /// text. Long chunks keep their end; a long text keeps the parts next to the middle, three tokens before it for one
    /// after it.
    fn tokens(
        &self,
        tokenizer: &Tokenizer,
        fill: &Fill<'_>,
        (room, bytes_max): (usize, usize),
    ) -> Vec<Token> {
        let encode = |text: &str| tokenizer.encode(text, false, false);
        let encode_end = |text: &str| encode(end(text, bytes_max));
        let begin = encode(fill.begin);
        let after = &fill.after[..fill.after.floor_char_boundary(bytes_max)];
        let (before, after) = (encode_end(fill.before), encode(after));
        // The text begins with one special token, and its parts are delimited by three.
        let room = room.saturating_sub(begin.len() + 4);
        let kept_after = after.len().min((room / 4).max(room.saturating_sub(before.len())));
        let kept_before = before.len().min(room - kept_after);
        let chunks = self.chunks(&encode_end, fill.chunks);
        let kept_chunks = chunks.len().min(room - kept_after - kept_before);

        let mut prompt = chunks[chunks.len() - kept_chunks..].to_vec();
        prompt.extend(tokenizer.encode("", true, false));
        prompt.push(self.prefix);
        prompt.extend_from_slice(&before[before.len() - kept_before..]);
        prompt.extend(begin);
        prompt.push(self.suffix);
        prompt.extend_from_slice(&after[..kept_after]);
        prompt.push(self.middle);
        prompt
    }

    fn chunks(&self, encode: &dyn Fn(&str) -> Vec<Token>, chunks: &[Chunk]) -> Vec<Token> {
        let mut tokens = Vec::new();
        let named = |token: Token, name: &str| [vec![token], encode(&format!("{name}\n"))].concat();
        if let Some(repository) = self.repository {
            tokens.extend(named(repository, "myproject"));
        }
        for chunk in chunks {
            tokens.extend(match self.file {
                Some(file) => named(file, chunk.filename.as_deref().unwrap_or("tmp")),
                None => encode(SNIPPET),
            });
            tokens.extend(encode(&chunk.text));
        }
        if let Some(file) = self.file {
            tokens.extend(named(file, "filename"));
        }
        tokens
    }
}

/// The last characters of a text, of at most this many bytes.
fn end(text: &str, bytes: usize) -> &str {
    &text[text.ceil_char_boundary(text.len().saturating_sub(bytes))..]
}
