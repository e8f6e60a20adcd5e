//! Models in several files, as llama.cpp splits them: `NAME-00001-of-00003.gguf` has the metadata, and each file
//! has some of the tensors and states the number of its part.

use std::io;
use std::path::{Path, PathBuf};

use super::{GGUF_LIMITS, Gguf, GgufError, parse};
use crate::files::FileError;

/// The metadata of a part of a split model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    /// Its number, from 0.
    pub(super) number: u64,
    /// Number of files.
    pub(super) count: u64,
    /// Number of tensors in all files, if stated.
    tensors: Option<u64>,
}

impl Part {
    /// The metadata of a part; `None` for a file that is a whole model.
    pub(super) fn of(file: &Gguf) -> Result<Option<Part>, GgufError> {
        let count = file.integer("split.count")?.unwrap_or(0);
        if count <= 1 {
            return Ok(None);
        }
        if count > GGUF_LIMITS.parts {
            let (what, limit) = ("metadata key \"split.count\"".to_owned(), GGUF_LIMITS.parts);
            return Err(GgufError::Limit { what, value: count, limit });
        }
        let number = file.integer("split.no")?;
        let number = number.ok_or_else(|| GgufError::MissingKey { key: "split.no".into() })?;
        if number >= count {
            let (found, expected) =
                (format!("the integer {number}"), format!("one below the {count} of split.count"));
            return Err(GgufError::BadValue { key: "split.no".into(), found, expected });
        }
        Ok(Some(Part { number, count, tensors: file.integer("split.tensors.count")? }))
    }
}

/// Opens all files of the model of which `file` at `path` is a part.
pub(super) fn open(path: &Path, file: Gguf, part: Part) -> Result<Gguf, FileError> {
    let paths = paths(path, part)?;
    let mut given = Some(file);
    let mut whole: Option<Gguf> = None;
    for (number, path) in (0..part.count).zip(&paths) {
        // The given file is not opened twice.
        let file = match (number == part.number).then(|| given.take()).flatten() {
            Some(file) => file,
            None => other(path, Part { number, ..part })?,
        };
        match &mut whole {
            None => whole = Some(file),
            Some(whole) => whole.append(file, path, number)?,
        }
    }
    let whole = whole.expect("there are two parts at least");
    match part.tensors {
        Some(tensors) if tensors != whole.tensors.len() as u64 => {
            let found = format!("the integer {tensors}");
            let expected = format!("the {} tensors of all parts", whole.tensors.len());
            Err(GgufError::BadValue { key: "split.tensors.count".into(), found, expected }.into())
        }
        _ => Ok(whole),
    }
}

/// Opens another part, which must be the one that its name states.
fn other(path: &Path, expected: Part) -> Result<Gguf, FileError> {
    let (part, parts) = (expected.number + 1, expected.count);
    let wrong = |reason: String| GgufError::WrongPart { path: path.into(), part, reason };
    let file = match Gguf::map(path) {
        Err(FileError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            return Err(GgufError::MissingPart { path: path.into(), part, parts }.into());
        }
        Err(FileError::Gguf(error)) => return Err(wrong(error.to_string()).into()),
        opened => opened?,
    };
    match Part::of(&file).map_err(|error| wrong(error.to_string()))? {
        Some(found) if found == expected => Ok(file),
        Some(found) => Err(wrong(format!("it says that it is {}", found.words())).into()),
        None => Err(wrong("it says that it is a whole model".into()).into()),
    }
}

impl Part {
    fn words(self) -> String {
        let tensors =
            self.tensors.map_or(String::new(), |tensors| format!(" with {tensors} tensors together"));
        format!("part {} of {}{tensors}", self.number + 1, self.count)
    }
}

impl Gguf {
    /// Adds the tensors of another part.
    fn append(&mut self, part: Gguf, path: &Path, number: u64) -> Result<(), GgufError> {
        self.others.push(part.bytes);
        let part_index = self.others.len();
        self.tensors
            .extend(part.tensors.into_iter().map(|info| super::TensorInfo { part: part_index, ..info }));
        if self.tensors.len() > GGUF_LIMITS.tensors {
            let (what, limit) = ("the number of tensors of all parts".to_owned(), GGUF_LIMITS.tensors as u64);
            return Err(GgufError::Limit { what, value: self.tensors.len() as u64, limit });
        }
        let wrong = |error: GgufError| GgufError::WrongPart {
            path: path.into(),
            part: number + 1,
            reason: error.to_string(),
        };
        self.tensor_index = parse::index_tensors(&self.tensors).map_err(wrong)?;
        Ok(())
    }
}

