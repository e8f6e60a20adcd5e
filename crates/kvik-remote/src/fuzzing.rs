//! Parsers of replies, for `fuzz/fuzz_targets`.

/// Parses bytes from a Redis server, and the replies that pass the limits.
///
/// # Panics
/// If the parser is faulty.
pub fn resp(bytes: &[u8]) {
    crate::backend::fuzz_redis(bytes);
}
