//! What answers need: the engine with the words of its model.
//!
//! Built once at start-up by [`load`]; routes and the terminal commands only read it.

pub(crate) mod disk;

pub(crate) mod load;
mod memory;
mod open;

use std::sync::Arc;

use kvik_cache::Token;
use kvik_engine::api::{EventSink, Probe, Request, RequestError};
use kvik_engine::engine::Engine;
use kvik_engine::stats::EngineStats;
use kvik_engine::text::template::{ChatTemplate, Prompt};
use kvik_engine::text::tokenizer::Tokenizer;

/// Where requests go: the engine, or a script in tests of the routes.
pub(crate) trait Inference: Send + Sync {
    /// Queues a request; its events go to `sink`, from the engine's thread.
    ///
    /// A constraint is compiled beside it; a bad one makes the request fail.
    fn submit(&self, request: Request, sink: Box<dyn EventSink>) -> Result<(), RequestError>;

    /// What a request would find in the cache, without running it.
    fn explain(&self, request: Request) -> Result<Probe, RequestError>;

    /// What the engine holds and has done.
    fn stats(&self) -> EngineStats;
}

/// A loaded model with its engine.
pub(crate) struct Serving {
    pub(crate) engine: Arc<dyn Inference>,
    /// The same engine, to look at its cache and to change what it keeps; a script has none.
    pub(crate) cache: Option<Engine>,
    pub(crate) tokenizer: Arc<Tokenizer>,
    /// Absent when the model brings none and `--chat-template` was not given.
    pub(crate) template: Option<ChatTemplate>,
    pub(crate) model: ModelCard,
}

/// What the server says about its model.
#[derive(Debug, Clone)]
pub(crate) struct ModelCard {
    /// Its name in the API.
    pub(crate) name: String,
    /// The name that its file gives it; it is answered to as well.
    pub(crate) own_name: String,
    /// Where it came from: a path, `hf:...`, or "inside the program".
    pub(crate) source: String,
    /// It is the one inside the program, which knows little.
    pub(crate) embedded: bool,
    /// Tokens of prompt and answer together.
    pub(crate) context: usize,
    /// Sequences that run at the same time.
    pub(crate) parallel: usize,
    /// Bytes of its weights.
    pub(crate) bytes: u64,
    /// Unix time of its loading, seconds.
    pub(crate) loaded: u64,
    /// Digest of its weights and configuration.
    pub(crate) digest: [u8; 32],
}

impl ModelCard {
    /// Whether a request's `model` field means this model.
    pub(crate) fn answers_to(&self, name: &str) -> bool {
        name.is_empty() || name == "kvik" || name == self.name || name == self.own_name
    }
}

impl Serving {
    /// Tokens of a rendered chat.
    pub(crate) fn encode_rendered(&self, prompt: &Prompt) -> Vec<Token> {
        encode_rendered(&self.tokenizer, prompt)
    }
}

/// Tokens of a rendered chat. Most templates write the token that begins a text themselves; where
/// one does not and the model wants it, it is added. What the request wrote is text throughout: a
/// control token's name in there is no control token.
pub(crate) fn encode_rendered(tokenizer: &Tokenizer, prompt: &Prompt) -> Vec<Token> {
    let mut tokens = tokenizer.encode_prompt(&prompt.text, &prompt.inputs);
    if let Some(bos) = tokenizer.bos().filter(|_| tokenizer.add_bos())
        && tokens.first() != Some(&bos)
    {
        tokens.insert(0, bos);
    }
    tokens
}
