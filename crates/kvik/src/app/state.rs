//! What all routes share, and how a request is read off the async threads.

use std::{
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{http::StatusCode, response::Response};
use kvik_cache::Token;
use kvik_engine::api::{Report, Request, RequestError};
use serde_json::Value;

use super::{
    body::JsonBody,
    generation::{Answer, Generation},
    keys::{Caller, Keys},
    metrics::Metrics,
    prompts::Registry,
    rate_limits,
    report::{
        comparison::Answered,
        trailer::{Origin, Trailer},
    },
    usage_account::{Clock, UsageAccount},
};
use crate::{
    accounts::{
        ledger::{Ledger, Records},
        prices::Prices,
        tenants::AdmissionSlots,
    },
    http::{
        body_memory::BodyMemory,
        error::ApiError,
        json::Body,
        origins::Senders,
        readers::{Presence, Reader, Readers},
    },
    serving::Serving,
    settings::size::ByteSize,
};

/// Bytes of text that are tokenized for every token of the context. Texts have three to five bytes per
/// token: one that is a few times too long is counted exactly, so that the error can say by how much
/// to shorten it, and one beyond this cannot fit and costs nothing.
const TOKENIZED_BYTES_PER_TOKEN: usize = 32;

/// How the server treats its clients.
pub(crate) struct AppConfig {
    /// Whom requests may come from.
    pub(crate) senders: Senders,
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
}

/// The state behind the routes.
pub(crate) struct App {
    pub(crate) serving: Serving,
    pub(crate) config: AppConfig,
    pub(crate) metrics: Arc<Metrics>,
    /// The answers that later ones may be compared with.
    pub(crate) answered: Arc<Answered>,
    pub(crate) ledger: Arc<Ledger>,
    /// Prompts that are computed ahead and kept.
    pub(crate) registry: Registry,
    /// Who may come in; replaced when the tenants file is read again.
    keys: RwLock<Arc<Keys>>,
    /// The engine's admission slots, where several tenants share them.
    slots: Option<Arc<AdmissionSlots>>,
    /// Memory for bodies.
    pub(crate) bodies: Arc<BodyMemory>,
    readers: Arc<Readers>,
    stopping: AtomicBool,
}

/// A request that was understood.
pub(crate) struct Prepared<A> {
    /// One per prompt.
    pub(crate) requests: Vec<Request>,
    /// What they were made from.
    pub(crate) origin: Origin,
    pub(crate) answer: A,
    pub(crate) stream: bool,
}

impl App {
    /// `keys` open the server; with none it is open to all.
    pub(crate) fn new(serving: Serving, keys: Keys, ledger: Arc<Ledger>, config: AppConfig) -> Arc<App> {
        let shared = keys.tenants().are_named();
        let bodies = BodyMemory::new(config.body_limit.0, shared);
        let slots = shared.then(|| AdmissionSlots::new(config.admission_slots));
        let readers = Readers::new(shared);
        Arc::new(App {
            serving,
            registry: Registry::open(config.records.as_ref()),
            config,
            ledger,
            keys: RwLock::new(Arc::new(keys)),
            slots,
            metrics: Arc::new(Metrics::new()),
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

    /// Parses a body and reads it by `read`, on a thread that may take its time:
    /// a prompt of megabytes takes seconds to tokenize. When the client leaves, reading stops at the next
    /// field or prompt; the permit is free only then.
    pub(crate) async fn read<T: Send + 'static>(
        self: &Arc<Self>,
        body: JsonBody,
        read: impl FnOnce(&App, &Body) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let reader = Reader { tenant: body.caller.tenant.id, large: body.is_large() };
        let permit = self.readers.enter(reader).await?;
        let presence = Presence::default();
        let _client = presence.client();
        let app = self.clone();
        let work = move || {
            let _permit = permit;
            read(&app, &body.parse()?.wanted_by(presence))
        };
        match tokio::task::spawn_blocking(work).await {
            Ok(result) => result,
            // Only this request is lost: the panic ended its own closure and held no lock.
            Err(panic) => Err(ApiError::internal(format!("reading the request failed: {panic}"))),
        }
    }

    /// Reads a request, runs it and answers.
    pub(crate) async fn complete<A: Answer>(
        self: &Arc<Self>,
        body: JsonBody,
        read: fn(&App, &Body) -> Result<Prepared<A>, ApiError>,
    ) -> Result<Response, ApiError> {
        let caller = body.caller.clone();
        rate_limits::check_tokens(&caller.tenant, self.now())?;
        // Submitting hashes the constraint, so it belongs to the slow part.
        let start = move |app: &App, body: &Body| {
            let Prepared { mut requests, origin, answer, stream } = read(app, body)?;
            let account = app.open_account(&caller, requests.len())?;
            requests.iter_mut().for_each(|request| caller.tenant.sign(request));
            let trailer = Trailer::new(app, origin, &requests);
            Ok((app.submit(account, requests)?, answer, trailer, stream))
        };
        let (generation, answer, trailer, stream) = self.read(body, start).await?;
        generation.respond(answer, trailer, stream).await
    }

    /// Computes a prompt of a caller for what it leaves in the cache, on the tenant's account, and waits for
    /// its end; whoever stops waiting cancels. What was computed, and `usage` as an answer has it.
    pub(crate) async fn compute(
        &self,
        caller: &Caller,
        mut request: Request,
    ) -> Result<(Report, Value), ApiError> {
        let account = self.open_account(caller, 1)?;
        caller.tenant.sign(&mut request);
        self.submit(account, vec![request])?.report().await
    }

    fn submit(&self, account: UsageAccount, requests: Vec<Request>) -> Result<Generation, ApiError> {
        let started = Generation::start(&*self.serving.engine, account, requests);
        // How many wait is the other tenants' business.
        started.map_err(|error| if self.slots.is_some() { error.impersonal() } else { error })
    }

    /// Lets `prompts` prompts of a caller into the engine, on the tenant's account.
    fn open_account(&self, caller: &Caller, prompts: usize) -> Result<UsageAccount, ApiError> {
        let tenant = caller.tenant.clone();
        let pass = tenant.meter.enter(&tenant.limits, self.slots.as_ref(), prompts)?;
        Ok(UsageAccount {
            prices: tenant.prices.or(self.config.prices),
            tenant,
            metrics: self.metrics.clone(),
            ledger: self.ledger.clone(),
            clock: self.config.clock.clone(),
            _pass: pass,
        })
    }

    /// Refuses a text that cannot fit the context, before seconds and memory are spent on its tokens.
    pub(crate) fn check_length(&self, text: &str) -> Result<(), ApiError> {
        if text.len() <= self.text_bytes_max() {
            return Ok(());
        }
        let context = self.serving.model.context;
        let least = self.serving.tokenizer.tokens_at_least(text.len()).max(context + 1);
        let error =
            ApiError::from(RequestError::PromptTooLong { prompt_tokens: least, context_tokens: context });
        let message = error.to_string().replace("the prompt has", "the prompt has at least");
        Err(error.because(message))
    }

    /// Longest text that is tokenized as part of a prompt.
    pub(crate) fn text_bytes_max(&self) -> usize {
        TOKENIZED_BYTES_PER_TOKEN.saturating_mul(self.serving.model.context)
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
        if self.serving.model.answers_to(name) {
            return Ok(());
        }
        let message = format!(
            "the model `{name}` does not exist here; this server runs `{}` (also called `kvik`)",
            self.serving.model.name
        );
        Err(ApiError::new(StatusCode::NOT_FOUND, Some("model_not_found"), message).at("model"))
    }
}
