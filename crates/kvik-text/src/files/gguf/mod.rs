//! GGUF files, versions 2 and 3: an index over bytes that are never copied.
//!
//! Opening reads the header once and checks every count, length, offset and shape against [`GgufLimits`]
//! and the file's length, so that no later lookup reaches outside the file. It never reads tensor values.

mod error;
mod parse;
mod split;
mod value;
pub mod write;

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use kvik_kernels::WeightType;

pub use error::GgufError;
pub use value::ValueType;

use super::FileError;
use super::bytes::FileBytes;
use value::{Array, Value};

/// Maximum sizes and counts in a file.
#[derive(Debug, Clone)]
pub struct GgufLimits {
    /// Metadata keys.
    pub keys: usize,
    /// Bytes of a key.
    pub key_bytes: usize,
    /// Bytes of a string value.
    pub string_bytes: usize,
    /// Elements of an array.
    pub array_len: usize,
    /// Arrays inside arrays.
    pub array_depth: usize,
    /// Tensors.
    pub tensors: usize,
    /// Files of one model.
    pub parts: u64,
    /// Bytes of a tensor's name.
    pub name_bytes: usize,
    /// Dimensions of a tensor.
    pub dims: u32,
    /// Largest alignment of tensor data.
    pub alignment: u64,
}

/// The limits that every file is checked against.
pub const GGUF_LIMITS: GgufLimits = GgufLimits {
    keys: 1 << 16,
    key_bytes: (1 << 16) - 1,
    string_bytes: 1 << 26,
    array_len: 1 << 24,
    array_depth: 4,
    tensors: 1 << 16,
    parts: 4096,
    name_bytes: 256,
    dims: 4,
    alignment: 1 << 20,
};

/// The location and type of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name, as in the file.
    pub name: String,
    /// Storage type.
    pub ty: WeightType,
    /// Product of all dimensions but the fastest.
    pub rows: usize,
    /// The fastest dimension.
    pub cols: usize,
    /// The index of its file, if there are several.
    pub part: usize,
    /// Byte range in that file.
    pub data: Range<usize>,
}

/// An opened GGUF file, or all files of a split one: the metadata of the first and the tensors of all.
#[derive(Debug)]
pub struct Gguf {
    bytes: FileBytes,
    /// The files after the first.
    others: Vec<FileBytes>,
    version: u32,
    keys: Vec<(String, Value)>,
    key_index: HashMap<String, usize>,
    tensors: Vec<TensorInfo>,
    tensor_index: HashMap<String, usize>,
}

impl Gguf {
    /// Maps and checks a file. For a part of a split model, opens all parts: they are in the same directory and
    /// named as by llama.cpp, `NAME-00001-of-00003.gguf`.
    pub fn open(path: &Path) -> Result<Gguf, FileError> {
        let file = Gguf::map(path)?;
        match split::Part::of(&file)? {
            None => Ok(file),
            Some(part) => split::open(path, file, part),
        }
    }

    /// Checks a file in memory, which must be a whole model.
    pub fn from_bytes(bytes: FileBytes) -> Result<Gguf, GgufError> {
        let file = Gguf::one(bytes)?;
        match split::Part::of(&file)? {
            None => Ok(file),
            Some(split::Part { number, count, .. }) => {
                Err(GgufError::Split { part: number + 1, parts: count })
            }
        }
    }

    fn map(path: &Path) -> Result<Gguf, FileError> {
        let bytes = FileBytes::map(path).map_err(|source| FileError::io(path, source))?;
        Ok(Gguf::one(bytes)?)
    }

    /// Parses one file, whether or not it is a whole model.
    fn one(bytes: FileBytes) -> Result<Gguf, GgufError> {
        let header = parse::header(&bytes, &GGUF_LIMITS)?;
        let parse::Header { version, keys, key_index, tensors, tensor_index } = header;
        Ok(Gguf { bytes, others: Vec::new(), version, keys, key_index, tensors, tensor_index })
    }

    /// All files, the first one first.
    pub(crate) fn files(&self) -> impl Iterator<Item = &FileBytes> {
        std::iter::once(&self.bytes).chain(&self.others)
    }

