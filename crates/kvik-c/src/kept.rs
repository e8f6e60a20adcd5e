//! Pinned prompts, the tokens and the cost of a text, and embeddings.

use std::ffi::c_char;

use kvik_library::{AskedPrompt, Error, Explanation, KeptState, Model, Prompt};

use crate::answer::{KvikAnswerOptions, KvikMessage, answer_options, read_messages};
use crate::model::KvikModel;
use crate::status::{Failure, KvikStatus, call};
use crate::text::{put, put_list, reference, text, word};

/// State of a pinned prompt.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvikKept {
    /// True if the name has a prompt.
    pub is_known: bool,
    /// True if that is another prompt.
    pub is_changed: bool,
    /// True if an answer would compute only its last token.
    pub is_warm: bool,
    /// Tokens of the prompt.
    pub tokens: u64,
    /// Tokens of it in RAM.
    pub ram_tokens: u64,
    /// Tokens of it that would be read from disk.
    pub disk_tokens: u64,
}

/// Cached part of a text.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct KvikExplanation {
    /// Tokens of the text.
    pub prompt_tokens: u64,
    /// Tokens of it that would not be computed.
    pub known_tokens: u64,
    /// Tokens of it that would be read from disk.
    pub disk_tokens: u64,
    /// Why no more are cached, as `diverged`.
    pub reason: [c_char; 32],
}

/// Computes the common first messages of future chats, unless they are cached, and pins them under a name until they are
/// forgotten: in RAM, and on disk, where another process finds them. The previous prompt of the name is unpinned.
/// `options` are those of the chats, or null: a template may write tools and reasoning before the messages.
///
/// # Safety
/// `model` is an open handle, `id` a text, `messages` are `count` valid messages, `options` is null or valid options,
/// `kept` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvik_keep_prompt(
    model: *const KvikModel,
    id: *const c_char,
    messages: *const KvikMessage,
    count: usize,
    options: *const KvikAnswerOptions,
    kept: *mut KvikKept,
) -> KvikStatus {
    // SAFETY: the caller promises it.
    call(|| unsafe { of_messages(model, id, (messages, count, options), kept, Model::keep_prompt) })
}

/// Compares messages with those that are pinned under a name, and reports how much of them is cached.
///
/// # Safety
/// As `kvik_keep_prompt`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvik_is_kept(
    model: *const KvikModel,
    id: *const c_char,
    messages: *const KvikMessage,
    count: usize,
    options: *const KvikAnswerOptions,
    kept: *mut KvikKept,
) -> KvikStatus {
    // SAFETY: the caller promises it.
    call(|| unsafe { of_messages(model, id, (messages, count, options), kept, Model::is_kept) })
}

/// Calls a function of the model with a name, and messages as chats with these options read them.
///
/// # Safety
/// As `kvik_keep_prompt`.
unsafe fn of_messages(
    model: *const KvikModel,
    id: *const c_char,
    (messages, count, options): (*const KvikMessage, usize, *const KvikAnswerOptions),
    kept: *mut KvikKept,
    ask: fn(&Model, &str, AskedPrompt) -> Result<KeptState, Error>,
) -> Result<(), Failure> {
    // SAFETY: the caller promises it.
    let (model, id) = unsafe { (reference(model, "model")?, text(id, "id")?) };
    // SAFETY: the caller promises it.
    let (messages, options) = unsafe { (read_messages(messages, count)?, answer_options(options)?) };
    let state = ask(&model.0, id, AskedPrompt { prompt: Prompt::Messages(messages), options })?;
    // SAFETY: the caller promises it.
    unsafe { put(kept, state.into()) };
    Ok(())
}

/// Unpins the prompt of a name, in RAM and on disk, and writes to `was_known` whether the name existed.
///
/// # Safety
/// `model` is an open handle, `id` a text, `was_known` null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvik_forget_prompt(
    model: *const KvikModel,
    id: *const c_char,
    was_known: *mut bool,
) -> KvikStatus {
    call(|| {
        // SAFETY: the caller promises it.
        let (model, id) = unsafe { (reference(model, "model")?, text(id, "id")?) };
        let known = model.0.forget_prompt(id)?;
        // SAFETY: the caller promises it.
        unsafe { put(was_known, known) };
        Ok(())
    })
}

