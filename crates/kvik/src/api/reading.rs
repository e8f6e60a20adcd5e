//! How every dialect reads the text of an answer: reasoning, content and tool calls are told apart.

use kvik_memory::random::random;

pub(crate) use kvik_text::answer::{Reader, Reading};

/// A reader for one choice. Calls of different answers have different ids: their results name them.
pub(crate) fn reader(reading: &Reading) -> Reader {
    reading.reader(&format!("{:016x}", random()))
}