    /// Version of the format.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// All tensors, in the order of the file or files.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// A tensor's description by name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensor_index.get(name).map(|&i| &self.tensors[i])
    }

    /// The bytes of a tensor, shape `[rows, cols]`; `info` belongs to this file.
    pub fn data(&self, info: &TensorInfo) -> &[u8] {
        &self.part(info)[info.data.clone()]
    }

    /// Drops the resident pages of a tensor; a later access reads them again.
    pub fn release(&self, info: &TensorInfo) {
        self.part(info).release(info.data.clone());
    }

    fn part(&self, info: &TensorInfo) -> &FileBytes {
        info.part.checked_sub(1).map_or(&self.bytes, |other| &self.others[other])
    }

    /// The bytes of the file, or of the first of several.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Metadata keys, in the order of the file.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.keys.iter().map(|(key, _)| key.as_str())
    }

    /// Whether a key is present.
    pub fn has(&self, key: &str) -> bool {
        self.key_index.contains_key(key)
    }

    /// A key's value as text for display.
    pub fn describe(&self, key: &str) -> Option<String> {
        Some(match self.value(key)? {
            Value::String(range) => String::from_utf8_lossy(&self.bytes[range.clone()]).into_owned(),
            Value::Unsigned(x) => x.to_string(),
            Value::Signed(x) => x.to_string(),
            Value::Float(x) => x.to_string(),
            other => other.describe(),
        })
    }

    /// Text, `None` when the key is absent.
    pub fn text(&self, key: &str) -> Result<Option<&str>, GgufError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::String(range)) => self.utf8(key, range.clone()).map(Some),
            Some(other) => Err(bad_value(key, other, "text")),
        }
    }

    /// A non-negative integer, `None` when the key is absent.
    pub fn integer(&self, key: &str) -> Result<Option<u64>, GgufError> {
        match self.value(key) {
            None => Ok(None),
            Some(value) => {
                value.as_u64().map(Some).ok_or_else(|| bad_value(key, value, "a non-negative integer"))
            }
        }
    }

    /// A number, `None` when the key is absent.
    pub fn number(&self, key: &str) -> Result<Option<f64>, GgufError> {
        match self.value(key) {
            None => Ok(None),
            Some(value) => value.as_f64().map(Some).ok_or_else(|| bad_value(key, value, "a number")),
        }
    }

    /// A truth value, `None` when the key is absent.
    pub fn boolean(&self, key: &str) -> Result<Option<bool>, GgufError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(*value)),
            Some(other) => Err(bad_value(key, other, "true or false")),
        }
    }

    /// Length of an array, `None` when the key is absent.
    pub fn array_len(&self, key: &str) -> Result<Option<usize>, GgufError> {
        Ok(self.array(key)?.map(|array| array.len))
    }

    /// An array of strings, `None` when the key is absent.
    pub fn strings(&self, key: &str) -> Result<Option<Vec<&str>>, GgufError> {
        let Some(array) = self.array(key)? else { return Ok(None) };
        if array.element != ValueType::String {
            return Err(bad_value(key, &Value::Array(array.clone()), "an array of strings"));
        }
        let mut strings = Vec::with_capacity(array.len);
        let mut at = array.data.start;
        for _ in 0..array.len {
            let head = self.bytes[at..at + 8].try_into().expect("eight bytes");
            // The header walk has checked that the length fits the file.
            let len = u64::from_le_bytes(head) as usize;
            strings.push(self.utf8(key, at + 8..at + 8 + len)?);
            at += 8 + len;
        }
        Ok(Some(strings))
    }

    /// An array of numbers of any width as `f32`, `None` when the key is absent.
    pub fn floats(&self, key: &str) -> Result<Option<Vec<f32>>, GgufError> {
        self.scalars(key, "an array of numbers", |value| value.as_f64().map(|x| x as f32))
    }

    /// An array of integers of any width, `None` when the key is absent.
    pub fn integers(&self, key: &str) -> Result<Option<Vec<i64>>, GgufError> {
        self.scalars(key, "an array of integers", |value| match value {
            Value::Signed(x) => Some(x),
            Value::Unsigned(x) => i64::try_from(x).ok(),
            _ => None,
        })
    }

    /// The common value of an array of integers, such as a count per layer, ignoring zeros if `zeros` is true;
    /// `None` when the key is absent.
    pub fn same_integer(&self, key: &str, zeros: bool) -> Result<Option<u64>, GgufError> {
        let Some(mut values) = self.integers(key)? else { return Ok(None) };
        values.retain(|&value| value != 0 || !zeros);
        let first = values.first().copied().filter(|first| values.iter().all(|value| value == first));
        let one = first.and_then(|first| u64::try_from(first).ok());
        one.map(Some).ok_or_else(|| GgufError::BadValue {
            key: key.into(),
            found: "different values, or none".into(),
            expected: "one non-negative integer for all layers".into(),
        })
    }

    /// An array of truth values, or of integers of which 0 is false; `None` when the key is absent.
    pub fn flags(&self, key: &str) -> Result<Option<Vec<bool>>, GgufError> {
        self.scalars(key, "an array of truth values", |value| match value {
            Value::Bool(value) => Some(value),
            Value::Signed(value) => Some(value != 0),
            Value::Unsigned(value) => Some(value != 0),
            _ => None,
        })
    }

    /// Whether the key's value is an array.
    pub fn is_array(&self, key: &str) -> bool {
        matches!(self.value(key), Some(Value::Array(_)))
    }

    fn scalars<T>(
        &self,
        key: &str,
        expected: &str,
        convert: impl Fn(Value) -> Option<T>,
    ) -> Result<Option<Vec<T>>, GgufError> {
        let Some(array) = self.array(key)? else { return Ok(None) };
        let bad = || bad_value(key, &Value::Array(array.clone()), expected);
        let size = array.element.fixed_bytes().ok_or_else(bad)?;
        let raw = self.bytes[array.data.clone()].chunks_exact(size);
        let values = raw.map(|bytes| scalar(array.element, bytes).and_then(&convert));
        values.collect::<Option<Vec<T>>>().map(Some).ok_or_else(bad)
    }

    fn array(&self, key: &str) -> Result<Option<&Array>, GgufError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Array(array)) => Ok(Some(array)),
            Some(other) => Err(bad_value(key, other, "an array")),
        }
    }

    fn value(&self, key: &str) -> Option<&Value> {
        self.key_index.get(key).map(|&i| &self.keys[i].1)
    }

    fn utf8(&self, key: &str, range: Range<usize>) -> Result<&str, GgufError> {
        let offset = range.start as u64;
        std::str::from_utf8(&self.bytes[range])
            .map_err(|_| GgufError::NotUtf8 { what: format!("metadata key {key:?}"), offset })
    }
}

