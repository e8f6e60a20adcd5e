//! Errors of GGUF files.

use std::path::PathBuf;

/// The reason why a GGUF file was refused. Offsets are bytes from the start of the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GgufError {
    /// The file does not start with the magic.
    #[error("this is not a GGUF file (it starts with {found:02x?}); give a .gguf file or a model directory")]
    BadMagic {
        /// The first bytes, at most four.
        found: Vec<u8>,
    },
    /// The file is big-endian.
    #[error(
        "this GGUF file is big-endian, for machines such as IBM Z, and kvik reads little-endian files; \
         download the model's usual file, or convert this one with llama.cpp's gguf_convert_endian.py"
    )]
    BigEndian,
    /// A version other than 2 and 3.
    #[error(
        "GGUF version {version} is not supported (2 and 3 are); convert the file with a current converter"
    )]
    BadVersion {
        /// The version field.
        version: u32,
    },
    /// The file ends inside a field.
    #[error(
        "the file ends inside {what} at offset {offset}: {needed} bytes are needed and {available} are left; \
         the file is truncated or corrupt, download it again"
    )]
    Truncated {
        /// The field that was read.
        what: String,
        /// Its offset in the file.
        offset: u64,
        /// Bytes it needs.
        needed: u64,
        /// Bytes that are left.
        available: u64,
    },
    /// A count or length beyond its limit.
    #[error("{what} is {value}, above the limit of {limit}; the file is corrupt")]
    Limit {
        /// The counted or measured thing.
        what: String,
        /// The value in the file.
        value: u64,
        /// The maximum.
        limit: u64,
    },
    /// Text that is not UTF-8.
    #[error("{what} at offset {offset} is not valid UTF-8; the file is corrupt")]
    NotUtf8 {
        /// The field that was read.
        what: String,
        /// Its offset in the file.
        offset: u64,
    },
    /// An unknown type of metadata value.
    #[error("metadata key {key:?} has the unknown value type {value_type}; the file is corrupt or too new")]
    BadValueType {
        /// The key.
        key: String,
        /// The type field.
        value_type: u32,
    },
    /// A key occurs twice.
    #[error("metadata key {key:?} occurs twice; the file is corrupt")]
    DuplicateKey {
        /// The key.
        key: String,
    },
    /// A key is absent.
    #[error("metadata key {key:?} is missing; convert the model again")]
    MissingKey {
        /// The key.
        key: String,
    },
    /// A key has a value of another type or outside its range.
    #[error("metadata key {key:?} has {found}, and {expected} is needed")]
    BadValue {
        /// The key.
        key: String,
        /// The value found.
        found: String,
        /// The expected value.
        expected: String,
    },
    /// The alignment is not a power of two.
    #[error("general.alignment is {value}; a power of two from 1 to {limit} is needed")]
    BadAlignment {
        /// The value in the file.
        value: u64,
        /// The largest accepted.
        limit: u64,
    },
    /// Two tensors have one name.
    #[error("tensor {tensor:?} occurs twice; the file is corrupt")]
    DuplicateTensor {
        /// The tensor.
        tensor: String,
    },
    /// A tensor of a type that kvik does not support.
    #[error(
        "tensor {tensor:?} has type {type_id}, which kvik does not support; use a file in one of: {known}"
    )]
    UnknownTensorType {
        /// The tensor.
        tensor: String,
        /// The ggml type id.
        type_id: u32,
        /// Names of the supported types.
        known: String,
    },
    /// A tensor's dimensions are impossible.
    #[error("tensor {tensor:?} has the impossible shape {dims:?}: {reason}")]
    BadShape {
        /// The tensor.
        tensor: String,
        /// Its dimensions, fastest first, as in the file.
        dims: Vec<u64>,
        /// The error.
        reason: String,
    },
    /// A tensor's data does not start on an aligned offset.
    #[error("tensor {tensor:?} starts at data offset {offset}, which is not a multiple of {alignment}")]
    Misaligned {
        /// The tensor.
        tensor: String,
        /// Offset from the start of the tensor data.
        offset: u64,
        /// Required alignment.
        alignment: u64,
    },
    /// A tensor's data reaches beyond the file.
    #[error(
        "tensor {tensor:?} needs bytes {start}..{end} and the file has {file_len}; \
         the file is truncated, download it again"
    )]
    OutOfFile {
        /// The tensor.
        tensor: String,
        /// First byte.
        start: u64,
        /// The end: the byte after the last one.
        end: u64,
        /// Length of the file.
        file_len: u64,
    },
    /// Two tensors share bytes.
    #[error("tensors {first:?} and {second:?} overlap; the file is corrupt")]
    Overlap {
        /// The tensor that starts first.
        first: String,
        /// The tensor that starts inside it.
        second: String,
    },
    /// A part of a split file whose other parts cannot be located.
    #[error(
        "this file is part {part} of {parts} of a split model; its parts must be files beside each other"
    )]
    Split {
        /// Number of this part, from 1.
        part: u64,
        /// Number of parts.
        parts: u64,
    },
    /// A part of a split file whose name lacks its number, from which the other parts are located.
    #[error(
        "{path} is part {part} of {parts} of a split model; its name must end in -{part:05}-of-{parts:05}.gguf, \
         so that the other parts can be found",
        path = path.display()
    )]
    PartName {
        /// The file.
        path: PathBuf,
        /// Number of this part, from 1.
        part: u64,
        /// Number of parts.
        parts: u64,
    },
    /// A part is missing.
    #[error(
        "part {part} of {parts} of the split model is missing: there is no file {path}; download it too",
        path = path.display()
    )]
    MissingPart {
        /// The path of the missing file.
        path: PathBuf,
        /// Its number, from 1.
        part: u64,
        /// Number of parts.
        parts: u64,
    },
    /// A file is not the part of this model that its name states.
    #[error("{path} is not part {part} of this split model: {reason}; download it again", path = path.display())]
    WrongPart {
        /// The file.
        path: PathBuf,
        /// The number in its name, from 1.
        part: u64,
        /// The reason.
        reason: String,
    },
}
