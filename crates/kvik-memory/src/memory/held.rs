//! Messages that are held for work after answers: once for all work on a turn, and within a bound in bytes.
//!
//! Work that finds no room is skipped: the summary that is due is made after a later turn.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;

use crate::context::segments::question_before;

/// Bytes of an object's entry in addition to the text of its name and its value: the name's header, its hash and its
/// slot.
const ENTRY_BYTES: usize = 48;

/// Budget for the histories of turns that are being answered, or whose summaries are being made.
pub(super) struct HeldHistories {
    bytes_max: u64,
    /// True if several tenants share the budget: each must leave as much free as it uses.
    is_divided: bool,
    held: Mutex<BTreeMap<String, u64>>,
}

/// Reserved room for one history; released when dropped.
pub(super) struct HistoryShare {
    histories: Arc<HeldHistories>,
    tenant: String,
    bytes: u64,
}

impl HeldHistories {
    pub(super) fn new(bytes_max: u64, is_divided: bool) -> Arc<HeldHistories> {
        Arc::new(HeldHistories { bytes_max, is_divided, held: Mutex::default() })
    }

    /// Reserves room for a history, if available. A single history is always admitted: a request body is bounded.
    pub(super) fn take(self: &Arc<Self>, tenant: &str, bytes: u64) -> Option<HistoryShare> {
        let mut held = self.lock();
        let all: u64 = held.values().sum::<u64>() + bytes;
        let own = held.get(tenant).copied().unwrap_or(0) + bytes;
        let left = self.bytes_max.checked_sub(all);
        let fits = left.is_some_and(|left| !self.is_divided || own <= left);
        if !fits && all > bytes {
            return None;
        }
        held.insert(tenant.to_owned(), own);
        Some(HistoryShare { histories: self.clone(), tenant: tenant.to_owned(), bytes })
    }

    /// Bytes of all held histories.
    pub(super) fn bytes(&self) -> u64 {
        self.lock().values().sum()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, u64>> {
        // Every change of the map is a single call, so a panic leaves it consistent.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for HistoryShare {
    fn drop(&mut self) {
        let mut held = self.histories.lock();
        let own = held.get(&self.tenant).map_or(0, |own| own.saturating_sub(self.bytes));
        if own > 0 {
            held.insert(self.tenant.clone(), own);
        } else {
            held.remove(&self.tenant);
        }
    }
}

/// The part of a history that work after the answer needs: the prefix that is never dropped, and the messages after the
/// summary that was read, behind the question of the exchange that this summary cuts.
pub(super) struct HeldHistory {
    messages: Vec<Value>,
    prefix: usize,
    /// Number of messages of that question.
    asked: usize,
    /// Number of system messages in the prefix.
    pub(super) systems: usize,
    /// Number of messages after the prefix that are not held, because the summary that was read covers them.
    pub(super) covered: usize,
    _share: HistoryShare,
}

impl HeldHistory {
    /// Takes from `messages` the `prefix` that is never dropped and the messages after the `covered` ones that follow
    /// it.
    pub(super) fn new(
        mut messages: Vec<Value>,
        [systems, prefix, covered]: [usize; 3],
        share: HistoryShare,
    ) -> HeldHistory {
        let question = question_before(&messages[prefix..], covered).to_vec();
        let asked = question.len();
        messages.splice(prefix..prefix + covered, question);
        messages.shrink_to_fit();
        HeldHistory { messages, prefix, asked, systems, covered, _share: share }
    }

    /// Messages that are never dropped.
    pub(super) fn prefix(&self) -> &[Value] {
        &self.messages[..self.prefix]
    }

    /// Messages after the first `from` behind the prefix; `None` if some of them are not held.
    pub(super) fn behind(&self, from: usize) -> Option<&[Value]> {
        self.said().get(self.asked + from.checked_sub(self.covered)?..)
    }

    /// The question of the exchange that the end of the first `from` messages behind the prefix cuts; empty if it cuts
    /// none.
    pub(super) fn question(&self, from: usize) -> &[Value] {
        question_before(self.said(), self.asked + from.saturating_sub(self.covered))
    }

    /// Messages that a summary of `covers` messages covers in addition to the one that was read.
    pub(super) fn let_go(&self, covers: usize) -> &[Value] {
        &self.said()[self.asked..self.asked + covers - self.covered]
    }

    fn said(&self) -> &[Value] {
        &self.messages[self.prefix..]
    }
}

/// Approximate memory of messages in bytes.
pub(super) fn bytes<'a>(messages: impl IntoIterator<Item = &'a Value>) -> u64 {
    messages.into_iter().map(|message| bytes_of(message) as u64).sum()
}

fn bytes_of(value: &Value) -> usize {
    let beyond = match value {
        Value::String(text) => text.capacity(),
        Value::Array(values) => values.iter().map(bytes_of).sum(),
        Value::Object(entries) => {
            entries.iter().map(|(name, value)| ENTRY_BYTES + name.capacity() + bytes_of(value)).sum()
        }
        _ => 0,
    };
    size_of::<Value>() + beyond
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn histories_have_bounded_room_and_tenants_leave_some_to_others() {
        let histories = HeldHistories::new(100, true);
        let first = histories.take("a", 300).expect("one alone is held however long");
        assert!(histories.take("b", 1).is_none());
        drop(first);
        let held: Vec<_> = (0..10).filter_map(|_| histories.take("a", 10)).collect();
        assert_eq!((held.len(), histories.bytes()), (5, 50));
        assert_eq!((0..10).filter_map(|_| histories.take("b", 10)).collect::<Vec<_>>().len(), 2);
        drop(held);
        assert_eq!(histories.bytes(), 0);
    }

    #[test]
    fn of_a_history_is_held_what_no_summary_covers() {
        let share = HeldHistories::new(100, false).take("a", 1).unwrap();
        let history = HeldHistory::new((0..10).map(|i| json!(i)).collect(), [1, 2, 3], share);
        assert_eq!(history.prefix(), [json!(0), json!(1)]);
        assert_eq!(history.let_go(5), [json!(5), json!(6)]);
        assert_eq!(history.behind(6), Some(&[json!(8), json!(9)][..]));
        assert_eq!((history.behind(2), history.behind(8)), (None, Some(&[][..])));
    }

    #[test]
    fn the_question_of_a_divided_exchange_is_held() {
        let said = |role: &str, text: &str| json!({"role": role, "content": text});
        let calls = (0..4).map(|number| said("assistant", &format!("call {number}")));
        let messages = [said("system", "s"), said("user", "q")].into_iter().chain(calls).collect();
        let share = HeldHistories::new(100, false).take("a", 1).unwrap();
        let history = HeldHistory::new(messages, [1, 1, 3], share);
        let question = [said("user", "q")];
        assert_eq!((history.question(3), history.question(4)), (&question[..], &question[..]));
        assert!(history.question(5).is_empty(), "nothing is said behind the last message");
        assert_eq!(history.behind(3), Some(&["call 2", "call 3"].map(|text| said("assistant", text))[..]));
        assert_eq!(history.let_go(4), [said("assistant", "call 2")]);
        assert_eq!(history.prefix(), [said("system", "s")]);
    }

    #[test]
    fn text_counts_and_so_does_what_holds_it() {
        let text = "x".repeat(1 << 20);
        let long = bytes(&[json!({"role": "user", "content": text})]);
        assert!((1 << 20..(1 << 20) + 1024).contains(&long), "{long}");
        let short = bytes(&vec![json!({"role": "user", "content": ""}); 1000]);
        assert!(short > 150_000, "{short}");
    }
}
