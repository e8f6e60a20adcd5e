//! The log of prompts computed for each deletable object: a conversation, a stored response.
//!
//! ```text
//! STATE/computed/SALT/OWNER      entry, entry, ...      an entry: [tokens shared with the one before][tokens][...]
//! ```
//!
//! Blocks of keys and values hold tokens but not what they were computed for. So each prompt is noted before
//! it is computed, and the blocks of a conversation are found by its prompts when it is deleted. A turn
//! appends only its new tokens. The file is named by a hash, and removed as a whole. A deletion reads all of it, in
//! parts; what does not fit in it any more is computed and not cached.

mod closed_owners;
mod entries;
mod first_notes;
mod longest_prompts;
mod parts;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use kvik_cache::{BLOCK_POSITIONS, Token};
use kvik_engine::api::Request;
use kvik_memory::deletions::Owner;
use kvik_memory::hex;
use kvik_memory::records::FileTurns;

use self::closed_owners::ClosedOwners;
use self::entries::{Prompts, append, check_room, common, cut, entry};
use self::longest_prompts::LongestPrompts;
use self::parts::Parts;

pub(crate) use self::first_notes::FirstNotes;
pub(crate) use self::parts::NotedPrompts;

/// Maximum tokens of the prompts in memory, shared ones counted in each: of a part of a file, and of those of others beside
/// it.
const TOKENS_MAX: usize = 64 << 20;
/// Most recently used prompts in memory, so that a turn notes only its new tokens.
const LAST_MAX: usize = 256;

/// Maximum bytes of all notes where there is no folder for them; of what cannot be noted nothing is cached.
const UNWRITTEN_BYTES_MAX: usize = 128 << 20;

/// Owners remembered as deleted; requests in flight at the deletion of earlier ones have long ended.
const CLOSED_MAX: usize = 1 << 16;

/// Separates tenants: prompts are shared within one salt.
type Salt = [u8; 16];

/// All prompts that were noted.
pub(crate) struct PromptLog {
    /// Absent where nothing can be written: prompts are then noted for the lifetime of the process.
    folder: Option<PathBuf>,
    /// Serialises the writers: an entry is relative to the one before it.
    noting: FileTurns,
    noted: Mutex<BTreeMap<Noted, Notes>>,
    /// Maximum bytes of these where there is no folder.
    unwritten_bytes_max: usize,
    /// Number of the last use of any notes in memory.
    uses: AtomicU64,
    closed: Mutex<ClosedOwners>,
}

/// The salt of a prompt, and the name of its owner's file.
type Noted = (Salt, String);

/// What is in memory of the notes of one owner under one salt.
#[derive(Default)]
struct Notes {
    /// The last prompt, to note what is new in the next one.
    last: Vec<Token>,
    /// All entries, where there is no folder for their file.
    entries: Vec<u8>,
    /// Number of their last use.
    used: u64,
}

impl Notes {
    fn bytes(&self) -> usize {
        self.entries.len() + size_of_val(self.last.as_slice())
    }
}

impl PromptLog {
    /// Opens the log in a state directory.
    pub(crate) fn open(state_dir: Option<&Path>) -> PromptLog {
        let folder = state_dir.map(|folder| folder.join("computed"));
        PromptLog {
            folder,
            noting: FileTurns::new(1),
            noted: Mutex::default(),
            unwritten_bytes_max: UNWRITTEN_BYTES_MAX,
            uses: AtomicU64::default(),
            closed: Mutex::default(),
        }
    }

    /// Notes that a prompt is about to be computed for an owner.
    ///
    /// # Errors
    /// If it cannot be written; the computed blocks must then not be cached.
    pub(crate) fn note(&self, salt: Salt, owner: &Owner, prompt: &[Token]) -> io::Result<()> {
        let _noting = self.noting.enter().map_err(io::Error::other)?;
        let key = (salt, file_name(owner));
        if self.closed().contains(&key.1) {
            return Err(io::Error::other("what it is for was deleted"));
        }
        let last = self.last(&key).map_or_else(|| self.last_in_file(&key), Ok)?;
        if last == prompt {
            return Ok(());
        }
        let entry = entry(&last, prompt)?;
        if let Some(file) = self.file(&key) {
            append(&file, &entry)?;
        }
        self.keep(key, prompt, entry)
    }

