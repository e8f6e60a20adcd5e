//! Readers of replies, for `fuzz/fuzz_targets`.

/// Follows bytes that a Redis sends, and reads the replies that the limits let through.
///
/// # Panics
/// Where the reader has a fault.
pub fn resp(bytes: &[u8]) {
    crate::backend::fuzz_redis(bytes);
}
