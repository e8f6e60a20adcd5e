//! Manifests: the files that a name stands for. Anyone who may write the directory may write anything into a
//! manifest, so a manifest is checked before its paths are opened, printed or removed.

use std::{
    io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::{
    Kind, ModelName, ModelSource, ShelfError, disk,
    source::{is_revision, safe_path},
};

/// Version of the format; a shelf refuses others and does not touch their files.
const VERSION: u32 = 1;
/// Maximum size of a manifest.
const BYTES_MAX: u64 = 4 << 20;
/// The directory of downloads in the shelf's; the manifests' relative paths begin with it.
pub(crate) const HUB_DIRECTORY: &str = "hub";

/// A name and the model or adapter it stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// The name.
    pub name: ModelName,
    /// Model or adapter.
    pub kind: Kind,
    /// Its source.
    pub source: ModelSource,
    /// The commit, if the hub stated it.
    pub revision: Option<String>,
    /// When it was added, in seconds of Unix time.
    pub added_s: u64,
    /// The path to open: a file, the first of several, or a directory. Relative to the shelf's directory if it was
    /// downloaded, absolute if it was added by its path.
    pub model: PathBuf,
    /// All files, with paths of the same kind.
    pub files: Vec<ShelfFile>,
}

/// A file of a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShelfFile {
    /// Path; see [`Manifest::model`].
    pub path: String,
    /// Its size.
    pub size: u64,
    /// SHA-256 in hexadecimal, if known.
    pub sha256: Option<String>,
}

/// The JSON form of a manifest.
#[derive(Serialize, Deserialize)]
struct Written {
    version: u32,
    name: String,
    kind: Kind,
    source: String,
    revision: Option<String>,
    added: u64,
    model: String,
    files: Vec<ShelfFile>,
}

/// The version alone, which later formats have too.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

impl Manifest {
    /// Total size of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().fold(0, |sum, file| sum.saturating_add(file.size))
    }

    /// Returns whether the shelf owns the files, and removes them with the last name.
    pub fn is_downloaded(&self) -> bool {
        matches!(self.source, ModelSource::Hub(_))
    }

    /// Reads and checks a manifest; returns `None` if it does not exist.
    pub(crate) fn read(path: &Path) -> Result<Option<Manifest>, ShelfError> {
        match Manifest::read_in_any_case(path)? {
            Some(manifest)
                if path.file_name().is_none_or(|file| file != manifest.name.file_name().as_str()) =>
            {
                Err(manifest.misplaced(path))
            }
            manifest => Ok(manifest),
        }
    }

    /// As [`read`](Manifest::read), but the name of the manifest may differ from that of the file in upper and lower case:
    /// some file systems take both for one.
    pub(crate) fn read_in_any_case(path: &Path) -> Result<Option<Manifest>, ShelfError> {
        let bad = |reason: String| ShelfError::BadManifest { path: path.to_owned(), reason };
        let text = match disk::read_small(path, BYTES_MAX) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error)
                if matches!(error.kind(), io::ErrorKind::FileTooLarge | io::ErrorKind::InvalidInput) =>
            {
                return Err(bad(error.to_string()));
            }
            Err(error) => return Err(ShelfError::io(path)(error)),
            Ok(text) => text,
        };
        let manifest = Manifest::parse(&text).map_err(bad)?;
        let own = manifest.name.file_name();
        match path.file_name().is_some_and(|file| file.eq_ignore_ascii_case(&own)) {
            true => Ok(Some(manifest)),
            false => Err(manifest.misplaced(path)),
        }
    }

    fn misplaced(&self, path: &Path) -> ShelfError {
        let reason = format!("it is of another name, `{}`", self.name);
        ShelfError::BadManifest { path: path.to_owned(), reason }
    }

    fn parse(text: &[u8]) -> Result<Manifest, String> {
        let words = |error: &dyn std::fmt::Display| error.to_string();
        let Versioned { version } = serde_json::from_slice(text).map_err(|error| words(&error))?;
        if version != VERSION {
            return Err(format!("its version is {version}, and this kvik reads {VERSION}"));
        }
        let written: Written = serde_json::from_slice(text).map_err(|error| words(&error))?;
        let Written { name, kind, source, revision, added, model, files, .. } = written;
        let source: ModelSource = source.parse().map_err(|error| words(&error))?;
        let name = name.parse().map_err(|error| words(&error))?;
        let manifest = Manifest { name, kind, source, revision, added_s: added, model: model.into(), files };
        manifest.check().map(|()| manifest)
    }

    /// The JSON form of this manifest, which [`Manifest::read`] accepts.
    pub(crate) fn to_json(&self) -> Result<Vec<u8>, String> {
        self.check()?;
        let Manifest { name, kind, source, revision, added_s, model, files } = self.clone();
        let (name, source) = (name.to_string(), source.to_string());
        let model = model.into_os_string().into_string().map_err(|path| format!("{path:?} is not UTF-8"))?;
        let written =
            Written { version: VERSION, name, kind, source, revision, added: added_s, model, files };
        serde_json::to_vec_pretty(&written).map_err(|error| error.to_string())
    }

    /// Rejects paths and values that a shelf would not have written.
    fn check(&self) -> Result<(), String> {
        let model = self.model.to_str().ok_or_else(|| format!("{:?} is not UTF-8", self.model))?;
        let paths = self.files.iter().map(|file| file.path.as_str()).chain([model]);
        for path in paths {
            let fine = if self.is_downloaded() { is_inside_hub(path) } else { is_absolute(path) };
            if !fine {
                return Err(format!("the path {path:?} is not one of its source's"));
            }
        }
        if !self.files.iter().any(|file| Path::new(&file.path).starts_with(&self.model)) {
            return Err(format!("it has no file {model:?}"));
        }
        if self.revision.as_deref().is_some_and(|revision| !is_revision(revision)) {
            return Err("its revision is none".to_owned());
        }
        let hashes = self.files.iter().filter_map(|file| file.sha256.as_deref());
        match hashes.into_iter().find(|hash| !is_sha256(hash)) {
            Some(hash) => Err(format!("{hash:?} is no SHA-256")),
            None => Ok(()),
        }
    }
}

