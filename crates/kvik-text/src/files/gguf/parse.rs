//! The header walk: from bytes to an index of metadata and tensors.
//!
//! The file is hostile input. A count from the file sizes no allocation before the bytes it counts are
//! known to exist, and all arithmetic on its numbers is checked.

use std::collections::HashMap;
use std::ops::Range;

use kvik_kernels::WeightType;

use super::value::{Array, Value, ValueType};
use super::{GgufError, GgufLimits, TensorInfo};

/// The parsed header. Ranges are bytes of the file.
pub(super) struct Header {
    pub(super) version: u32,
    pub(super) keys: Vec<(String, Value)>,
    pub(super) key_index: HashMap<String, usize>,
    pub(super) tensors: Vec<TensorInfo>,
    pub(super) tensor_index: HashMap<String, usize>,
}

pub(super) fn header(bytes: &[u8], limits: &GgufLimits) -> Result<Header, GgufError> {
    let mut cursor = Cursor { bytes, at: 0, limits };
    let version = magic_and_version(&mut cursor)?;
    let tensor_count = cursor.count("the number of tensors", limits.tensors)?;
    let key_count = cursor.count("the number of metadata keys", limits.keys)?;
    let (keys, key_index) = metadata(&mut cursor, key_count)?;
    let alignment = alignment(&keys, &key_index, limits)?;
    let mut tensors = tensor_infos(&mut cursor, tensor_count)?;
    let data_start = align_up(cursor.at, alignment);
    for (info, offset) in &mut tensors {
        locate(info, *offset, data_start, alignment, bytes.len())?;
    }
    let tensors: Vec<TensorInfo> = tensors.into_iter().map(|(info, _)| info).collect();
    let tensor_index = index_tensors(&tensors)?;
    check_overlap(&tensors)?;
    Ok(Header { version, keys, key_index, tensors, tensor_index })
}

fn magic_and_version(cursor: &mut Cursor<'_>) -> Result<u32, GgufError> {
    let head = &cursor.bytes[..cursor.bytes.len().min(4)];
    if head != b"GGUF" {
        return Err(GgufError::BadMagic { found: head.to_vec() });
    }
    cursor.at = 4;
    match cursor.u32("the version")? {
        version @ (2 | 3) => Ok(version),
        version if matches!(version.swap_bytes(), 1..=0xffff) => Err(GgufError::BigEndian),
        version => Err(GgufError::BadVersion { version }),
    }
}

type Keys = (Vec<(String, Value)>, HashMap<String, usize>);

fn metadata(cursor: &mut Cursor<'_>, count: usize) -> Result<Keys, GgufError> {
    let mut keys = Vec::new();
    let mut index = HashMap::new();
    for i in 0..count {
        let key = cursor.text(&|| format!("metadata key {i}"), cursor.limits.key_bytes)?.to_owned();
        let value_type = cursor.u32(&key)?;
        let Some(value_type) = ValueType::from_id(value_type) else {
            return Err(GgufError::BadValueType { key, value_type });
        };
        let value = cursor.value(&key, value_type)?;
        if index.insert(key.clone(), keys.len()).is_some() {
            return Err(GgufError::DuplicateKey { key });
        }
        keys.push((key, value));
    }
    Ok((keys, index))
}

fn alignment(
    keys: &[(String, Value)],
    index: &HashMap<String, usize>,
    limits: &GgufLimits,
) -> Result<usize, GgufError> {
    const KEY: &str = "general.alignment";
    let Some(&i) = index.get(KEY) else { return Ok(DEFAULT_ALIGNMENT) };
    let value = keys[i].1.as_u64().ok_or_else(|| GgufError::BadValue {
        key: KEY.into(),
        found: keys[i].1.describe(),
        expected: "a positive integer".into(),
    })?;
    if !value.is_power_of_two() || value > limits.alignment {
        return Err(GgufError::BadAlignment { value, limit: limits.alignment });
    }
    Ok(value as usize)
}

pub(super) const DEFAULT_ALIGNMENT: usize = 32;

