//! How long an unused model stays in memory: `5m`, `300`, `1h`, `forever`.

use std::{str::FromStr, time::Duration};

use serde::{Deserialize, Deserializer, de};

/// How long a model stays in memory unused; for ever with `None`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeepAlive(pub Option<Duration>);

/// Units of time in seconds.
const UNITS: [(&str, u64); 5] = [("", 1), ("s", 1), ("m", 60), ("h", 3600), ("d", 86400)];

impl FromStr for KeepAlive {
    type Err = String;

    fn from_str(text: &str) -> Result<KeepAlive, String> {
        // Ollama denotes for ever by a negative number.
        if text == "forever"
            || text.starts_with('-') && text[1..].trim_end_matches(['s', 'm', 'h']).parse::<u64>().is_ok()
        {
            return Ok(KeepAlive(None));
        }
        let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let unit = UNITS.iter().find(|(name, _)| *name == &text[end..]);
        let seconds = text[..end]
            .parse()
            .ok()
            .zip(unit)
            .and_then(|(count, (_, unit)): (u64, _)| count.checked_mul(*unit));
        let bad = || format!("{text:?} is no time; write it like 300, 5m, 1h or forever");
        seconds.map(|seconds| KeepAlive(Some(Duration::from_secs(seconds)))).ok_or_else(bad)
    }
}

impl<'de> Deserialize<'de> for KeepAlive {
    /// Parses a text, or a number of seconds; a negative one means for ever.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<KeepAlive, D::Error> {
        let value = serde_json::Value::deserialize(deserializer)?;
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        text.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_people_write_them() {
        let check = |text: &str, expect: Option<u64>| {
            assert_eq!(text.parse(), Ok(KeepAlive(expect.map(Duration::from_secs))), "{text}");
        };
        check("300", Some(300));
        check("5m", Some(300));
        check("24h", Some(86400));
        check("0", Some(0));
        check("forever", None);
        check("-1", None);
        check("-1m", None);
        for text in ["", "m", "5x", "5 m", "-", "soon", "99999999999999999999", "999999999999999999d"] {
            assert!(text.parse::<KeepAlive>().is_err(), "{text}");
        }
    }
}
