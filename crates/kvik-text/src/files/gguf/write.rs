//! Writes GGUF version 3, for tests and for tools that create small models.

use kvik_kernels::WeightType;

use super::parse::DEFAULT_ALIGNMENT;
use super::value::ValueType;

/// Collects metadata and tensors, then writes them as one file.
///
/// ```
/// use kvik_text::files::gguf::write::GgufWriter;
/// use kvik_kernels::WeightType;
///
/// let mut writer = GgufWriter::new();
/// writer.text("general.architecture", "llama").u32("llama.block_count", 1);
/// writer.tensor("output_norm.weight", WeightType::F32, &[2], &[0; 8]);
/// assert_eq!(&writer.to_bytes()[..4], b"GGUF");
/// ```
#[derive(Debug, Clone, Default)]
pub struct GgufWriter {
    keys: Vec<u8>,
    key_count: u64,
    tensors: Vec<u8>,
    tensor_count: u64,
    /// Length of the data of all tensors, those that are only declared included.
    data_bytes: u64,
    data: Vec<u8>,
}

impl GgufWriter {
    /// The data of a tensor begins at a multiple of so many bytes.
    pub const ALIGNMENT: usize = DEFAULT_ALIGNMENT;

    /// An empty file.
    pub fn new() -> GgufWriter {
        GgufWriter::default()
    }

    /// Adds text.
    pub fn text(&mut self, key: &str, value: &str) -> &mut GgufWriter {
        self.key(key, ValueType::String);
        put_string(&mut self.keys, value.as_bytes());
        self
    }

    /// Adds an unsigned integer.
    pub fn u32(&mut self, key: &str, value: u32) -> &mut GgufWriter {
        self.key(key, ValueType::U32);
        self.keys.extend(value.to_le_bytes());
        self
    }

    /// Adds a number.
    pub fn f32(&mut self, key: &str, value: f32) -> &mut GgufWriter {
        self.key(key, ValueType::F32);
        self.keys.extend(value.to_le_bytes());
        self
    }

    /// Adds a truth value.
    pub fn boolean(&mut self, key: &str, value: bool) -> &mut GgufWriter {
        self.key(key, ValueType::Bool);
        self.keys.push(value.into());
        self
    }

    /// Adds an array of strings.
    pub fn texts(&mut self, key: &str, values: &[impl AsRef<str>]) -> &mut GgufWriter {
        self.array(key, ValueType::String, values.len());
        for value in values {
            put_string(&mut self.keys, value.as_ref().as_bytes());
        }
        self
    }

    /// Adds an array of numbers.
    pub fn f32s(&mut self, key: &str, values: &[f32]) -> &mut GgufWriter {
        self.array(key, ValueType::F32, values.len());
        self.keys.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        self
    }

    /// Adds an array of integers.
    pub fn i32s(&mut self, key: &str, values: &[i32]) -> &mut GgufWriter {
        self.array(key, ValueType::I32, values.len());
        self.keys.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        self
    }

    /// Adds a tensor. `shape` is `[rows, cols]`, outermost first; `data` is its blocks.
    ///
    /// # Panics
    /// If GGUF lacks the type.
    pub fn tensor(&mut self, name: &str, ty: WeightType, shape: &[usize], data: &[u8]) -> &mut GgufWriter {
        let start = self.data_bytes as usize;
        assert_eq!(start, self.data.len(), "tensors are added after none was declared");
        self.declare(name, ty, shape, data.len() as u64);
        self.data.extend(data);
        pad(&mut self.data);
        self
    }

    /// Adds a tensor of `bytes` bytes whose data the caller writes behind [`GgufWriter::to_bytes`], in the order of
    /// declarations, each padded with zeros to [`GgufWriter::ALIGNMENT`]: for models that are larger than memory.
    ///
    /// # Panics
    /// If GGUF lacks the type.
    pub fn declare(&mut self, name: &str, ty: WeightType, shape: &[usize], bytes: u64) -> &mut GgufWriter {
        put_string(&mut self.tensors, name.as_bytes());
        self.tensors.extend((shape.len() as u32).to_le_bytes());
        for &dim in shape.iter().rev() {
            self.tensors.extend((dim as u64).to_le_bytes());
        }
        self.tensors.extend(ty.ggml().expect("a type of GGUF").to_le_bytes());
        self.tensors.extend(self.data_bytes.to_le_bytes());
        self.tensor_count += 1;
        self.data_bytes = (self.data_bytes + bytes).next_multiple_of(DEFAULT_ALIGNMENT as u64);
        self
    }

    /// The whole file; without the data of tensors that are only declared.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(b"GGUF");
        out.extend(3u32.to_le_bytes());
        out.extend(self.tensor_count.to_le_bytes());
        out.extend(self.key_count.to_le_bytes());
        out.extend(&self.keys);
        out.extend(&self.tensors);
        pad(&mut out);
        out.extend(&self.data);
        out
    }

    fn key(&mut self, key: &str, ty: ValueType) {
        put_string(&mut self.keys, key.as_bytes());
        self.keys.extend(ty.id().to_le_bytes());
        self.key_count += 1;
    }

    fn array(&mut self, key: &str, element: ValueType, len: usize) {
        self.key(key, ValueType::Array);
        self.keys.extend(element.id().to_le_bytes());
        self.keys.extend((len as u64).to_le_bytes());
    }
}

fn put_string(out: &mut Vec<u8>, value: &[u8]) {
    out.extend((value.len() as u64).to_le_bytes());
    out.extend(value);
}

fn pad(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(DEFAULT_ALIGNMENT), 0);
}
