//! What all routes share.

use std::{
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::http::StatusCode;
use kvik_cache::Token;
use kvik_engine::api::RequestError;

use super::{
    conversations::Conversations,
    keys::Keys,
    memory::{Memory, MemoryConfig, Surroundings},
    metrics::Metrics,
    node_ids::NodeIds,
    prompts::Registry,
    report::comparison::Answered,
    responses::Responses,
    slots::Slots,
    spans::Spans,
    tally::Tally,
    usage_account::Clock,
};
use crate::{
    accounts::{
        ledger::{Ledger, Records},
        prices::Prices,
        tenants::AdmissionSlots,
    },
    http::{body_memory::BodyMemory, error::ApiError, origins::Senders, readers::Readers},
    serving::Serving,
    settings::{sampling::SamplingArgs, size::ByteSize},
};

/// Memory for histories that are needed behind answers, in units of the largest body.
const HISTORIES: u64 = 4;

/// How the server treats its clients.
pub(crate) struct AppConfig {
    /// Whom requests may come from.
    pub(crate) senders: Senders,
    /// What runs is shown at `/slots`.
    pub(crate) shows_slots: bool,
    /// Requests for other models are refused, not answered by this one.
    pub(crate) strict_model: bool,
    /// Longest body.
    pub(crate) body_limit: ByteSize,
    /// What tokens cost, for tenants without prices of their own.
    pub(crate) prices: Option<Prices>,
    /// By which rates are limited.
    pub(crate) clock: Clock,
    /// Prompts that the engine takes, running and waiting.
    pub(crate) admission_slots: usize,
    /// Where kept prompts are written down; absent where nothing can be.
    pub(crate) records: Option<Records>,
    /// Where conversations are written down; absent likewise.
    pub(crate) conversations: Option<Records>,
    /// How long conversations go on.
    pub(crate) memory: MemoryConfig,
    /// Where spans of answers go, if anywhere.
    pub(crate) spans: Option<Arc<Spans>>,
    /// What holds where a request does not say it.
    pub(crate) sampling: SamplingArgs,
}

/// The state behind the routes.
pub(crate) struct App {
    pub(crate) serving: Arc<Serving>,
    pub(crate) config: AppConfig,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) tally: Arc<Tally>,
    pub(crate) node_ids: NodeIds,
    /// The answers that later ones may be compared with.
    pub(crate) answered: Arc<Answered>,
    pub(crate) ledger: Arc<Ledger>,
    /// Prompts that are computed ahead and kept.
    pub(crate) registry: Registry,
    /// Conversations that clients name.
    pub(crate) conversations: Arc<Conversations>,
    /// Answers that clients go on from by their id.
    pub(crate) responses: Arc<Responses>,
    /// What is remembered of conversations.
    pub(crate) memory: Arc<Memory>,
    /// Who may come in; replaced when the tenants file is read again.
    keys: RwLock<Arc<Keys>>,
    /// What was computed under the names that llama-server has for places to run in.
    pub(crate) slots: Arc<Slots>,
    /// The engine's admission slots, where several tenants share them.
    pub(super) admission: Option<Arc<AdmissionSlots>>,
    /// Memory for bodies.
    pub(crate) bodies: Arc<BodyMemory>,
    pub(crate) readers: Arc<Readers>,
    stopping: AtomicBool,
}

impl App {
    /// `keys` open the server; with none it is open to all.
    pub(crate) fn new(serving: Serving, keys: Keys, ledger: Arc<Ledger>, config: AppConfig) -> Arc<App> {
        let shared = keys.tenants().are_named();
        let bodies = BodyMemory::new(config.body_limit.0, shared);
        let admission = shared.then(|| AdmissionSlots::new(config.admission_slots));
        let readers = Readers::new(shared);
        let (serving, metrics) = (Arc::new(serving), Arc::new(Metrics::new()));
        let around = Surroundings {
            serving: serving.clone(),
            readers: readers.clone(),
            metrics: metrics.clone(),
            records: config.records.as_ref(),
            history_bytes: config.body_limit.0.saturating_mul(HISTORIES),
            is_shared: shared,
        };
        let memory = Memory::new(&config.memory, around);
        Arc::new(App {
            serving,
            registry: Registry::open(config.records.as_ref()),
            conversations: Conversations::open(config.conversations.as_ref()),
            responses: Responses::open(config.conversations.as_ref()),
            memory,
            config,
            ledger,
            keys: RwLock::new(Arc::new(keys)),
            slots: Arc::default(),
            admission,
            metrics,
            tally: Arc::new(Tally::new()),
            node_ids: NodeIds::new(),
            answered: Arc::default(),
            bodies,
            readers,
            stopping: AtomicBool::new(false),
        })
    }

    /// Who may come in.
    pub(crate) fn keys(&self) -> Arc<Keys> {
        // The pointer is whole whatever panicked.
        self.keys.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// From now on these may come in. What runs goes on.
    pub(crate) fn replace_keys(&self, keys: Keys) {
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(keys);
    }

    /// The time by which rates are limited.
    pub(crate) fn now(&self) -> Duration {
        (self.config.clock)()
    }

    /// From now on new requests are refused; running ones go on.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Refuses a text that cannot fit the context, before seconds and memory are spent on its tokens.
    pub(crate) fn check_length(&self, text: &str) -> Result<(), ApiError> {
        self.serving.check_length(text)
    }

    /// Longest text that is tokenized as part of a prompt.
    pub(crate) fn text_bytes_max(&self) -> usize {
        self.serving.text_bytes_max()
    }

    /// Refuses a prompt that does not fit the context, before anything else is made of it.
    pub(crate) fn check_tokens(&self, prompt: &[Token]) -> Result<(), ApiError> {
        let (prompt_tokens, context_tokens) = (prompt.len(), self.serving.model.context);
        if prompt_tokens <= context_tokens {
            return Ok(());
        }
        Err(RequestError::PromptTooLong { prompt_tokens, context_tokens }.into())
    }

    /// Takes the model that a request names: there is one, and it answers whatever clients were
    /// set up for, unless the server is to be strict. An answer names the real one.
    pub(crate) fn accept_model(&self, name: &str) -> Result<(), ApiError> {
        if self.config.strict_model { self.check_model(name) } else { Ok(()) }
    }

    /// Whether this server runs the model of that name.
    pub(crate) fn check_model(&self, name: &str) -> Result<(), ApiError> {
        if self.serving.model.answers_to(name) || self.serving.lora.find(name).is_some() {
            return Ok(());
        }
        let message = format!(
            "the model `{name}` does not exist here; this server runs `{}` (also called `kvik`)",
            self.serving.model.name
        );
        Err(ApiError::new(StatusCode::NOT_FOUND, Some("model_not_found"), message).at("model"))
    }
}
