//! The number formats in which keys and values are stored.

use std::fmt;
use std::str::FromStr;

/// The storage format of a key or value vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KvFormat {
    /// 32-bit floats, as computed.
    F32,
    /// Half precision.
    F16,
    /// The upper half of an f32.
    Bf16,
    /// Signed 8-bit integers with one scale per head vector, of vectors rotated by a Hadamard matrix.
    Q8,
    /// 6-bit integers with one scale of 8 bits per head vector, of rotated vectors.
    Q6,
    /// As [`KvFormat::Q6`], with 5 bits.
    Q5,
    /// As [`KvFormat::Q6`], with 4 bits.
    Q4,
    /// As [`KvFormat::Q6`], with 3 bits.
    Q3,
}

impl KvFormat {
    /// All formats, from precise to coarse.
    pub const ALL: [KvFormat; 8] = [
        KvFormat::F32,
        KvFormat::F16,
        KvFormat::Bf16,
        KvFormat::Q8,
        KvFormat::Q6,
        KvFormat::Q5,
        KvFormat::Q4,
        KvFormat::Q3,
    ];

    /// The name used on the command line and in a cache's namespace.
    pub fn name(self) -> &'static str {
        match self {
            KvFormat::F32 => "f32",
            KvFormat::F16 => "f16",
            KvFormat::Bf16 => "bf16",
            KvFormat::Q8 => "q8",
            KvFormat::Q6 => "q6",
            KvFormat::Q5 => "q5",
            KvFormat::Q4 => "q4",
            KvFormat::Q3 => "q3",
        }
    }
}

impl fmt::Display for KvFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The error for a name that is not a KV format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown KV format {name:?}: use one of f32, f16, bf16, q8, q6, q5, q4, q3{}", successor(name))]
pub struct UnknownKvFormat {
    name: String,
}

/// The format to use in place of one that earlier versions had.
fn successor(name: &str) -> &'static str {
    match name {
        "q4s" => "; q4 has replaced q4s, with fewer bits and less loss",
        _ => "",
    }
}

impl FromStr for KvFormat {
    type Err = UnknownKvFormat;

    fn from_str(name: &str) -> Result<KvFormat, UnknownKvFormat> {
        let found = KvFormat::ALL.into_iter().find(|format| format.name() == name);
        found.ok_or_else(|| UnknownKvFormat { name: name.to_owned() })
    }
}

/// The formats of keys and of values; as text `f16`, or `q8/q4` where they differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KvFormats {
    /// The format of the keys.
    pub k: KvFormat,
    /// The format of the values.
    pub v: KvFormat,
}

impl From<KvFormat> for KvFormats {
    fn from(format: KvFormat) -> KvFormats {
        KvFormats { k: format, v: format }
    }
}

impl fmt::Display for KvFormats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KvFormats { k, v } if k == v => k.fmt(f),
            KvFormats { k, v } => f.pad(&format!("{k}/{v}")),
        }
    }
}

impl FromStr for KvFormats {
    type Err = UnknownKvFormat;

    fn from_str(text: &str) -> Result<KvFormats, UnknownKvFormat> {
        let (k, v) = text.split_once('/').unwrap_or((text, text));
        Ok(KvFormats { k: k.parse()?, v: v.parse()? })
    }
}

/// The layers' contents as text: runs of equal layers, with their numbers from 0, as in `0-3:f16,4-27:q8/q4`.
pub fn in_runs<T: fmt::Display + PartialEq>(layers: &[T]) -> String {
    let mut first = 0;
    let run = |run: &[T]| {
        let last = first + run.len() - 1;
        let numbers = if first == last { first.to_string() } else { format!("{first}-{last}") };
        first = last + 1;
        format!("{numbers}:{}", run[0])
    };
    layers.chunk_by(PartialEq::eq).map(run).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for format in KvFormat::ALL {
            assert_eq!(format.name().parse(), Ok(format));
        }
        let check = |name: &str, expect: &str| {
            assert_eq!(name.parse::<KvFormat>().unwrap_err().to_string(), expect);
        };
        check("q7", "unknown KV format \"q7\": use one of f32, f16, bf16, q8, q6, q5, q4, q3");
        check(
            "q4s",
            "unknown KV format \"q4s\": use one of f32, f16, bf16, q8, q6, q5, q4, q3; q4 has replaced q4s, with \
             fewer bits and less loss",
        );
    }

    #[test]
    fn names_of_two_formats_are_read_back() {
        for (k, v) in KvFormat::ALL.into_iter().flat_map(|k| KvFormat::ALL.map(|v| (k, v))) {
            let formats = KvFormats { k, v };
            assert_eq!(formats.to_string().parse(), Ok(formats));
            assert_eq!(formats.to_string().contains('/'), k != v);
        }
        for wrong in ["", "/", "q8/", "/q8", "q8/q4/q4", "q8 / q4"] {
            assert!(wrong.parse::<KvFormats>().is_err(), "{wrong}");
        }
    }
}
