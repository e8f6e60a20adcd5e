//! The path of a request: parsed off the async threads, submitted on its tenant's account, answered.

use std::sync::Arc;

use axum::response::Response;
use kvik_engine::api::{AdapterMix, Report, Request};
use kvik_memory::{
    deletions::Owner,
    memory::{GoesOn, Host, Memory, Spoken},
};
use kvik_text::tokenizer::encoding_for;
use serde::de::DeserializeOwned;

use super::{
    answer_memory::AnswerMemory,
    body::JsonBody,
    generation::{Answer, Delivery, Generation},
    kept_prefix,
    keys::Caller,
    lora, rate_limits,
    report::{
        trailer::{Origin, Trailer},
        usage::Usage,
    },
    running_answers::ResumableTurn,
    server::Server,
    state::App,
    usage_account::UsageAccount,
};
use crate::{
    accounts::{
        prices::Prices,
        tenants::{AdmissionPermit, Refusal, TenantLimits},
    },
    http::{
        error::ApiError,
        json::Body,
        readers::{Presence, Reader, aside},
    },
};

/// A parsed request.
pub(crate) struct Prepared<A> {
    /// The engine's requests, one per prompt.
    pub(crate) requests: Vec<Request>,
    /// Their sources.
    pub(crate) origin: Origin,
    pub(crate) answer: A,
    pub(crate) stream: bool,
}

impl Server {
    /// Parses a body that is addressed to the server rather than to a model, and reads its fields.
    pub(crate) async fn read<T: DeserializeOwned + Send + 'static>(
        self: &Arc<Self>,
        body: JsonBody,
    ) -> Result<T, ApiError> {
        self.read_by(body, |_, body| body.read()).await
    }

    /// Parses such a body and reads it by `read`, which may block.
    pub(crate) async fn read_by<T: Send + 'static>(
        self: &Arc<Self>,
        body: JsonBody,
        read: impl FnOnce(&Server, &Body) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let reader = Reader { tenant: body.caller.tenant.id, large: body.is_large() };
        let server = self.clone();
        let work = move |presence| read(&server, &body.parse()?.wanted_by(presence));
        self.readers.in_turn(reader, work).await
    }
}

