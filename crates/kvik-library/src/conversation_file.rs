//! The conversations of a directory: one file and one list for all models of this process that name it.
//!
//! One process at a time has the file. In another one, conversations last until it ends, and the log says so.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use kvik_memory::context::ChainId;
use kvik_memory::conversations::{ConversationError, Conversations};
use kvik_memory::deletions::{Deletion, Deletions, Owner};
use kvik_memory::memory::forget_at_rest;
use kvik_memory::records::{Records, RecordsError, private::create_private_folder};

use crate::error::Error;

/// Maximum time to wait for a process or model that is about to close the records, and how often to look.
const RECORDS_WAIT: Duration = Duration::from_secs(1);
const RETRY: Duration = Duration::from_millis(10);

/// The open files of this process, by directory.
static OPEN: Mutex<BTreeMap<PathBuf, Weak<ConversationFile>>> = Mutex::new(BTreeMap::new());

/// What a model remembers of conversations.
pub(crate) trait Remembers: Send + Sync {
    /// Deletes the summaries of a tenant with these identities.
    fn forget(&self, tenant: &str, chain: &BTreeSet<ChainId>) -> Result<(), Error>;
}

/// Conversations that models share.
pub(crate) struct ConversationFile {
    /// `None` if conversations last until the process ends.
    pub(crate) records: Option<Records>,
    pub(crate) list: Arc<Conversations>,
    /// What is deleted, until nothing of it is left.
    deletions: Arc<Deletions>,
    /// What each of the models remembers.
    memories: Mutex<Vec<Weak<dyn Remembers>>>,
}

/// Opens the records; waits for a model of this process that is being dropped.
fn open_records(dir: &Path) -> Result<Records, RecordsError> {
    let start = Instant::now();
    loop {
        let opened = Records::open(dir, RECORDS_WAIT);
        let is_late = start.elapsed() >= RECORDS_WAIT;
        if !matches!(opened, Err(RecordsError::InUse(_))) || is_late || !is_held_here(dir) {
            return opened;
        }
        thread::sleep(RETRY);
    }
}

fn is_held_here(dir: &Path) -> bool {
    Records::holder(dir) == Some(std::process::id())
}

impl ConversationFile {
    /// The conversations in `dir`, or conversations of this model alone.
    ///
    /// # Errors
    /// If the file cannot be opened for another reason than that another process has it open.
    pub(crate) fn open(dir: Option<&Path>) -> Result<Arc<ConversationFile>, Error> {
        let Some(dir) = dir else { return Ok(Arc::new(ConversationFile::new(None))) };
        // Links and relative paths lead to the same file. A directory that is missing is created by the records.
        let place = create_private_folder(dir).and_then(|()| fs::canonicalize(dir)).unwrap_or(dir.to_owned());
        // Held while the file is opened: two models that are opened at the same time share it too.
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|_, file| file.strong_count() > 0);
        if let Some(file) = open.get(&place).and_then(Weak::upgrade) {
            return Ok(file);
        }
        let records = match open_records(dir) {
            Err(error @ RecordsError::InUse(_)) if !is_held_here(dir) => {
                tracing::warn!("{error}; the conversations of this process end with it");
                None
            }
            records => Some(records?),
        };
        let file = Arc::new(ConversationFile::new(records));
        // A process that was killed may have deleted messages and not their summaries, which no model has read yet.
        if let Err(error) = file.forget_deleted() {
            tracing::warn!("parts of deleted messages may still be in {}: {error}", dir.display());
        }
        open.insert(place, Arc::downgrade(&file));
        Ok(file)
    }

    fn new(records: Option<Records>) -> ConversationFile {
        let deletions = Deletions::open(records.as_ref());
        let list = Conversations::open_deleting(records.as_ref(), None, deletions.clone());
        ConversationFile { records, list, deletions, memories: Mutex::default() }
    }

    /// Adds what another model remembers.
    pub(crate) fn add(&self, memory: Arc<dyn Remembers>) {
        self.memories.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&memory));
    }

    /// True if a deleted conversation had this name or id, and something of it may be left.
    pub(crate) fn is_partly_deleted(&self, tenant: &str, reference: &str) -> bool {
        self.deletions.find(tenant, reference).is_some()
    }

    /// Deletes the summaries of all deleted messages, by models that are open and by others, and what is left of deleted
    /// conversations in free space of the file.
    pub(crate) fn forget_deleted(&self) -> Result<(), Error> {
        let (mut whole, mut failed) = (Vec::new(), None);
        // All of them, also if one fails.
        for (owner, left) in self.deletions.all() {
            match self.forget(&owner, &left) {
                Ok(true) => whole.push((owner, left)),
                Ok(false) => {}
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        let ended = self.end(whole);
        failed.map_or(ended, Err)
    }

    /// Returns whether all of a conversation is deleted, except for free space of the file.
    fn forget(&self, owner: &Owner, left: &Deletion) -> Result<bool, Error> {
        if left.is_done {
            return Ok(true);
        }
        if !left.is_part {
            match self.list.erase(owner, left) {
                // Another thread deletes this one, and its summaries after it.
                Err(ConversationError::Busy(_)) => return Ok(false),
                erased => erased?,
            }
        }
        let (tenant, chain) = (&owner.tenant, left.chain());
        let forgotten: Vec<_> =
            self.open_memories().iter().map(|memory| memory.forget(tenant, &chain)).collect();
        forgotten.into_iter().collect::<Result<(), Error>>()?;
        if let Some(records) = &self.records {
            forget_at_rest(records, tenant, &chain)?;
        }
        if left.is_part {
            self.deletions.put(owner, None)?;
        }
        Ok(!left.is_part)
    }

    /// Ends deletions of whole conversations: rewrites the file, whose free space holds the last copies.
    fn end(&self, whole: Vec<(Owner, Deletion)>) -> Result<(), Error> {
        if whole.is_empty() {
            return Ok(());
        }
        // The records of the deletions have names, of which nothing stays in the new file either.
        whole.iter().try_for_each(|(owner, _)| self.deletions.put(owner, Some(Deletion::done())))?;
        let rewritten = self.records.as_ref().map_or(Ok(()), Records::rewrite);
        for (owner, left) in whole {
            // By its name a second call finds it.
            self.deletions.put(&owner, rewritten.is_err().then_some(left))?;
        }
        Ok(rewritten?)
    }

    fn open_memories(&self) -> Vec<Arc<dyn Remembers>> {
        let mut memories = self.memories.lock().unwrap_or_else(PoisonError::into_inner);
        memories.retain(|memory| memory.strong_count() > 0);
        memories.iter().filter_map(Weak::upgrade).collect()
    }
}

impl Drop for ConversationFile {
    /// Frees the file for others, although a turn that nobody has read to its end still refers to it.
    fn drop(&mut self) {
        if let Some(records) = &self.records {
            records.close();
        }
    }
}
