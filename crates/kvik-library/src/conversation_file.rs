//! The conversations of a directory: one file and one list for all models of this process that name it.
//!
//! One process at a time has the file. In another one, conversations last until it ends, and the log says so.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use kvik_memory::conversations::Conversations;
use kvik_memory::records::{Records, RecordsError, private::create_private_folder};
use serde_json::Value;

use crate::error::Error;

/// Maximum time to wait for a process or model that is about to close the records, and how often to look.
const RECORDS_WAIT: Duration = Duration::from_secs(1);
const RETRY: Duration = Duration::from_millis(10);

/// The open files of this process, by directory.
static OPEN: Mutex<BTreeMap<PathBuf, Weak<ConversationFile>>> = Mutex::new(BTreeMap::new());

/// What a model remembers of conversations.
pub(crate) trait Remembers: Send + Sync {
    /// Deletes the summaries of a conversation that cover the message `from` or a later one.
    fn forget_from(&self, messages: &[Value], from: usize) -> Result<(), Error>;
}

/// Conversations that models share.
pub(crate) struct ConversationFile {
    /// `None` if conversations last until the process ends.
    pub(crate) records: Option<Records>,
    pub(crate) list: Arc<Conversations>,
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
        open.insert(place, Arc::downgrade(&file));
        Ok(file)
    }

    fn new(records: Option<Records>) -> ConversationFile {
        let list = Conversations::open(records.as_ref());
        ConversationFile { records, list, memories: Mutex::default() }
    }

    /// Adds what another model remembers.
    pub(crate) fn add(&self, memory: Arc<dyn Remembers>) {
        self.memories.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&memory));
    }

    /// Deletes the summaries of a conversation, by all models, that cover the message `from` or a later one.
    pub(crate) fn forget_from(&self, messages: &[Value], from: usize) -> Result<(), Error> {
        let mut memories = self.memories.lock().unwrap_or_else(PoisonError::into_inner);
        memories.retain(|memory| memory.strong_count() > 0);
        let open: Vec<Arc<dyn Remembers>> = memories.iter().filter_map(Weak::upgrade).collect();
        drop(memories);
        // All of them, also if one fails.
        let forgotten: Vec<_> = open.iter().map(|memory| memory.forget_from(messages, from)).collect();
        forgotten.into_iter().collect()
    }
}
