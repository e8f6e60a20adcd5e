//! The log of prompts computed for each deletable object: a conversation, a stored response.
//!
//! ```text
//! STATE/computed/SALT/OWNER      entry, entry, ...      an entry: [tokens shared with the one before][tokens][...]
//! ```
//!
//! Blocks of keys and values hold tokens but not what they were computed for. So each prompt is noted before
//! it is computed, and the blocks of a conversation are found by its prompts when it is deleted. A turn
//! appends only its new tokens. The file is named by a hash, and removed as a whole.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvik_cache::{BLOCK_POSITIONS, Token};
use kvik_engine::api::Request;
use kvik_memory::deletions::Owner;
use kvik_memory::hex;
use kvik_memory::records::{
    FileTurns,
    private::{create_private_folder, readable_by_owner_only},
};

/// Maximum bytes read of one file: 16 million tokens.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// Maximum tokens of all prompts of a file together, shared ones counted in each.
const TOKENS_MAX: usize = 64 << 20;
/// Most recently used prompts in memory, so that a turn notes only its new tokens.
const LAST_MAX: usize = 256;

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
    /// The last prompt of each owner, to note what is new in the next one; all of them if there is no folder.
    noted: Mutex<BTreeMap<Noted, Vec<Vec<Token>>>>,
    closed: Mutex<ClosedOwners>,
}

/// The files of the owners that were deleted last.
#[derive(Default)]
struct ClosedOwners {
    files: BTreeSet<String>,
    /// Oldest first.
    order: VecDeque<String>,
}

/// The salt of a prompt, and the name of its owner's file.
type Noted = (Salt, String);

/// The prompts computed for one owner under one salt, by any model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NotedPrompts {
    pub(crate) salt: Salt,
    pub(crate) prompts: Vec<Vec<Token>>,
}

/// Prompts noted for an object that does not exist before its first answer is written. Dropped before that, they are
/// forgotten: nobody could delete an object that never was, and its notes would keep blocks of others alive.
pub(crate) struct FirstNotes {
    log: Arc<PromptLog>,
    owner: Option<Owner>,
}

impl FirstNotes {
    pub(crate) fn new(log: Arc<PromptLog>, owner: Owner) -> FirstNotes {
        FirstNotes { log, owner: Some(owner) }
    }

    /// The object exists from now on.
    pub(crate) fn keep(mut self) {
        self.owner = None;
    }
}

impl Drop for FirstNotes {
    fn drop(&mut self) {
        let Some(owner) = self.owner.take() else { return };
        let log = self.log.clone();
        let forget = move || {
            if let Err(error) = log.forget(&owner) {
                tracing::warn!("a prompt stays noted for an answer that was never written: {error}");
            }
        };
        // A client that leaves drops its turn on a thread that must not wait for files.
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(forget)),
            Err(_) => forget(),
        }
    }
}

impl PromptLog {
    /// Opens the log in a state directory.
    pub(crate) fn open(state_dir: Option<&Path>) -> PromptLog {
        let folder = state_dir.map(|folder| folder.join("computed"));
        PromptLog { folder, noting: FileTurns::new(1), noted: Mutex::default(), closed: Mutex::default() }
    }

    /// Notes that a prompt is about to be computed for an owner.
    ///
    /// # Errors
    /// If it cannot be written; the computed blocks must then not be cached.
    pub(crate) fn note(&self, salt: Salt, owner: &Owner, prompt: &[Token]) -> io::Result<()> {
        let _noting = self.noting.enter().map_err(io::Error::other)?;
        let key = (salt, file_name(owner));
        if self.closed().files.contains(&key.1) {
            return Err(io::Error::other("what it is for was deleted"));
        }
        let last = self.lock().get(&key).and_then(|noted| noted.last().cloned());
        if last.as_deref() == Some(prompt) {
            return Ok(());
        }
        let Some(folder) = &self.folder else {
            self.lock().entry(key).or_default().push(prompt.to_vec());
            return Ok(());
        };
        let shared = last.map_or(0, |last| common(&last, prompt));
        append(&folder.join(hex::written(salt)).join(&key.1), shared, &prompt[shared..])?;
        let mut noted = self.lock();
        if noted.len() >= LAST_MAX && !noted.contains_key(&key) {
            noted.pop_first();
        }
        noted.insert(key, vec![prompt.to_vec()]);
        Ok(())
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

    /// The prompts computed for an owner, for each salt that its tenant has had.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(crate) fn of(&self, owner: &Owner) -> io::Result<Vec<NotedPrompts>> {
        let name = file_name(owner);
        let Some(folder) = &self.folder else {
            let noted = self.lock();
            let own = noted.iter().filter(|((_, own), _)| *own == name);
            let computed =
                |(&(salt, _), prompts): (&Noted, &Vec<_>)| NotedPrompts { salt, prompts: prompts.clone() };
            return Ok(own.map(computed).collect());
        };
        let mut found = Vec::new();
        for salt in names_in(folder)?.iter().filter_map(|name| hex::read(name)) {
            let prompts = read(&folder.join(hex::written(salt)).join(&name))?;
            if !prompts.is_empty() {
                found.push(NotedPrompts { salt, prompts });
            }
        }
        Ok(found)
    }

