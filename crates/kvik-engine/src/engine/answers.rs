//! Answers in prompts as they were generated.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use kvik_cache::Token;
use kvik_text::stream::Vocabulary;

use super::{Engine, EngineConfig};
use crate::answers::GeneratedAnswers;
use crate::api::Request;
use crate::schedule::disk::DiskSetup;

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
        if let Some(answers) = &self.shared.answers {
            answers.clear(salt);
        }
    }

    /// Waits for at most `within` until the answers are on disk.
    pub(super) fn flush_answers(&self, within: Duration) {
        if let Some(answers) = &self.shared.answers {
            answers.flush(within);
        }
    }
}
