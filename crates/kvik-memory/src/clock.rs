//! The wall clock.

use std::time::SystemTime;

/// Seconds since 1970; 0 if the clock is set to an earlier time.
pub fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// Milliseconds since 1970; 0 if the clock is set to an earlier time.
pub fn unix_millis() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64)
}
