//! Conversations that are stored under names, with summaries beyond the context.

use std::ffi::{c_char, c_void};

use kvik_library::Message;
use serde_json::{Value, json};

use crate::answer::{
    KvikAnswerOptions, KvikMessage, KvikPieceCallback, KvikReport, answer_options, deliver, read_messages,
};
use crate::model::KvikModel;
use crate::status::{Failure, KvikStatus, call};
use crate::text::{put, put_text, reference, text};

/// Sends messages in a conversation, by its name or id, and answers them; its first answer creates it. Question and answer
/// are stored together; a cancelled answer stores nothing.
///
/// # Safety
/// `conversation` is a text, `messages` are `count` valid messages; otherwise as `kvik_generate`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvik_say(
    model: *const KvikModel,
    conversation: *const c_char,
    messages: *const KvikMessage,
    count: usize,
    options: *const KvikAnswerOptions,
    on_piece: KvikPieceCallback,
    context: *mut c_void,
    report: *mut KvikReport,
) -> KvikStatus {
    call(|| {
        // SAFETY: the caller promises it.
        let (conversation, options) = unsafe { (at(model, conversation)?, answer_options(options)?) };
        // SAFETY: the caller promises it.
        let messages = unsafe { read_messages(messages, count)? };
        let answer = conversation.say(&messages, &options)?;
        // SAFETY: the caller promises it.
        unsafe { deliver(answer, (on_piece, context), report) }
    })
}

/// Writes whether conversations are stored on the disk; if not, they end with the model: without `conversations_dir`,
/// or because another process stores its conversations there.
///
/// # Safety
/// `model` is an open handle, `stored` null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvik_conversations_are_stored(
    model: *const KvikModel,
    stored: *mut bool,
) -> KvikStatus {
    call(|| {
        // SAFETY: the caller promises it.
        let is_stored = unsafe { reference(model, "model")? }.0.conversations_are_stored();
        // SAFETY: the caller promises it.
        unsafe { put(stored, is_stored) };
        Ok(())
    })
}

/// Writes all conversations, the most recently changed first: a JSON array of `{"id", "name", "created_s", "updated_s",
/// "messages"}`, and to `needed` its size in bytes. If `room` is smaller, the status is `KVIK_STATUS_TOO_SMALL`.
///
/// # Safety
/// `model` is an open handle, `json` null or a buffer of `room` bytes, `needed` null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvik_conversations(
    model: *const KvikModel,
    json: *mut c_char,
    room: usize,
    needed: *mut usize,
) -> KvikStatus {
    call(|| {
        // SAFETY: the caller promises it.
        let all = unsafe { reference(model, "model")? }.0.conversations();
        let all = all.into_iter().map(|one| {
            json!({"id": one.id, "name": one.name, "created_s": one.created_s, "updated_s": one.updated_s, "messages": one.messages})
        });
        // SAFETY: the caller promises it.
        unsafe { give(&all.collect::<Value>().to_string(), (json, room), needed) }
    })
}

/// Writes the messages of a conversation: a JSON array of `{"role", "content", "tool_calls", "tool_call_id"}`, the last two
/// if there are any.
///
/// # Safety
/// `conversation` is a text; otherwise as `kvik_conversations`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvik_conversation_messages(
    model: *const KvikModel,
    conversation: *const c_char,
    json: *mut c_char,
    room: usize,
    needed: *mut usize,
) -> KvikStatus {
    call(|| {
        // SAFETY: the caller promises it.
        let messages = unsafe { at(model, conversation)? }.messages()?;
        let messages: Value = messages.into_iter().map(message).collect();
        // SAFETY: the caller promises it.
        unsafe { give(&messages.to_string(), (json, room), needed) }
    })
}

/// Writes the newest summary of a conversation; an empty text if there is none.
///
/// # Safety
/// As `kvik_conversation_messages`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvik_conversation_summary(
    model: *const KvikModel,
    conversation: *const c_char,
    summary: *mut c_char,
    room: usize,
    needed: *mut usize,
) -> KvikStatus {
    call(|| {
        // SAFETY: the caller promises it.
        let remembered = unsafe { at(model, conversation)? }.remembered()?;
        let text = remembered.map_or_else(String::new, |remembered| remembered.summary);
        // SAFETY: the caller promises it.
        unsafe { give(&text, (summary, room), needed) }
    })
}

/// Replaces the text of a conversation's newest summary; its next turn reads the new text.
///
/// # Safety
/// `model` is an open handle, the others are texts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvik_conversation_correct(
    model: *const KvikModel,
    conversation: *const c_char,
    summary: *const c_char,
) -> KvikStatus {
    call(|| {
        // SAFETY: the caller promises it.
        let (conversation, summary) = unsafe { (at(model, conversation)?, text(summary, "summary")?) };
        Ok(conversation.correct(summary).map(drop)?)
    })
}

/// Removes the messages of a conversation from the index `from` on, and the summaries that cover any of them.
///
/// # Safety
/// `model` is an open handle, `conversation` a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvik_conversation_take_back(
    model: *const KvikModel,
    conversation: *const c_char,
    from: usize,
) -> KvikStatus {
    // SAFETY: the caller promises it.
    call(|| Ok(unsafe { at(model, conversation)? }.take_back(from)?))
}

/// Renames a conversation.
///
/// # Safety
/// `model` is an open handle, the others are texts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvik_conversation_rename(
    model: *const KvikModel,
    conversation: *const c_char,
    name: *const c_char,
) -> KvikStatus {
    call(|| {
        // SAFETY: the caller promises it.
        let (mut conversation, name) = unsafe { (at(model, conversation)?, text(name, "name")?) };
        Ok(conversation.rename(name)?)
    })
}

/// Deletes a conversation and its summaries.
///
/// # Safety
/// `model` is an open handle, `conversation` a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvik_conversation_delete(
    model: *const KvikModel,
    conversation: *const c_char,
) -> KvikStatus {
    // SAFETY: the caller promises it.
    call(|| Ok(unsafe { at(model, conversation)? }.delete()?))
}

/// # Safety
/// `model` is an open handle, `conversation` a text.
unsafe fn at(
    model: *const KvikModel,
    conversation: *const c_char,
) -> Result<kvik_library::Conversation, Failure> {
    // SAFETY: the caller promises it.
    let (model, name) = unsafe { (reference(model, "model")?, text(conversation, "conversation")?) };
    Ok(model.0.conversation(name))
}

/// # Safety
/// `to` is null or a buffer of `room` bytes, `needed` null or writable.
unsafe fn give(text: &str, (to, room): (*mut c_char, usize), needed: *mut usize) -> Result<(), Failure> {
    // SAFETY: the caller promises it.
    let bytes = unsafe { put_text(to, room, text) };
    // SAFETY: the caller promises it.
    unsafe { put(needed, bytes) };
    match bytes <= room && !to.is_null() {
        true => Ok(()),
        false => {
            let message = format!("it takes {bytes} bytes, and there is room for {room}");
            Err(Failure { status: KvikStatus::TooSmall, message })
        }
    }
}

fn message(message: Message) -> Value {
    let Message { role, content, tool_calls, tool_call_id, .. } = message;
    let mut said = json!({"role": role.name(), "content": content});
    if !tool_calls.is_empty() {
        said["tool_calls"] = json!(tool_calls);
    }
    if let Some(id) = tool_call_id {
        said["tool_call_id"] = json!(id);
    }
    said
}
