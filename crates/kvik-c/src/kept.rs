//! Prompts under names, and what a text costs, would find, and means.

use std::ffi::c_char;

use kvik_library::{Error, Explanation, KeptState, Model, Prompt};

use crate::answer::{KvikMessage, read_messages, word};
use crate::model::KvikModel;
use crate::status::{Failure, KvikStatus, call};
use crate::text::{put, reference, text};

/// What is known of a kept prompt.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvikKept {
    /// Whether something is kept under the name.
    pub is_known: bool,
    /// Whether that is something else.
    pub is_changed: bool,
    /// Whether an answer would compute nothing of it, but for its last token.
    pub is_warm: bool,
    /// Its tokens.
    pub tokens: u64,
    /// Of these, tokens in RAM.
    pub ram_tokens: u64,
    /// Of these, tokens that would be read from disk.
    pub disk_tokens: u64,
}

/// What a text would find in the cache now.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct KvikExplanation {
    /// Its tokens.
    pub prompt_tokens: u64,
    /// Of these, tokens that would not be computed.
    pub known_tokens: u64,
    /// Of these, tokens that would be read from disk.
    pub disk_tokens: u64,
    /// Why no more are known, as `diverged`.
    pub reason: [c_char; 32],
}

/// Computes messages with which chats begin, as far as they are not known, and keeps them under a name until they are
/// forgotten: in RAM, and on disk, where another process finds them. What the name stood for before is let go.
///
/// # Safety
/// `model` is an open handle, `id` a text, `messages` are `count` messages with texts, `kept` is null or a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvik_keep_prompt(
    model: *const KvikModel,
    id: *const c_char,
    messages: *const KvikMessage,
    count: usize,
    kept: *mut KvikKept,
) -> KvikStatus {
    // SAFETY: the caller promises it.
    call(|| unsafe { of_messages(model, id, (messages, count), kept, Model::keep_prompt) })
}

/// Whether these messages are what is kept under a name, and how much of them need not be computed.
///
/// # Safety
/// As `kvik_keep_prompt`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvik_is_kept(
    model: *const KvikModel,
    id: *const c_char,
    messages: *const KvikMessage,
    count: usize,
    kept: *mut KvikKept,
) -> KvikStatus {
    // SAFETY: the caller promises it.
    call(|| unsafe { of_messages(model, id, (messages, count), kept, Model::is_kept) })
}

/// What a model says of messages under a name.
///
/// # Safety
/// As `kvik_keep_prompt`.
unsafe fn of_messages(
    model: *const KvikModel,
    id: *const c_char,
    (messages, count): (*const KvikMessage, usize),
    kept: *mut KvikKept,
    ask: fn(&Model, &str, Prompt) -> Result<KeptState, Error>,
) -> Result<(), Failure> {
    // SAFETY: the caller promises it.
    let (model, id) = unsafe { (reference(model, "model")?, text(id, "id")?) };
    // SAFETY: the caller promises it.
    let messages = unsafe { read_messages(messages, count)? };
    let state = ask(&model.0, id, Prompt::Messages(messages))?;
    // SAFETY: the caller promises it.
    unsafe { put(kept, state.into()) };
    Ok(())
}

/// Lets go what is kept under a name, in RAM and on disk. `was_known` learns whether there was such a name.
///
/// # Safety
/// `model` is an open handle, `id` a text, `was_known` null or a place.
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

/// Tokens of a text.
///
/// # Safety
/// `model` is an open handle, `prompt` a text, `tokens` null or a place.
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

/// What a text would find in the cache now, and why not more. Computes and changes nothing.
///
/// # Safety
/// `model` is an open handle, `prompt` a text, `explanation` null or a place.
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

/// What a text means to the model: `dimensions` numbers at `vector`, of length 1. If there is room for fewer, only
/// `dimensions` is written, and the status is `KVIK_STATUS_TOO_SMALL`.
///
/// # Safety
/// `model` is an open handle, `input` a text, `vector` a place for `room` numbers, `dimensions` null or a place.
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
        let embedding = model.0.embed(input)?.vector;
        // SAFETY: the caller promises it.
        unsafe { put(dimensions, embedding.len()) };
        if room < embedding.len() {
            let message =
                format!("an embedding has {} numbers, and there is room for {room}", embedding.len());
            return Err(Failure { status: KvikStatus::TooSmall, message });
        }
        if vector.is_null() {
            return Err(Failure::argument("vector", "is null"));
        }
        // SAFETY: it is not null and has room, as the caller promises and was checked.
        unsafe { std::ptr::copy_nonoverlapping(embedding.as_ptr(), vector, embedding.len()) };
        Ok(())
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