/// Tensor descriptions and their offsets relative to the tensor data; [`locate`] sets their byte ranges.
fn tensor_infos(cursor: &mut Cursor<'_>, count: usize) -> Result<Vec<(TensorInfo, u64)>, GgufError> {
    let mut tensors = Vec::new();
    for i in 0..count {
        let name = cursor.text(&|| format!("the name of tensor {i}"), cursor.limits.name_bytes)?.to_owned();
        let dim_count = cursor.u32(&name)?;
        if dim_count > cursor.limits.dims {
            let what = format!("the number of dimensions of tensor {name:?}");
            return Err(GgufError::Limit { what, value: dim_count.into(), limit: cursor.limits.dims.into() });
        }
        let dims = (0..dim_count).map(|_| cursor.u64(&name)).collect::<Result<Vec<_>, _>>()?;
        let type_id = cursor.u32(&name)?;
        let offset = cursor.u64(&name)?;
        let Some(ty) = WeightType::from_ggml(type_id) else {
            return Err(GgufError::UnknownTensorType { tensor: name, type_id, known: known_types() });
        };
        let (rows, cols) = shape(&name, &dims, ty)?;
        tensors.push((TensorInfo { name, ty, rows, cols, part: 0, data: 0..0 }, offset));
    }
    Ok(tensors)
}

/// Names of all supported tensor types, for error messages.
fn known_types() -> String {
    let names: Vec<&str> = (0..64).filter_map(WeightType::from_ggml).map(WeightType::name).collect();
    names.join(", ")
}

/// `(rows, cols)` of a tensor; the file's first dimension is the fastest, hence the columns.
fn shape(tensor: &str, dims: &[u64], ty: WeightType) -> Result<(usize, usize), GgufError> {
    let bad = |reason: String| GgufError::BadShape { tensor: tensor.into(), dims: dims.into(), reason };
    let Some((&cols, higher)) = dims.split_first() else {
        return Err(bad("it has no dimension".into()));
    };
    if dims.contains(&0) {
        return Err(bad("a dimension is zero".into()));
    }
    let rows = higher.iter().try_fold(1u64, |product, &d| product.checked_mul(d));
    let rows =
        rows.and_then(|rows| usize::try_from(rows).ok()).ok_or_else(|| bad("it is too large".into()))?;
    let cols = usize::try_from(cols).map_err(|_| bad("it is too large".into()))?;
    if !cols.is_multiple_of(ty.block_len()) {
        return Err(bad(format!("rows of {} come in blocks of {}", ty.name(), ty.block_len())));
    }
    Ok((rows, cols))
}

/// Sets the byte range of a tensor, checked against alignment and the end of the file.
fn locate(
    info: &mut TensorInfo,
    offset: u64,
    data_start: Option<usize>,
    alignment: usize,
    file_len: usize,
) -> Result<(), GgufError> {
    if !offset.is_multiple_of(alignment as u64) {
        return Err(GgufError::Misaligned { tensor: info.name.clone(), offset, alignment: alignment as u64 });
    }
    let range = byte_range(info, offset, data_start);
    match range {
        Some(range) if range.end <= file_len => {
            info.data = range;
            Ok(())
        }
        other => Err(GgufError::OutOfFile {
            tensor: info.name.clone(),
            start: other.as_ref().map_or(offset, |r| r.start as u64),
            end: other.map_or(u64::MAX, |r| r.end as u64),
            file_len: file_len as u64,
        }),
    }
}

fn byte_range(info: &TensorInfo, offset: u64, data_start: Option<usize>) -> Option<Range<usize>> {
    let blocks_per_row = info.cols / info.ty.block_len();
    let bytes = blocks_per_row.checked_mul(info.ty.block_bytes())?.checked_mul(info.rows)?;
    let start = data_start?.checked_add(usize::try_from(offset).ok()?)?;
    Some(start..start.checked_add(bytes)?)
}

pub(super) fn index_tensors(tensors: &[TensorInfo]) -> Result<HashMap<String, usize>, GgufError> {
    let mut index = HashMap::with_capacity(tensors.len());
    for (i, info) in tensors.iter().enumerate() {
        if index.insert(info.name.clone(), i).is_some() {
            return Err(GgufError::DuplicateTensor { tensor: info.name.clone() });
        }
    }
    Ok(index)
}

fn check_overlap(tensors: &[TensorInfo]) -> Result<(), GgufError> {
    let mut order: Vec<&TensorInfo> = tensors.iter().collect();
    order.sort_by_key(|info| info.data.start);
    match order.windows(2).find(|pair| pair[0].data.end > pair[1].data.start) {
        None => Ok(()),
        Some(pair) => Err(GgufError::Overlap { first: pair[0].name.clone(), second: pair[1].name.clone() }),
    }
}

