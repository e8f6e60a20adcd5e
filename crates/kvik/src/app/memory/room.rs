//! Memory for the histories that wait behind answers: of a long conversation as much as a body may have, while the answer
//! waits in the queue, is generated, and is followed by its summary.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;

/// Bytes of all histories that are held, four of the longest bodies that are usual. A turn beyond that is answered
/// without anything being made behind it; the next one tries again.
pub(super) const HELD_BYTES_MAX: usize = 128 << 20;
/// What a value takes beside its text.
const VALUE_BYTES: usize = size_of::<Value>();

/// How much of it is taken.
#[derive(Clone, Default)]
pub(crate) struct Room(Arc<AtomicUsize>);

/// A part of it, free again when dropped.
pub(crate) struct Taken {
    room: Room,
    bytes: usize,
}

impl Room {
    /// Takes so many bytes, if they are there; a history that is longer than all of it is held when no other is.
    pub(crate) fn take(&self, bytes: usize) -> Option<Taken> {
        let more = |held: usize| {
            let all = held.saturating_add(bytes);
            (held == 0 || all <= HELD_BYTES_MAX).then_some(all)
        };
        let taken = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        taken.ok().map(|_| Taken { room: self.clone(), bytes })
    }

    /// Bytes that are held.
    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.room.0.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// Bytes of messages in memory, about.
pub(super) fn bytes_of(messages: &[Value]) -> usize {
    messages.iter().map(bytes).sum()
}

fn bytes(value: &Value) -> usize {
    let held = match value {
        Value::String(text) => text.len(),
        Value::Array(values) => bytes_of(values),
        Value::Object(fields) => fields.iter().map(|(name, value)| name.len() + bytes(value)).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    };
    VALUE_BYTES + held
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_taken_is_bounded_and_given_back() {
        let room = Room::default();
        let half = HELD_BYTES_MAX / 2;
        let (first, second) = (room.take(half), room.take(half));
        assert!(first.is_some() && second.is_some() && room.take(1).is_none());
        drop(first);
        assert_eq!(room.held(), half);
        assert!(room.take(half + 1).is_none() && room.take(half).is_some());
        drop(second);
        let one = room.take(usize::MAX);
        assert!(one.is_some() && room.take(1).is_none(), "a longer one is held alone");
        drop(one);
        assert_eq!(room.held(), 0);
    }

    #[test]
    fn messages_count_with_all_that_they_say() {
        let text = "word ".repeat(1000);
        let messages = [json!({"role": "user", "content": [{"type": "text", "text": text}]})];
        let counted = bytes_of(&messages);
        assert!((5000..6000).contains(&counted), "{counted}");
    }
}
