//! Prompts that an application pins under names, and the list of them.
//!
//! The engine pins their blocks, in RAM and on disk, without names. The list is a file in the directory of the blocks,
//! replaced as a whole: it maps names to tokens, so that a changed text is detected and the old one unpinned. Several
//! models and processes may have it open: each reads it again when it has changed, and changes it under a lock.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use kvik_cache::{Token, whole_blocks};
use kvik_memory::clock::unix_seconds;
use kvik_memory::hex;
use kvik_memory::records::private::{close_to_others, create_private_folder, readable_by_owner_only};

use crate::error::Error;

/// Maximum number of prompts: each is pinned.
const PROMPTS_MAX: usize = 256;
/// Maximum bytes of a list: 256 prompts of 32,768 tokens.
const LIST_BYTES_MAX: u64 = 64 << 20;
/// How long a change waits for another one, and how often it looks.
const LOCK_WAIT: Duration = Duration::from_secs(1);
const LOCK_RETRY: Duration = Duration::from_millis(5);

/// State of a pinned prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeptState {
    /// Nothing is pinned under this name.
    Unknown,
    /// Other tokens are pinned under this name.
    Changed,
    /// The prompt is pinned.
    Kept {
        /// Tokens of the prompt.
        tokens: usize,
        /// Tokens in RAM.
        ram_tokens: usize,
        /// Tokens that would be read from disk.
        disk_tokens: usize,
    },
}

impl KeptState {
    /// True if the prompt is pinned and no token of it has to be computed, except for the last one, with which an
    /// answer begins.
    pub fn is_warm(&self) -> bool {
        match *self {
            KeptState::Unknown | KeptState::Changed => false,
            KeptState::Kept { tokens, ram_tokens, disk_tokens } => ram_tokens + disk_tokens + 1 >= tokens,
        }
    }
}

type Prompts = BTreeMap<String, Vec<Token>>;

/// Tokens of each pinned prompt, by name.
#[derive(Debug)]
pub(crate) struct KeptPrompts {
    /// Path of the list; `None` without a disk.
    file: Option<PathBuf>,
    list: Mutex<List>,
}

/// The list as it was last read.
#[derive(Debug, Default)]
struct List {
    prompts: Prompts,
    /// When the file was changed, and its length; `None` if there was none.
    version: Option<(SystemTime, u64)>,
    /// Whether the file holds something else.
    is_damaged: bool,
    /// Why the file could not be read just now. Until it can, it is not changed: its names would be lost.
    failed: Option<io::Error>,
    /// Tokens that this model has pinned. Another one may have given their name to others since.
    pinned: BTreeSet<Vec<Token>>,
}

impl KeptPrompts {
    /// Reads the list of a model in a directory. A damaged list counts as empty, and is set aside when it is changed: its
    /// prompts are pinned again on request.
    pub(crate) fn open(dir: Option<&Path>, model: &[u8; 32]) -> KeptPrompts {
        let file = dir.map(|dir| dir.join(format!("kept-{}.json", hex::written(&model[..8]))));
        KeptPrompts { file, list: Mutex::default() }
    }

    /// Tokens of a name.
    pub(crate) fn get(&self, id: &str) -> Option<Vec<Token>> {
        self.lock().prompts.get(id).cloned()
    }

    /// Stores tokens under a name; returns the tokens that it had before.
    pub(crate) fn keep(&self, id: &str, tokens: &[Token]) -> Result<Option<Vec<Token>>, Error> {
        let _others_wait = self.lock_file();
        let mut list = self.read_again()?;
        check_room(&list.prompts, id)?;
        let mut changed = list.prompts.clone();
        let before = changed.insert(id.to_owned(), tokens.to_vec());
        self.write(&mut list, changed)?;
        list.pinned.insert(tokens.to_vec());
        Ok(before)
    }

