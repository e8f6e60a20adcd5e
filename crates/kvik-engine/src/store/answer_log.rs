//! The log of generated answers beside a store: one file, which the process with its lock writes and others read.
//!
//! ```text
//! DIR/3f9a…e1.answers      magic 16 | vocabulary 32 | checksum 16, then records
//! record                   bytes of the rest u32 | checksum 8 | owner 16 | place: bytes u32, hash 16 | tokens u32 each
//! ```
//!
//! Numbers are little-endian, and checksums are the first bytes of BLAKE3. What cannot be read is forgotten, with everything
//! behind it. Where answers are deleted, the file is written anew and replaced; a reader sees that and reads all of it again.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvik_cache::Token;

use super::directory::{
    Directory, Missing, is_no_file, open_private, remove_file, replace_file, replacement,
};
use super::system::{is_at, make_private_directories, read_exact_at, write_all_at};
use crate::api::{AnswerKey, AnswerOwner};

/// Begins each file.
const MAGIC: [u8; 16] = *b"kvik answers v1\n";
/// Bytes before the first record.
const HEADER_BYTES: usize = 64;
/// Bytes of a record before its owner.
const PREFIX_BYTES: usize = 12;
/// Bytes of a record from its owner to its tokens.
const KEY_BYTES: usize = 36;
/// Most tokens of an answer.
pub(crate) const TOKENS_MAX: usize = 1 << 18;
/// Longest file; a longer one is written anew.
const BYTES_MAX: u64 = 64 << 20;
/// How often a reader looks whether there is something new.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(1);

/// An answer as it was generated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LoggedAnswer {
    pub(crate) owner: AnswerOwner,
    pub(crate) place: AnswerKey,
    pub(crate) tokens: Arc<[Token]>,
}

/// What happened to the file since the last look.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LogNews {
    /// These were added.
    Added(Vec<LoggedAnswer>),
    /// It is another file, with these.
    Replaced(Vec<LoggedAnswer>),
}

/// The log of one store.
#[derive(Debug)]
pub(crate) struct AnswerLog {
    path: PathBuf,
    /// Digest of the vocabulary that its tokens are of.
    vocabulary: [u8; 32],
    /// The file; `None` while there is none that can be used.
    file: Option<File>,
    /// Whether this process has the lock of the file.
    writes: bool,
    /// Bytes of the file that were read or written.
    known: u64,
    looked: Option<Instant>,
}

impl AnswerLog {
    /// The log at a path. Nothing is opened yet.
    pub(crate) fn new(path: PathBuf, vocabulary: [u8; 32]) -> AnswerLog {
        AnswerLog { path, vocabulary, file: None, writes: false, known: 0, looked: None }
    }

    /// Whether this process writes it.
    pub(crate) fn writes(&self) -> bool {
        self.writes
    }

    /// Looks what was added, at most once a second; takes the lock if nobody has it.
    pub(crate) fn look(&mut self) -> Option<LogNews> {
        let is_due = self.looked.is_none_or(|looked| looked.elapsed() >= LOOK_EVERY);
        if is_due { self.look_now() } else { None }
    }

    /// Looks now.
    pub(crate) fn look_now(&mut self) -> Option<LogNews> {
        self.looked = Some(Instant::now());
        let is_same =
            self.file.as_ref().is_some_and(|file| is_at(file, &self.path) && bytes_of(file) >= self.known);
        if self.writes && is_same {
            return None;
        }
        if !is_same {
            (self.file, self.known) = (self.opened().ok(), 0);
        }
        self.lock();
        let added = self.read_on();
        match is_same {
            true if added.is_empty() => None,
            true => Some(LogNews::Added(added)),
            false => Some(LogNews::Replaced(added)),
        }
    }

    fn opened(&self) -> io::Result<File> {
        self.path.parent().map_or(Ok(()), make_private_directories)?;
        open_private(&self.path, Missing::Create)
    }

    fn lock(&mut self) {
        // Whoever replaced the file meanwhile has the lock of the new one.
        let is_locked = |file: &File| matches!(file.try_lock(), Ok(())) && is_at(file, &self.path);
        self.writes = self.file.as_ref().is_some_and(is_locked);
        if self.writes {
            // What a process has left that ended while it replaced the file.
            let _ = remove_file(&replacement(&self.path));
        }
    }

    /// The records behind those that are known, up to the first that cannot be read.
    fn read_on(&mut self) -> Vec<LoggedAnswer> {
        let Some(file) = &self.file else { return Vec::new() };
        let length = bytes_of(file).min(2 * BYTES_MAX);
        let header = header(&self.vocabulary);
        if self.known == 0 {
            let mut found = [0; HEADER_BYTES];
            if read_exact_at(file, &mut found, 0).is_err() || found != header {
                return Vec::new();
            }
            self.known = HEADER_BYTES as u64;
        }
        let mut bytes = vec![0; length.saturating_sub(self.known) as usize];
        if read_exact_at(file, &mut bytes, self.known).is_err() {
            return Vec::new();
        }
        let (answers, read) = records(&bytes);
        self.known += read as u64;
        answers
    }

