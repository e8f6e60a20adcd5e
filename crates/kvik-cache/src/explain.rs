//! The reasons why reuse stops.

use std::time::Duration;

use crate::evict::Policy;

/// Why the cached prefix of a prompt ends where it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StopReason {
    /// The whole prompt was cached.
    Complete,
    /// The next block was never seen in this namespace.
    FirstSeen,
    /// A cached prompt continues differently from here.
    Diverged,
    /// The next block is cached, but the windowed parts needed to resume after it are gone.
    WindowDropped,
    /// The next block is cached, but no recurrent state was stored after it.
    NoStateKept,
    /// The next block was evicted.
    Evicted,
    /// The next block's time to live ended.
    Expired,
    /// The next block was computed with another model.
    OtherModel,
    /// The next block was computed with another KV format.
    OtherKvFormat,
    /// The request is private, or a private request of the same tenant computed the next block.
    Private,
    /// The cached prefix is too short to be worth reusing.
    BelowMinimum,
    /// A running sequence is computing the next block.
    StillComputing,
    /// The request uses retention and computes the next block itself: to observe its attention, or because it reads
    /// a compressed prefix.
    Retained,
    /// The request pools the hidden states of all its tokens, which no tier stores.
    Pooled,
    /// The next block is on disk and could not be read.
    LoadFailed,
    /// The next block is on disk, and recomputing it takes less time than reading it.
    RecomputeWasCheaper,
    /// The remote store might have the next block, but does not answer.
    RemoteDown,
    /// The next block is in the remote store, but did not arrive in time or arrived corrupted.
    RemoteFailed,
    /// The next block is in the remote store, and recomputing it takes less time than fetching it.
    RemoteSlower,
}

impl StopReason {
    /// All reasons.
    pub const ALL: [StopReason; 19] = [
        StopReason::Complete,
        StopReason::FirstSeen,
        StopReason::Diverged,
        StopReason::WindowDropped,
        StopReason::NoStateKept,
        StopReason::Evicted,
        StopReason::Expired,
        StopReason::OtherModel,
        StopReason::OtherKvFormat,
        StopReason::Private,
        StopReason::BelowMinimum,
        StopReason::StillComputing,
        StopReason::Retained,
        StopReason::Pooled,
        StopReason::LoadFailed,
        StopReason::RecomputeWasCheaper,
        StopReason::RemoteDown,
        StopReason::RemoteFailed,
        StopReason::RemoteSlower,
    ];

    /// The reason's name in responses and metrics.
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

/// How a block was evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Eviction {
    /// When it was evicted, on the caller's clock, to a tenth of a second.
    pub at: Duration,
    /// The policy that chose it.
    pub policy: Policy,
}
