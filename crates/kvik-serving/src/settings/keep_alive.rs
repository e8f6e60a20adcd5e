//! How long an unused model stays in memory: `5m`, `1h30m`, `300`, `forever`.

use std::{fmt, str::FromStr, time::Duration};

use serde::{
    Deserialize, Deserializer,
    de::{self, Unexpected, Visitor},
};

/// How long a model stays in memory unused; for ever with `None`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeepAlive(pub Option<Duration>);

/// Units of time in seconds: those of Go's durations, which Ollama reads, and the day. The sign of micro has two code
/// points.
const UNITS: [(&str, f64); 9] = [
    ("ns", 1e-9),
    ("us", 1e-6),
    ("\u{b5}s", 1e-6),
    ("\u{3bc}s", 1e-6),
    ("ms", 1e-3),
    ("s", 1.0),
    ("m", 60.0),
    ("h", 3600.0),
    ("d", 86400.0),
];

impl KeepAlive {
    /// Whether the model leaves memory at once.
    pub fn unloads(self) -> bool {
        self.0 == Some(Duration::ZERO)
    }

    /// The time of a number of seconds: for ever with a negative one, as in Ollama, and none if it is too large.
    fn of_seconds(seconds: f64) -> Option<KeepAlive> {
        if seconds < 0.0 {
            return Some(KeepAlive(None));
        }
        Duration::try_from_secs_f64(seconds).ok().map(|time| KeepAlive(Some(time)))
    }
}

impl FromStr for KeepAlive {
    type Err = String;

    fn from_str(text: &str) -> Result<KeepAlive, String> {
        if text == "forever" {
            return Ok(KeepAlive(None));
        }
        let sign = if text.starts_with('-') { -1.0 } else { 1.0 };
        let seconds = in_seconds(text.strip_prefix(['-', '+']).unwrap_or(text));
        let bad = || format!("{text:?} is no time; write it like 300, 5m, 1h30m or forever");
        seconds.and_then(|seconds| KeepAlive::of_seconds(sign * seconds)).ok_or_else(bad)
    }
}

/// The sum of numbers with a unit each; the unit of a number alone may be absent, and is the second.
fn in_seconds(text: &str) -> Option<f64> {
    let is_of_number = |c: char| c.is_ascii_digit() || c == '.';
    let (mut sum, mut rest) = (0.0, text);
    loop {
        let (number, behind) = rest.split_at(rest.find(|c: char| !is_of_number(c)).unwrap_or(rest.len()));
        let (unit, behind) = behind.split_at(behind.find(is_of_number).unwrap_or(behind.len()));
        let unit = if number == text { "s" } else { unit };
        let (_, seconds) = UNITS.iter().find(|(name, _)| *name == unit)?;
        sum += number.parse::<f64>().ok()? * seconds;
        if behind.is_empty() {
            return Some(sum);
        }
        rest = behind;
    }
}

impl<'de> Deserialize<'de> for KeepAlive {
    /// Reads a text, or a number of seconds; a negative one means for ever.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<KeepAlive, D::Error> {
        deserializer.deserialize_any(KeepAliveVisitor)
    }
}

struct KeepAliveVisitor;

impl Visitor<'_> for KeepAliveVisitor {
    type Value = KeepAlive;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number of seconds, or a duration such as \"5m\" or \"1h30m\"")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<KeepAlive, E> {
        KeepAlive::from_str(text).map_err(|_| E::invalid_value(Unexpected::Str(text), &self))
    }

    fn visit_u64<E>(self, seconds: u64) -> Result<KeepAlive, E> {
        Ok(KeepAlive(Some(Duration::from_secs(seconds))))
    }

    fn visit_i64<E>(self, seconds: i64) -> Result<KeepAlive, E> {
        Ok(KeepAlive(u64::try_from(seconds).ok().map(Duration::from_secs)))
    }

    fn visit_f64<E: de::Error>(self, seconds: f64) -> Result<KeepAlive, E> {
        KeepAlive::of_seconds(seconds).ok_or_else(|| E::invalid_value(Unexpected::Float(seconds), &self))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn millis(millis: u64) -> KeepAlive {
        KeepAlive(Some(Duration::from_millis(millis)))
    }

    #[test]
    fn times_are_read_as_people_write_them() {
        let check = |text: &str, expect: KeepAlive| assert_eq!(text.parse(), Ok(expect), "{text}");
        check("300", millis(300_000));
        check("5m", millis(300_000));
        check("24h", millis(86_400_000));
        check("2d", millis(172_800_000));
        check("0", millis(0));
        check("forever", KeepAlive(None));
        check("-1", KeepAlive(None));
        check("-1m", KeepAlive(None));
        for text in [
            "",
            "m",
            "5x",
            "5 m",
            "-",
            "+",
            "soon",
            "-forever",
            "--1s",
            ".",
            ".s",
            "1.2.3s",
            "1h30",
            "1e3s",
            "1msec",
            "inf",
            "99999999999999999999",
            "999999999999999999d",
        ] {
            assert!(text.parse::<KeepAlive>().is_err(), "{text}");
        }
    }

    /// The forms of Go's `time.ParseDuration`, which Ollama's clients send.
    #[test]
    fn times_are_read_as_go_writes_them() {
        let check = |text: &str, expect: KeepAlive| assert_eq!(text.parse(), Ok(expect), "{text}");
        check("5m0s", millis(300_000));
        check("1h30m", millis(5_400_000));
        check("100ms", millis(100));
        check("1.5h", millis(5_400_000));
        check(".5s", millis(500));
        check("5.s", millis(5000));
        check("+1s", millis(1000));
        check("1m1m", millis(120_000));
        check("2000us", millis(2));
        check("2000\u{b5}s", millis(2));
        check("2000\u{3bc}s", millis(2));
        check("3000000ns", millis(3));
        check("-1s", KeepAlive(None));
        check("-1h30m", KeepAlive(None));
        check("-0s", millis(0));
    }

    #[test]
    fn json_has_texts_and_numbers_of_seconds() {
        let read = |value: &serde_json::Value| KeepAlive::deserialize(value).ok();
        for (value, expect) in [
            (json!(300), Some(millis(300_000))),
            (json!(300.0), Some(millis(300_000))),
            (json!(0.25), Some(millis(250))),
            (json!(0), Some(millis(0))),
            (json!(-1), Some(KeepAlive(None))),
            (json!(-0.5), Some(KeepAlive(None))),
            (json!(u64::MAX), Some(KeepAlive(Some(Duration::from_secs(u64::MAX))))),
            (json!("1m30s"), Some(millis(90_000))),
            (json!(1e300), None),
            (json!("soon"), None),
            (json!(true), None),
            (json!([5]), None),
            (json!({"s": 5}), None),
        ] {
            assert_eq!(read(&value), expect, "{value}");
        }
    }
}