    /// Removes a name; returns its tokens.
    pub(crate) fn remove(&self, id: &str) -> Result<Option<Vec<Token>>, Error> {
        let _others_wait = self.lock_file();
        let mut list = self.read_again()?;
        let mut changed = list.prompts.clone();
        let Some(before) = changed.remove(id) else { return Ok(None) };
        self.write(&mut list, changed)?;
        Ok(Some(before))
    }

    /// Refuses a new name that exceeds the limit, before its prompt is computed.
    pub(crate) fn check_room(&self, id: &str) -> Result<(), Error> {
        check_room(&self.lock().prompts, id)
    }

    /// Tokens to unpin, whose whole blocks no name has: of these, and of all that this model has pinned. While the list
    /// cannot be read, none: they are named later.
    pub(crate) fn take_unnamed(&self, tokens: impl IntoIterator<Item = Vec<Token>>) -> BTreeSet<Vec<Token>> {
        let mut list = self.lock();
        let mut pinned = std::mem::take(&mut list.pinned);
        pinned.extend(tokens);
        if list.failed.is_some() {
            list.pinned = pinned;
            return BTreeSet::new();
        }
        let (named, unnamed) = pinned.into_iter().partition(|tokens| list.has(tokens));
        list.pinned = named;
        unnamed
    }

    fn write(&self, list: &mut List, prompts: Prompts) -> Result<(), Error> {
        if let Some(file) = &self.file {
            let failed = |source| Error::KeptPrompts { path: file.clone(), source };
            let text = serde_json::to_vec(&prompts).map_err(|error| failed(error.into()))?;
            let (bytes, bytes_max) = (text.len() as u64, LIST_BYTES_MAX);
            if bytes > bytes_max {
                return Err(Error::KeptTooLong { bytes, bytes_max });
            }
            if list.is_damaged {
                set_aside(file).map_err(failed)?;
            }
            replace(file, &text).map_err(failed)?;
            list.is_damaged = false;
            list.version = version(file).unwrap_or(None);
        }
        list.prompts = prompts;
        Ok(())
    }

    /// The list, read again if another model or process has changed it.
    fn lock(&self) -> MutexGuard<'_, List> {
        // Changed only by whole assignments.
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = &self.file {
            list.failed = list.refresh(file).err();
            if let Some(error) = &list.failed {
                tracing::warn!("the kept prompts in {} cannot be read: {error}", file.display());
            }
        }
        list
    }

    /// The list as it is in the file: two changes may have the same time.
    fn read_again(&self) -> Result<MutexGuard<'_, List>, Error> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner).version = None;
        let mut list = self.lock();
        match (&self.file, list.failed.take()) {
            (Some(file), Some(source)) => Err(Error::KeptPrompts { path: file.clone(), source }),
            _ => Ok(list),
        }
    }

    /// Makes others wait with their changes until the returned file is dropped. One that does not get the lock in time
    /// goes on without it: the other one hangs, and at worst its last change is lost.
    fn lock_file(&self) -> Option<File> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false);
        readable_by_owner_only(&mut options);
        let path = self.file.as_ref()?.with_extension("lock");
        create_private_folder(path.parent()?).ok()?;
        let file = options.open(path).ok()?;
        let start = Instant::now();
        while file.try_lock().is_err() && start.elapsed() < LOCK_WAIT {
            thread::sleep(LOCK_RETRY);
        }
        Some(file)
    }
}

impl List {
    fn refresh(&mut self, file: &Path) -> io::Result<()> {
        let found = version(file)?;
        // It may have been set aside, and the disk be too full for another one.
        self.is_damaged &= found.is_some();
        if found.is_some() && found != self.version {
            let prompts = read(file)?;
            self.is_damaged = prompts.is_none();
            self.prompts = prompts.unwrap_or_default();
            self.version = found;
        }
        Ok(())
    }

    /// True if any name has these tokens, or others with the same whole blocks: a pin covers whole blocks, so both have
    /// the same one.
    fn has(&self, tokens: &[Token]) -> bool {
        let whole = whole_blocks(tokens);
        let shares = |theirs: &[Token]| !whole.is_empty() && whole_blocks(theirs) == whole;
        self.prompts.values().any(|theirs| theirs == tokens || shares(theirs))
    }
}

