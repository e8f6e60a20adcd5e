//! The directories of disk caches in which blocks of deletable objects may be: those of this process, and those that
//! earlier settings named. Prompts are noted without them.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf, absolute},
    sync::{Mutex, MutexGuard, PoisonError},
};

use kvik_memory::records::{Records, RecordsError, Table};

/// Follows every path in the order of keys.
const BEHIND_ALL: &str = "\u{10ffff}";

/// All directories that were used since the first conversation.
pub(super) struct CacheFolders {
    /// The paths, as keys; absent where conversations end with the process.
    table: Option<Table<()>>,
    /// Those of this process.
    used: Mutex<BTreeSet<PathBuf>>,
}

impl CacheFolders {
    pub(super) fn open(records: Option<&Records>) -> CacheFolders {
        CacheFolders { table: records.map(|records| records.table("cache folders")), used: Mutex::default() }
    }

    /// Notes that a directory is about to be used. Blocking.
    pub(super) fn note(&self, folder: &Path) {
        let folder = absolute(folder).unwrap_or_else(|_| folder.to_owned());
        if let Err(error) = self.write(&folder) {
            tracing::warn!(
                "once {} is no longer the disk cache, deletions leave what is there: {error}",
                folder.display()
            );
        }
        self.used().insert(folder);
    }

    /// All of them. Blocking.
    ///
    /// # Errors
    /// If those of earlier settings cannot be read.
    pub(super) fn all(&self) -> Result<BTreeSet<PathBuf>, RecordsError> {
        let mut all = self.used().clone();
        all.extend(self.written()?.into_iter().map(PathBuf::from));
        Ok(all)
    }

    fn write(&self, folder: &Path) -> anyhow::Result<()> {
        let Some(table) = &self.table else { return Ok(()) };
        let path =
            folder.to_str().ok_or_else(|| anyhow::anyhow!("the path {} is not UTF-8", folder.display()))?;
        if !self.written()?.contains(path) {
            table.change([path], |_, _| Some(()))?;
        }
        Ok(())
    }

    fn written(&self) -> Result<BTreeSet<String>, RecordsError> {
        self.table.as_ref().map_or_else(|| Ok(BTreeSet::new()), |table| table.keys_between("", BEHIND_ALL))
    }

    fn used(&self) -> MutexGuard<'_, BTreeSet<PathBuf>> {
        // Changed by single calls, so it is consistent after any panic.
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_of_earlier_settings_are_known() {
        let records = Records::in_memory();
        let open = || CacheFolders::open(Some(&records));
        let here = std::env::current_dir().unwrap();
        let elsewhere = here.join("elsewhere/kv");
        for folder in [elsewhere.as_path(), elsewhere.as_path(), Path::new("kv")] {
            open().note(folder);
        }
        assert_eq!(open().all().unwrap(), BTreeSet::from([elsewhere.clone(), here.join("kv")]));
        let alone = CacheFolders::open(None);
        alone.note(&elsewhere);
        assert_eq!(alone.all().unwrap(), BTreeSet::from([elsewhere]));
    }
}
