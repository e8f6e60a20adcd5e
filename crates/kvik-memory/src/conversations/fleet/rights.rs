//! Leases and claims of other nodes, as far as this process knows them.
//!
//! Each ends at a time by the clock of its node, which may be ahead by any amount. So one also ends when it was not
//! renewed for as long as it lasts, by the clock of this process: a node that lives renews it several times meanwhile.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::clock::unix_millis;

/// Maximum number of known rights. Beyond, all are forgotten, and last at most once more from when they are seen again.
const RIGHTS_MAX: usize = 4096;

/// Unexpired rights of other nodes, by the name of their record and their holder.
#[derive(Default)]
pub(in crate::conversations) struct Rights(BTreeMap<String, Seen>);

/// A right, and when this process first saw it with this end.
struct Seen {
    until: u64,
    since: Instant,
}

impl Rights {
    /// Returns whether a right that ends at `until`, in Unix milliseconds, still holds; each lasts `lasts` from its last
    /// renewal on.
    pub(in crate::conversations) fn holds(&mut self, right: &str, until: u64, lasts: Duration) -> bool {
        let now = unix_millis();
        if until <= now {
            self.0.remove(right);
            return false;
        }
        if self.0.len() >= RIGHTS_MAX && !self.0.contains_key(right) {
            self.make_room(now);
        }
        let new = Seen { until, since: Instant::now() };
        match self.0.get(right) {
            Some(seen) if seen.until == until => seen.since.elapsed() < lasts,
            _ => {
                self.0.insert(right.to_owned(), new);
                true
            }
        }
    }

    fn make_room(&mut self, now: u64) {
        self.0.retain(|_, seen| seen.until > now);
        if self.0.len() >= RIGHTS_MAX {
            self.0.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_right_ends_by_its_own_time_and_when_it_is_not_renewed() {
        let (mut rights, lasts) = (Rights::default(), Duration::from_secs(60));
        let (now, hour) = (unix_millis(), 3_600_000);
        assert!(!rights.holds("a", now - 1, lasts), "it has ended");
        assert!(rights.holds("a", now + hour, lasts) && rights.holds("a", now + hour, lasts));
        let age = |rights: &mut Rights| {
            let seen = rights.0.get_mut("a").unwrap();
            seen.since = seen.since.checked_sub(lasts).unwrap();
        };
        age(&mut rights);
        assert!(rights.holds("b", now + hour, lasts), "another");
        assert!(!rights.holds("a", now + hour, lasts), "its node has ended, whatever its clock said");
        assert!(rights.holds("a", now + hour + 1, lasts), "it was renewed");
        age(&mut rights);
        assert!(!rights.holds("a", now + hour + 1, lasts));
    }

    #[test]
    fn known_rights_are_bounded() {
        let (mut rights, end) = (Rights::default(), unix_millis() + 3_600_000);
        for number in 0..3 * RIGHTS_MAX {
            assert!(rights.holds(&number.to_string(), end, Duration::from_secs(60)));
            assert!(rights.0.len() <= RIGHTS_MAX);
        }
    }
}
