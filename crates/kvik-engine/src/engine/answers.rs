//! Answers in prompts as they were generated.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kvik_cache::Token;
use kvik_text::stream::Vocabulary;

use super::{Engine, EngineConfig};
use crate::answers::GeneratedAnswers;
use crate::api::Request;
use crate::schedule::disk::DiskSetup;
use crate::store::answer_log::{erase_answers, owner_of};

/// The answers of an engine, and those that are beside its disk.
///
/// # Errors
/// If the system refuses a thread.
pub(super) fn open(
    vocabulary: &Arc<Vocabulary>,
    config: &EngineConfig,
    disk: Option<&DiskSetup>,
) -> io::Result<Arc<GeneratedAnswers>> {
    let log = disk.and_then(|disk| disk.store.answers());
    GeneratedAnswers::open(vocabulary.clone(), config.context_tokens, log).map(Arc::new)
}

/// Drops the answers of a tenant, or all, from a file that no engine has open: another process erases its own.
fn erase_left(path: &Path, salt: Option<[u8; 16]>) {
    if let Err(error) = erase_answers(path, salt.map(owner_of).as_ref()) {
        tracing::warn!("the answers in {} are not erased: {error}", path.display());
    }
}

impl Engine {
    /// Gives the answers in a prompt that is a text the tokens with which they were generated, as
    /// [`submit`](Engine::submit) does. It is asked for by a program that notes the tokens of prompts before.
    ///
    /// Does nothing where the engine does not remember answers, or the request was treated already. The bytes of the prompt
    /// stay the same, and so does each of its control tokens.
    pub fn as_generated(&self, request: &mut Request) {
        if let Some(answers) = &self.shared.answers {
            answers.as_generated(request);
        }
    }

    /// Forgets the answers in and behind these prompts of a tenant. Returns how many of them are in a file that another
    /// process writes.
    pub(super) fn forget_answers(&self, salt: [u8; 16], prompts: &[Vec<Token>]) -> usize {
        self.shared.answers.as_ref().map_or(0, |answers| answers.forget(salt, prompts))
    }

    /// Forgets the answers of a tenant, or all.
    pub(super) fn clear_answers(&self, salt: Option<[u8; 16]>) {
        match (&self.shared.answers, &self.shared.left_answers) {
            (Some(answers), _) => answers.clear(salt),
            (None, Some(path)) => erase_left(path, salt),
            (None, None) => {}
        }
    }

    /// Waits for at most `within` until the answers are on disk.
    pub(super) fn flush_answers(&self, within: Duration) {
        if let Some(answers) = &self.shared.answers {
            answers.flush(within);
        }
    }
}
