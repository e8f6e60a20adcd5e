//! Arguments of a call that are emitted before the call is complete.

use super::json::Balance;

/// The progress of emitting the arguments of an incomplete call.
#[derive(Debug)]
pub(super) struct Sent {
    /// Offset in the pending text after the emitted part.
    pub(super) until: usize,
    /// Number of emitted bytes of the arguments.
    pub(super) bytes: usize,
    balance: Balance,
    /// Whether all arguments have been emitted.
    complete: bool,
}

impl Sent {
    /// Nothing is emitted of arguments that begin at byte `until` of the pending text.
    pub(super) fn before(until: usize) -> Sent {
        Sent { until, bytes: 0, balance: Balance::default(), complete: false }
    }

    /// The arguments that have arrived in the pending text since the last time.
    pub(super) fn more<'t>(&mut self, pending: &'t str) -> &'t str {
        if self.complete {
            return "";
        }
        let (new, is_whole) = self.balance.part_of(&pending[self.until..]);
        self.complete = is_whole;
        self.until += new.len();
        self.bytes += new.len();
        new
    }
}
