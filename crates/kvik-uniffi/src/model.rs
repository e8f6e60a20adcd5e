//! The handle of a model: opening, asking, closing.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use kvik_library::{AskedPrompt, Model, Source, Token};

use crate::answer::AnswerHandle;
use crate::conversation::{ConversationHandle, ConversationInfo};
use crate::error::{KvikError, count, signed};
use crate::kept::{Embedding, Explanation, KeptState, Logits};
use crate::options::{AnswerOptions, ModelOptions};
use crate::prompt::Prompt;
use crate::sampling::ModelSampling;
use crate::system::{Flushed, MemoryPressure, Released, Stats};

/// An open model, for any number of threads.
///
/// A garbage collector may destroy objects at any time, so a handle can be closed, once, while others hold it. Calls hold
/// the lock for reading: closing waits for running calls, and later ones fail as closed. Answers do not hold the lock:
/// closing cancels them.
#[derive(Debug, uniffi::Object)]
pub struct ModelHandle {
    /// `None` after it was closed.
    model: RwLock<Option<Model>>,
}

#[uniffi::export]
impl ModelHandle {
    /// Opens a GGUF file, or a directory in Hugging Face's layout.
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
    /// manager provides them; without `bytes` the part extends to the end of the file. The caller keeps the descriptor and
    /// may close it after the call.
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

    /// Continues a text, or answers messages: a cached prefix of the prompt is not computed again.
    pub fn generate(&self, prompt: Prompt, options: AnswerOptions) -> Result<Arc<AnswerHandle>, KvikError> {
        let options = options.read()?;
        self.call(|model| Ok(AnswerHandle::new(model.generate(prompt, &options)?)))
    }

    /// Opens the conversation with this name or id; if no conversation has the name, a new one is stored once a turn was
    /// answered in it.
    pub fn conversation(&self, reference: String) -> Result<Arc<ConversationHandle>, KvikError> {
        self.call(|model| Ok(ConversationHandle::new(model.conversation(reference))))
    }

    /// All conversations, the most recently changed first.
    pub fn conversations(&self) -> Result<Vec<ConversationInfo>, KvikError> {
        self.call(|model| Ok(model.conversations().into_iter().map(Into::into).collect()))
    }

    /// True if conversations are stored on the disk; if not, they end with the model: without a directory for them, or
    /// because another process stores its conversations there.
    pub fn conversations_are_stored(&self) -> Result<bool, KvikError> {
        self.call(|model| Ok(model.conversations_are_stored()))
    }

    /// Embedding of a text.
    pub fn embed(&self, text: String) -> Result<Embedding, KvikError> {
        self.call(|model| Ok(model.embed(&text)?.into()))
    }

    /// Logits of the next token, before sampling: of the whole vocabulary, or of `tokens` in their order.
    pub fn logits(
        &self,
        prompt: Prompt,
        tokens: Option<Vec<i32>>,
        options: AnswerOptions,
    ) -> Result<Logits, KvikError> {
        let prompt = asked(prompt, options)?;
        let tokens = tokens.map(|tokens| read_tokens(&tokens)).transpose()?;
        self.call(|model| match tokens {
            None => Ok(model.logits(prompt)?.into()),
            Some(tokens) => Ok(model.logits_of(prompt, &tokens)?.into()),
        })
    }

    /// Tokenizes a text on its own. Names of control tokens in it are parsed as these tokens.
    pub fn tokens(&self, text: String) -> Result<Vec<i32>, KvikError> {
        let signed = |token| i32::try_from(token).expect("a vocabulary has fewer than 2^31 tokens");
        self.call(|model| Ok(model.tokens(&text)?.into_iter().map(signed).collect()))
    }

    /// Text of tokens.
    pub fn text_of(&self, tokens: Vec<i32>) -> Result<String, KvikError> {
        let tokens = read_tokens(&tokens)?;
        self.call(|model| Ok(model.text_of(&tokens)?))
    }

