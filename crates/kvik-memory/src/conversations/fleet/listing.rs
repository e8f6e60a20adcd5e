//! The last listing of the store: the latest changes of all conversations.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::record::tenant_tag;
use crate::clock::unix_seconds;
use crate::conversations::head::ConversationKey;

/// Time for which a deletion is remembered: a node that was away for longer may restore its copy.
const REMEMBERED_SECONDS: u64 = 30 * 24 * 3600;
/// Minimum time for which a process knows a deletion before it removes the mark. The mark's own time is that of another
/// node's clock, which may be years behind; meanwhile the nodes that are not away hear of the deletion.
const KNOWN_MIN: Duration = Duration::from_secs(24 * 3600);

/// Ids of a tenant's conversations, with the stamps that are listed for each.
pub(in crate::conversations) type Changes = BTreeMap<String, Vec<u64>>;

/// Last listing of the store.
#[derive(Default)]
pub(in crate::conversations) struct Listing {
    pub(in crate::conversations) read: Option<Instant>,
    /// Changes by the tag of the tenant.
    pub(in crate::conversations) of: BTreeMap<String, Changes>,
    /// Deleted conversations of which the store has a mark.
    pub(in crate::conversations) gone: BTreeMap<ConversationKey, Gone>,
    /// When the records of names were last swept.
    pub(in crate::conversations) swept: Option<Instant>,
    /// The record of a name after which the next sweep begins.
    pub(in crate::conversations) swept_to: String,
}

/// The mark of a deletion, as this process knows it.
#[derive(Debug, Clone, Copy)]
pub(in crate::conversations) struct Gone {
    /// Identity of the change.
    pub(in crate::conversations) stamp: u64,
    /// Time of the deletion by the clock of its node, in Unix seconds.
    at: u64,
    /// Time at which this process first read the mark.
    pub(in crate::conversations) since: Instant,
}

impl Listing {
    /// Notes the changes that were read just now.
    pub(in crate::conversations) fn note(&mut self, of: BTreeMap<String, Changes>) {
        let has_mark = |key: &ConversationKey| of.get(&tenant_tag(&key.tenant))?.get(&key.id);
        self.gone.retain(|key, _| has_mark(key).is_some());
        (self.of, self.read) = (of, Some(Instant::now()));
    }

    /// Notes the mark of a deletion that was read from the store.
    pub(in crate::conversations) fn note_gone(&mut self, key: &ConversationKey, stamp: u64, at: u64) -> Gone {
        let read = Gone { stamp, at, since: Instant::now() };
        let known = self.gone.entry(key.clone()).or_insert(read);
        if known.stamp != stamp {
            *known = read;
        }
        *known
    }
}

impl Gone {
    /// True if the mark may be removed: no node that was not away for long has an old copy.
    pub(in crate::conversations) fn is_old(&self, now: Instant) -> bool {
        let is_long_known = now.saturating_duration_since(self.since) >= KNOWN_MIN;
        is_long_known && unix_seconds().saturating_sub(self.at) > REMEMBERED_SECONDS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deletion_whose_mark_has_left_the_store_is_forgotten() {
        let (mut listing, id) = (Listing::default(), "conv_1".to_owned());
        let key = |tenant: &str| ConversationKey { tenant: tenant.to_owned(), id: id.clone() };
        for tenant in ["a", "b"] {
            listing.note_gone(&key(tenant), 1, 1);
        }
        listing.note(BTreeMap::from([(tenant_tag("a"), Changes::from([(id.clone(), vec![1])]))]));
        assert_eq!(listing.gone.keys().collect::<Vec<_>>(), [&key("a")]);
    }

    #[test]
    fn a_deletion_is_forgotten_when_both_clocks_say_that_it_is_old() {
        let (mut listing, now) = (Listing::default(), unix_seconds());
        let key = ConversationKey { tenant: "a".to_owned(), id: "conv_1".to_owned() };
        let month = REMEMBERED_SECONDS + 9;
        for (stamp, at, known, is_old) in [
            (1, 1, Duration::ZERO, false),
            (2, 1, KNOWN_MIN, true),
            (3, now - month, KNOWN_MIN, true),
            (4, now - month / 2, KNOWN_MIN, false),
            (5, now + month, KNOWN_MIN * 99, false),
        ] {
            let gone = listing.note_gone(&key, stamp, at);
            assert_eq!(gone.is_old(gone.since + known), is_old, "{gone:?}");
            assert_eq!(listing.note_gone(&key, stamp, at).since, gone.since, "known since it was first read");
        }
    }
}