/// Number of tokens of a text.
///
/// # Safety
/// `model` is an open handle, `prompt` a text, `tokens` null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvik_count_tokens(
    model: *const KvikModel,
    prompt: *const c_char,
    tokens: *mut u64,
) -> KvikStatus {
    call(|| {
        // SAFETY: the caller promises it.
        let (model, prompt) = unsafe { (reference(model, "model")?, text(prompt, "prompt")?) };
        let count = model.0.count_tokens(prompt)?;
        // SAFETY: the caller promises it.
        unsafe { put(tokens, count as u64) };
        Ok(())
    })
}

/// Tokenizes a text on its own, and writes `count` tokens to `tokens`. Names of control tokens in it are parsed as these
/// tokens. If `room` is smaller, only `count` is written, and the status is `KVIK_STATUS_TOO_SMALL`.
///
/// # Safety
/// `model` is an open handle, `input` a text, `tokens` has room for `room` numbers, `count` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvik_tokens(
    model: *const KvikModel,
    input: *const c_char,
    tokens: *mut u32,
    room: usize,
    count: *mut usize,
) -> KvikStatus {
    call(|| {
        // SAFETY: the caller promises it.
        let (model, input) = unsafe { (reference(model, "model")?, text(input, "input")?) };
        // SAFETY: the caller promises it.
        unsafe { put_list((tokens, room), count, &model.0.tokens(input)?, "tokens") }
    })
}

/// Reports what a text would find in the cache now, and why not more. Computes and changes nothing.
///
/// # Safety
/// `model` is an open handle, `prompt` a text, `explanation` null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvik_explain(
    model: *const KvikModel,
    prompt: *const c_char,
    explanation: *mut KvikExplanation,
) -> KvikStatus {
    call(|| {
        // SAFETY: the caller promises it.
        let (model, prompt) = unsafe { (reference(model, "model")?, text(prompt, "prompt")?) };
        let explained = model.0.explain(prompt)?;
        // SAFETY: the caller promises it.
        unsafe { put(explanation, explained.into()) };
        Ok(())
    })
}

/// Writes the embedding of a text to `vector`: `dimensions` numbers, of length 1. If `room` is smaller, only `dimensions`
/// is written, and the status is `KVIK_STATUS_TOO_SMALL`.
///
/// # Safety
/// `model` is an open handle, `input` a text, `vector` has room for `room` numbers, `dimensions` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvik_embed(
    model: *const KvikModel,
    input: *const c_char,
    vector: *mut f32,
    room: usize,
    dimensions: *mut usize,
) -> KvikStatus {
    call(|| {
        // SAFETY: the caller promises it.
        let (model, input) = unsafe { (reference(model, "model")?, text(input, "input")?) };
        // SAFETY: the caller promises it.
        unsafe { put_list((vector, room), dimensions, &model.0.embed(input)?.vector, "vector") }
    })
}

impl From<KeptState> for KvikKept {
    fn from(state: KeptState) -> KvikKept {
        let [tokens, ram_tokens, disk_tokens] = match state {
            KeptState::Kept { tokens, ram_tokens, disk_tokens } => [tokens, ram_tokens, disk_tokens],
            _ => [0; 3],
        };
        KvikKept {
            is_known: state != KeptState::Unknown,
            is_changed: state == KeptState::Changed,
            is_warm: state.is_warm(),
            tokens: tokens as u64,
            ram_tokens: ram_tokens as u64,
            disk_tokens: disk_tokens as u64,
        }
    }
}

impl From<Explanation> for KvikExplanation {
    fn from(explanation: Explanation) -> KvikExplanation {
        KvikExplanation {
            prompt_tokens: explanation.prompt_tokens as u64,
            known_tokens: explanation.known_tokens as u64,
            disk_tokens: explanation.disk_tokens as u64,
            reason: word(explanation.reason.name()),
        }
    }
}