    /// Prompts of other owners with the same salt that share a prefix with one of these, truncated to that
    /// prefix; complete if they continue one of these.
    ///
    /// # Errors
    /// If they cannot be read.
    pub(crate) fn others(&self, owner: &Owner, own: &NotedPrompts) -> io::Result<Vec<Vec<Token>>> {
        let name = file_name(owner);
        let as_far = |mut prompt: Vec<Token>| {
            let shared = own.prompts.iter().map(|own| common(own, &prompt)).max().unwrap_or(0);
            if !own.prompts.iter().any(|own| prompt.starts_with(own)) {
                prompt.truncate(shared);
            }
            (shared >= BLOCK_POSITIONS).then_some(prompt)
        };
        // Of equal truncated prompts one suffices.
        let mut found = BTreeSet::new();
        let Some(folder) = &self.folder else {
            let noted = self.lock();
            let others = noted.iter().filter(|((salt, other), _)| *salt == own.salt && *other != name);
            found.extend(others.flat_map(|(_, prompts)| prompts).cloned().filter_map(as_far));
            return Ok(found.into_iter().collect());
        };
        let folder = folder.join(hex::written(own.salt));
        for other in names_in(&folder)?.into_iter().filter(|other| *other != name) {
            found.extend(read(&folder.join(other))?.into_iter().filter_map(as_far));
        }
        Ok(found.into_iter().collect())
    }

