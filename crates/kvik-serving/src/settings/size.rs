//! Byte sizes in human-readable form: `512MiB`, `2GiB`, `1.5 GB`, `4096B`.
//!
//! The unit is mandatory. Programs disagree about a bare number: `--cache-ram 2` could mean two bytes, two mebibytes as
//! in llama-server, or the two gibibytes that its user expects.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, de};

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

/// Units and their bytes; a bare letter is a binary unit, as in llama.cpp.
const UNITS: [(&str, u64); 13] = [
    ("b", 1),
    ("k", 1 << 10),
    ("kib", 1 << 10),
    ("kb", 1_000),
    ("m", 1 << 20),
    ("mib", 1 << 20),
    ("mb", 1_000_000),
    ("g", 1 << 30),
    ("gib", 1 << 30),
    ("gb", 1_000_000_000),
    ("t", 1 << 40),
    ("tib", 1 << 40),
    ("tb", 1_000_000_000_000),
];

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = (&text[..end], text[end..].trim().to_ascii_lowercase());
        let bad = || format!("`{text}` is not a size; write it like 512MiB or 2GiB");
        let value: f64 = number.parse().map_err(|_| bad())?;
        if unit.is_empty() {
            return Err(format!(
                "`{text}` has no unit; write {number}GiB, {number}MiB, or {number}B for bytes"
            ));
        }
        let scale = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(bad)?.1;
        let bytes = value * scale as f64;
        // 2^53: an f64 represents every smaller whole number of bytes exactly, and no machine has more.
        if !(1.0..9.0e15).contains(&bytes) {
            return Err(format!("`{text}` is out of range; write a size like 512MiB or 2GiB"));
        }
        Ok(ByteSize(bytes.round() as u64))
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, scale) = match self.0 {
            n if n >= 1 << 40 => ("TiB", 1u64 << 40),
            n if n >= 1 << 30 => ("GiB", 1 << 30),
            n if n >= 1 << 20 => ("MiB", 1 << 20),
            n if n >= 1 << 10 => ("KiB", 1 << 10),
            n => return write!(f, "{n} B"),
        };
        if self.0.is_multiple_of(scale) {
            write!(f, "{} {unit}", self.0 / scale)
        } else {
            write!(f, "{:.1} {unit}", self.0 as f64 / scale as f64)
        }
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    /// A string with a unit, as on the command line.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = ByteSize;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size with its unit, like \"2GiB\"")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<ByteSize, E> {
                text.parse().map_err(E::custom)
            }
            fn visit_i64<E: de::Error>(self, number: i64) -> Result<ByteSize, E> {
                number.to_string().parse().map_err(E::custom)
            }
            fn visit_u64<E: de::Error>(self, number: u64) -> Result<ByteSize, E> {
                number.to_string().parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_what_people_write() {
        let check = |text: &str, bytes: u64| assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        check("1B", 1);
        check("4096 B", 4096);
        check("2GiB", 2 << 30);
        check("2gib", 2 << 30);
        check("2 GiB", 2 << 30);
        check("2G", 2 << 30);
        check("2GB", 2_000_000_000);
        check("1.5MiB", 3 << 19);
        check("512k", 512 << 10);
        check(" 1TiB ", 1 << 40);
    }

    #[test]
    fn refuses_other_texts() {
        for text in ["", "GiB", "0", "-1GiB", "2XiB", "1.2.3MiB", "nan", "inf", "1eB", "99999999TiB", "2GiB4"]
        {
            let error = text.parse::<ByteSize>().expect_err(text);
            assert!(error.contains("GiB"), "{error} shows how to write it");
        }
    }

    #[test]
    fn a_number_without_a_unit_is_refused_with_the_units_it_may_have() {
        for number in ["1", "2", "8192", "1.5", "4294967296"] {
            let error = number.parse::<ByteSize>().expect_err(number);
            for remedy in ["GiB", "MiB", "B for bytes"] {
                assert!(error.contains(&format!("{number}{remedy}")), "{error}");
            }
        }
        for json in ["2", "4294967296", "-1"] {
            assert!(serde_json::from_str::<ByteSize>(json).is_err(), "{json}");
        }
        assert_eq!(serde_json::from_str::<ByteSize>("\"2GiB\"").unwrap(), ByteSize(2 << 30));
    }

    #[test]
    fn prints_back() {
        let check = |bytes: u64, text: &str| assert_eq!(ByteSize(bytes).to_string(), text);
        check(17, "17 B");
        check(2 << 30, "2 GiB");
        check(3 << 19, "1.5 MiB");
        check(1_234_567, "1.2 MiB");
    }
}
