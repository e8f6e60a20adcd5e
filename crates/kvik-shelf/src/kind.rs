//! The kind of a file on the shelf, from the header of a GGUF file or the files of a directory.

use std::{fs::File, io::Read, path::Path};

use serde::{Deserialize, Serialize};

/// The kind of thing that a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A model for generation, drafting or embeddings.
    Model,
    /// A LoRA adapter.
    Adapter,
}

impl Kind {
    /// `model` or `adapter`.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Model => "model",
            Kind::Adapter => "adapter",
        }
    }

    /// The kind of the file or directory at a path: an adapter if it is marked as such, otherwise a model.
    pub(crate) fn of(path: &Path) -> Kind {
        let adapter = match path.is_dir() {
            true => path.join("adapter_config.json").is_file(),
            false => general_type(path).is_some_and(|value| value == b"adapter"),
        };
        if adapter { Kind::Adapter } else { Kind::Model }
    }
}

/// Returns whether the file begins with the GGUF magic.
pub(crate) fn is_gguf(path: &Path) -> bool {
    let mut magic = [0; 4];
    File::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok() && &magic == b"GGUF"
}

/// Bytes of a header that are read: the kind is among the first keys, before the vocabulary.
const HEADER_BYTES: u64 = 64 << 10;
const STRING: u32 = 8;

/// The value of `general.type`, if it is among the keys before the first array.
fn general_type(path: &Path) -> Option<Vec<u8>> {
    let mut header = Vec::new();
    File::open(path).ok()?.take(HEADER_BYTES).read_to_end(&mut header).ok()?;
    let mut rest = header.strip_prefix(b"GGUF")?;
    take(&mut rest, 4 + 8)?;
    let keys = u64::from_le_bytes(take(&mut rest, 8)?.try_into().ok()?);
    for _ in 0..keys {
        let key = string(&mut rest)?;
        let ty = u32::from_le_bytes(take(&mut rest, 4)?.try_into().ok()?);
        let value = match ty {
            STRING => string(&mut rest)?,
            0 | 1 | 7 => take(&mut rest, 1)?,
            2 | 3 => take(&mut rest, 2)?,
            4..=6 => take(&mut rest, 4)?,
            10..=12 => take(&mut rest, 8)?,
            _ => return None,
        };
        if key == b"general.type" && ty == STRING {
            return Some(value.to_vec());
        }
    }
    None
}

fn string<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = u64::from_le_bytes(take(rest, 8)?.try_into().ok()?);
    take(rest, usize::try_from(len).ok()?)
}

fn take<'a>(rest: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(len)?;
    *rest = left;
    Some(taken)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test may fail where it stands
mod tests {
    use super::*;

    fn text(out: &mut Vec<u8>, text: &str) {
        out.extend((text.len() as u64).to_le_bytes());
        out.extend(text.as_bytes());
    }

    fn header(kind: &str) -> Vec<u8> {
        let mut out = b"GGUF\x03\0\0\0".to_vec();
        out.extend(0u64.to_le_bytes());
        out.extend(2u64.to_le_bytes());
        text(&mut out, "general.quantization_version");
        out.extend(4u32.to_le_bytes());
        out.extend(2u32.to_le_bytes());
        text(&mut out, "general.type");
        out.extend(STRING.to_le_bytes());
        text(&mut out, kind);
        out
    }

    #[test]
    fn files_say_whether_they_are_adapters() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.gguf");
        let check = |bytes: &[u8], expect: Kind| {
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(Kind::of(&path), expect);
        };
        check(&header("adapter"), Kind::Adapter);
        check(&header("model"), Kind::Model);
        // No prefix of it, and no hostile header, does any harm.
        (0..header("adapter").len()).for_each(|len| check(&header("adapter")[..len], Kind::Model));
        let mut hostile = header("adapter");
        hostile[24..32].fill(0xff);
        check(&hostile, Kind::Model);
        assert_eq!(Kind::of(&kvik_testing::tiny_model()), Kind::Model);
        std::fs::write(dir.path().join("adapter_config.json"), "{}").unwrap();
        assert_eq!(Kind::of(dir.path()), Kind::Adapter);
    }
}