    /// All answers in the file now.
    pub(crate) fn all(&mut self) -> Vec<LoggedAnswer> {
        let known = std::mem::take(&mut self.known);
        let answers = self.read_on();
        self.known = known;
        answers
    }

    /// Adds an answer, if this process writes the log. Returns whether it has become so long that it is to be
    /// [written anew](AnswerLog::rewrite) when `live_bytes` are in use.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn append(&mut self, answer: &LoggedAnswer, live_bytes: usize) -> io::Result<bool> {
        let Some(file) = self.file.as_ref().filter(|_| self.writes) else { return Ok(false) };
        if self.known == 0 {
            file.set_len(0)?;
            write_all_at(file, &header(&self.vocabulary), 0)?;
            self.known = HEADER_BYTES as u64;
        }
        let record = record(answer);
        // A damaged rest of the file would hide what is written behind it.
        if bytes_of(file) > self.known {
            file.set_len(self.known)?;
        }
        write_all_at(file, &record, self.known)?;
        self.known += record.len() as u64;
        Ok(self.known > BYTES_MAX || self.known > (1 << 20) + 2 * live_bytes as u64)
    }

    /// Replaces the file by one with these answers alone, if this process writes it. If that fails, it is emptied.
    ///
    /// # Errors
    /// If the file cannot even be emptied.
    pub(crate) fn rewrite(&mut self, answers: &[LoggedAnswer]) -> io::Result<()> {
        if !self.writes {
            return Ok(());
        }
        match replaced(&self.path, &self.vocabulary, answers) {
            Ok((file, known)) => (self.file, self.known) = (Some(file), known),
            Err(error) => {
                tracing::warn!("the answers beside the disk cache are forgotten: {error}");
                let _ = remove_file(&replacement(&self.path));
                self.known = 0;
                self.file.as_ref().map_or(Ok(()), |file| file.set_len(0))?;
            }
        }
        Ok(())
    }
}

/// Whom the answers of a tenant with this salt belong to.
pub(crate) fn owner_of(salt: [u8; 16]) -> AnswerOwner {
    let mut owner = AnswerOwner::default();
    owner.copy_from_slice(&blake3::derive_key("kvik 2026-11-29 owner of generated answers", &salt)[..16]);
    owner
}

/// Drops the answers of one owner, or of all, from a log that no process has open; returns whether it has none of them now.
///
/// # Errors
/// If the file cannot be opened or changed.
pub(crate) fn erase_answers(path: &Path, owner: Option<&AnswerOwner>) -> io::Result<bool> {
    let file = match open_private(path, Missing::Fail) {
        Err(error) if error.kind() == io::ErrorKind::NotFound || is_no_file(path) => {
            return remove_left(path).map(|()| true);
        }
        opened => opened?,
    };
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(false),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    // It has no owner once this one is locked.
    remove_left(path)?;
    let mut found = [0; HEADER_BYTES];
    let vocabulary = read_exact_at(&file, &mut found, 0).ok().map(|()| vocabulary_of(&found));
    let (Some(owner), Some(vocabulary)) = (owner, vocabulary) else {
        return fs::remove_file(path).map(|()| true);
    };
    let mut log = AnswerLog { file: Some(file), writes: true, ..AnswerLog::new(path.to_owned(), vocabulary) };
    let mut answers = log.read_on();
    answers.retain(|answer| answer.owner != *owner);
    log.rewrite(&answers).map(|()| true)
}

/// Removes the copies of logs under `root` that are gone: nobody opens such a log any more, which would remove what a
/// process has left that was killed while it replaced it.
pub(super) fn remove_orphans(root: &Path) {
    let paths = Directory::every_answers(root).unwrap_or_default();
    for path in paths.iter().filter(|path| fs::symlink_metadata(path).is_err()) {
        if let Err(error) = remove_left(path) {
            tracing::debug!("disk cache: {} is not removed: {error}", replacement(path).display());
        }
    }
}

/// Removes the copy of a log that a process has left which was killed while it replaced the log.
fn remove_left(path: &Path) -> io::Result<()> {
    let left = replacement(path);
    match remove_file(&left) {
        // A folder holds no answers.
        Err(_) if is_no_file(&left) => Ok(()),
        removed => removed,
    }
}

