//! Limits on stored conversations.

/// Maximum number of conversations of one tenant.
pub(super) const CONVERSATIONS_MAX: usize = 4096;
/// Maximum bytes of all messages and metadata in one tenant's conversations. Answers of running turns may exceed it: they
/// are written all the same.
pub(super) const TENANT_BYTES_MAX: u64 = 256 << 20;
/// Maximum bytes of the messages of one conversation; answers may exceed it too. Every turn reads all of them.
pub(super) const BYTES_MAX: u64 = 32 << 20;
/// Maximum number of messages of one conversation. It is that of one request, so an exported conversation can be sent
/// again.
pub const MESSAGES_MAX: usize = 65_536;
