//! Measurements of models, stored for later runs: one file per model and kind of measurement.
//!
//! ```text
//! STATE/measured/DIGEST.KIND.json   { kind, version, model, layout, measured }
//! ```
//!
//! Files are written atomically. A file that is damaged, of another version of its kind, of another KV layout version
//! or of another model counts as missing, and the log says so: measuring again replaces it.

mod gates;
mod heads;
mod losses;
mod sensitivity;

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

use anyhow::Context;
use kvik_kernels::KV_LAYOUT_VERSION;
use kvik_memory::{
    hex,
    records::private::{create_private_folder, readable_by_owner_only},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

pub use gates::{GATE_POSITIONS_MIN, MeasuredGates};
pub use heads::MeasuredHeads;
pub use losses::{Loss, LossDoubt, LossMeasure, MeasuredLosses, SettingLosses, TaskLoss};
pub use sensitivity::MeasuredSensitivity;

use crate::{causes::with_causes, settings::dirs};

/// Fewest cases that a model answers rightly with everything kept from which a loss of right answers, or the importance
/// of heads, follows: with 20 right of 20 the interval of 95% still begins at 84%.
pub const RIGHT_CASES_MIN: usize = 20;
/// Maximum bytes of a file.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// A kind of measurement.
pub trait Measurement: Serialize + DeserializeOwned {
    /// Its name, part of the file's.
    const KIND: &'static str;
    /// Version of the meaning of its fields.
    const VERSION: u32;

    /// Checks that something follows from what was measured.
    ///
    /// # Errors
    /// If nothing does: how to measure again.
    fn check(&self) -> anyhow::Result<()> {
        Ok(())
    }
}

/// The directory of measurements.
#[derive(Debug, Clone)]
pub struct Measured {
    dir: PathBuf,
}

/// The header of every file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Header {
    kind: String,
    version: u32,
    /// Digest of the model, in hexadecimal.
    model: String,
    /// [`KV_LAYOUT_VERSION`] of the kvik that measured.
    layout: u32,
}

/// A whole file.
#[derive(Debug, Serialize, Deserialize)]
struct Kept<T> {
    #[serde(flatten)]
    header: Header,
    measured: T,
}

impl Header {
    fn of<T: Measurement>(model: &[u8; 32]) -> Header {
        let model = hex::written(model);
        Header { kind: T::KIND.to_owned(), version: T::VERSION, model, layout: KV_LAYOUT_VERSION }
    }
}

impl Measured {
    /// The user's measurements.
    pub fn open() -> anyhow::Result<Measured> {
        let dir =
            dirs::measured().context("there is no home directory; set KVIK_STATE_DIR to a directory")?;
        Ok(Measured { dir })
    }

    /// The measurement of a model, if there is one that this kvik understands.
    pub fn load<T: Measurement>(&self, model: &[u8; 32]) -> Option<T> {
        let header = Header::of::<T>(model);
        let path = self.path(&header);
        match read(&path, &header) {
            Ok(measured) => measured,
            Err(error) => {
                tracing::warn!("{} is not used: {}", path.display(), with_causes(&error));
                None
            }
        }
    }

    /// Stores a measurement in place of an earlier one, and returns its path.
    pub fn save<T: Measurement>(&self, model: &[u8; 32], measured: &T) -> anyhow::Result<PathBuf> {
        let header = Header::of::<T>(model);
        let path = self.path(&header);
        let text = serde_json::to_vec_pretty(&Kept { header, measured })?;
        write(&path, &text).with_context(|| format!("{} cannot be written", path.display()))?;
        Ok(path)
    }

    fn path(&self, header: &Header) -> PathBuf {
        self.dir.join(format!("{}.{}.json", header.model, header.kind))
    }
}

/// The measurement in a file; `None` if the file does not exist.
fn read<T: Measurement>(path: &Path, expect: &Header) -> anyhow::Result<Option<T>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    anyhow::ensure!(bytes.len() as u64 <= FILE_BYTES_MAX, "it is longer than any measurement");
    // The header is checked first: another version may have other fields.
    let header: Header = serde_json::from_slice(&bytes).context("it is damaged")?;
    anyhow::ensure!(header == *expect, "it was measured by another version of kvik, or of another model");
    let kept: Kept<T> = serde_json::from_slice(&bytes).context("it is damaged")?;
    kept.measured.check()?;
    Ok(Some(kept.measured))
}

