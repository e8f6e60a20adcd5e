//! Names of the files of a split model: `NAME-00001-of-00003.gguf`.

use std::path::{Path, PathBuf};

/// The parsed name of a file of a split model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SplitName<'a> {
    /// The part before the numbers.
    pub(crate) stem: &'a str,
    /// Its number, from 1.
    pub(crate) number: u32,
    /// Number of files.
    pub(crate) count: u32,
}

/// Maximum number of files of a model.
const COUNT_MAX: u32 = 4096;

impl<'a> SplitName<'a> {
    /// Parses the name or path of a file; returns `None` for an unsplit one.
    pub(crate) fn of(path: &'a str) -> Option<SplitName<'a>> {
        let rest = path.strip_suffix(".gguf")?;
        let (rest, count) = rest.rsplit_once("-of-")?;
        let (stem, number) = rest.rsplit_once('-')?;
        let (number, count) = (five_digits(number)?, five_digits(count)?);
        (1..=count).contains(&number).then_some(SplitName { stem, number, count })
    }

    /// Returns whether the number of files is plausible.
    pub(crate) fn is_sensible(self) -> bool {
        self.count <= COUNT_MAX
    }

    /// The names of all files, in order.
    pub(crate) fn all(self) -> impl Iterator<Item = String> {
        let SplitName { stem, count, .. } = self;
        (1..=count).map(move |number| format!("{stem}-{number:05}-of-{count:05}.gguf"))
    }
}

/// The files of the model at the path of one: all parts of a split model, by their names, else this file.
pub fn parts_of(path: &Path) -> Vec<PathBuf> {
    let split = path.to_str().and_then(SplitName::of).filter(|split| split.is_sensible());
    split.map_or_else(|| vec![path.to_owned()], |split| split.all().map(PathBuf::from).collect())
}

fn five_digits(text: &str) -> Option<u32> {
    (text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().ok())?
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test may fail where it stands
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_written() {
        let name = SplitName::of("sub/m-Q8_0-00002-of-00003.gguf").unwrap();
        assert_eq!(name, SplitName { stem: "sub/m-Q8_0", number: 2, count: 3 });
        let all: Vec<String> = name.all().collect();
        assert_eq!(all.len(), 3);
        assert_eq!(all[1], "sub/m-Q8_0-00002-of-00003.gguf");
        for whole in [
            "m.gguf",
            "m-of-two.gguf",
            "m-00001-of-00002",
            "m-00003-of-00002.gguf",
            "m-00000-of-00002.gguf",
            "m-1-of-2.gguf",
            "m-+0001-of-00002.gguf",
            "00001-of-00002.gguf",
        ] {
            assert_eq!(SplitName::of(whole), None, "{whole}");
        }
        assert!(!SplitName::of("m-00001-of-99999.gguf").unwrap().is_sensible());
        let parts = ["/a/m-00001-of-00002.gguf", "/a/m-00002-of-00002.gguf"].map(PathBuf::from);
        assert_eq!(parts_of(&parts[1]), parts);
        assert_eq!(parts_of("/a/m.gguf".as_ref()), [PathBuf::from("/a/m.gguf")]);
    }
}