    /// Number of tokens of a prompt, as an answer with these options reads it.
    pub fn count_tokens(&self, prompt: Prompt, options: AnswerOptions) -> Result<i64, KvikError> {
        let prompt = asked(prompt, options)?;
        self.call(|model| Ok(signed(model.count_tokens(prompt)?)))
    }

    /// Reports what a prompt would find in the cache now, and why not more. Computes and changes nothing.
    pub fn explain(&self, prompt: Prompt, options: AnswerOptions) -> Result<Explanation, KvikError> {
        let prompt = asked(prompt, options)?;
        self.call(|model| Ok(model.explain(prompt)?.into()))
    }

    /// Computes the common prefix of future prompts of answers with these options, unless it is cached, and pins it under a
    /// name until it is forgotten. The previous prompt of the name is unpinned.
    pub fn keep_prompt(
        &self,
        id: String,
        prompt: Prompt,
        options: AnswerOptions,
    ) -> Result<KeptState, KvikError> {
        let prompt = asked(prompt, options)?;
        self.call(|model| Ok(model.keep_prompt(&id, prompt)?.into()))
    }

    /// Compares a prompt with the one that is pinned under a name, and reports how much of it is cached.
    pub fn is_kept(
        &self,
        id: String,
        prompt: Prompt,
        options: AnswerOptions,
    ) -> Result<KeptState, KvikError> {
        let prompt = asked(prompt, options)?;
        self.call(|model| Ok(model.is_kept(&id, prompt)?.into()))
    }

    /// Unpins the prompt of a name, unless another name has the same tokens. Returns whether the name existed.
    pub fn forget_prompt(&self, id: String) -> Result<bool, KvikError> {
        self.call(|model| Ok(model.forget_prompt(&id)?))
    }

    /// Maximum tokens of a prompt and its answer together.
    pub fn context_tokens(&self) -> Result<i64, KvikError> {
        self.call(|model| Ok(signed(model.context_tokens())))
    }

    /// The sampling of answers whose options set none: what the model's makers recommend, else kvik's defaults, each
    /// setting with its source. `reasoning` is that of the options: some makers recommend other settings without it.
    pub fn sampling(&self, reasoning: Option<bool>) -> Result<ModelSampling, KvikError> {
        self.call(|model| Ok(model.sampling(reasoning).into()))
    }

    /// Statistics of the engine after its last step.
    pub fn stats(&self) -> Result<Stats, KvikError> {
        self.call(|model| Ok(model.stats().into()))
    }

    /// Releases memory to the system: computed blocks get 50 ms to reach the disk, then cached prefixes are evicted, the
    /// least valuable first.
    pub fn on_memory_pressure(&self, level: MemoryPressure) -> Result<Released, KvikError> {
        self.call(|model| Ok(model.on_memory_pressure(level.into())?.into()))
    }

    /// Prepares for the end of the process: cancels all answers and waits until all computed blocks are on disk, at most
    /// 100 ms and the running step. After that no thread of the model runs until the next call.
    pub fn on_background(&self) -> Result<Flushed, KvikError> {
        self.call(|model| Ok(model.on_background()?.into()))
    }

    /// Cancels all answers, waits up to two seconds until computed blocks are on disk, and stops all threads. Later calls
    /// fail as closed. Returns nothing if another call has closed the model.
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

/// A prompt as answers with these options read it.
fn asked(prompt: Prompt, options: AnswerOptions) -> Result<AskedPrompt, KvikError> {
    Ok(AskedPrompt { prompt: prompt.into(), options: options.read()? })
}

/// Converts the signed tokens of other languages.
fn read_tokens(tokens: &[i32]) -> Result<Vec<Token>, KvikError> {
    let read =
        |&token| Token::try_from(token).map_err(|_| KvikError::argument("tokens", "has a negative one"));
    tokens.iter().map(read).collect()
}

fn open(source: Source, options: ModelOptions) -> Result<Arc<ModelHandle>, KvikError> {
    let model = Model::open(options.read(source)?)?;
    Ok(Arc::new(ModelHandle { model: RwLock::new(Some(model)) }))
}

/// A duplicate of an open file's descriptor.
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
