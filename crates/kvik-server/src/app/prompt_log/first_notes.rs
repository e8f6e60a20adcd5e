//! What is noted for an object before it exists.

use std::sync::Arc;

use kvik_memory::deletions::Owner;

use super::PromptLog;

/// Prompts noted for an object that does not exist before its first answer is written. Dropped before that, they are
/// forgotten: nobody could delete an object that never was, and its notes would keep blocks of others alive.
pub(crate) struct FirstNotes {
    log: Arc<PromptLog>,
    owner: Option<Owner>,
}

impl FirstNotes {
    pub(crate) fn new(log: Arc<PromptLog>, owner: Owner) -> FirstNotes {
        FirstNotes { log, owner: Some(owner) }
    }

    /// The object exists from now on.
    pub(crate) fn keep(mut self) {
        self.owner = None;
    }
}

impl Drop for FirstNotes {
    fn drop(&mut self) {
        let Some(owner) = self.owner.take() else { return };
        let log = self.log.clone();
        let forget = move || {
            if let Err(error) = log.forget(&owner) {
                tracing::warn!("a prompt stays noted for an answer that was never written: {error}");
            }
        };
        // A client that leaves drops its turn on a thread that must not wait for files.
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(forget)),
            Err(_) => forget(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{AT, all};
    use super::*;

    #[test]
    fn what_was_noted_for_an_answer_that_is_never_written_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        for folder in [None, Some(dir.path())] {
            let log = Arc::new(PromptLog::open(folder));
            for is_written in [false, true] {
                let owner = Owner::new("a", "conv_1");
                let notes = FirstNotes::new(log.clone(), owner.clone());
                log.note(AT, &owner, &[1; 40]).unwrap();
                if is_written {
                    notes.keep();
                } else {
                    drop(notes);
                }
                assert_eq!(all(&log, &owner).len(), usize::from(is_written));
            }
        }
    }
}