/// When a list was changed, and its length; `None` if there is none, or something else has its path.
fn version(file: &Path) -> io::Result<Option<(SystemTime, u64)>> {
    match fs::metadata(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Ok(found) if !found.is_file() => Ok(None),
        found => found.and_then(|found| Ok(Some((found.modified()?, found.len())))),
    }
}

fn check_room(prompts: &Prompts, id: &str) -> Result<(), Error> {
    match prompts.len() >= PROMPTS_MAX && !prompts.contains_key(id) {
        true => Err(Error::TooManyKept { prompts_max: PROMPTS_MAX }),
        false => Ok(()),
    }
}

/// Reads a list, whose content is not trusted; `None` if it is none.
fn read(path: &Path) -> io::Result<Option<Prompts>> {
    let mut text = Vec::new();
    let file = File::open(path)?;
    close_to_others(&file);
    file.take(LIST_BYTES_MAX + 1).read_to_end(&mut text)?;
    if text.len() as u64 > LIST_BYTES_MAX {
        tracing::warn!("the kept prompts in {} are too long", path.display());
        return Ok(None);
    }
    match serde_json::from_slice::<Prompts>(&text) {
        Ok(prompts) if prompts.len() <= PROMPTS_MAX => return Ok(Some(prompts)),
        Ok(_) => tracing::warn!("{} has more than {PROMPTS_MAX} prompts", path.display()),
        Err(error) => tracing::warn!("the kept prompts in {} are damaged: {error}", path.display()),
    }
    Ok(None)
}

/// Keeps a damaged list beside its path: nobody knows what is in it.
fn set_aside(file: &Path) -> io::Result<()> {
    fs::rename(file, file.with_extension(format!("broken-{}", unix_seconds())))
}

/// Replaces a list as a whole: a process that is killed leaves either the old list or the new one.
fn replace(file: &Path, text: &[u8]) -> io::Result<()> {
    if let Some(dir) = file.parent() {
        create_private_folder(dir)?;
    }
    let new = file.with_extension("new");
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    readable_by_owner_only(&mut options);
    let mut out = options.open(&new)?;
    // A killed process may have left a file that others can read.
    close_to_others(&out);
    out.write_all(text)?;
    out.sync_all()?;
    fs::rename(new, file)
}

#[cfg(test)]
mod tests {
    use kvik_cache::BLOCK_POSITIONS;

    use super::*;

    const MODEL: [u8; 32] = [7; 32];

