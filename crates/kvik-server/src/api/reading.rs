//! Splits the text of an answer into reasoning, content and tool calls, for all dialects.

use kvik_memory::random::random;

pub(crate) use kvik_text::answer::{Reader, Reading};

/// Returns a reader for one choice. Each reader gets random call ids, because tool results refer to calls by
/// id.
pub(crate) fn reader(reading: &Reading) -> Reader {
    reading.reader(&format!("{:016x}", random()))
}
