//! How long a prefix is retained, as its users request: plain data.

use std::time::Duration;

/// The retention that a request asks for the prefix it leaves in the cache.
///
/// A prefix that several requests share gets the strongest of these: the longest time to live, the highest
/// priority, any pin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lifetime {
    /// A prefix unused for this long is dropped; never when `None`.
    pub ttl: Option<Duration>,
    /// Prefixes of lower priority are evicted first, whatever the policy; 0 by default.
    pub priority: i8,
    /// Whether its prompt is to be pinned: never evicted, until it is unpinned. A pin can be refused, so the owner
    /// of the sequence requests it, by [`Cache::pin`](crate::Cache::pin), and informs the client. A partial last
    /// block is not covered: it may still be replaced by a fuller one.
    pub pin: bool,
}

/// The strongest retention that the users of a node have asked for so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Keep {
    /// The longest time to live.
    pub(crate) ttl: Option<Duration>,
    /// The highest priority.
    pub(crate) priority: i8,
}

impl Keep {
    /// The identity of [`and`](Keep::and): no user has asked for anything yet.
    pub(crate) const NOTHING: Keep = Keep { ttl: Some(Duration::ZERO), priority: i8::MIN };

    /// The stronger of both, in each respect.
    pub(crate) fn and(self, asked: Lifetime) -> Keep {
        let ttl = self.ttl.zip(asked.ttl).map(|(kept, asked)| kept.max(asked));
        Keep { ttl, priority: self.priority.max(asked.priority) }
    }

    /// Combines two retentions.
    pub(crate) fn join(self, other: Keep) -> Keep {
        self.and(Lifetime { ttl: other.ttl, priority: other.priority, pin: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_strongest_request_counts() {
        let asked = |secs: Option<u64>, priority| Lifetime {
            ttl: secs.map(Duration::from_secs),
            priority,
            pin: false,
        };
        let keep = Keep::NOTHING.and(asked(Some(5), -3));
        assert_eq!(keep, Keep { ttl: Some(Duration::from_secs(5)), priority: -3 });
        let keep = keep.and(asked(Some(2), 1));
        assert_eq!(keep, Keep { ttl: Some(Duration::from_secs(5)), priority: 1 });
        assert_eq!(keep.and(Lifetime::default()), Keep { ttl: None, priority: 1 });
    }
}
