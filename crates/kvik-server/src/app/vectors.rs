//! Batches of prompts that yield a vector: embeddings, and the scores of rerankers.
//!
//! One request may bring thousands. They are submitted a few at a time, the next as one ends, so that they fill the
//! engine's batches and never its queue.

use std::{future::poll_fn, sync::Arc};

use kvik_engine::api::{Event, Report, Request, RequestError, Wants};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::{
    answer_memory::no_memory, generation::Sink, keys::Caller, rate_limits, state::App,
    usage_account::UsageAccount,
};
use crate::{
    accounts::tenants::AdmissionPermit,
    http::{body_memory::BodyShare, error::ApiError},
};
use kvik_serving::Inference;

/// Bytes of a number: as it is computed, and as text with the digits of a double.
const NUMBER_BYTES: u64 = 32;
/// Bytes of a vector beside its numbers.
const VECTOR_BYTES: u64 = 128;

/// Computed vectors, with the share of the memory that their answer holds until its client has received it.
pub(crate) struct Vectors {
    pub(crate) computed: Vec<Computed>,
    pub(crate) share: BodyShare,
}

/// A vector, and the report of its prompt.
#[derive(Debug, Default)]
pub(crate) struct Computed {
    pub(crate) vector: Vec<f32>,
    pub(crate) report: Report,
}

/// Prompts on their way through the engine.
struct Flow<'a> {
    engine: &'a dyn Inference,
    account: Arc<UsageAccount>,
    permit: Arc<AdmissionPermit>,
    sender: UnboundedSender<(usize, Event)>,
    events: UnboundedReceiver<(usize, Event)>,
    /// Prompts not yet submitted, with their index.
    waiting: std::iter::Peekable<std::iter::Enumerate<std::vec::IntoIter<Request>>>,
    running: usize,
    /// Results, one per prompt.
    computed: Vec<Computed>,
}

impl App {
    /// The vectors of a caller's prompts, in their order, on the tenant's account. Dropping the future cancels the
    /// request.
    ///
    /// # Errors
    /// Also if other unread answers leave no memory for this one: before anything is computed.
    pub(crate) async fn vectors(
        &self,
        caller: &Caller,
        mut requests: Vec<Request>,
    ) -> Result<Vectors, ApiError> {
        rate_limits::check_tokens(&caller.tenant, self.now())?;
        let bytes = self.bytes_of_vectors(&requests);
        let share = self.server.bodies.hold(caller.tenant.id, bytes).ok_or_else(no_memory)?;
        requests.iter_mut().for_each(|request| caller.tenant.sign(request));
        let (permit, window) = self.admit_some(caller, requests.len())?;
        let (sender, events) = unbounded_channel();
        let flow = Flow {
            engine: &*self.serving.engine,
            account: Arc::new(self.account(caller)),
            permit: Arc::new(permit),
            sender,
            events,
            computed: requests.iter().map(|_| Computed::default()).collect(),
            waiting: requests.into_iter().enumerate().peekable(),
            running: 0,
        };
        let ended = flow.run(window).await;
        // The queue's length must not be revealed to other tenants.
        let is_shared = self.server.is_shared();
        let computed = ended.map_err(|error| if is_shared { error.impersonal() } else { error })?;
        Ok(Vectors { computed, share })
    }

    /// Bytes that the answer to these requests takes at most.
    fn bytes_of_vectors(&self, requests: &[Request]) -> u64 {
        let numbers = |request: &Request| match &request.wants {
            Wants::Embedding(_) => self.serving.embedder.width as u64,
            Wants::Logits(tokens) => tokens.len() as u64,
            Wants::Text => 0,
        };
        requests.iter().map(|request| VECTOR_BYTES + numbers(request).saturating_mul(NUMBER_BYTES)).sum()
    }

    /// Admits as many of `prompts` prompts at a time as keep the engine busy, or as the tenant may have.
    fn admit_some(&self, caller: &Caller, prompts: usize) -> Result<(AdmissionPermit, usize), ApiError> {
        let mut window = prompts.min(2 * self.serving.model.parallel).max(1);
        loop {
            match self.admit(caller, window) {
                Ok(permit) => return Ok((permit, window)),
                Err(error) if window == 1 => return Err(error),
                Err(_) => window /= 2,
            }
        }
    }
}

impl Flow<'_> {
    /// Keeps up to `window` prompts in the engine until all have ended.
    async fn run(mut self, window: usize) -> Result<Vec<Computed>, ApiError> {
        loop {
            while self.running < window && self.submit_next()? {}
            if self.running == 0 {
                return Ok(self.computed);
            }
            match poll_fn(|context| self.events.poll_recv(context)).await {
                Some((prompt, Event::Vector(vector))) => self.computed[prompt].vector = vector,
                Some((prompt, Event::Done(report))) => {
                    self.computed[prompt].report = report;
                    self.running -= 1;
                }
                Some((_, Event::Failed(error))) => return Err(error.into()),
                Some(_) => {}
                None => return Err(ApiError::internal("the engine has stopped")),
            }
        }
    }

    /// Submits the next prompt. Returns whether there was one and the queue had room for it: while others of this
    /// request run, a full queue only means to wait.
    fn submit_next(&mut self) -> Result<bool, ApiError> {
        let Some((prompt, request)) = self.waiting.peek().cloned() else { return Ok(false) };
        let (events, account) = (self.sender.clone(), self.account.clone());
        let sink = Sink {
            prompt,
            events,
            account,
            permit: Some(self.permit.clone()),
            memory: None,
            awaits_first: false,
            computing: None,
        };
        match self.engine.submit(request, Box::new(sink)) {
            Ok(()) => {
                self.waiting.next();
                self.running += 1;
                Ok(true)
            }
            Err(RequestError::QueueFull { .. }) if self.running > 0 => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}
