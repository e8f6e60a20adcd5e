//! What all models of a server share: who may come in, what is counted and billed, what is written down.

use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use kvik_memory::{
    conversations::Conversations,
    deletions::{Deletions, Owner},
    records::Records,
};

use super::{
    config::AppConfig, conversations, keys::Keys, metrics::Metrics, prompt_log::PromptLog,
    responses::Responses, tally::Tally,
};
use crate::{
    accounts::{ledger::Ledger, tenants::AdmissionSlots},
    clock::Clock,
    http::{body_memory::BodyMemory, error::ApiError, origins::Senders, readers::Readers},
    settings::size::ByteSize,
};

/// A server without its models.
pub(crate) struct Server {
    /// Whom requests may come from.
    pub(crate) senders: Senders,
    /// Longest body.
    pub(crate) body_limit: ByteSize,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) tally: Arc<Tally>,
    pub(crate) ledger: Arc<Ledger>,
    /// Conversations that clients name.
    pub(crate) conversations: Arc<Conversations>,
    /// Answers that clients go on from by their id.
    pub(crate) responses: Arc<Responses>,
    /// What is to be deleted of them, and of kept prompts.
    pub(crate) deletions: Arc<Deletions>,
    /// What was computed for them.
    pub(crate) prompt_log: Arc<PromptLog>,
    /// The files that hold what was said, and what is remembered of it.
    pub(super) records: Vec<Records>,
    /// Directory of the disk cache.
    pub(super) cache_disk: Option<PathBuf>,
    /// Held by whoever deletes.
    pub(super) deleting: Mutex<()>,
    /// The engines' admission slots, where several tenants share them.
    pub(super) admission: Option<Arc<AdmissionSlots>>,
    /// Memory for bodies.
    pub(crate) bodies: Arc<BodyMemory>,
    pub(crate) readers: Arc<Readers>,
    /// Who may come in; replaced when the tenants file is read again.
    keys: RwLock<Arc<Keys>>,
    clock: Clock,
    /// It is to end soon: nobody new is to be sent here.
    leaving: AtomicBool,
    stopping: AtomicBool,
}

impl Server {
    /// `keys` open it; with none it is open to all.
    pub(crate) fn new(keys: impl Into<Arc<Keys>>, ledger: Arc<Ledger>, config: &AppConfig) -> Arc<Server> {
        let keys = keys.into();
        let shared = keys.tenants().are_named();
        let deletions = Deletions::open(config.conversations.as_ref());
        let prompt_log = Arc::new(PromptLog::open(config.state_dir.as_deref()));
        let records = [&config.conversations, &config.records].into_iter().flatten().cloned();
        Arc::new(Server {
            senders: config.senders.clone(),
            body_limit: config.body_limit,
            metrics: Arc::new(Metrics::new()),
            tally: Arc::new(Tally::new()),
            ledger,
            conversations: conversations::open(config, deletions.clone()),
            responses: Responses::open(config.conversations.as_ref(), prompt_log.clone()),
            deletions,
            prompt_log,
            records: records.collect(),
            cache_disk: config.cache_disk.clone(),
            deleting: Mutex::default(),
            admission: shared.then(|| AdmissionSlots::new(config.admission_slots)),
            bodies: BodyMemory::new(config.body_limit.0, shared),
            readers: Readers::new(shared),
            keys: RwLock::new(keys),
            clock: config.clock.clone(),
            leaving: AtomicBool::new(false),
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

    /// Whether several tenants share it.
    pub(crate) fn is_shared(&self) -> bool {
        self.admission.is_some()
    }

    /// Asks for conversations: on a thread that may wait, where other nodes may have them.
    pub(crate) async fn ask_conversations<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&Conversations) -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        if !self.conversations.are_shared() {
            return Ok(ask(&self.conversations));
        }
        let conversations = self.conversations.clone();
        let asked = tokio::task::spawn_blocking(move || ask(&conversations)).await;
        asked.map_err(|panic| ApiError::internal(format!("the conversations were not read: {panic}")))
    }

    /// Leaves nothing in files of something that was removed, and of whose deletion nothing else is left to do; whether
    /// that is done. Takes its time.
    pub(crate) fn end_deletion(&self, owner: &Owner) -> bool {
        let ended = self.records.iter().try_for_each(Records::rewrite);
        let ended = ended.and_then(|()| self.deletions.put(owner, None));
        ended
            .inspect_err(|error| tracing::warn!("something that was deleted is tried again: {error}"))
            .is_ok()
    }

    /// The time by which rates are limited.
    pub(crate) fn now(&self) -> Duration {
        (self.clock)()
    }

    /// From now on it says that nobody new is to be sent here, and still answers whoever is.
    pub(crate) fn leave(&self) {
        self.leaving.store(true, Ordering::Release);
    }

    /// Whether nobody new is to be sent here.
    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire) || self.is_stopping()
    }

    /// From now on new requests are refused; running ones go on.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }
}
