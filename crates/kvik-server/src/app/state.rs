//! State shared by all routes.

use std::{sync::Arc, time::Duration};

use kvik_cache::Token;
use kvik_engine::api::RequestError;
use kvik_memory::memory::{Memory, Surroundings};
use kvik_model::load::{SamplingDefaults, SamplingSource};

use super::{
    chat_text,
    config::AppConfig,
    keys::Keys,
    node_ids::NodeIds,
    prompts::Registry,
    report::{comparison::Answered, token_scale::TokenScale},
    seal::Seal,
    server::Server,
    slots::Slots,
};
use crate::{
    accounts::ledger::Ledger,
    http::{error::ApiError, json::Body},
};
use kvik_serving::{Serving, settings::told_window::ToldWindow};

/// Memory for conversation histories in background work, in units of the largest body.
const HISTORIES: u64 = 4;

/// The state behind the routes of a model.
pub struct App {
    /// State shared with other models.
    pub(crate) server: Arc<Server>,
    /// The open model.
    pub serving: Arc<Serving>,
    pub(crate) config: AppConfig,
    pub(crate) node_ids: NodeIds,
    /// Fingerprints of the answers that later ones may be compared with.
    pub(crate) answered: Arc<Answered>,
    /// Pinned prompts.
    pub(crate) registry: Registry,
    /// Memory of conversations that outgrow the context.
    pub(crate) memory: Arc<Memory<App>>,
    /// Seals compaction items.
    pub(crate) seal: Arc<Seal>,
    /// The tokens computed under the names of llama-server's slots.
    pub(crate) slots: Arc<Slots>,
}

impl App {
    /// The only model of a server. `keys` grant access; without any the server is open to all.
    pub fn new(
        serving: Serving,
        keys: impl Into<Arc<Keys>>,
        ledger: Arc<Ledger>,
        config: AppConfig,
    ) -> Arc<App> {
        App::of(Server::new(keys, ledger, &config), serving, config)
    }

    /// A model of a server.
    pub fn of(server: Arc<Server>, serving: Serving, config: AppConfig) -> Arc<App> {
        let serving = Arc::new(serving);
        let around = Surroundings {
            model: serving.texts.clone(),
            model_name: &serving.model.own_name,
            observer: server.metrics.clone(),
            records: config.records.as_ref(),
            history_bytes: config.body_limit.0.saturating_mul(HISTORIES),
            is_shared: server.is_shared(),
        };
        let memory = Memory::new(&config.memory, around);
        let own_seal = config.secret.clone().map(|secret| Arc::new(Seal::new(secret)));
        let seal = own_seal.unwrap_or_else(|| server.seal.clone());
        Arc::new(App {
            server,
            serving,
            registry: Registry::open(config.records.as_ref()),
            memory,
            seal,
            config,
            slots: Arc::default(),
            node_ids: NodeIds::new(),
            answered: Arc::default(),
        })
    }

    /// Writes pending records, after all requests have ended. Blocking.
    pub fn close(&self) {
        self.serving.next_turns.stop();
        self.memory.close();
        if let Some(spans) = &self.config.spans {
            spans.finish();
        }
    }

    /// Bytes of memory that the model takes now: its weights, and the keys and values that are there. What its cache may
    /// grow to is another number.
    pub fn bytes_used(&self) -> u64 {
        let stats = self.serving.engine.stats();
        self.serving.model.bytes + stats.kv_used_bytes() as u64
    }

    /// The current API keys.
    pub(crate) fn keys(&self) -> Arc<Keys> {
        self.server.keys()
    }

    /// The sampling of requests that set none: that of the server's flags, else that of its model.
    pub(crate) fn sampling(&self) -> SamplingDefaults {
        self.serving.model.sampling.under(&self.config.sampling.options(), SamplingSource::Flag)
    }

    /// The time by which rates are limited.
    pub(crate) fn now(&self) -> Duration {
        self.server.now()
    }

    /// Refuses a text that cannot fit the context, before time and memory are spent on tokenizing it.
    pub(crate) fn check_length(&self, text: &str) -> Result<(), ApiError> {
        self.serving.texts.check_length(text).map_err(chat_text::refused)
    }

    /// Longest text that is tokenized as part of a prompt.
    pub(crate) fn text_bytes_max(&self) -> usize {
        self.serving.texts.text_bytes_max()
    }

    /// Refuses a prompt that does not fit the context, before any further processing.
    pub(crate) fn check_tokens(&self, prompt: &[Token]) -> Result<(), ApiError> {
        let (prompt_tokens, context_tokens) = (prompt.len(), self.serving.model.context);
        if prompt_tokens <= context_tokens {
            return Ok(());
        }
        Err(RequestError::PromptTooLong { prompt_tokens, context_tokens }.into())
    }

    /// The window that clients assume under this name of the model, if the operator has set one.
    pub(crate) fn told_window(&self, name: &str) -> Option<&ToldWindow> {
        ToldWindow::under(&self.config.told_windows, name)
    }

    /// The scale in which clients are told token counts under this name.
    pub(crate) fn token_scale_under(&self, name: &str) -> TokenScale {
        let scale = |told: &ToldWindow| TokenScale::of(told.tokens, self.serving.model.context);
        self.told_window(name).map_or_else(TokenScale::default, scale)
    }

    /// The scale in which the client that sends this body is told token counts.
    pub(crate) fn token_scale(&self, body: &Body) -> TokenScale {
        if self.config.told_windows.is_empty() {
            return TokenScale::default();
        }
        let named = body.copy(&["model"]).unwrap_or_default();
        self.token_scale_under(named["model"].as_str().unwrap_or_default())
    }

    /// Accepts the model that a request names: unless the server is strict, its only model answers under any name.
    /// Answers report the real name.
    pub(crate) fn accept_model(&self, name: &str) -> Result<(), ApiError> {
        if self.config.strict_model { self.check_model(name) } else { Ok(()) }
    }

    /// Refuses a name that is not one of this server's model or of its adapters.
    pub(crate) fn check_model(&self, name: &str) -> Result<(), ApiError> {
        let is_another = || self.serving.lora.find(name).is_some() || self.told_window(name).is_some();
        if self.serving.model.answers_to(name) || is_another() {
            return Ok(());
        }
        let there_is = format!("this server runs `{}` (also called `kvik`)", self.serving.model.name);
        Err(ApiError::no_model(name, &there_is))
    }
}