fn bad_value(key: &str, found: &Value, expected: &str) -> GgufError {
    GgufError::BadValue { key: key.into(), found: found.describe(), expected: expected.into() }
}

/// Decodes an array element; `bytes` has the element's size.
fn scalar(element: ValueType, bytes: &[u8]) -> Option<Value> {
    Some(match element {
        ValueType::U8 => Value::Unsigned(bytes[0].into()),
        ValueType::I8 => Value::Signed((bytes[0] as i8).into()),
        ValueType::U16 => Value::Unsigned(u16::from_le_bytes(bytes.try_into().ok()?).into()),
        ValueType::I16 => Value::Signed(i16::from_le_bytes(bytes.try_into().ok()?).into()),
        ValueType::U32 => Value::Unsigned(u32::from_le_bytes(bytes.try_into().ok()?).into()),
        ValueType::I32 => Value::Signed(i32::from_le_bytes(bytes.try_into().ok()?).into()),
        ValueType::U64 => Value::Unsigned(u64::from_le_bytes(bytes.try_into().ok()?)),
        ValueType::I64 => Value::Signed(i64::from_le_bytes(bytes.try_into().ok()?)),
        ValueType::F32 => Value::Float(f32::from_le_bytes(bytes.try_into().ok()?).into()),
        ValueType::F64 => Value::Float(f64::from_le_bytes(bytes.try_into().ok()?)),
        ValueType::Bool => Value::Bool(bytes[0] != 0),
        ValueType::String | ValueType::Array => return None,
    })
}

#[cfg(test)]
mod tests;
