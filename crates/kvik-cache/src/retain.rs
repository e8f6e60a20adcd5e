//! How long a prefix is kept, as its users ask: plain data.

use std::time::Duration;

/// What a request asks for the prefix it leaves in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Retain {
    /// After so long without a use it is as if it had never been; for ever when `None`.
    pub ttl: Option<Duration>,
    /// Lower ones go first, whatever the policy says; 0 where nothing is asked for.
    pub priority: i8,
    /// It is never evicted, until it is unpinned. It counts against the budget all the same.
    pub pin: bool,
}
