//! How much is kept.

/// Conversations of one tenant at most.
pub(super) const CONVERSATIONS_MAX: usize = 4096;
/// Bytes of all that was said in one tenant's conversations, at most. The answers of turns that run may go beyond it:
/// they are written down all the same.
pub(super) const TENANT_BYTES_MAX: u64 = 256 << 20;
/// Bytes of what was said in one conversation at most, likewise: every turn reads all of it.
pub(super) const BYTES_MAX: u64 = 32 << 20;
/// Messages of one conversation at most, as of one request: what is exported can be sent again.
pub const MESSAGES_MAX: usize = 65_536;
