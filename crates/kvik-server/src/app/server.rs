//! State shared by all models of a server: access, metrics, accounts, and records.

use std::{
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use kvik_memory::{
    conversations::Conversations,
    deletions::Deletions,
    records::{FileTurns, Records, RecordsError},
    settle::Settler,
};

use super::{
    cache_folders::CacheFolders, config::AppConfig, conversations, keys::Keys, metrics::Metrics,
    prompt_log::PromptLog, responses::Responses, running_answers::RunningAnswers, seal::Seal, tally::Tally,
};
use crate::{
    accounts::{
        ledger::Ledger,
        tenants::{AdmissionSlots, Secret},
    },
    clock::Clock,
    http::{body_memory::BodyMemory, error::ApiError, origins::Senders, readers::Readers},
};
use kvik_serving::{fleet::HotLists, settings::size::ByteSize};

/// A server without its models.
pub struct Server {
    /// Origins and hosts that requests may come from.
    pub(crate) senders: Senders,
    /// Maximum size of a body.
    pub(crate) body_limit: ByteSize,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) tally: Arc<Tally>,
    pub(crate) ledger: Arc<Ledger>,
    /// Stored conversations.
    pub(crate) conversations: Arc<Conversations>,
    /// Stored responses.
    pub(crate) responses: Arc<Responses>,
    /// Answers of conversations that go on without their clients.
    pub(crate) running_answers: Arc<RunningAnswers>,
    /// Pending deletions of both, and of pinned prompts.
    pub(crate) deletions: Arc<Deletions>,
    /// Log of the prompts computed for them.
    pub(crate) prompt_log: Arc<PromptLog>,
    /// The files that hold messages and summaries.
    pub(super) records: Vec<Records>,
    /// The lists of the prompts that nodes of its fleet use.
    pub(crate) hot_lists: Option<HotLists>,
    /// The directories of disk caches, also of earlier ones.
    pub(super) cache_folders: CacheFolders,
    /// Held during deletion.
    pub(super) deleting: Mutex<()>,
    /// Bounds the threads that wait to hold deletions up.
    holding: FileTurns,
    /// The engines' admission slots, where several tenants share them.
    pub(super) admission: Option<Arc<AdmissionSlots>>,
    /// Memory for bodies.
    pub(crate) bodies: Arc<BodyMemory>,
    pub(crate) readers: Arc<Readers>,
    /// What changes in the system messages of tenants.
    pub(crate) settler: Settler,
    /// Opens compaction items in stored responses.
    pub(crate) seal: Arc<Seal>,
    /// API keys; replaced when the tenants file is read again.
    keys: RwLock<Arc<Keys>>,
    clock: Clock,
    /// The models come and go, so the numbers of an engine are not the server's.
    several_models: AtomicBool,
    /// The server will end soon: load balancers should send it no new requests.
    leaving: AtomicBool,
    stopping: AtomicBool,
}

impl Server {
    /// `keys` grant access; without any the server is open to all.
    pub fn new(keys: impl Into<Arc<Keys>>, ledger: Arc<Ledger>, config: &AppConfig) -> Arc<Server> {
        let keys = keys.into();
        let shared = keys.tenants().are_named();
        let deletions = Deletions::open(config.conversations.as_ref());
        let prompt_log = Arc::new(PromptLog::open(config.state_dir.as_deref()));
        let records = [&config.conversations, &config.records].into_iter().flatten().cloned();
        let server = Arc::new(Server {
            senders: config.senders.clone(),
            body_limit: config.body_limit,
            metrics: Arc::new(Metrics::new()),
            tally: Arc::new(Tally::new()),
            ledger,
            conversations: conversations::open(config, deletions.clone(), prompt_log.clone()),
            responses: Responses::open(config.conversations.as_ref(), prompt_log.clone()),
            running_answers: Arc::default(),
            deletions,
            prompt_log,
            records: records.collect(),
            hot_lists: config.shared_records.clone().map(HotLists::new),
            cache_folders: CacheFolders::open(config.conversations.as_ref()),
            deleting: Mutex::default(),
            holding: FileTurns::new(1),
            admission: shared.then(|| AdmissionSlots::new(config.admission_slots)),
            bodies: BodyMemory::new(config.body_limit.0, shared),
            readers: Readers::new(shared),
            settler: Settler::open(config.conversations.as_ref()),
            seal: Arc::new(Seal::new(config.secret.clone().unwrap_or_else(Secret::of_this_process))),
            keys: RwLock::new(keys),
            clock: config.clock.clone(),
            several_models: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
        });
        config.cache_disk.iter().for_each(|folder| server.cache_folders.note(folder));
        // Conversations of records that are put back could not be deleted without what is noted for them.
        let may_be_replaced = config.conversations.as_ref().is_some_and(Records::may_be_replaced);
        if !may_be_replaced && let Err(error) = server.forget_never_written() {
            tracing::warn!("prompts stay noted for answers that were never written: {error}");
        }
        server
    }

