//! A model's handle: opening, asking, closing.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use kvik_library::{Model, Source, Token};

use crate::answer::AnswerHandle;
use crate::conversation::{ConversationHandle, ConversationInfo};
use crate::error::{KvikError, count, signed};
use crate::kept::{Embedding, Explanation, KeptState, Logits};
use crate::options::{AnswerOptions, ModelOptions};
use crate::prompt::Prompt;
use crate::system::{Flushed, MemoryPressure, Released, Stats};

/// An open model, for any number of threads.
///
/// Languages with a garbage collector end objects when they like, so that a handle can be closed, once, while others hold
/// it. Calls hold the lock for reading: closing waits for those that are under way, and later ones fail as closed. Answers
/// do not hold it: closing cancels them.
#[derive(Debug, uniffi::Object)]
pub struct ModelHandle {
    /// None after it was closed.
    model: RwLock<Option<Model>>,
}

#[uniffi::export]
impl ModelHandle {
    /// Opens a GGUF file, or a directory as Hugging Face lays it out.
    #[uniffi::constructor]
    pub fn open(path: String, options: ModelOptions) -> Result<Arc<ModelHandle>, KvikError> {
        open(path.as_str().into(), options)
    }

    /// Opens a GGUF file in memory.
    #[uniffi::constructor]
    pub fn open_bytes(bytes: Vec<u8>, options: ModelOptions) -> Result<Arc<ModelHandle>, KvikError> {
        open(Source::Bytes(bytes), options)
    }

    /// Opens a GGUF file inside an open file, which is mapped: `descriptor`, `offset` and `bytes` as a phone's asset
    /// store gives them; without `bytes` it goes up to the end. The descriptor stays the caller's, who may close it after
    /// the call.
    #[uniffi::constructor]
    pub fn open_descriptor(
        descriptor: i32,
        offset: i64,
        bytes: Option<i64>,
        options: ModelOptions,
    ) -> Result<Arc<ModelHandle>, KvikError> {
        let offset = count("offset", offset)? as u64;
        let bytes = bytes.map(|bytes| count("bytes", bytes)).transpose()?.map(|bytes| bytes as u64);
        open(Source::Descriptor { file: duplicate(descriptor)?, offset, bytes }, options)
    }

    /// Continues a text, or answers messages: whatever is known of the prompt's beginning is not computed again.
    pub fn generate(&self, prompt: Prompt, options: AnswerOptions) -> Result<Arc<AnswerHandle>, KvikError> {
        let options = options.read()?;
        self.call(|model| Ok(AnswerHandle::new(model.generate(prompt, &options)?)))
    }

    /// The conversation of this name or id; a new one, where nothing has the name, that is kept once something was answered
    /// in it.
    pub fn conversation(&self, reference: String) -> Result<Arc<ConversationHandle>, KvikError> {
        self.call(|model| Ok(ConversationHandle::new(model.conversation(reference))))
    }

    /// All conversations, those that were changed last first.
    pub fn conversations(&self) -> Result<Vec<ConversationInfo>, KvikError> {
        self.call(|model| Ok(model.conversations().into_iter().map(Into::into).collect()))
    }

    /// What a text means to the model.
    pub fn embed(&self, text: String) -> Result<Embedding, KvikError> {
        self.call(|model| Ok(model.embed(&text)?.into()))
    }

    /// How likely each token of the vocabulary is to come next, or each of these: logits, before sampling.
    pub fn logits(&self, prompt: Prompt, tokens: Option<Vec<i32>>) -> Result<Logits, KvikError> {
        let tokens = tokens.map(|tokens| read_tokens(&tokens)).transpose()?;
        self.call(|model| match tokens {
            None => Ok(model.logits(prompt)?.into()),
            Some(tokens) => Ok(model.logits_of(prompt, &tokens)?.into()),
        })
    }

    /// The tokens of a text by itself. Names of control tokens in it stand for these tokens.
    pub fn tokens(&self, text: String) -> Result<Vec<i32>, KvikError> {
        let signed = |token| i32::try_from(token).expect("a vocabulary has fewer than 2^31 tokens");
        self.call(|model| Ok(model.tokens(&text)?.into_iter().map(signed).collect()))
    }

    /// The text of tokens.
    pub fn text_of(&self, tokens: Vec<i32>) -> Result<String, KvikError> {
        let tokens = read_tokens(&tokens)?;
        self.call(|model| Ok(model.text_of(&tokens)?))
    }