fn align_up(at: usize, alignment: usize) -> Option<usize> {
    at.checked_next_multiple_of(alignment)
}

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    limits: &'a GgufLimits,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, len: usize, what: &dyn Fn() -> String) -> Result<&'a [u8], GgufError> {
        let available = self.bytes.len() - self.at;
        if len > available {
            return Err(GgufError::Truncated {
                what: what(),
                offset: self.at as u64,
                needed: len as u64,
                available: available as u64,
            });
        }
        let taken = &self.bytes[self.at..self.at + len];
        self.at += len;
        Ok(taken)
    }

    fn fixed<const N: usize>(&mut self, what: &str) -> Result<[u8; N], GgufError> {
        let bytes = self.take(N, &|| what.to_owned())?;
        Ok(bytes.try_into().expect("take returns the length asked for"))
    }

    fn u32(&mut self, what: &str) -> Result<u32, GgufError> {
        self.fixed(what).map(u32::from_le_bytes)
    }

    fn u64(&mut self, what: &str) -> Result<u64, GgufError> {
        self.fixed(what).map(u64::from_le_bytes)
    }

    fn count(&mut self, what: &str, limit: usize) -> Result<usize, GgufError> {
        let value = self.u64(what)?;
        within(value, limit, &|| what.to_owned())
    }

    /// A length-prefixed string; returns its bytes as a range of the file.
    fn string(&mut self, what: &dyn Fn() -> String, limit: usize) -> Result<Range<usize>, GgufError> {
        let head = self.take(8, what)?;
        let len = u64::from_le_bytes(head.try_into().expect("take returns the length asked for"));
        let len = within(len, limit, &|| format!("the length of {}", what()))?;
        self.take(len, what)?;
        Ok(self.at - len..self.at)
    }

    fn text(&mut self, what: &dyn Fn() -> String, limit: usize) -> Result<&'a str, GgufError> {
        let range = self.string(what, limit)?;
        let offset = range.start as u64;
        std::str::from_utf8(&self.bytes[range]).map_err(|_| GgufError::NotUtf8 { what: what(), offset })
    }

    fn value(&mut self, key: &str, value_type: ValueType) -> Result<Value, GgufError> {
        Ok(match value_type {
            ValueType::U8 => Value::Unsigned(self.fixed::<1>(key)?[0].into()),
            ValueType::I8 => Value::Signed(i8::from_le_bytes(self.fixed(key)?).into()),
            ValueType::U16 => Value::Unsigned(u16::from_le_bytes(self.fixed(key)?).into()),
            ValueType::I16 => Value::Signed(i16::from_le_bytes(self.fixed(key)?).into()),
            ValueType::U32 => Value::Unsigned(self.u32(key)?.into()),
            ValueType::I32 => Value::Signed(i32::from_le_bytes(self.fixed(key)?).into()),
            ValueType::U64 => Value::Unsigned(self.u64(key)?),
            ValueType::I64 => Value::Signed(i64::from_le_bytes(self.fixed(key)?)),
            ValueType::F32 => Value::Float(f32::from_le_bytes(self.fixed(key)?).into()),
            ValueType::F64 => Value::Float(f64::from_le_bytes(self.fixed(key)?)),
            ValueType::Bool => Value::Bool(self.fixed::<1>(key)?[0] != 0),
            ValueType::String => Value::String(self.string(&|| key.to_owned(), self.limits.string_bytes)?),
            ValueType::Array => Value::Array(self.array(key, self.limits.array_depth)?),
        })
    }

    /// Walks an array to its end, so that later reads of its elements cannot fail.
    fn array(&mut self, key: &str, depth_left: usize) -> Result<Array, GgufError> {
        if depth_left == 0 {
            let limit = self.limits.array_depth as u64;
            return Err(GgufError::Limit {
                what: format!("the nesting of {key:?}"),
                value: limit + 1,
                limit,
            });
        }
        let value_type = self.u32(key)?;
        let Some(element) = ValueType::from_id(value_type) else {
            return Err(GgufError::BadValueType { key: key.into(), value_type });
        };
        let len = self.u64(key)?;
        let len = within(len, self.limits.array_len, &|| format!("the length of array {key:?}"))?;
        let start = self.at;
        match element.fixed_bytes() {
            Some(size) => {
                // `len` is below 2^32 and `size` at most 8, so the product fits.
                self.take(len * size, &|| format!("array {key:?}"))?;
            }
            None => {
                for i in 0..len {
                    let what = || format!("element {i} of array {key:?}");
                    match element {
                        ValueType::String => _ = self.string(&what, self.limits.string_bytes)?,
                        _ => _ = self.array(key, depth_left - 1)?,
                    }
                }
            }
        }
        Ok(Array { element, len, data: start..self.at })
    }
}

fn within(value: u64, limit: usize, what: &dyn Fn() -> String) -> Result<usize, GgufError> {
    match usize::try_from(value) {
        Ok(v) if v <= limit => Ok(v),
        _ => Err(GgufError::Limit { what: what(), value, limit: limit as u64 }),
    }
}
