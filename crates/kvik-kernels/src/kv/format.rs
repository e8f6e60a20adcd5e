//! The number formats in which keys and values are stored.

use std::fmt;
use std::str::FromStr;

/// How a key or value vector is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KvFormat {
    /// As computed.
    F32,
    /// Half precision.
    F16,
    /// The upper half of an f32.
    Bf16,
    /// Signed 8-bit integers with one scale per head vector, of vectors rotated by a Hadamard matrix.
    Q8,
    /// 4-bit integers with a scale and a minimum per 32 dimensions, of rotated vectors.
    Q4,
}

impl KvFormat {
    /// All formats, from precise to coarse.
    pub const ALL: [KvFormat; 5] = [KvFormat::F32, KvFormat::F16, KvFormat::Bf16, KvFormat::Q8, KvFormat::Q4];

    /// The name used on the command line and in a cache's namespace.
    pub fn name(self) -> &'static str {
        match self {
            KvFormat::F32 => "f32",
            KvFormat::F16 => "f16",
            KvFormat::Bf16 => "bf16",
            KvFormat::Q8 => "q8",
            KvFormat::Q4 => "q4",
        }
    }
}

impl fmt::Display for KvFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that is no KV format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown KV format {0:?}: use one of f32, f16, bf16, q8, q4")]
pub struct UnknownKvFormat(String);

impl FromStr for KvFormat {
    type Err = UnknownKvFormat;

    fn from_str(name: &str) -> Result<KvFormat, UnknownKvFormat> {
        let found = KvFormat::ALL.into_iter().find(|format| format.name() == name);
        found.ok_or_else(|| UnknownKvFormat(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for format in KvFormat::ALL {
            assert_eq!(format.name().parse(), Ok(format));
        }
        let error = "q5".parse::<KvFormat>().unwrap_err();
        assert_eq!(error.to_string(), "unknown KV format \"q5\": use one of f32, f16, bf16, q8, q4");
    }
}
