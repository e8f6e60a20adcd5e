//! Times that a disk keeps, whose clock may have been wrong when they were written, or may be wrong now.

/// Seconds of a day, which begins at midnight UTC.
pub(super) const DAY_S: u64 = 24 * 3600;
/// The beginning of 2020, in days since 1970: a clock that shows an earlier time was never set.
pub(super) const CLOCKS_FROM: u64 = 18_262;

/// Whether a clock that shows this time was ever set.
pub(super) fn is_set(now_s: u64) -> bool {
    now_s / DAY_S >= CLOCKS_FROM
}

/// Whether a time was written by a clock that was far ahead. One that was set back by hours changes nothing.
pub(super) fn was_ahead(written_s: u64, now_s: u64) -> bool {
    is_set(now_s) && written_s > now_s.saturating_add(DAY_S)
}