/// Returns whether a path is inside the directory of downloads.
fn is_inside_hub(path: &str) -> bool {
    safe_path(path).is_some() && path.split('/').next() == Some(HUB_DIRECTORY) && path.contains('/')
}

fn is_absolute(path: &str) -> bool {
    Path::new(path).is_absolute() && !path.contains(char::is_control)
}

/// Returns whether this is a SHA-256 in lower-case hexadecimal.
pub(crate) fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test may fail where it stands
mod tests {
    use std::fs;

    use serde_json::{Value, json};

    use super::*;

    fn sample() -> Value {
        json!({
            "version": 1, "name": "o/r", "kind": "model", "source": "hf:o/r", "revision": "main", "added": 7,
            "model": "hub/o/r/main/m.gguf",
            "files": [{"path": "hub/o/r/main/m.gguf", "size": 3, "sha256": null}],
        })
    }

    #[test]
    fn what_is_written_is_read() {
        let manifest = Manifest::parse(sample().to_string().as_bytes()).unwrap();
        assert_eq!(Manifest::parse(&manifest.to_json().unwrap()).unwrap(), manifest);
        assert_eq!((manifest.bytes(), manifest.is_downloaded()), (3, true));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(manifest.name.file_name());
        assert_eq!(Manifest::read(&path).unwrap(), None);
        fs::write(&path, manifest.to_json().unwrap()).unwrap();
        assert_eq!(Manifest::read(&path).unwrap(), Some(manifest.clone()));
        let other = dir.path().join("other.json");
        fs::write(&other, manifest.to_json().unwrap()).unwrap();
        assert!(Manifest::read(&other).unwrap_err().to_string().contains("another name"));
    }

    #[test]
    fn hostile_manifests_are_refused() {
        let check = |change: &dyn Fn(&mut Value), expect: &str| {
            let mut value = sample();
            change(&mut value);
            let error = Manifest::parse(value.to_string().as_bytes()).unwrap_err();
            assert!(error.contains(expect), "{error} says {expect}");
        };
        let path = |path: &'static str| {
            move |value: &mut Value| {
                value["model"] = path.into();
                value["files"][0]["path"] = path.into();
            }
        };
        for hostile in [
            "/etc/passwd",
            "hub/../../x",
            "../x",
            "hub",
            "names/o.json",
            "hub/o/.x",
            "hub//x",
            "",
            "hub/a\u{1b}b",
        ] {
            check(&path(hostile), "is not one of its source's");
        }
        check(&|value| value["source"] = "/m.gguf".into(), "is not one of its source's");
        check(&|value| value["model"] = "hub/o/r/other".into(), "it has no file");
        check(&|value| value["files"] = json!([]), "it has no file");
        check(&|value| value["version"] = 2.into(), "version is 2");
        check(&|value| value["name"] = "../x".into(), "cannot be the name");
        check(&|value| value["source"] = "hf:../x".into(), "does not name a model");
        check(&|value| value["revision"] = "a\nb".into(), "revision");
        check(&|value| value["kind"] = "virus".into(), "virus");
        check(&|value| value["files"][0]["sha256"] = "AB".into(), "no SHA-256");
        check(&|value| value["files"][0]["size"] = (-1).into(), "-1");
        assert!(Manifest::parse(b"").is_err());
        assert!(Manifest::parse(&[b'['; 100_000]).is_err());
    }

    #[test]
    fn no_prefix_of_a_manifest_is_one() {
        let text = sample().to_string();
        for len in 0..text.len() {
            assert!(Manifest::parse(&text.as_bytes()[..len]).is_err(), "{len}");
        }
    }
}