/// Writes a file with these answers beside the path and moves it there, locked.
fn replaced(path: &Path, vocabulary: &[u8; 32], answers: &[LoggedAnswer]) -> io::Result<(File, u64)> {
    let mut bytes = header(vocabulary).to_vec();
    answers.iter().for_each(|answer| bytes.extend(record(answer)));
    let beside = replacement(path);
    let file = replace_file(&beside)?;
    file.try_lock()?;
    write_all_at(&file, &bytes, 0)?;
    // What was deleted must not come back after a loss of power.
    file.sync_all()?;
    fs::rename(&beside, path)?;
    Ok((file, bytes.len() as u64))
}

fn bytes_of(file: &File) -> u64 {
    file.metadata().map_or(0, |found| found.len())
}

fn header(vocabulary: &[u8; 32]) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..16].copy_from_slice(&MAGIC);
    header[16..48].copy_from_slice(vocabulary);
    let checksum = blake3::hash(&header[..48]);
    header[48..].copy_from_slice(&checksum.as_bytes()[..16]);
    header
}

fn vocabulary_of(header: &[u8; HEADER_BYTES]) -> [u8; 32] {
    let mut vocabulary = [0; 32];
    vocabulary.copy_from_slice(&header[16..48]);
    vocabulary
}

fn record(answer: &LoggedAnswer) -> Vec<u8> {
    let LoggedAnswer { owner, place, tokens } = answer;
    let mut body = Vec::with_capacity(KEY_BYTES + size_of_val(&**tokens));
    body.extend_from_slice(owner);
    body.extend_from_slice(&place.bytes.to_le_bytes());
    body.extend_from_slice(&place.hash);
    tokens.iter().for_each(|token| body.extend_from_slice(&token.to_le_bytes()));
    let mut record = (body.len() as u32).to_le_bytes().to_vec();
    record.extend_from_slice(&blake3::hash(&body).as_bytes()[..8]);
    record.extend(body);
    record
}

/// The answers in bytes of a file, and how many bytes they are, up to the first record that cannot be read.
fn records(bytes: &[u8]) -> (Vec<LoggedAnswer>, usize) {
    let (mut answers, mut read) = (Vec::new(), 0);
    while let Some((answer, length)) = first_record(&bytes[read..]) {
        answers.push(answer);
        read += length;
    }
    (answers, read)
}