/// The paths of all parts, derived from that of one.
fn paths(path: &Path, part: Part) -> Result<Vec<PathBuf>, GgufError> {
    let Part { number, count, .. } = part;
    let ending = |number: u64| format!("-{number:05}-of-{count:05}.gguf");
    let name = path.file_name().and_then(|name| name.to_str());
    let bad = || GgufError::PartName { path: path.into(), part: number + 1, parts: count };
    let stem = name.and_then(|name| name.strip_suffix(&ending(number + 1))).ok_or_else(bad)?;
    Ok((1..=count).map(|number| path.with_file_name(format!("{stem}{}", ending(number)))).collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test may panic on an error
mod tests {
    use std::fs;

    use kvik_kernels::WeightType;
    use tempfile::TempDir;

    use super::super::write::GgufWriter;
    use super::*;
    use crate::files::bytes::FileBytes;

    /// Part `n` with tensor `n`: four numbers `n`.
    fn part(number: u32, count: u32) -> GgufWriter {
        let mut writer = GgufWriter::new();
        writer.u32("split.no", number).u32("split.count", count).u32("split.tensors.count", count);
        writer.tensor(&format!("t{number}"), WeightType::F32, &[1, 4], &[number as u8; 16]);
        writer
    }

    /// A model of three parts, each created by `change` or missing.
    fn split(change: impl Fn(u32) -> Option<GgufWriter>) -> (TempDir, [PathBuf; 3]) {
        let dir = tempfile::tempdir().unwrap();
        let paths = [1, 2, 3].map(|number| dir.path().join(format!("m-{number:05}-of-00003.gguf")));
        for (number, path) in (0..).zip(&paths) {
            if let Some(writer) = change(number) {
                fs::write(path, writer.to_bytes()).unwrap();
            }
        }
        (dir, paths)
    }

    #[test]
    fn each_part_opens_all() {
        let (_dir, paths) = split(|number| {
            let mut writer = part(number, 3);
            Some(writer.u32("own", number).clone())
        });
        for path in &paths {
            let file = Gguf::open(path).unwrap();
            assert_eq!(file.integer("own").unwrap(), Some(0), "metadata is that of the first");
            let names: Vec<&str> = file.tensors().iter().map(|info| info.name.as_str()).collect();
            assert_eq!(names, ["t0", "t1", "t2"]);
            for number in 0..3u8 {
                let info = file.tensor(&format!("t{number}")).unwrap();
                assert_eq!((file.data(info), info.part), (&[number; 16][..], usize::from(number)));
                file.release(info);
                assert_eq!(file.data(info), [number; 16]);
            }
        }
    }

    /// Opens each part of a wrong split, and expects the words in the error.
    fn check_split(change: impl Fn(u32) -> Option<GgufWriter>, words: &[&str]) {
        let (_dir, paths) = split(change);
        for path in paths.iter().filter(|path| path.exists()) {
            let error = Gguf::open(path).map(|_| ()).unwrap_err().to_string();
            words.iter().for_each(|word| assert!(error.contains(word), "{error} says {word}"));
        }
    }

    #[test]
    fn a_missing_or_wrong_part_is_named() {
        check_split(
            |number| (number != 1).then(|| part(number, 3)),
            &["part 2 of 3", "m-00002-of-00003.gguf", "missing"],
        );
        check_split(
            |number| (number != 0).then(|| part(number, 3)),
            &["part 1 of 3", "m-00001-of-00003.gguf"],
        );
        let (_dir, [one, two, _]) = split(|number| Some(part(number, 3)));
        let open = |bytes: &[u8]| {
            fs::write(&two, bytes).unwrap();
            Gguf::open(&one).map(|_| ()).unwrap_err().to_string()
        };
        let check = |bytes: &[u8], word: &str| {
            let error = open(bytes);
            assert!(error.contains("m-00002-of-00003.gguf") && error.contains(word), "{error} says {word}");
        };
        let good = part(1, 3).to_bytes();
        check(b"GGML", "not a GGUF file");
        check(&good[..good.len() - 40], "truncated");
        check(&part(2, 3).to_bytes(), "part 3 of 3");
        check(&part(1, 2).to_bytes(), "part 2 of 2");
        check(&part(1, 65535).to_bytes(), "65535");
        check(&part(3, 3).to_bytes(), "split.no");
        check(&GgufWriter::new().to_bytes(), "whole model");
        let mut duplicate = part(1, 3);
        check(&duplicate.tensor("t0", WeightType::F32, &[1], &[0; 4]).to_bytes(), "\"t0\" occurs twice");
    }

    #[test]
    fn hostile_counts_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let check = |writer: &GgufWriter, name: &str, word: &str| {
            let path = dir.path().join(name);
            fs::write(&path, writer.to_bytes()).unwrap();
            let error = Gguf::open(&path).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains(word), "{error} says {word}");
        };
        check(&part(0, 65535), "m-00001-of-65535.gguf", "above the limit of 4096");
        check(&part(0, u32::MAX), "m-00001-of-00003.gguf", "above the limit of 4096");
        check(&part(7, 3), "m-00008-of-00003.gguf", "split.no");
        check(&part(0, 3), "m.gguf", "-00001-of-00003.gguf");
        check(&part(0, 3), "m-00002-of-00003.gguf", "-00001-of-00003.gguf");
        check(&part(0, 3), "m-00001-of-00004.gguf", "-00001-of-00003.gguf");
        check(GgufWriter::new().u32("split.count", 2), "m-00001-of-00002.gguf", "\"split.no\" is missing");
        check(GgufWriter::new().text("split.count", "2"), "m-00001-of-00002.gguf", "split.count");
        let more = |number| {
            let mut writer = part(number, 3);
            writer.tensor(&format!("more{number}"), WeightType::F32, &[1], &[0; 4]);
            Some(writer)
        };
        check_split(more, &["split.tensors.count", "6 tensors"]);
    }

    #[test]
    fn a_part_in_memory_has_no_others() {
        let read = |writer: &GgufWriter| Gguf::from_bytes(FileBytes::Owned(writer.to_bytes()));
        assert!(read(&part(0, 1)).is_ok(), "one part is a whole model");
        let error = read(&part(1, 3)).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("part 2 of 3"), "{error}");
    }
}
