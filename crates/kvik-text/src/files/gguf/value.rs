//! Metadata values: small ones by value, text and arrays as ranges of the file.

use std::ops::Range;

/// Type of a metadata value, as numbered in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ValueType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    String,
    Array,
    U64,
    I64,
    F64,
}

impl ValueType {
    /// The type with this number.
    pub fn from_id(id: u32) -> Option<ValueType> {
        use ValueType::*;
        const ALL: [ValueType; 13] = [U8, I8, U16, I16, U32, I32, F32, Bool, String, Array, U64, I64, F64];
        ALL.get(usize::try_from(id).ok()?).copied()
    }

    /// The number of this type in a file.
    pub fn id(self) -> u32 {
        self as u32
    }

    /// Bytes of one value; `None` for text and arrays.
    pub fn fixed_bytes(self) -> Option<usize> {
        match self {
            ValueType::U8 | ValueType::I8 | ValueType::Bool => Some(1),
            ValueType::U16 | ValueType::I16 => Some(2),
            ValueType::U32 | ValueType::I32 | ValueType::F32 => Some(4),
            ValueType::U64 | ValueType::I64 | ValueType::F64 => Some(8),
            ValueType::String | ValueType::Array => None,
        }
    }
}

/// A metadata value. Ranges are bytes of the file and were checked to be inside it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    String(Range<usize>),
    Array(Array),
}

/// An array: `len` elements of one type, stored in `data`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Array {
    pub(crate) element: ValueType,
    pub(crate) len: usize,
    pub(crate) data: Range<usize>,
}

impl Value {
    /// A description for error messages.
    pub(crate) fn describe(&self) -> String {
        match self {
            Value::Unsigned(x) => format!("the integer {x}"),
            Value::Signed(x) => format!("the integer {x}"),
            Value::Float(x) => format!("the number {x}"),
            Value::Bool(x) => format!("{x}"),
            Value::String(_) => "a string".into(),
            Value::Array(array) => format!("an array of {} {:?}", array.len, array.element),
        }
    }

    /// The value as a non-negative integer, if it is one.
    pub(crate) fn as_u64(&self) -> Option<u64> {
        match *self {
            Value::Unsigned(x) => Some(x),
            Value::Signed(x) => u64::try_from(x).ok(),
            _ => None,
        }
    }

    /// The value as a number.
    pub(crate) fn as_f64(&self) -> Option<f64> {
        match *self {
            Value::Unsigned(x) => Some(x as f64),
            Value::Signed(x) => Some(x as f64),
            Value::Float(x) => Some(x),
            _ => None,
        }
    }
}
