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
    /// A higher priority for a while.
    pub raised: Option<RaisedPriority>,
    /// Whether its prompt is to be pinned: never evicted, until it is unpinned. A pin can be refused, so the owner
    /// of the sequence requests it, by [`Cache::pin`](crate::Cache::pin), and informs the client. A partial last
    /// block is not covered: it may still be replaced by a fuller one.
    pub pin: bool,
}

impl Lifetime {
    /// Asks for nothing: what is used with it is retained as its other users have asked.
    pub(crate) const NOTHING: Lifetime =
        Lifetime { ttl: Some(Duration::ZERO), priority: i8::MIN, raised: None, pin: false };
}

/// A priority that ends: from then on the prefix has its other one, and competes with others by policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RaisedPriority {
    /// The priority, where it is above [`Lifetime::priority`].
    pub priority: i8,
    /// How long after the last use of the prefix.
    pub lasts: Duration,
}

/// The strongest retention that the users of a node have asked for so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Keep {
    /// The longest time to live.
    pub(crate) ttl: Option<Duration>,
    /// The highest priority that does not end.
    priority: i8,
    /// The highest priority of those that end, for the longest time of any.
    pub(crate) raised: Option<RaisedPriority>,
}

impl Keep {
    /// The identity of [`and`](Keep::and): no user has asked for anything yet.
    pub(crate) const NOTHING: Keep = Keep { ttl: Some(Duration::ZERO), priority: i8::MIN, raised: None };

    /// The stronger of both, in each respect.
    pub(crate) fn and(self, asked: Lifetime) -> Keep {
        let ttl = self.ttl.zip(asked.ttl).map(|(kept, asked)| kept.max(asked));
        let raised = RaisedPriority::either(self.raised, asked.raised);
        Keep { ttl, priority: self.priority.max(asked.priority), raised }
    }

    /// Combines two retentions.
    pub(crate) fn join(self, other: Keep) -> Keep {
        let Keep { ttl, priority, raised } = other;
        self.and(Lifetime { ttl, priority, raised, pin: false })
    }

    /// The priority while the raised one has not ended.
    pub(crate) fn priority(self) -> i8 {
        self.raised.map_or(self.priority, |raised| raised.priority.max(self.priority))
    }

    /// What is left when the raised priority has ended.
    pub(crate) fn lowered(self) -> Keep {
        Keep { raised: None, ..self }
    }
}

impl RaisedPriority {
    /// The stronger of both, in each respect.
    pub fn either(one: Option<RaisedPriority>, other: Option<RaisedPriority>) -> Option<RaisedPriority> {
        let (Some(first), Some(second)) = (one, other) else { return one.or(other) };
        let (priority, lasts) = (first.priority.max(second.priority), first.lasts.max(second.lasts));
        Some(RaisedPriority { priority, lasts })
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
            raised: None,
            pin: false,
        };
        let raised = None;
        let keep = Keep::NOTHING.and(asked(Some(5), -3));
        assert_eq!(keep, Keep { ttl: Some(Duration::from_secs(5)), priority: -3, raised });
        let keep = keep.and(asked(Some(2), 1));
        assert_eq!(keep, Keep { ttl: Some(Duration::from_secs(5)), priority: 1, raised });
        assert_eq!(keep.and(Lifetime::NOTHING), keep);
        assert_eq!(keep.and(Lifetime::default()), Keep { ttl: None, priority: 1, raised });
    }

    #[test]
    fn a_raised_priority_ends_and_the_other_is_left() {
        let raised = |priority, secs| Lifetime {
            raised: Some(RaisedPriority { priority, lasts: Duration::from_secs(secs) }),
            ..Lifetime::default()
        };
        let keep = Keep::NOTHING.and(raised(25, 3600)).and(raised(50, 300)).and(Lifetime::default());
        assert_eq!((keep.priority(), keep.lowered().priority()), (50, 0));
        assert_eq!(keep.raised.map(|raised| raised.lasts), Some(Duration::from_secs(3600)));
        assert_eq!(keep.and(Lifetime { priority: 60, ..Lifetime::default() }).priority(), 60);
        assert_eq!(Keep::NOTHING.join(keep), keep);
    }
}
