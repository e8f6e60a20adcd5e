//! The text that an incomplete call waits for, so that the call is not parsed again with every token.

use super::json::Balance;
use super::search::TagSearch;

/// The text that must arrive before the call can be complete.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum WaitFor {
    /// Anything.
    Any,
    /// The end of the JSON object that begins at this byte.
    Object(usize),
    /// The end of the call in Python's notation whose arguments begin at this byte.
    Group(usize),
    /// This text, after this byte.
    Text(String, usize),
}

/// The text that an incomplete call waits for, and how far the pending text has been searched.
#[derive(Debug)]
pub(super) enum Waiting {
    Any,
    Object { balance: Balance, searched: usize },
    Text { text: String, search: TagSearch },
}

impl Waiting {
    pub(super) fn on(wait: WaitFor, pending: &str) -> Waiting {
        let mut waiting = match wait {
            WaitFor::Any => Waiting::Any,
            WaitFor::Object(searched) => Waiting::Object { balance: Balance::default(), searched },
            WaitFor::Group(searched) => Waiting::Object { balance: Balance::of_python(), searched },
            WaitFor::Text(text, searched) => Waiting::Text { text, search: TagSearch::after(searched) },
        };
        let over = waiting.is_over(pending);
        debug_assert!(!over || matches!(waiting, Waiting::Any), "the awaited text has not arrived yet");
        waiting
    }

    /// Whether the call may be complete now. Searches hardly any byte twice.
    pub(super) fn is_over(&mut self, pending: &str) -> bool {
        match self {
            Waiting::Any => true,
            Waiting::Object { balance, searched } => {
                let end = balance.feed(&pending.as_bytes()[*searched..]);
                *searched = pending.len();
                end.is_some()
            }
            Waiting::Text { text, search } => search.find(pending, &[text.as_str()]).is_some(),
        }
    }
}
