//! A model with its flags: settings, downloads, tiers, adapters, and the retention that was measured for it.
//!
//! [`load`] builds a [`Serving`] once; routes and terminal commands read it.

#![forbid(unsafe_code)]

pub mod budget;
pub mod causes;
pub mod device;
mod disk;
mod draft;
pub mod fetch;
pub mod fleet;
pub mod handle;
mod host;
mod host_text;
pub mod kv;
pub mod kv_events;
pub mod load;
pub mod lora;
pub mod measured;
pub mod names;
mod no_template;
pub mod open;
pub mod remote;
pub mod retaining;
pub mod settings;
pub mod system;
mod tiers;

use std::sync::Arc;

use kvik_engine::api::{EventSink, Probe, Request, RequestError};
use kvik_engine::engine::Engine;
use kvik_engine::stats::EngineStats;
use kvik_model::load::SamplingDefaults;
use kvik_model::pulse::Life;
use kvik_session::{Embedder, NextTurns, Texts};
use kvik_shelf::Short;
use kvik_text::template::ChatTemplate;

pub use host_text::HostText;
use lora::LoraAdapters;
use no_template::NoTemplate;
use retaining::Retaining;

/// Runs requests: the engine, or a scripted double in tests of the routes.
pub trait Inference: Send + Sync {
    /// Queues a request; the engine's thread sends its events to `sink`.
    ///
    /// A constraint is compiled in the background; an invalid one fails the request.
    fn submit(&self, request: Request, sink: Box<dyn EventSink>) -> Result<(), RequestError>;

    /// Gives the answers in a prompt that is a text the tokens with which they were generated.
    fn as_generated(&self, _: &mut Request) {}

    /// Probes the cache for a request, without running it.
    fn explain(&self, request: Request) -> Result<Probe, RequestError>;

    /// The engine's gauges and counters.
    fn stats(&self) -> EngineStats;

    /// The engine's state. Never blocks.
    fn life(&self) -> Life;
}

impl Inference for Engine {
    fn submit(&self, request: Request, sink: Box<dyn EventSink>) -> Result<(), RequestError> {
        Engine::submit(self, request, sink)
    }

    fn as_generated(&self, request: &mut Request) {
        Engine::as_generated(self, request);
    }

    fn explain(&self, request: Request) -> Result<Probe, RequestError> {
        Engine::explain(self, request)
    }

    fn stats(&self) -> EngineStats {
        Engine::stats(self)
    }

    fn life(&self) -> Life {
        Engine::life(self)
    }
}

/// A loaded model with its engine.
pub struct Serving {
    /// Computes requests.
    pub engine: Arc<dyn Inference>,
    /// The engine's handle, for reading and changing its cache; `None` with a scripted double.
    pub cache: Option<Engine>,
    /// Encodes prompts.
    pub texts: Arc<Texts>,
    /// Turns that are computed behind answers.
    pub next_turns: NextTurns,
    /// Describes the model in answers.
    pub model: ModelCard,
    /// Settings of embedding and ranking.
    pub embedder: Embedder,
    /// The server's policy of retention, and its measured losses.
    pub retaining: Arc<Retaining>,
    /// The LoRA adapters.
    pub lora: Arc<LoraAdapters>,
}

/// Description of the model in answers.
#[derive(Debug, Clone)]
pub struct ModelCard {
    /// Its name in the API: the one under which it was pulled, else that in its file, unless a flag gives it another.
    pub name: String,
    /// The name in its file, also accepted in requests.
    pub own_name: String,
    /// Its architecture, as GGUF names it.
    pub family: String,
    /// Its origin, also accepted as a name: the value of `-m`, or "embedded model".
    pub source: HostText,
    /// True for the embedded model, which has little knowledge.
    pub embedded: bool,
    /// Maximum tokens of prompt and answer together.
    pub context: usize,
    /// Sequences that run at the same time.
    pub parallel: usize,
    /// Bytes of its weights.
    pub bytes: u64,
    /// Unix time of its loading, seconds.
    pub loaded: u64,
    /// Digest of its weights and configuration.
    pub digest: [u8; 32],
    /// Sampling of requests that set none, before the server's flags.
    pub sampling: SamplingDefaults,
}

impl ModelCard {
    /// Whether a request's `model` field names this model.
    pub fn answers_to(&self, name: &str) -> bool {
        let own = [self.name.as_str(), &self.own_name, self.source.for_host()];
        let is_it = |own: &str| means(name, own) || is_short_for(name, own);
        name.is_empty() || name == "kvik" || own.into_iter().any(is_it)
    }
}

/// Prefixes of names on the hub, in kvik and in Ollama's clients.
const OF_HUB: [&str; 3] = ["hf.co/", "huggingface.co/", "hf:"];

/// Whether the name `said` by a client denotes the model `name`. Ollama's clients add the tag `latest`, and the hub's
/// prefix.
pub fn means(said: &str, name: &str) -> bool {
    fn plain(name: &str) -> &str {
        let name = name.strip_suffix(":latest").filter(|plain| !plain.is_empty()).unwrap_or(name);
        OF_HUB.iter().find_map(|hub| name.strip_prefix(hub)).unwrap_or(name)
    }
    plain(said) == plain(name)
}

/// Whether the name `said` by a client is short for the model `name`, which a pull has named in full: `llama3.2` is
/// `llama3.2:3b`.
pub fn is_short_for(said: &str, name: &str) -> bool {
    Short::of(said).is_some_and(|short| short.name.as_str() == name)
}

/// A model's name with its origin, where that says more.
pub fn titled(name: &str, source: &str) -> String {
    if name == source { name.to_owned() } else { format!("{name} ({source})") }
}

impl Serving {
    /// The model's chat template.
    ///
    /// # Errors
    /// If it has none: the error says what the model can do instead, and how to supply a template.
    pub fn chat_template(&self) -> Result<&ChatTemplate, NoTemplate> {
        self.texts.template.as_ref().ok_or_else(|| NoTemplate::of(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_answers_to_the_name_that_it_was_started_with() {
        let card = |source: &str| ModelCard {
            name: "SmolLM2-135M-Instruct".to_owned(),
            own_name: "SmolLM2-135M-Instruct".to_owned(),
            family: "llama".to_owned(),
            source: source.into(),
            embedded: false,
            context: 64,
            parallel: 1,
            bytes: 1,
            loaded: 0,
            digest: [0; 32],
            sampling: SamplingDefaults::KVIK,
        };
        for (source, said, expect) in [
            ("smollm2:135m", "smollm2:135m", true),
            ("smollm2:135m", "SmolLM2-135M-Instruct", true),
            ("smollm2:135m", "SmolLM2-135M-Instruct:latest", true),
            ("smollm2:135m", "kvik", true),
            ("smollm2:135m", "", true),
            ("smollm2:135m", "smollm2", false),
            ("smollm2:360m", "smollm2", true),
            ("smollm2:360m", "SmolLM2:360M", true),
            ("smollm2", "smollm2:latest", true),
            ("smollm2:latest", "smollm2", true),
            ("hf:o/r:Q4_K_M", "o/r:Q4_K_M", true),
            ("hf:o/r:Q4_K_M", "hf.co/o/r:Q4_K_M", true),
            ("hf:o/r:Q4_K_M", "o/r", false),
            ("/data/m.gguf", "/data/m.gguf", true),
            ("/data/m.gguf", ":latest", false),
        ] {
            assert_eq!(card(source).answers_to(said), expect, "{source} {said}");
        }
    }
}