/// Writes a temporary file and renames it.
fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        create_private_folder(folder)?;
    }
    let draft = path.with_extension(format!("new-{}", std::process::id()));
    let mut options = File::options();
    options.write(true).create(true).truncate(true);
    readable_by_owner_only(&mut options);
    let written = options
        .open(&draft)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&draft, path));
    if written.is_err() {
        // The temporary file may not exist.
        let _ = fs::remove_file(&draft);
    }
    written
}

#[cfg(test)]
mod tests {
    use kvik_cache::retain::HeadImportance;
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    struct Speed {
        tokens: Vec<u32>,
    }

    impl Measurement for Speed {
        const KIND: &'static str = "speed";
        const VERSION: u32 = 2;
    }

    /// An earlier version of the same kind, whose fields have another meaning.
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct OldSpeed {
        words: u32,
    }

    impl Measurement for OldSpeed {
        const KIND: &'static str = "speed";
        const VERSION: u32 = 1;
    }

    fn store() -> (tempfile::TempDir, Measured) {
        let dir = tempfile::tempdir().unwrap();
        let measured = Measured { dir: dir.path().join("state/measured") };
        (dir, measured)
    }

    #[test]
    fn a_measurement_is_found_for_its_model_and_replaced_by_the_next() {
        let (_dir, store) = store();
        let (one, two) = (Speed { tokens: vec![1, 2] }, Speed { tokens: vec![3] });
        assert_eq!(store.load::<Speed>(&[1; 32]), None);
        store.save(&[1; 32], &one).unwrap();
        assert_eq!(store.load(&[1; 32]), Some(one));
        assert_eq!(store.load::<Speed>(&[2; 32]), None);
        store.save(&[1; 32], &two).unwrap();
        assert_eq!(store.load(&[1; 32]), Some(two));
        assert_eq!(fs::read_dir(&store.dir).unwrap().count(), 1, "no draft is left");
    }

    #[test]
    fn other_versions_and_other_models_count_as_missing() {
        let (_dir, store) = store();
        let path = store.save(&[1; 32], &OldSpeed { words: 1 }).unwrap();
        assert_eq!(store.load::<Speed>(&[1; 32]), None);
        let other = store.path(&Header::of::<OldSpeed>(&[2; 32]));
        fs::rename(path, other).unwrap();
        assert_eq!(store.load::<OldSpeed>(&[2; 32]), None);
    }

    #[test]
    fn a_directory_that_cannot_be_written_is_named() {
        let (dir, store) = store();
        fs::write(dir.path().join("state"), "a file").unwrap();
        let error = format!("{:#}", store.save(&[1; 32], &Speed { tokens: Vec::new() }).unwrap_err());
        assert!(error.contains("state/measured"), "{error}");
        assert_eq!(store.load::<Speed>(&[1; 32]), None);
    }

    #[test]
    fn a_measurement_from_which_nothing_follows_counts_as_missing() {
        let (_dir, store) = store();
        let importance = HeadImportance { layers: vec![vec![1.0]] };
        for (cases, is_used) in [(RIGHT_CASES_MIN - 1, false), (RIGHT_CASES_MIN, true)] {
            let heads = MeasuredHeads::new(&importance, cases, 1, String::new());
            store.save(&[1; 32], &heads).unwrap();
            assert_eq!(store.load(&[1; 32]), is_used.then_some(heads), "{cases} cases");
        }
    }

    proptest! {
        #[test]
        fn damaged_files_count_as_missing(at in any::<prop::sample::Index>(), bytes in prop::collection::vec(any::<u8>(), 0..20)) {
            let (_dir, store) = store();
            let speed = Speed { tokens: vec![1, 2, 3] };
            let path = store.save(&[1; 32], &speed).unwrap();
            let mut text = fs::read(&path).unwrap();
            let at = at.index(text.len());
            text.splice(at..(at + bytes.len()).min(text.len()), bytes.iter().copied());
            fs::write(&path, &text).unwrap();
            // A file that is still a valid measurement is read; nothing panics.
            let found: Option<Speed> = store.load(&[1; 32]);
            prop_assert!(found.is_none() || serde_json::from_slice::<Kept<Speed>>(&text).is_ok());
        }
    }
}