    /// The last prompt of these notes, if they are in memory.
    fn last(&self, key: &Noted) -> Option<Vec<Token>> {
        let mut noted = self.lock();
        let notes = noted.get_mut(key)?;
        notes.used = self.next_use();
        Some(notes.last.clone())
    }

    /// The last prompt that is completely in the file of these notes. What a killed process has left of another behind
    /// it is cut off: the tokens of the next entry would be read as those of that one.
    fn last_in_file(&self, key: &Noted) -> io::Result<Vec<Token>> {
        let (last, whole_bytes) = self.prompts(key)?.into_last()?;
        self.file(key).map_or(Ok(()), |file| cut(&file, whole_bytes))?;
        Ok(last)
    }

    fn next_use(&self) -> u64 {
        self.uses.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Keeps in memory what the next note needs, and the entry itself where it has no file.
    fn keep(&self, key: Noted, prompt: &[Token], entry: Vec<u8>) -> io::Result<()> {
        let last = prompt.to_vec();
        let mut noted = self.lock();
        if self.folder.is_none() {
            self.check_memory(&noted, entry.len() + size_of_val(prompt))?;
        } else if noted.len() >= LAST_MAX && !noted.contains_key(&key) {
            let oldest = noted.iter().min_by_key(|(_, notes)| notes.used).map(|(key, _)| key.clone());
            if let Some(oldest) = oldest {
                noted.remove(&oldest);
            }
        }
        let notes = noted.entry(key).or_default();
        notes.used = self.next_use();
        if self.folder.is_none() {
            check_room(notes.entries.len() as u64, &entry)?;
            notes.entries.extend(entry);
        }
        notes.last = last;
        Ok(())
    }

    /// Refuses so many more bytes of notes beside these, which are nowhere but in memory.
    fn check_memory(&self, noted: &BTreeMap<Noted, Notes>, more: usize) -> io::Result<()> {
        let bytes: usize = noted.values().map(Notes::bytes).sum();
        if bytes + more <= self.unwritten_bytes_max {
            return Ok(());
        }
        let mebibytes = self.unwritten_bytes_max >> 20;
        let message = format!(
            "{mebibytes} MiB of prompts are noted in memory; start the server with a state directory"
        );
        Err(io::Error::new(ErrorKind::OutOfMemory, message))
    }

    /// Notes a request for each of its owners. If that fails, the request is computed without caching, since
    /// a deletion could not find its blocks.
    pub(crate) fn note_or_keep_nothing(&self, owners: &[Owner], request: &mut Request) {
        let noted = owners
            .iter()
            .filter(|_| request.reuse)
            .try_for_each(|owner| self.note(request.salt, owner, &request.prompt));
        if let Err(error) = noted {
            tracing::warn!("a prompt is computed and not cached, since it cannot be noted: {error}");
            request.reuse = false;
        }
    }

    /// The prompts computed for an owner, for each salt that its tenant has had, in parts that fit in memory: what a
    /// deletion does for all of them, it may do for each part.
    ///
    /// # Errors
    /// If they cannot be read.
    pub(crate) fn of(&self, owner: &Owner) -> io::Result<impl Iterator<Item = io::Result<NotedPrompts>>> {
        let (name, mut all) = (file_name(owner), Vec::new());
        for salt in self.salts()? {
            let prompts = self.prompts(&(salt, name.clone()))?;
            all.push(Parts { salt, prompts, tokens_max: TOKENS_MAX });
        }
        Ok(all.into_iter().flatten())
    }

    /// Prompts of other owners with the same salt that share a prefix with one of these, truncated to that prefix;
    /// complete if they continue one of these, as far as they fit in memory: blocks behind that are computed again.
    ///
    /// # Errors
    /// If they cannot be read.
    pub(crate) fn others(&self, owner: &Owner, own: &NotedPrompts) -> io::Result<Vec<Vec<Token>>> {
        let (name, mut found) = (file_name(owner), LongestPrompts::new(TOKENS_MAX));
        // Of two that are deleted at a time, neither would delete what only they share.
        let is_other = |other: &String| *other != name && !self.closed().contains(other);
        for other in self.names(own.salt)?.into_iter().filter(is_other) {
            for prompt in self.prompts(&(own.salt, other))? {
                let mut prompt = prompt?;
                let shared = own.prompts.iter().map(|own| common(own, &prompt)).max().unwrap_or(0);
                if !own.prompts.iter().any(|own| prompt.starts_with(own)) {
                    prompt.truncate(shared);
                }
                if shared >= BLOCK_POSITIONS {
                    found.add(prompt, shared);
                }
            }
        }
        Ok(found.into_vec())
    }

    /// Rejects all further notes for a deleted owner.
    pub(crate) fn close(&self, owner: &Owner) {
        self.closed().insert(file_name(owner), CLOSED_MAX);
    }

    /// Gives all notes of an owner to another one: of prompts that both had noted, the deletion of neither would find
    /// what it has alone.
    ///
    /// # Errors
    /// If some cannot be moved.
    pub(crate) fn hand_over(&self, owner: &Owner, heir: &Owner) -> io::Result<()> {
        let (name, heir) = (file_name(owner), file_name(heir));
        let _noting = self.noting.enter().map_err(io::Error::other)?;
        let mut noted = self.lock();
        let own: Vec<Noted> = noted.keys().filter(|(_, own)| *own == name).cloned().collect();
        let own: Vec<_> = own.into_iter().filter_map(|key| Some((key.0, noted.remove(&key)?))).collect();
        if self.folder.is_none() {
            noted.extend(own.into_iter().map(|(salt, notes)| ((salt, heir.clone()), notes)));
            return Ok(());
        }
        drop(noted);
        for of_salt in self.folders()? {
            if_there(fs::rename(of_salt.join(&name), of_salt.join(&heir)))?;
        }
        Ok(())
    }

    /// Removes all notes of an owner.
    ///
    /// # Errors
    /// If they may still be on disk.
    pub(crate) fn forget(&self, owner: &Owner) -> io::Result<()> {
        let name = file_name(owner);
        // A prompt that is being noted continues one in the file.
        let _noting = self.noting.enter().map_err(io::Error::other)?;
        self.lock().retain(|(_, own), _| *own != name);
        for of_salt in self.folders()? {
            if_there(fs::remove_file(of_salt.join(&name)))?;
        }
        Ok(())
    }

    /// Removes the notes of all owners but these.
    ///
    /// # Errors
    /// If some may still be on disk.
    pub(crate) fn keep_only(&self, owners: &[Owner]) -> io::Result<()> {
        let kept: BTreeSet<String> = owners.iter().map(file_name).collect();
        let _noting = self.noting.enter().map_err(io::Error::other)?;
        for of_salt in self.folders()? {
            for name in files_in(&of_salt)?.iter().filter(|name| !kept.contains(*name)) {
                fs::remove_file(of_salt.join(name))?;
            }
        }
        Ok(())
    }

    /// The salts under which something may be noted.
    fn salts(&self) -> io::Result<BTreeSet<Salt>> {
        Ok(match &self.folder {
            Some(folder) => names_in(folder)?.iter().filter_map(|name| hex::read(name)).collect(),
            None => self.lock().keys().map(|(salt, _)| *salt).collect(),
        })
    }

    /// The folders of these salts; none where nothing can be written.
    fn folders(&self) -> io::Result<Vec<PathBuf>> {
        let Some(folder) = &self.folder else { return Ok(Vec::new()) };
        Ok(self.salts()?.into_iter().map(|salt| folder.join(hex::written(salt))).collect())
    }

    /// Names of the files under a salt.
    fn names(&self, salt: Salt) -> io::Result<Vec<String>> {
        match &self.folder {
            Some(folder) => files_in(&folder.join(hex::written(salt))),
            None => {
                Ok(self.lock().keys().filter(|(of, _)| *of == salt).map(|(_, name)| name.clone()).collect())
            }
        }
    }

    fn file(&self, (salt, name): &Noted) -> Option<PathBuf> {
        Some(self.folder.as_ref()?.join(hex::written(salt)).join(name))
    }

    /// The prompts noted under a salt in a file; none if it does not exist.
    fn prompts(&self, key: &Noted) -> io::Result<Prompts> {
        let Some(file) = self.file(key) else {
            let noted = self.lock();
            return Ok(Prompts::in_memory(
                noted.get(key).map(|notes| notes.entries.clone()).unwrap_or_default(),
            ));
        };
        let file = if_there(File::open(file))?;
        file.map_or_else(|| Ok(Prompts::in_memory(Vec::new())), Prompts::in_file)
    }

    fn closed(&self) -> MutexGuard<'_, ClosedOwners> {
        // A panic between its two collections forgets an owner too early at worst.
        self.closed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Noted, Notes>> {
        // Nothing panics between two changes of the map, so the map is consistent after any panic.
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn file_name(owner: &Owner) -> String {
    let mut hasher = blake3::Hasher::new_derive_key("kvik 2026-11-27 owner of noted prompts v1");
    hasher.update(&(owner.tenant.len() as u64).to_le_bytes());
    hasher.update(owner.tenant.as_bytes());
    hasher.update(owner.id.as_bytes());
    hex::written(&hasher.finalize().as_bytes()[..16])
}

/// Names of the files of owners in the folder of a salt; other programs put files of their own into any folder.
fn files_in(of_salt: &Path) -> io::Result<Vec<String>> {
    let mut names = names_in(of_salt)?;
    names.retain(|name| hex::read::<16>(name).is_some());
    Ok(names)
}

/// Names of the entries of a folder that may not exist.
fn names_in(folder: &Path) -> io::Result<Vec<String>> {
    let Some(entries) = if_there(fs::read_dir(folder))? else { return Ok(Vec::new()) };
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

/// Turns the absence of what is at a path, or of its folder, into `None`.
fn if_there<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        result => result.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{
        entries::{FILE_BYTES_MAX, HEADER_BYTES},
        *,
    };

    pub(super) const AT: Salt = [2; 16];

    pub(super) fn all(log: &PromptLog, owner: &Owner) -> Vec<Vec<Token>> {
        log.of(owner).unwrap().flat_map(|part| part.unwrap().prompts).collect()
    }

    fn decoded(bytes: &[u8]) -> Vec<Vec<Token>> {
        Prompts::in_memory(bytes.to_vec()).map(Result::unwrap).collect()
    }

    fn file_of(folder: &Path, owner: &Owner) -> PathBuf {
        folder.join("computed").join(hex::written(AT)).join(file_name(owner))
    }

    #[test]
    fn what_was_computed_is_found_by_its_owner_until_that_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        for folder in [None, Some(dir.path())] {
            let log = PromptLog::open(folder);
            let (one, two) = (Owner::new("a", "conv_1"), Owner::new("a", "conv_2"));
            let elsewhere = [3; 16];
            let prompt: Vec<Token> = (0..50).collect();
            let branch: Vec<Token> = (0..30).chain(90..99).collect();
            log.note(AT, &one, &prompt[..40]).unwrap();
            log.note(AT, &one, &prompt).unwrap();
            log.note(AT, &one, &prompt).unwrap();
            log.note(AT, &one, &branch).unwrap();
            log.note(elsewhere, &one, &[7; 20]).unwrap();
            log.note(AT, &two, &prompt[..32]).unwrap();
            log.note(AT, &two, &[5; 40]).unwrap();
            let log = if folder.is_some() { PromptLog::open(folder) } else { log };
            let mut found = all(&log, &one);
            found.sort();
            assert_eq!(found, [prompt[..40].to_vec(), prompt.clone(), branch.clone(), vec![7; 20]]);
            let own = log.of(&one).unwrap().map(Result::unwrap).find(|it| it.salt == AT).unwrap();
            assert_eq!(log.others(&one, &own).unwrap(), [prompt[..32].to_vec()], "no others begin so");
            log.close(&two);
            assert!(log.others(&one, &own).unwrap().is_empty(), "that is deleted too");
            assert!(all(&log, &Owner::new("b", "conv_1")).is_empty(), "another tenant's");
            let (fork, none) = (Owner::new("a", "conv_3"), Owner::new("a", "conv_4"));
            log.hand_over(&one, &fork).unwrap();
            log.hand_over(&none, &two).unwrap();
            assert!(all(&log, &one).is_empty() && all(&log, &two).len() == 2);
            found = all(&log, &fork);
            found.sort();
            assert_eq!(found, [prompt[..40].to_vec(), prompt.clone(), branch, vec![7; 20]]);
            log.forget(&two).unwrap();
            log.forget(&fork).unwrap();
        }
        let left: Vec<_> = names_in(&dir.path().join("computed")).unwrap();
        assert!(
            left.iter().all(|place| names_in(&dir.path().join("computed").join(place)).unwrap().is_empty())
        );
    }

    /// macOS leaves such files where a person looks, and on disks of other systems beside each file.
    #[test]
    fn stray_files_and_folders_keep_nothing_from_being_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let log = PromptLog::open(Some(dir.path()));
        let [one, two, heir] = ["conv_1", "conv_2", "conv_3"].map(|id| Owner::new("a", id));
        for owner in [&one, &two] {
            log.note(AT, owner, &[1; 40]).unwrap();
        }
        let (computed, file) = (dir.path().join("computed"), file_of(dir.path(), &one));
        let of_salt = [".DS_Store", "._x"].map(|name| file.with_file_name(name));
        for stray in [computed.join(".DS_Store"), computed.join("99".repeat(16))].iter().chain(&of_salt) {
            fs::write(stray, "stray").unwrap();
        }
        fs::create_dir(file.with_file_name("folder")).unwrap();
        let own = log.of(&one).unwrap().next().unwrap().unwrap();
        assert_eq!(log.others(&one, &own).unwrap(), [vec![1; 40]]);
        log.hand_over(&one, &heir).unwrap();
        log.keep_only(std::slice::from_ref(&heir)).unwrap();
        assert_eq!([&one, &two, &heir].map(|owner| all(&log, owner).len()), [0, 0, 1]);
        log.forget(&heir).unwrap();
        assert!(all(&log, &heir).is_empty());
    }

    /// Each stored response is an owner, while conversations go on.
    #[test]
    fn of_the_notes_in_memory_the_least_recently_used_are_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let log = PromptLog::open(Some(dir.path()));
        let talks: Vec<Owner> = (0..16).map(|talk| Owner::new("a", format!("conv_{talk}"))).collect();
        for number in 0..LAST_MAX + 64 {
            log.note(AT, &Owner::new("a", format!("resp_{number}")), &[1; 20]).unwrap();
            log.note(AT, &talks[number % talks.len()], &[2; 20]).unwrap();
        }
        let noted = log.lock();
        assert_eq!(noted.len(), LAST_MAX);
        assert!(talks.iter().all(|talk| noted.contains_key(&(AT, file_name(talk)))));
    }

