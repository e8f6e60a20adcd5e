use super::write::GgufWriter;
use super::*;

fn parse(bytes: Vec<u8>) -> Result<Gguf, GgufError> {
    Gguf::from_bytes(FileBytes::Owned(bytes))
}

fn sample() -> GgufWriter {
    let mut writer = GgufWriter::new();
    writer
        .text("general.name", "sample")
        .u32("n", 7)
        .f32("x", 0.5)
        .boolean("b", true)
        .texts("texts", &["a", "", "ccc"])
        .f32s("floats", &[1.0, -2.0])
        .i32s("ints", &[-1, 2]);
    writer.tensor("matrix", WeightType::F32, &[2, 3], &[7; 24]);
    writer.tensor("quantised", WeightType::Q8_0, &[32], &[1; 34]);
    writer
}

#[test]
fn a_written_file_reads_back() {
    let file = parse(sample().to_bytes()).unwrap();
    assert_eq!(file.version(), 3);
    assert_eq!(file.text("general.name").unwrap(), Some("sample"));
    assert_eq!(file.integer("n").unwrap(), Some(7));
    assert_eq!(file.number("x").unwrap(), Some(0.5));
    assert_eq!(file.boolean("b").unwrap(), Some(true));
    assert_eq!(file.strings("texts").unwrap(), Some(vec!["a", "", "ccc"]));
    assert_eq!(file.floats("floats").unwrap(), Some(vec![1.0, -2.0]));
    assert_eq!(file.integers("ints").unwrap(), Some(vec![-1, 2]));
    assert_eq!(file.text("absent").unwrap(), None);
    let info = file.tensor("matrix").unwrap();
    assert_eq!((info.rows, info.cols, file.data(info)), (2, 3, &[7; 24][..]));
    assert_eq!(file.data(file.tensor("quantised").unwrap()), [1; 34]);
}

#[test]
fn a_value_of_another_type_is_named() {
    let file = parse(sample().to_bytes()).unwrap();
    let error = file.integer("general.name").unwrap_err().to_string();
    assert!(error.contains("general.name") && error.contains("integer"), "{error}");
    assert!(file.strings("floats").is_err());
    assert!(file.floats("texts").is_err());
    assert!(file.integers("floats").is_err());
}

#[test]
fn every_truncation_is_an_error() {
    let bytes = sample().to_bytes();
    let last_byte = parse(bytes.clone()).unwrap().tensors().iter().map(|t| t.data.end).max().unwrap();
    for len in 0..last_byte {
        assert!(parse(bytes[..len].to_vec()).is_err(), "{len} of {last_byte} bytes");
    }
    assert!(parse(bytes[..last_byte].to_vec()).is_ok());
}

/// Overwrites bytes of the sample at the first occurrence of `find`, plus `skip`.
fn patched(find: &[u8], skip: usize, with: &[u8]) -> Result<Gguf, GgufError> {
    let mut bytes = sample().to_bytes();
    let at = bytes.windows(find.len()).position(|window| window == find).unwrap() + find.len() + skip;
    bytes[at..at + with.len()].copy_from_slice(with);
    parse(bytes)
}

fn check(result: Result<Gguf, GgufError>, expect: &str) {
    let error = result.map(|_| ()).unwrap_err().to_string();
    assert!(error.contains(expect), "{error:?} does not contain {expect:?}");
}

#[test]
fn hostile_fields_are_named() {
    let huge = u64::MAX.to_le_bytes();
    check(parse(b"GGML".to_vec()), "not a GGUF file");
    check(patched(b"GGUF", 0, &4u32.to_le_bytes()), "version 4");
    for version in [2u32, 3, 4] {
        check(patched(b"GGUF", 0, &version.to_be_bytes()), "big-endian");
    }
    check(patched(b"GGUF", 4, &huge), "number of tensors");
    check(patched(b"GGUF", 12, &huge), "number of metadata keys");
    check(patched(b"general.name", 4, &huge), "general.name");
    check(patched(b"general.name", 0, &99u32.to_le_bytes()), "unknown value type 99");
    check(patched(b"texts", 8, &huge), "length of array \"texts\"");
    check(patched(b"texts", 8, &(1u64 << 20).to_le_bytes()), "array \"texts\"");
    check(patched(b"floats", 8, &(1u64 << 20).to_le_bytes()), "floats");
    check(patched(b"matrix", 0, &9u32.to_le_bytes()), "number of dimensions of tensor \"matrix\"");
    check(patched(b"matrix", 4, &huge), "matrix");
    check(patched(b"matrix", 4, &0u64.to_le_bytes()), "a dimension is zero");
    check(patched(b"matrix", 12, &huge), "matrix");
    check(patched(b"matrix", 20, &77u32.to_le_bytes()), "tensor \"matrix\" has type 77");
    check(patched(b"matrix", 20, &8u32.to_le_bytes()), "blocks of 32");
    check(patched(b"matrix", 24, &1u64.to_le_bytes()), "not a multiple of 32");
    check(patched(b"matrix", 24, &(1u64 << 40).to_le_bytes()), "truncated");
    check(patched(b"matrix", 24, &(u64::MAX - 31).to_le_bytes()), "truncated");
    check(patched(b"quantised", 16, &0u64.to_le_bytes()), "overlap");
}

#[test]
fn duplicates_are_refused() {
    let mut writer = sample();
    check(parse(writer.u32("n", 8).to_bytes()), "\"n\" occurs twice");
    let mut writer = sample();
    check(
        parse(writer.tensor("matrix", WeightType::F32, &[1], &[0; 4]).to_bytes()),
        "\"matrix\" occurs twice",
    );
}

#[test]
fn nested_arrays_are_walked_to_a_limit() {
    let nested = |depth: usize| {
        let mut value = Vec::new();
        for _ in 0..depth {
            value.extend(ValueType::Array.id().to_le_bytes());
            value.extend(1u64.to_le_bytes());
        }
        value.extend(ValueType::U8.id().to_le_bytes());
        value.extend(0u64.to_le_bytes());
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend(0u64.to_le_bytes());
        bytes.extend(1u64.to_le_bytes());
        bytes.extend(1u64.to_le_bytes());
        bytes.push(b'k');
        bytes.extend(ValueType::Array.id().to_le_bytes());
        bytes.extend(value);
        parse(bytes)
    };
    assert!(nested(GGUF_LIMITS.array_depth - 1).is_ok());
    check(nested(GGUF_LIMITS.array_depth), "nesting of \"k\"");
    check(nested(100_000), "nesting of \"k\"");
}

#[test]
fn alignment_is_a_power_of_two() {
    let with = |value: u32| parse(GgufWriter::new().u32("general.alignment", value).to_bytes());
    assert!(with(64).is_ok());
    for bad in [0, 3, 48, 1 << 31] {
        check(with(bad), "general.alignment");
    }
}
