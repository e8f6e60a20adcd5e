//! Why reuse stopped where it did.

use std::time::Duration;

use crate::evict::Policy;

/// Why the known prefix of a prompt ends where it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StopReason {
    /// The whole prompt was known.
    Complete,
    /// Nothing was ever seen from here on, in this namespace.
    FirstSeen,
    /// A known prompt continues differently from here.
    Diverged,
    /// What comes next is known, and what layers with a window need to go on behind it is not there any more.
    WindowDropped,
    /// What comes next is known, and no state of the recurrent layers was kept behind it.
    NoStateKept,
    /// What comes next was known and has been evicted.
    Evicted,
    /// What comes next was known and has outlived its time to live.
    Expired,
    /// What comes next was computed with another model.
    OtherModel,
    /// What comes next was computed with keys and values in another format.
    OtherKvFormat,
    /// What comes next was computed by the same tenant and kept from being shared.
    Private,
    /// Too little is known to be worth taking over.
    BelowMinimum,
    /// A running sequence is computing what comes next.
    StillComputing,
    /// The request forgets tokens and computes for itself what comes next: to observe what it attends to, or
    /// because it reads what was kept of a prefix.
    Retained,
    /// The request pools the hidden states of all its tokens, which no tier holds.
    Pooled,
    /// What comes next is on disk and could not be read.
    LoadFailed,
    /// What comes next is on disk, and computing it takes less time than reading it.
    RecomputeWasCheaper,
    /// The store that nodes share might have what comes next, and does not answer.
    RemoteDown,
    /// What comes next is in the store that nodes share, and did not come in time, or not as it was written.
    RemoteFailed,
    /// What comes next is in the store that nodes share, and computing it takes less time than fetching it.
    RemoteSlower,
}

impl StopReason {
    /// Its name in answers and metrics.
    pub fn name(self) -> &'static str {
        match self {
            StopReason::Complete => "complete",
            StopReason::FirstSeen => "first_seen",
            StopReason::Diverged => "diverged",
            StopReason::WindowDropped => "window_dropped",
            StopReason::NoStateKept => "no_state_kept",
            StopReason::Evicted => "evicted",
            StopReason::Expired => "expired",
            StopReason::OtherModel => "other_model",
            StopReason::OtherKvFormat => "other_kv_format",
            StopReason::Private => "other_tenant_or_private",
            StopReason::BelowMinimum => "below_minimum",
            StopReason::StillComputing => "still_computing",
            StopReason::Retained => "retained",
            StopReason::Pooled => "pooled",
            StopReason::LoadFailed => "load_failed",
            StopReason::RecomputeWasCheaper => "recompute_was_cheaper",
            StopReason::RemoteDown => "remote_down",
            StopReason::RemoteFailed => "remote_failed",
            StopReason::RemoteSlower => "remote_slower",
        }
    }
}

/// How a block came to be evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Eviction {
    /// When, on the caller's clock, to a tenth of a second.
    pub at: Duration,
    /// The policy that chose it.
    pub policy: Policy,
}