fn first_record(bytes: &[u8]) -> Option<(LoggedAnswer, usize)> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    let (checksum, rest) = rest.split_first_chunk::<8>()?;
    let length = u32::from_le_bytes(*length) as usize;
    if length > KEY_BYTES + TOKENS_MAX * size_of::<Token>() {
        return None;
    }
    let body = rest.get(..length)?;
    if blake3::hash(body).as_bytes()[..8] != *checksum {
        return None;
    }
    let (owner, body) = body.split_first_chunk::<16>()?;
    let (bytes, body) = body.split_first_chunk::<4>()?;
    let (hash, body) = body.split_first_chunk::<16>()?;
    let (tokens, rest) = body.as_chunks::<4>();
    let place = AnswerKey { bytes: u32::from_le_bytes(*bytes), hash: *hash };
    let tokens = tokens.iter().map(|token| Token::from_le_bytes(*token)).collect();
    rest.is_empty().then_some((LoggedAnswer { owner: *owner, place, tokens }, PREFIX_BYTES + length))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    const VOCABULARY: [u8; 32] = [3; 32];

    fn answer(owner: u8, bytes: u32) -> LoggedAnswer {
        let place = AnswerKey { bytes, hash: [owner; 16] };
        LoggedAnswer { owner: [owner; 16], place, tokens: [bytes, 7, 8].into() }
    }

    fn log(dir: &Path) -> AnswerLog {
        AnswerLog::new(dir.join("cache").join("0a.answers"), VOCABULARY)
    }

    /// What a process finds that opens the log now.
    fn found(dir: &Path) -> Vec<LoggedAnswer> {
        match log(dir).look_now() {
            Some(LogNews::Replaced(answers)) => answers,
            other => panic!("{other:?}"),
        }
    }

    fn appended(log: &mut AnswerLog, answers: &[LoggedAnswer]) {
        answers.iter().for_each(|answer| assert!(!log.append(answer, 0).unwrap()));
    }

    #[test]
    fn one_process_writes_and_others_read() {
        let dir = tempfile::tempdir().unwrap();
        let (mut writer, mut reader) = (log(dir.path()), log(dir.path()));
        assert_eq!(writer.look(), Some(LogNews::Replaced(Vec::new())));
        assert_eq!(reader.look_now(), Some(LogNews::Replaced(Vec::new())));
        assert!(writer.writes() && !reader.writes());
        appended(&mut writer, &[answer(1, 5), answer(2, 5)]);
        appended(&mut reader, &[answer(3, 5)]);
        assert_eq!(reader.look_now(), Some(LogNews::Added(vec![answer(1, 5), answer(2, 5)])));
        writer.rewrite(&[answer(2, 5)]).unwrap();
        appended(&mut writer, &[answer(2, 6)]);
        assert_eq!(reader.look_now(), Some(LogNews::Replaced(vec![answer(2, 5), answer(2, 6)])));
        drop(writer);
        assert!(reader.look_now().is_none() && reader.writes(), "it takes over");
        appended(&mut reader, &[answer(3, 5)]);
        drop(reader);
        assert_eq!(found(dir.path()), [answer(2, 5), answer(2, 6), answer(3, 5)]);
    }

    #[test]
    fn a_reader_looks_now_and_then() {
        let dir = tempfile::tempdir().unwrap();
        let (mut writer, mut reader) = (log(dir.path()), log(dir.path()));
        writer.look();
        reader.look();
        appended(&mut writer, &[answer(1, 5)]);
        reader.looked = Some(Instant::now() + Duration::from_secs(3600));
        assert!(reader.look().is_none());
        reader.looked = None;
        assert!(reader.look().is_some());
    }

    #[test]
    fn a_file_that_was_removed_is_created_again() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = log(dir.path());
        writer.look();
        appended(&mut writer, &[answer(1, 5)]);
        fs::remove_dir_all(dir.path().join("cache")).unwrap();
        assert_eq!(writer.look_now(), Some(LogNews::Replaced(Vec::new())));
        appended(&mut writer, &[answer(1, 6)]);
        drop(writer);
        assert_eq!(found(dir.path()), [answer(1, 6)]);
    }

    #[test]
    fn a_log_at_rest_loses_the_answers_of_an_owner_or_all() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = log(dir.path());
        writer.look();
        appended(&mut writer, &[answer(1, 5), answer(2, 5)]);
        let path = writer.path.clone();
        assert!(!erase_answers(&path, None).unwrap(), "it is in use");
        drop(writer);
        assert!(erase_answers(&path, Some(&[1; 16])).unwrap());
        assert_eq!(found(dir.path()), [answer(2, 5)]);
        assert!(erase_answers(&path, None).unwrap() && !path.exists());
        assert!(erase_answers(&path, None).unwrap());
        fs::create_dir(&path).unwrap();
        assert!(erase_answers(&path, None).unwrap(), "a folder is no log");
    }

    /// Nobody opens a log again whose store was removed.
    #[test]
    fn what_a_killed_process_has_left_of_a_log_that_is_gone_is_erased_too() {
        let dir = tempfile::tempdir().unwrap();
        let path = log(dir.path()).path;
        let (left, erase) = (replacement(&path), || erase_answers(&path, Some(&[1; 16])).unwrap());
        fs::create_dir(path.parent().unwrap()).unwrap();
        fs::write(&left, "answers").unwrap();
        assert!(erase() && !left.exists());
        fs::create_dir(&left).unwrap();
        assert!(erase() && left.exists(), "a folder holds no answers");
    }

    #[test]
    fn another_vocabulary_forgets_all() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = log(dir.path());
        writer.look();
        appended(&mut writer, &[answer(1, 5)]);
        let path = writer.path.clone();
        drop(writer);
        let mut other = AnswerLog::new(path, [4; 32]);
        assert_eq!(other.look(), Some(LogNews::Replaced(Vec::new())));
        appended(&mut other, &[answer(2, 5)]);
        drop(other);
        assert!(found(dir.path()).is_empty());
    }

    #[test]
    fn a_long_file_is_to_be_written_anew() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = log(dir.path());
        writer.look();
        let long = LoggedAnswer { tokens: vec![0; TOKENS_MAX].into(), ..answer(1, 5) };
        assert!(writer.append(&long, 1 << 20).is_ok_and(|is_long| !is_long));
        assert!(writer.append(&long, 0).unwrap());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_damaged_file_is_forgotten_from_there_on(
            count in 1u32..6,
            damage in prop::collection::vec((any::<u16>(), any::<u8>()), 0..4),
            cut in any::<u16>(),
        ) {
            let dir = tempfile::tempdir().unwrap();
            let mut writer = log(dir.path());
            writer.look();
            let all: Vec<LoggedAnswer> = (0..count).map(|bytes| answer(1, bytes)).collect();
            appended(&mut writer, &all);
            let path = writer.path.clone();
            drop(writer);
            let mut bytes = fs::read(&path).unwrap();
            bytes.truncate(bytes.len() - cut as usize % bytes.len());
            let length = bytes.len();
            damage.iter().for_each(|(at, byte)| bytes[*at as usize % length] = *byte);
            fs::write(&path, &bytes).unwrap();
            let mut log = log(dir.path());
            let Some(LogNews::Replaced(left)) = log.look() else { panic!("the file was not looked at") };
            prop_assert!(all.starts_with(&left));
            appended(&mut log, &[answer(2, 9)]);
            drop(log);
            prop_assert_eq!(found(dir.path()), [left, vec![answer(2, 9)]].concat());
        }
    }
}