    /// Removes the prompts noted for answers that a killed process has not written: nobody can delete an object that
    /// never was, and its notes would keep blocks of others alive. In a fleet they stay, since this node does not know
    /// all conversations.
    fn forget_never_written(&self) -> anyhow::Result<()> {
        if self.conversations.are_shared() {
            return Ok(());
        }
        let mut owners = self.conversations.owners()?;
        owners.extend(self.responses.owners()?);
        owners.extend(self.deletions.all().into_iter().map(|(owner, _)| owner));
        Ok(self.prompt_log.keep_only(&owners)?)
    }

    /// The current API keys.
    pub fn keys(&self) -> Arc<Keys> {
        // The pointer is consistent after any panic.
        self.keys.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the keys. Running requests continue.
    pub(crate) fn replace_keys(&self, keys: Keys) {
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(keys);
    }

    /// Notes that it serves the models of a catalogue.
    pub(crate) fn set_several_models(&self) {
        self.several_models.store(true, Ordering::Relaxed);
    }

    /// Whether it serves the models of a catalogue.
    pub(crate) fn has_several_models(&self) -> bool {
        self.several_models.load(Ordering::Relaxed)
    }

    /// Whether several tenants share it.
    pub(crate) fn is_shared(&self) -> bool {
        self.admission.is_some()
    }

    /// Queries conversations: on a thread that may block, where other nodes may hold them.
    pub(crate) async fn ask_conversations<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&Conversations) -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        if !self.conversations.are_shared() {
            return Ok(ask(&self.conversations));
        }
        let conversations = self.conversations.clone();
        let asked = tokio::task::spawn_blocking(move || ask(&conversations)).await;
        asked.map_err(|panic| ApiError::panicked("reading the conversations", &panic))
    }

    /// Announces that the records will be closed: a server that starts meanwhile waits for them.
    pub fn leave_records(&self) {
        self.records.iter().for_each(Records::leave);
    }

    /// Writes to the store of a fleet what it has not taken of conversations yet, once more, before the process ends.
    /// Blocking, for some seconds at most.
    pub fn close_conversations(&self) {
        self.conversations.close();
    }

    /// Waits until no deletion is being carried out, and holds them up. Blocking.
    ///
    /// # Errors
    /// If many threads wait for that already, or for long: a file may not answer.
    pub(crate) fn hold_deletions(&self) -> Result<impl Sized, RecordsError> {
        let turn = self.holding.enter()?;
        Ok((self.deleting.lock().unwrap_or_else(PoisonError::into_inner), turn))
    }

    /// Forgets what was learned from the system messages of a tenant, or of all. Blocking.
    ///
    /// # Errors
    /// If some of it may be left in a file.
    pub(crate) fn forget_settled(&self, tenant: Option<&str>) -> Result<(), RecordsError> {
        self.settler.erase(tenant, || self.records.iter().try_for_each(Records::rewrite))
    }

    /// The time by which rates are limited.
    pub(crate) fn now(&self) -> Duration {
        (self.clock)()
    }

    /// Makes the server report itself as not ready, while it still answers requests.
    pub fn leave(&self) {
        self.leaving.store(true, Ordering::Release);
    }

    /// Whether the server should receive no new requests.
    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire) || self.is_stopping()
    }

    /// Refuses new requests from now on; running ones continue.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    /// Whether the server is shutting down.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }
}
