//! Deletion of an object everywhere: the summaries that models, loaded or not, store of it, and the blocks computed for
//! it in RAM, on disk and in the store that nodes share.
//!
//! Each step finds the remaining data by the record of the deletion, and may be repeated; the record is removed only
//! when all steps are done. The data of a model that is being loaded or unloaded cannot be deleted at that moment: it
//! is retried later, and the caller is told that the deletion is pending.

use std::{
    collections::BTreeSet,
    path::PathBuf,
    sync::{Arc, TryLockError},
    time::Duration,
};

use kvik_cache::DeletedPrompts;
use kvik_engine::{schedule::disk::forget_at_rest as erase_at_rest, stats::DiskRole};
use kvik_memory::{
    conversations::ConversationError,
    deletions::{Deletion, Owner},
    memory::{NotDeleted, forget_at_rest},
    records::RecordsError,
};
use kvik_serving::fleet::HotLists;

use super::{Shelf, turns::Phase};
use crate::app::{prompt_log::NotedPrompts, responses::ResponseError};

/// Time in which an engine drops computed blocks: pending writes end first.
const ENGINE_TIME: Duration = Duration::from_secs(2);
/// How long a deletion request waits for its completion.
const PATIENCE: Duration = Duration::from_secs(5);

/// Reasons why an object is not deleted yet.
#[derive(Debug, thiserror::Error)]
enum Undeleted {
    #[error("a model is being loaded or goes out of memory")]
    Moving,
    #[error("blocks that were computed for it are in use or not erased yet")]
    Blocks,
    #[error("another process writes a disk cache that may hold blocks of it")]
    ElsewhereOpen,
    #[error(transparent)]
    Conversation(#[from] ConversationError),
    #[error("{0}")]
    Response(ResponseError),
    #[error(transparent)]
    Summaries(#[from] NotDeleted),
    #[error(transparent)]
    Records(#[from] RecordsError),
    #[error("what was computed for it cannot be read: {0}")]
    Log(#[from] std::io::Error),
    #[error(transparent)]
    Store(#[from] kvik_engine::store::StoreError),
}

type Result<T> = std::result::Result<T, Undeleted>;

impl Shelf {
    /// Deletes the remains of an object and of all other pending deletions, as far as possible within a moment. Returns
    /// whether some remain of this object.
    pub(crate) async fn is_pending(self: &Arc<Self>, owner: Owner) -> bool {
        let shelf = self.clone();
        let work = tokio::task::spawn_blocking(move || {
            let deletions = &shelf.server.deletions;
            if shelf.delete_all().is_none() {
                deletions.wait(&owner, PATIENCE);
            }
            deletions.get(&owner).is_some()
        });
        !matches!(tokio::time::timeout(PATIENCE, work).await, Ok(Ok(false)))
    }

    /// Deletes the remains of all pending deletions, as far as possible now. Returns whether nothing remains, and
    /// `None` if another thread is doing so. Blocking.
    pub(crate) fn delete_all(&self) -> Option<bool> {
        let server = &self.server;
        let _deleting = match server.deleting.try_lock() {
            Ok(deleting) => deleting,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let mut deleted = Vec::new();
        for (owner, left) in server.deletions.all() {
            match self.delete(&owner, &left) {
                Ok(()) => deleted.push((owner, left)),
                Err(why) => tracing::debug!("{} is not deleted everywhere yet: {why}", owner.id),
            }
        }
        if let Err(error) = self.end(deleted) {
            tracing::warn!(
                "what was deleted may have left something in a file, which is tried again: {error}"
            );
        }
        Some(server.deletions.all().is_empty())
    }

    fn delete(&self, owner: &Owner, left: &Deletion) -> Result<()> {
        if left.is_done {
            return Ok(());
        }
        // No more prompts are computed for it, not even by requests in flight.
        self.server.prompt_log.close(owner);
        let before = self.loads().ok_or(Undeleted::Moving)?;
        self.delete_said(owner, left)?;
        self.delete_summaries(owner, left)?;
        for noted in self.server.prompt_log.of(owner)? {
            self.delete_computed(owner, noted?)?;
        }
        for app in self.open_apps() {
            let erased = app.serving.cache.as_ref().map(|engine| engine.until_erased(ENGINE_TIME));
            // An engine that stops has a store that erases before it is closed.
            if matches!(erased, Some(Ok(false))) {
                return Err(Undeleted::Blocks);
            }
        }
        // A model loaded in the meantime may have read data from before the deletion.
        if self.loads() == Some(before) { Ok(()) } else { Err(Undeleted::Moving) }
    }

    /// Deletes messages, on this node and in the store that nodes share.
    fn delete_said(&self, owner: &Owner, left: &Deletion) -> Result<()> {
        if left.is_part {
            return Ok(());
        }
        if is_conversation(owner) {
            return Ok(self.server.conversations.erase(owner, left)?);
        }
        // A response of any dialect, or a kept prompt, which is no response.
        match self.server.responses.delete(&owner.tenant, &owner.id) {
            Ok(()) | Err(ResponseError::NotFound(_)) => Ok(()),
            Err(error) => Err(Undeleted::Response(error)),
        }
    }

    fn delete_summaries(&self, owner: &Owner, left: &Deletion) -> Result<()> {
        let chain = left.chain();
        if chain.is_empty() {
            return Ok(());
        }
        for app in self.open_apps() {
            app.memory.forget(&owner.tenant, &chain)?;
        }
        for records in &self.server.records {
            forget_at_rest(records, &owner.tenant, &chain)?;
        }
        Ok(())
    }

    /// Deletes the blocks computed for it, by models in memory and by others.
    fn delete_computed(&self, owner: &Owner, noted: NotedPrompts) -> Result<()> {
        let mut others = self.server.prompt_log.others(owner, &noted)?;
        let apps = self.open_apps();
        let keys = self.server.keys();
        let is_of = |tenant: &str| keys.tenants().have_salt(tenant, noted.salt);
        others.extend(apps.iter().flat_map(|app| app.registry.beside(&noted.prompts, is_of)));
        let prompts = DeletedPrompts::new(noted.prompts, others);
        for engine in apps.iter().filter_map(|app| app.serving.cache.as_ref()) {
            // An engine that stops is detected as a moving model.
            if matches!(engine.forget(noted.salt, &prompts, ENGINE_TIME), Ok(false)) {
                return Err(Undeleted::Blocks);
            }
        }
        let stats = apps.iter().map(|app| app.serving.engine.stats());
        let written =
            stats.filter(|stats| stats.disk.is_some_and(|disk| disk.role == DiskRole::Writer)).count();
        let mut in_use = 0;
        for folder in self.cache_folders()? {
            in_use += erase_at_rest(&folder, noted.salt, &prompts)?.in_use;
        }
        // Caches that this process writes were handled above.
        if in_use > written { Err(Undeleted::ElsewhereOpen) } else { Ok(()) }
    }

    /// Completes deletions: rewrites the files, whose free slots hold the last copies, then removes the notes of
    /// prompts and the records of the deletions.
    fn end(&self, deleted: Vec<(Owner, Deletion)>) -> Result<()> {
        let server = &self.server;
        let (parts, whole): (Vec<_>, Vec<_>) = deleted.into_iter().partition(|(_, left)| left.is_part);
        for (owner, _) in parts {
            server.deletions.put(&owner, None)?;
        }
        if whole.is_empty() {
            return Ok(());
        }
        server.hot_lists.iter().for_each(HotLists::note_deletion);
        self.tell_nodes();
        // Conversations are not settled.
        for (owner, _) in whole.iter().filter(|(owner, _)| !is_conversation(owner)) {
            server.settler.forget(Some(&owner.tenant))?;
        }
        whole.iter().try_for_each(|(owner, _)| server.deletions.put(owner, Some(Deletion::done())))?;
        server.records.iter().try_for_each(|records| records.rewrite())?;
        for (owner, _) in &whole {
            server.prompt_log.forget(owner)?;
            server.deletions.put(owner, None)?;
        }
        Ok(())
    }

    /// How often each model was loaded; `None` while one is being loaded or unloaded.
    fn loads(&self) -> Option<Vec<u64>> {
        let places = self.places();
        let moves = |place: &super::Place| {
            place.is_loading || (place.standing.phase == Phase::Closing && place.open.is_none())
        };
        (!places.iter().any(moves)).then(|| places.iter().map(|place| place.loads).collect())
    }

    /// Directories of disk caches, of all models and of earlier settings, each once. What is no directory any more holds
    /// no blocks.
    fn cache_folders(&self) -> Result<BTreeSet<PathBuf>> {
        let mut folders = self.server.cache_folders.all()?;
        let places = self.places();
        folders.extend(places.iter().filter_map(|place| place.entry.loader.as_ref()?.cache_disk()));
        drop(places);
        folders.retain(|folder| !folder.is_file());
        Ok(folders.into_iter().map(|folder| folder.canonicalize().unwrap_or(folder)).collect())
    }
}

fn is_conversation(owner: &Owner) -> bool {
    owner.id.starts_with("conv_")
}