    #[cfg(unix)]
    #[test]
    fn nobody_else_reads_the_tokens_of_kept_prompts() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let list = KeptPrompts::open(Some(dir.path()), &MODEL);
        list.keep("a", &[1, 2]).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let file = list.file.clone().unwrap();
        assert_eq!(mode(&file), 0o600);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        fs::write(file.with_extension("new"), "left").unwrap();
        list.keep("b", &[3]).unwrap();
        assert_eq!(mode(&file), 0o600, "whatever was there before");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(KeptPrompts::open(Some(dir.path()), &MODEL).lock().has(&[3]));
        assert_eq!(mode(&file), 0o600, "and of an older version");
    }

    #[test]
    fn a_list_outlives_the_process_and_is_the_models_own() {
        let dir = tempfile::tempdir().unwrap();
        let list = KeptPrompts::open(Some(dir.path()), &MODEL);
        assert_eq!(list.keep("a", &[1, 2]).unwrap(), None);
        assert_eq!(list.keep("b", &[3]).unwrap(), None);
        assert_eq!(list.keep("a", &[4]).unwrap(), Some(vec![1, 2]));
        assert_eq!(list.remove("b").unwrap(), Some(vec![3]));
        assert_eq!(list.remove("b").unwrap(), None);
        let again = KeptPrompts::open(Some(dir.path()), &MODEL);
        assert_eq!((again.get("a"), again.get("b")), (Some(vec![4]), None));
        assert_eq!(KeptPrompts::open(Some(dir.path()), &[8; 32]).get("a"), None);
        assert!(again.lock().has(&[4]) && !again.lock().has(&[1, 2]));
    }

    #[test]
    fn what_this_model_has_pinned_is_unpinned_when_another_one_has_changed_or_removed_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let [one, other] = [(); 2].map(|()| KeptPrompts::open(Some(dir.path()), &MODEL));
        one.keep("a", &[1]).unwrap();
        one.keep("b", &[2]).unwrap();
        one.keep("c", &[2]).unwrap();
        assert!(one.take_unnamed(None).is_empty(), "all have names");
        assert_eq!(other.keep("a", &[3]).unwrap(), Some(vec![1]));
        assert_eq!(other.remove("b").unwrap(), Some(vec![2]));
        assert_eq!(one.take_unnamed(None), BTreeSet::from([vec![1]]), "another name has the others");
        other.remove("c").unwrap();
        assert_eq!(one.take_unnamed(Some(vec![3])), BTreeSet::from([vec![2]]));
        assert!(one.take_unnamed(None).is_empty(), "once");
    }

    #[test]
    fn prompts_with_the_same_whole_blocks_have_one_pin_until_the_last_of_them_is_removed() {
        let list = KeptPrompts::open(None, &MODEL);
        let prompt = |last: Token| (0..BLOCK_POSITIONS as Token).chain([last]).collect::<Vec<_>>();
        for (id, tokens) in [("a", prompt(100)), ("b", prompt(101)), ("short", vec![1]), ("other", vec![2])] {
            list.keep(id, &tokens).unwrap();
        }
        let removed = |id: &str| list.take_unnamed(list.remove(id).unwrap());
        assert_eq!(removed("short"), BTreeSet::from([vec![1]]), "nothing of them is pinned");
        assert!(removed("a").is_empty());
        assert_eq!(removed("b"), BTreeSet::from([prompt(100), prompt(101)]));
    }

    #[test]
    fn a_list_that_could_not_be_read_again_is_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let list = KeptPrompts::open(Some(dir.path()), &MODEL);
        list.keep("a", &[1]).unwrap();
        // Ten digits and a comma each.
        let long = vec![Token::MAX; LIST_BYTES_MAX as usize / 11 + 1];
        let error = list.keep("long", &long).unwrap_err();
        assert!(matches!(error, Error::KeptTooLong { bytes, bytes_max } if bytes > bytes_max), "{error}");
        let again = KeptPrompts::open(Some(dir.path()), &MODEL);
        assert_eq!((again.get("a"), again.get("long")), (Some(vec![1]), None), "what was kept is kept");
    }

    #[test]
    fn several_have_one_list_and_no_change_is_lost() {
        let dir = tempfile::tempdir().unwrap();
        let [one, other] = [(); 2].map(|()| KeptPrompts::open(Some(dir.path()), &MODEL));
        thread::scope(|scope| {
            for (list, from) in [(&one, 0), (&other, 100)] {
                scope.spawn(move || {
                    (from..from + 20).for_each(|id: u32| drop(list.keep(&id.to_string(), &[id]).unwrap()));
                });
            }
        });
        for id in (0..20).chain(100..120_u32) {
            let tokens = Some(vec![id]);
            assert_eq!((one.get(&id.to_string()), other.get(&id.to_string())), (tokens.clone(), tokens));
        }
        assert_eq!(one.remove("7").unwrap(), Some(vec![7]));
        assert!(other.get("7").is_none() && !other.lock().has(&[7]));
    }

    #[test]
    fn a_list_that_is_anything_is_empty_and_can_be_written() {
        let dir = tempfile::tempdir().unwrap();
        let list = KeptPrompts::open(Some(dir.path()), &MODEL);
        list.keep("a", &[1]).unwrap();
        let file = list.file.clone().unwrap();
        let whole = fs::read(&file).unwrap();
        for bad in [&whole[..whole.len() - 1], b"", b"[]", b"{\"a\": [-1]}", b"\xff\xfe", b"{\"a\": 1}"] {
            fs::write(&file, bad).unwrap();
            let list = KeptPrompts::open(Some(dir.path()), &MODEL);
            assert_eq!(list.get("a"), None, "{bad:?}");
            list.keep("b", &[2]).unwrap();
            assert_eq!(KeptPrompts::open(Some(dir.path()), &MODEL).get("b"), Some(vec![2]));
            let files = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
            let mut aside = files.filter(|path| path.to_string_lossy().contains(".broken-"));
            assert!(aside.any(|path| fs::read(path).unwrap() == bad), "{bad:?} is set aside");
        }
    }

    #[test]
    fn a_damaged_list_that_was_set_aside_and_not_replaced_is_replaced_later() {
        let dir = tempfile::tempdir().unwrap();
        let list = KeptPrompts::open(Some(dir.path()), &MODEL);
        list.keep("a", &[1]).unwrap();
        let file = list.file.clone().unwrap();
        fs::write(&file, "damaged").unwrap();
        let in_the_way = file.with_extension("new");
        fs::create_dir(&in_the_way).unwrap();
        list.keep("b", &[2]).unwrap_err();
        assert!(!file.exists(), "it is set aside");
        fs::remove_dir(in_the_way).unwrap();
        assert_eq!(list.keep("b", &[2]).unwrap(), None);
        assert_eq!(KeptPrompts::open(Some(dir.path()), &MODEL).get("b"), Some(vec![2]));
    }

    /// A disk may fail for a moment, and a process have too many files open.
    #[cfg(unix)]
    #[test]
    fn a_list_that_cannot_be_read_now_is_not_changed_and_nothing_of_it_unpinned() {
        let dir = tempfile::tempdir().unwrap();
        let list = KeptPrompts::open(Some(dir.path()), &MODEL);
        list.keep("a", &[1]).unwrap();
        let file = list.file.clone().unwrap();
        let whole = file.with_extension("whole");
        fs::rename(&file, &whole).unwrap();
        // A link to itself cannot be followed.
        std::os::unix::fs::symlink(&file, &file).unwrap();
        let again = KeptPrompts::open(Some(dir.path()), &MODEL);
        for list in [&list, &again] {
            assert!(matches!(list.keep("b", &[2]), Err(Error::KeptPrompts { .. })));
            assert!(matches!(list.remove("a"), Err(Error::KeptPrompts { .. })));
            assert!(list.take_unnamed(Some(vec![2])).is_empty(), "it may have a name");
        }
        fs::rename(&whole, &file).unwrap();
        for list in [&list, &again] {
            assert_eq!((list.get("a"), list.get("b")), (Some(vec![1]), None));
            assert_eq!(list.take_unnamed(None), BTreeSet::from([vec![2]]));
        }
        assert_eq!(again.keep("b", &[2]).unwrap(), None);
    }

    #[test]
    fn there_is_a_limit_and_a_directory_that_cannot_be_written_is_an_error_that_names_it() {
        let list = KeptPrompts::open(None, &MODEL);
        for i in 0..PROMPTS_MAX {
            list.keep(&i.to_string(), &[1]).unwrap();
        }
        assert!(matches!(list.keep("more", &[1]), Err(Error::TooManyKept { .. })));
        assert!(list.check_room("more").is_err() && list.check_room("7").is_ok());
        list.keep("7", &[2]).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let taken = dir.path().join("taken");
        fs::write(&taken, b"a file").unwrap();
        let list = KeptPrompts::open(Some(&taken), &MODEL);
        let error = list.keep("a", &[1]).unwrap_err().to_string();
        assert!(error.contains("taken/kept-0707"), "{error}");
        assert_eq!(list.get("a"), None, "what is not written is not kept");
    }
}
