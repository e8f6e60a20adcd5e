//! What was written to the disk, in a small file beside each store: `DIR/3f9a…e1.written`, four decimal numbers as
//! [`Wear`] writes them. It outlives the store, since its bytes have worn the disk, and is a hint: a file that cannot be
//! read counts as nothing, and a kill loses the last [`SAVE_BYTES`].

use std::path::Path;
use std::time::SystemTime;

use kvik_cache::tier::Wear;

use super::directory::{Directory, Missing, open_private};
use super::system::{read_at, write_all_at};

/// Bytes after which the file is written.
const SAVE_BYTES: u64 = 64 << 20;
/// Maximum bytes of the file.
const FILE_BYTES_MAX: usize = 128;
/// Maximum files read.
const FILES_MAX: usize = 4096;

/// The count of one store, and what the others had written when they were last read.
#[derive(Debug)]
pub(super) struct WearFile {
    directory: Directory,
    own: Wear,
    others: Wear,
    /// Bytes that the file does not have yet.
    unsaved_bytes: u64,
}

impl WearFile {
    /// Reads the counts of the store and of the others.
    pub(super) fn open(directory: &Directory) -> WearFile {
        let own = read(&directory.wear_path()).unwrap_or_default();
        let others = others(directory);
        WearFile { directory: directory.clone(), own, others, unsaved_bytes: 0 }
    }

    /// Bytes written by all stores.
    pub(super) fn all(&self) -> Wear {
        self.own.plus(&self.others, now_s())
    }

    /// Counts bytes that were written now.
    pub(super) fn add(&mut self, bytes: u64) {
        self.own.add(bytes, now_s());
        self.unsaved_bytes += bytes;
        if self.unsaved_bytes >= SAVE_BYTES {
            self.save();
        }
    }

    /// Writes the file, if it lacks something, and reads those of the others.
    pub(super) fn save(&mut self) {
        if std::mem::take(&mut self.unsaved_bytes) == 0 {
            return;
        }
        let (path, text) = (self.directory.wear_path(), format!("{}\n", self.own));
        let saved = open_private(&path, Missing::Create).and_then(|file| {
            file.set_len(0)?;
            write_all_at(&file, text.as_bytes(), 0)
        });
        if let Err(error) = saved {
            tracing::debug!("disk cache: {} is not written: {error}", path.display());
        }
        self.others = others(&self.directory);
    }
}

/// Bytes written to the stores under `root`, also to those that were removed.
pub fn wear(root: &Path) -> Wear {
    sum(root, |_| true)
}

fn others(own: &Directory) -> Wear {
    let own_path = own.wear_path();
    sum(own.root(), |path| path != own_path)
}

fn sum(root: &Path, is_counted: impl Fn(&Path) -> bool) -> Wear {
    let paths =
        std::fs::read_dir(root).into_iter().flatten().flatten().take(FILES_MAX).map(|entry| entry.path());
    let counted = paths.filter(|path| path.extension().is_some_and(|it| it == "written") && is_counted(path));
    let now_s = now_s();
    counted.filter_map(|path| read(&path)).fold(Wear::default(), |sum, wear| sum.plus(&wear, now_s))
}

fn read(path: &Path) -> Option<Wear> {
    let file = open_private(path, Missing::Fail).ok()?;
    let mut bytes = [0; FILE_BYTES_MAX];
    let length = read_at(&file, &mut bytes, 0).ok()?;
    Wear::parse(std::str::from_utf8(&bytes[..length]).ok()?)
}

/// The time, in seconds since 1970.
fn now_s() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_outlive_the_process_and_add_up() {
        let dir = tempfile::tempdir().unwrap();
        let stores = [1, 2].map(|digest| Directory::new(dir.path(), &[digest; 32]));
        let mut files = stores.each_ref().map(WearFile::open);
        assert_eq!(files[0].all(), Wear::default());
        files[0].add(SAVE_BYTES);
        assert_eq!(wear(dir.path()).bytes, SAVE_BYTES, "saved by itself");
        files[1].add(5);
        assert_eq!(wear(dir.path()).bytes, SAVE_BYTES, "not saved yet");
        files[1].save();
        assert_eq!(files[1].all().bytes, SAVE_BYTES + 5);
        let again = WearFile::open(&stores[1]);
        assert_eq!((again.own.bytes, again.all().bytes), (5, SAVE_BYTES + 5));
    }

    #[test]
    fn a_store_of_a_day_that_is_not_yet_hides_no_bytes_of_today() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, day: u64, bytes: u64| {
            let text = format!("{day} {bytes} {day} {bytes}\n");
            std::fs::write(dir.path().join(name).with_extension("written"), text).unwrap();
        };
        let today = now_s() / (24 * 3600);
        write("far", 99_999, 7);
        write("today", today, 50);
        write("tomorrow", today + 1, 100);
        let mut file = WearFile::open(&Directory::new(dir.path(), &[1; 32]));
        file.add(5);
        assert_eq!((file.all().today(now_s()), file.all().bytes), (155, 162));
    }

    #[test]
    fn damaged_files_count_as_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let store = Directory::new(dir.path(), &[1; 32]);
        for bytes in [&b""[..], b"many", &[0xFF; 4000], b"1 2 3"] {
            std::fs::write(store.wear_path(), bytes).unwrap();
            assert_eq!(WearFile::open(&store).all(), Wear::default());
        }
        std::fs::write(dir.path().join("x.written"), "20000 7 20000 7\n").unwrap();
        assert_eq!(WearFile::open(&store).all().bytes, 7);
    }
}