    #[test]
    fn a_turn_writes_what_is_new_in_it_also_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let owner = Owner::new("a", "conv_1");
        let prompt: Vec<Token> = (0..1000).collect();
        for turns in [1..=50, 51..=100] {
            let log = PromptLog::open(Some(dir.path()));
            turns.for_each(|turn| log.note(AT, &owner, &prompt[..10 * turn]).unwrap());
        }
        assert_eq!(file_of(dir.path(), &owner).metadata().unwrap().len(), 100 * 8 + 1000 * 4);
        let found = all(&PromptLog::open(Some(dir.path())), &owner);
        assert_eq!(found, [prompt[..10].to_vec(), prompt], "the ones between say nothing");
    }

    /// A system may stop a write of a killed process at any byte.
    #[test]
    fn a_prompt_behind_a_torn_entry_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let (owner, open) = (Owner::new("a", "conv_1"), || PromptLog::open(Some(dir.path())));
        let (first, next): (Vec<Token>, Vec<Token>) = ((0..40).collect(), vec![7; 30]);
        let length = || file_of(dir.path(), &owner).metadata().unwrap().len() as usize;
        open().note(AT, &owner, &first).unwrap();
        let whole = length();
        open().note(AT, &owner, &[&first[..], &[9; 5]].concat()).unwrap();
        let bytes = fs::read(file_of(dir.path(), &owner)).unwrap();
        for cut in whole..length() {
            fs::write(file_of(dir.path(), &owner), &bytes[..cut]).unwrap();
            open().note(AT, &owner, &next).unwrap();
            assert_eq!(all(&open(), &owner), [first.clone(), next.clone()], "cut at byte {cut}");
        }
    }

    /// A deletion could not find what is not noted.
    #[test]
    fn what_can_be_noted_no_more_is_not_cached() {
        let dir = tempfile::tempdir().unwrap();
        let (log, owner) = (PromptLog::open(Some(dir.path())), Owner::new("a", "conv_1"));
        log.note(AT, &owner, &[1; 40]).unwrap();
        let file = File::options().append(true).open(file_of(dir.path(), &owner)).unwrap();
        file.set_len(FILE_BYTES_MAX - HEADER_BYTES).unwrap();
        assert_eq!(log.note(AT, &owner, &[3; 40]).unwrap_err().kind(), ErrorKind::FileTooLarge);
        let mut request = Request { salt: AT, ..Request::new(vec![3; 40], 1) };
        assert!(request.reuse);
        log.note_or_keep_nothing(&[owner], &mut request);
        assert!(!request.reuse);
        assert_eq!(file.metadata().unwrap().len(), FILE_BYTES_MAX - HEADER_BYTES);
    }

    /// Without a state directory the notes of all stored responses were in memory, however many.
    #[test]
    fn notes_that_are_in_memory_alone_have_a_bound_together() {
        let log = PromptLog { unwritten_bytes_max: 1000, ..PromptLog::open(None) };
        let owner = |number: usize| Owner::new("a", format!("resp_{number}"));
        let noted = (0..10).filter(|&number| log.note(AT, &owner(number), &[1; 40]).is_ok());
        assert_eq!(noted.collect::<Vec<_>>(), [0, 1, 2], "each has its tokens twice, and a header");
        let mut request = Request { salt: AT, ..Request::new(vec![1; 40], 1) };
        log.note_or_keep_nothing(&[owner(3)], &mut request);
        assert!(!request.reuse && all(&log, &owner(3)).is_empty());
        log.forget(&owner(1)).unwrap();
        assert!(log.note(AT, &owner(3), &[1; 40]).is_ok());
    }

    /// A prompt took as much memory as its file was long, and that may be all holes.
    #[test]
    fn a_prompt_that_is_longer_than_any_file_is_not_read() {
        use std::io::Write;
        let dir = tempfile::tempdir().unwrap();
        let (log, owner) = (PromptLog::open(Some(dir.path())), Owner::new("a", "conv_1"));
        log.note(AT, &owner, &[1; 40]).unwrap();
        let mut file = File::options().append(true).open(file_of(dir.path(), &owner)).unwrap();
        let tokens = (FILE_BYTES_MAX / 4) as u32;
        file.write_all(&[0_u32.to_le_bytes(), tokens.to_le_bytes()].concat()).unwrap();
        file.set_len(2 * FILE_BYTES_MAX).unwrap();
        assert_eq!(all(&log, &owner), [vec![1; 40]]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let most: usize = decoded(&bytes).iter().map(Vec::len).sum();
            prop_assert!(most <= bytes.len() * bytes.len());
        }

        #[test]
        fn what_is_written_is_read_until_where_it_is_cut(
            prompts in prop::collection::vec(prop::collection::vec(0..4_u32, 1..40), 1..8),
            cut in 0..400_usize,
        ) {
            let dir = tempfile::tempdir().unwrap();
            let (log, owner) = (PromptLog::open(Some(dir.path())), Owner::new("a", "conv_1"));
            prompts.iter().for_each(|prompt| log.note(AT, &owner, prompt).unwrap());
            let found = all(&log, &owner);
            for prompt in &prompts {
                prop_assert!(found.iter().any(|it| it.starts_with(prompt)), "{prompt:?} in {found:?}");
            }
            let bytes = fs::read(file_of(dir.path(), &owner)).unwrap();
            let cut = decoded(&bytes[..cut.min(bytes.len())]);
            prop_assert!(cut.iter().all(|it| found.iter().any(|whole| whole.starts_with(it))));
        }
    }
}
