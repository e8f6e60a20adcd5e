//! Wall-clock time, and time since a fixed moment.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use crate::accounts::ledger::Day;

pub use kvik_memory::clock::unix_seconds;

/// Returns the time since some fixed moment.
pub type Clock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// The last second of a year with four digits, in Unix time.
const LAST_SECOND: u64 = 253_402_300_799;

/// The current time, such as `2026-11-23T10:20:30.123456Z`.
pub(crate) fn now_rfc3339() -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    rfc3339(now.as_secs(), now.subsec_micros())
}

/// A Unix time with microseconds in the same form; later times are clamped to the last second of the year 9999.
pub(crate) fn rfc3339(seconds: u64, micros: u32) -> String {
    let seconds = seconds.min(LAST_SECOND);
    let day = Day::of(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
    let of_day = seconds % (24 * 3600);
    let (hours, minutes, seconds) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{day}T{hours:02}:{minutes:02}:{seconds:02}.{micros:06}Z")
}

/// A duration in words; below a second in milliseconds, so that short ones are not shown as zero seconds.
pub fn spoken(took: Duration) -> String {
    let ms = took.as_secs_f64() * 1e3;
    match ms {
        ..10.0 => format!("{ms:.1} ms"),
        ..1000.0 => format!("{ms:.0} ms"),
        _ => format!("{:.2} s", ms / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_took_a_moment_took_milliseconds() {
        for (us, expect) in
            [(40, "0.0 ms"), (1_230, "1.2 ms"), (43_600, "44 ms"), (999_400, "999 ms"), (2_340_000, "2.34 s")]
        {
            assert_eq!(spoken(Duration::from_micros(us)), expect);
        }
    }

    #[test]
    fn times_are_written_as_clients_read_them() {
        assert_eq!(rfc3339(0, 0), "1970-01-01T00:00:00.000000Z");
        assert_eq!(rfc3339(1_795_429_999, 7), "2026-11-23T10:33:19.000007Z");
        for late in [LAST_SECOND, LAST_SECOND + 1, u64::MAX] {
            assert_eq!(rfc3339(late, 0), "9999-12-31T23:59:59.000000Z");
        }
    }
}