    /// Rejects all further notes for a deleted owner.
    pub(crate) fn close(&self, owner: &Owner) {
        self.closed().insert(file_name(owner), CLOSED_MAX);
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
        let Some(folder) = &self.folder else { return Ok(()) };
        for salt in names_in(folder)? {
            match fs::remove_file(folder.join(salt).join(&name)) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    fn closed(&self) -> MutexGuard<'_, ClosedOwners> {
        // A panic between its two collections forgets an owner too early at worst.
        self.closed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Noted, Vec<Vec<Token>>>> {
        // Every change of the map is one call, so the map is consistent after any panic.
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClosedOwners {
    /// Adds a file; beyond `max` of them the oldest is forgotten.
    fn insert(&mut self, file: String, max: usize) {
        if !self.files.insert(file.clone()) {
            return;
        }
        self.order.push_back(file);
        if self.order.len() > max
            && let Some(oldest) = self.order.pop_front()
        {
            self.files.remove(&oldest);
        }
    }
}

fn common(one: &[Token], other: &[Token]) -> usize {
    one.iter().zip(other).take_while(|(a, b)| a == b).count()
}

fn file_name(owner: &Owner) -> String {
    let mut hasher = blake3::Hasher::new_derive_key("kvik 2026-11-27 owner of noted prompts v1");
    hasher.update(&(owner.tenant.len() as u64).to_le_bytes());
    hasher.update(owner.tenant.as_bytes());
    hasher.update(owner.id.as_bytes());
    hex::written(&hasher.finalize().as_bytes()[..16])
}

/// Names of the entries of a folder that may not exist.
fn names_in(folder: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

/// Appends an entry to a file in one write: a process that is killed leaves it complete or absent.
fn append(path: &Path, shared: usize, tokens: &[Token]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.append(true).create(true);
    readable_by_owner_only(&mut options);
    if let Some(folder) = path.parent() {
        create_private_folder(folder)?;
    }
    let mut bytes = Vec::with_capacity(8 + 4 * tokens.len());
    for number in [shared, tokens.len()] {
        let number = u32::try_from(number).map_err(|_| ErrorKind::InvalidInput)?;
        bytes.extend(number.to_le_bytes());
    }
    tokens.iter().for_each(|token| bytes.extend(token.to_le_bytes()));
    let mut file = options.open(path)?;
    let before = file.metadata()?.len();
    file.write_all(&bytes).inspect_err(|_| {
        // A partial entry would be read as the beginning of the next one.
        let _ = file.set_len(before);
    })
}

/// The prompts in a file, up to its first incomplete entry.
fn read(path: &Path) -> io::Result<Vec<Vec<Token>>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        file => file?,
    };
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(decoded(&bytes))
}

fn decoded(bytes: &[u8]) -> Vec<Vec<Token>> {
    let (words, _) = bytes.as_chunks::<4>();
    let mut words = words.iter().map(|&word| Token::from_le_bytes(word));
    let (mut prompts, mut tokens): (Vec<Vec<Token>>, _) = (Vec::new(), 0);
    while let (Some(shared), Some(count)) = (words.next(), words.next()) {
        let before = prompts.last().map_or(&[][..], Vec::as_slice);
        let (shared, count) = (shared as usize, count as usize);
        tokens += shared + count;
        if shared > before.len() || count > words.len() || tokens > TOKENS_MAX {
            break;
        }
        let mut prompt = before[..shared].to_vec();
        prompt.extend(words.by_ref().take(count));
        // Also if the next prompt continues this one: a different answer may have followed it.
        prompts.push(prompt);
    }
    prompts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const AT: Salt = [2; 16];

    fn all(log: &PromptLog, owner: &Owner) -> Vec<Vec<Token>> {
        log.of(owner).unwrap().into_iter().flat_map(|computed| computed.prompts).collect()
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
            let own = log.of(&one).unwrap();
            let own = own.iter().find(|it| it.salt == AT).unwrap();
            assert_eq!(log.others(&one, own).unwrap(), [prompt[..32].to_vec()], "no others begin so");
            assert!(all(&log, &Owner::new("b", "conv_1")).is_empty(), "another tenant's");
            log.forget(&one).unwrap();
            assert!(all(&log, &one).is_empty() && all(&log, &two).len() == 2);
            log.forget(&two).unwrap();
        }
        let left: Vec<_> = names_in(&dir.path().join("computed")).unwrap();
        assert!(
            left.iter().all(|place| names_in(&dir.path().join("computed").join(place)).unwrap().is_empty())
        );
    }

    #[test]
    fn what_was_noted_for_an_answer_that_is_never_written_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        for folder in [None, Some(dir.path())] {
            let log = Arc::new(PromptLog::open(folder));
            for is_written in [false, true] {
                let owner = Owner::new("a", "conv_1");
                let notes = FirstNotes::new(log.clone(), owner.clone());
                log.note(AT, &owner, &[1; 40]).unwrap();
                if is_written {
                    notes.keep();
                } else {
                    drop(notes);
                }
                assert_eq!(all(&log, &owner).len(), usize::from(is_written));
            }
        }
    }

    #[test]
    fn of_deleted_owners_the_oldest_are_forgotten() {
        let mut closed = ClosedOwners::default();
        for file in ["a", "b", "a", "c"] {
            closed.insert(file.to_owned(), 2);
        }
        assert_eq!(closed.files.iter().collect::<Vec<_>>(), ["b", "c"]);
        assert_eq!(closed.order, ["b", "c"]);
    }

    #[test]
    fn a_turn_writes_what_is_new_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let (log, owner) = (PromptLog::open(Some(dir.path())), Owner::new("a", "conv_1"));
        let prompt: Vec<Token> = (0..1000).collect();
        for turn in 1..=100 {
            log.note(AT, &owner, &prompt[..10 * turn]).unwrap();
        }
        let file = dir.path().join("computed").join(hex::written(AT)).join(file_name(&owner));
        assert_eq!(file.metadata().unwrap().len(), 100 * 8 + 1000 * 4);
        let found = all(&log, &owner);
        assert_eq!((found.len(), found.last()), (100, Some(&prompt)));
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
            let file = dir.path().join("computed").join(hex::written(AT)).join(file_name(&owner));
            let bytes = fs::read(&file).unwrap();
            let cut = decoded(&bytes[..cut.min(bytes.len())]);
            prop_assert!(cut.iter().all(|it| found.iter().any(|whole| whole.starts_with(it))));
        }
    }
}
