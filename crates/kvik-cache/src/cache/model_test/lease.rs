//! Leases for copies: they hold prefixes and change nothing of their retention.

use super::World;

impl World {
    /// Leases a prefix for some steps, or ends the lease.
    pub(super) fn lease_or_release(&mut self) {
        if let Some(seq) = self.leased.take() {
            self.cache.abandon(seq);
            self.tell();
            return self.naive.abandon(seq);
        }
        let (seq, (namespace, prompt)) = (self.new_seq(), self.some_place());
        let held = self.cache.lease(seq, namespace, &prompt);
        assert_eq!(held, self.naive.lease(seq, namespace, &prompt), "lease of {prompt:?}");
        self.leased = Some(seq);
        self.seen.note("leased", u64::from(held > 0));
    }
}