    /// Tokens of a prompt.
    pub fn count_tokens(&self, prompt: Prompt) -> Result<i64, KvikError> {
        self.call(|model| Ok(signed(model.count_tokens(prompt)?)))
    }

    /// What a prompt would find in the cache now, and why not more. Computes and changes nothing.
    pub fn explain(&self, prompt: Prompt) -> Result<Explanation, KvikError> {
        self.call(|model| Ok(model.explain(prompt)?.into()))
    }

    /// Computes what other prompts begin with, as far as it is not known, and keeps it under a name until it is forgotten.
    /// What the name stood for before is unpinned.
    pub fn keep_prompt(&self, id: String, prompt: Prompt) -> Result<KeptState, KvikError> {
        self.call(|model| Ok(model.keep_prompt(&id, prompt)?.into()))
    }

    /// Whether this is what is kept under a name, and how much of it need not be computed.
    pub fn is_kept(&self, id: String, prompt: Prompt) -> Result<KeptState, KvikError> {
        self.call(|model| Ok(model.is_kept(&id, prompt)?.into()))
    }

    /// Unpins what is kept under a name, unless something else needs it. Whether there was such a name.
    pub fn forget_prompt(&self, id: String) -> Result<bool, KvikError> {
        self.call(|model| Ok(model.forget_prompt(&id)?))
    }

    /// Tokens of a prompt and its answer together.
    pub fn context_tokens(&self) -> Result<i64, KvikError> {
        self.call(|model| Ok(signed(model.context_tokens())))
    }

    /// The engine's numbers after its last step.
    pub fn stats(&self) -> Result<Stats, KvikError> {
        self.call(|model| Ok(model.stats().into()))
    }

    /// Releases memory to the system: first what is computed goes to the disk, for which it has 50 ms, then cached prefixes
    /// are evicted, those worth least first.
    pub fn on_memory_pressure(&self, level: MemoryPressure) -> Result<Released, KvikError> {
        self.call(|model| Ok(model.on_memory_pressure(level.into())?.into()))
    }

    /// Gets ready to be killed: cancels all answers and waits up to 100 ms, and for the step that runs, until all that was
    /// computed is on disk. Then no thread of the model runs until something is asked again.
    pub fn on_background(&self) -> Result<Flushed, KvikError> {
        self.call(|model| Ok(model.on_background()?.into()))
    }

    /// Cancels all answers, gives the disk up to two seconds for what was computed, and stops all threads. Other calls
    /// fail as closed from then on; none is returned where another call closed it.
    pub fn shut_down(&self) -> Result<Option<Flushed>, KvikError> {
        let model = self.model.write().unwrap_or_else(PoisonError::into_inner).take();
        Ok(model.map(Model::close).transpose()?.map(Flushed::from))
    }
}

impl ModelHandle {
    fn call<T>(&self, action: impl FnOnce(&Model) -> Result<T, KvikError>) -> Result<T, KvikError> {
        action(self.read().as_ref().ok_or(KvikError::Closed)?)
    }

    fn read(&self) -> RwLockReadGuard<'_, Option<Model>> {
        // It is changed by one assignment alone.
        self.model.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tokens as other languages take them.
fn read_tokens(tokens: &[i32]) -> Result<Vec<Token>, KvikError> {
    let read =
        |&token| Token::try_from(token).map_err(|_| KvikError::argument("tokens", "has a negative one"));
    tokens.iter().map(read).collect()
}

fn open(source: Source, options: ModelOptions) -> Result<Arc<ModelHandle>, KvikError> {
    let model = Model::open(options.read(source)?)?;
    Ok(Arc::new(ModelHandle { model: RwLock::new(Some(model)) }))
}

/// An own descriptor of an open file.
#[cfg(unix)]
fn duplicate(descriptor: i32) -> Result<std::fs::File, KvikError> {
    use std::os::fd::BorrowedFd;
    if descriptor < 0 {
        return Err(KvikError::argument("descriptor", "is negative"));
    }
    #[allow(unsafe_code, reason = "a number from another language can be borrowed in no other way")]
    // SAFETY: it is not -1, and the caller promises that it is open during the call. Nothing but duplicating it is done.
    let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
    let owned = borrowed.try_clone_to_owned();
    owned
        .map(Into::into)
        .map_err(|error| KvikError::argument("descriptor", &format!("cannot be used: {error}")))
}

#[cfg(not(unix))]
fn duplicate(_: i32) -> Result<std::fs::File, KvikError> {
    Err(KvikError::argument("descriptor", "is a number of Unix, which this system is not"))
}