impl App {
    /// Parses a body and reads it by `read` on a thread that may block: tokenizing a prompt of megabytes takes seconds.
    /// If the client disconnects, reading stops at the next field or prompt; the permit is freed only then.
    pub(crate) async fn read<T: Send + 'static>(
        self: &Arc<Self>,
        body: JsonBody,
        read: impl FnOnce(&App, &Body) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let reader = Reader { tenant: body.caller.tenant.id, large: body.is_large() };
        let app = self.clone();
        let work = move |presence| {
            let body = body.parse()?.wanted_by(presence);
            read(&app, &body).map_err(|error| app.token_scale(&body).refusal(error))
        };
        self.server.readers.in_turn(reader, work).await
    }

    /// Reads a request, runs it and answers.
    pub(crate) async fn complete<A: Answer>(
        self: &Arc<Self>,
        body: JsonBody,
        read: impl FnOnce(&App, &Caller, &Body) -> Result<Prepared<A>, ApiError> + Send + 'static,
    ) -> Result<Response, ApiError> {
        let (caller, came) = (body.caller.clone(), body.came.clone());
        rate_limits::check_tokens(&caller.tenant, self.now())?;
        // Submitting hashes the constraint, so it belongs to the slow part.
        let start = move |app: &App, body: &Body| {
            let Prepared { mut requests, mut origin, mut answer, stream } = read(app, &caller, body)?;
            if let Some(prefix) = &origin.kept_prefix {
                kept_prefix::read(app, &caller.tenant, prefix, &mut requests)?;
            }
            let adapters = lora::adapters(body, &app.serving.lora)?;
            requests.iter_mut().for_each(|request| request.adapters.clone_from(&adapters));
            origin.notes = body.notes();
            origin.scale = app.token_scale(body);
            let permit = app.admit(&caller, requests.len())?;
            requests.iter_mut().for_each(|request| caller.tenant.sign(request));
            // Before the prompts are noted: what is computed for them is deleted by their tokens.
            requests.iter_mut().for_each(|request| app.serving.engine.as_generated(request));
            answer.asks(&requests);
            let owners = origin.owners(&caller.tenant.name);
            if !owners.is_empty() {
                aside(|| requests.iter_mut().for_each(|request| app.note(&owners, request)));
            }
            let kept_bytes = origin.kept_bytes() + answer.repeated_bytes();
            let delivery = app.delivery(&caller, stream, origin.question.take());
            let account = UsageAccount { arrived: came.arrived, ..app.account(&caller) };
            let mut trailer = Trailer::new(app, origin, came, &requests, (app.prices(&caller), owners));
            let generation = app.submit(&caller, account, permit, (requests, kept_bytes));
            let generation = generation.inspect_err(|_| trailer.refuse())?;
            Ok((generation, answer, trailer, delivery))
        };
        let (generation, answer, trailer, delivery) = self.read(body, start).await?;
        let scale = trailer.scale();
        generation.respond(answer, trailer, delivery).await.map_err(|error| scale.refusal(error))
    }

    /// How an answer to a caller is sent; a question is that of an answer which may be resumed.
    fn delivery(&self, caller: &Caller, stream: bool, question: Option<ResumableTurn>) -> Delivery {
        if !stream {
            return Delivery::Whole;
        }
        let Server { running_answers, bodies, .. } = &*self.server;
        let place = question.and_then(|question| running_answers.reserve(question, bodies, caller.tenant.id));
        place.map_or(Delivery::Stream, Delivery::Resumable)
    }

    /// Computes a prompt of a caller to fill the cache, on the tenant's account, and waits for its end. Returns its
    /// report and the answer's `usage`. Dropping the future cancels the request.
    pub(crate) async fn compute(
        &self,
        caller: &Caller,
        mut request: Request,
    ) -> Result<(Report, Usage), ApiError> {
        let permit = self.admit(caller, 1)?;
        request.adapters = self.serving.lora.usual();
        caller.tenant.sign(&mut request);
        self.submit(caller, self.account(caller), permit, (vec![request], 0))?.report().await
    }

    /// Generates the answer to a background request. The tenant pays for it, but it occupies none of the tenant's
    /// admission slots.
    async fn say(&self, caller: &Caller, mut request: Request) -> Result<Spoken, ApiError> {
        let permit = caller.tenant.meter.enter(&TenantLimits::NONE, None, 0)?;
        caller.tenant.sign(&mut request);
        let request = self.noted(caller, request).await?;
        self.submit(caller, self.account(caller), permit, (vec![request], 0))?.text().await
    }

    /// Generates the answer to a request of a waiting caller.
    async fn answer(&self, caller: &Caller, mut request: Request) -> Result<Spoken, ApiError> {
        rate_limits::check_tokens(&caller.tenant, self.now())?;
        let permit = self.admit(caller, 1)?;
        caller.tenant.sign(&mut request);
        let request = self.noted(caller, request).await?;
        self.submit(caller, self.account(caller), permit, (vec![request], 0))?.text().await
    }

    /// Notes a signed request for the deletable objects it is computed for.
    fn note(&self, owners: &[Owner], request: &mut Request) {
        self.server.prompt_log.note_or_keep_nothing(owners, request);
    }

    /// Notes a request for a caller, with the tokens that are computed for it, on a thread that may wait for a file.
    async fn noted(&self, caller: &Caller, mut request: Request) -> Result<Request, ApiError> {
        let (server, owners) = (self.server.clone(), caller.owners.clone());
        let engine = self.serving.engine.clone();
        let noted = tokio::task::spawn_blocking(move || {
            engine.as_generated(&mut request);
            server.prompt_log.note_or_keep_nothing(&owners, &mut request);
            request
        });
        noted.await.map_err(|panic| ApiError::panicked("noting the prompt", &panic))
    }

    /// Runs requests of a caller on this account; so many bytes of what they were read from are kept until their end.
    fn submit(
        &self,
        caller: &Caller,
        account: UsageAccount,
        permit: AdmissionPermit,
        (requests, kept_bytes): (Vec<Request>, u64),
    ) -> Result<Generation, ApiError> {
        let memory = AnswerMemory::of(&self.server.bodies, caller.tenant.id, &requests, kept_bytes)?;
        let started = Generation::start(&*self.serving.engine, account, permit, memory, requests);
        // The queue's length must not be revealed to other tenants.
        started.map_err(|error| if self.server.admission.is_some() { error.impersonal() } else { error })
    }

    /// Admits `prompts` prompts of a caller to the engine; never more than it runs and queues.
    pub(super) fn admit(&self, caller: &Caller, prompts: usize) -> Result<AdmissionPermit, ApiError> {
        let (tenant, limit) = (&caller.tenant, self.config.admission_slots);
        if prompts > limit {
            return Err(Refusal::TooManyPrompts { limit, prompts }.into());
        }
        Ok(tenant.meter.enter(&tenant.limits, self.server.admission.as_ref(), prompts)?)
    }

    /// The tenant's prices, or the server's.
    pub(crate) fn prices(&self, caller: &Caller) -> Option<Prices> {
        caller.tenant.prices.or(self.config.prices)
    }

    /// The account of a caller's request that arrives now.
    pub(super) fn account(&self, caller: &Caller) -> UsageAccount {
        UsageAccount {
            prices: self.prices(caller),
            tenant: caller.tenant.clone(),
            model: self.serving.model.name.clone(),
            metrics: self.server.metrics.clone(),
            tally: self.server.tally.clone(),
            ledger: self.server.ledger.clone(),
            clock: self.config.clock.clone(),
            arrived: (self.config.clock)(),
        }
    }
}

impl Host for App {
    type Caller = Caller;
    type Error = ApiError;

    fn memory(&self) -> &Arc<Memory<App>> {
        &self.memory
    }

    fn tenant(caller: &Caller) -> &str {
        &caller.tenant.name
    }

    fn adapters(&self) -> Option<AdapterMix> {
        self.serving.lora.usual()
    }

    async fn said(&self, caller: &Caller, request: Request, is_waited_for: bool) -> Result<Spoken, ApiError> {
        if is_waited_for { self.answer(caller, request).await } else { self.say(caller, request).await }
    }

    async fn apart<T: Send + 'static>(
        &self,
        caller: &Caller,
        is_waited_for: bool,
        work: impl FnOnce(GoesOn<'_, ApiError>) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let tenant = caller.tenant.id;
        let work = move |client: Presence| work(&|| client.check());
        if is_waited_for {
            self.server.readers.in_turn(Reader { tenant, large: true }, work).await
        } else {
            let work = move |client| encoding_for(tenant, || work(client));
            self.server.readers.in_background(work).await
        }
    }

    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        tokio::spawn(work);
    }
}
