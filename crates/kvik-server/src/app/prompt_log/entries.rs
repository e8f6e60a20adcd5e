//! The entries of a file of noted prompts. Each has what its prompt does not share with the one before.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Cursor, ErrorKind, Read, Write};
use std::path::Path;

use kvik_cache::Token;
use kvik_memory::records::private::{create_private_folder, readable_by_owner_only};

/// Maximum bytes of one file: 16 million tokens.
pub(super) const FILE_BYTES_MAX: u64 = 64 << 20;
/// Bytes of an entry before its tokens.
pub(super) const HEADER_BYTES: u64 = 8;

/// Number of tokens with which both begin.
pub(super) fn common(one: &[Token], other: &[Token]) -> usize {
    one.iter().zip(other).take_while(|(a, b)| a == b).count()
}

/// The entry of a prompt behind that of `last`.
pub(super) fn entry(last: &[Token], prompt: &[Token]) -> io::Result<Vec<u8>> {
    let shared = common(last, prompt);
    let new = &prompt[shared..];
    let mut bytes = Vec::with_capacity(HEADER_BYTES as usize + size_of_val(new));
    for number in [shared, new.len()] {
        let number = u32::try_from(number).map_err(|_| ErrorKind::InvalidInput)?;
        bytes.extend(number.to_le_bytes());
    }
    new.iter().for_each(|token| bytes.extend(token.to_le_bytes()));
    Ok(bytes)
}

/// Refuses an entry behind so many bytes of others that a deletion would read for long.
pub(super) fn check_room(before: u64, entry: &[u8]) -> io::Result<()> {
    if before + entry.len() as u64 <= FILE_BYTES_MAX {
        return Ok(());
    }
    let mebibytes = FILE_BYTES_MAX >> 20;
    let message =
        format!("{mebibytes} MiB of prompts are noted for what it belongs to; go on in another one");
    Err(io::Error::new(ErrorKind::FileTooLarge, message))
}

/// Appends an entry to a file. A process that is killed may leave a part of it, which [`cut`] removes.
pub(super) fn append(path: &Path, entry: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.append(true).create(true);
    readable_by_owner_only(&mut options);
    if let Some(folder) = path.parent() {
        create_private_folder(folder)?;
    }
    let mut file = options.open(path)?;
    let before = file.metadata()?.len();
    check_room(before, entry)?;
    file.write_all(entry).inspect_err(|_| {
        // A partial entry would be read as the beginning of the next one.
        let _ = file.set_len(before);
    })
}

/// Cuts off what is behind the complete entries of a file, which have so many bytes.
pub(super) fn cut(path: &Path, whole_bytes: u64) -> io::Result<()> {
    let file = match OpenOptions::new().write(true).open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        file => file?,
    };
    if file.metadata()?.len() > whole_bytes {
        file.set_len(whole_bytes)?;
    }
    Ok(())
}

/// The prompts in a file, up to its first incomplete entry. However long the file is, one of them is in memory.
pub(super) struct Prompts {
    entries: Box<dyn Read>,
    bytes_left: u64,
    /// Bytes of the complete entries that were read.
    whole_bytes: u64,
    last: Vec<Token>,
}

impl Prompts {
    /// Of a longer file than is ever written, this is its beginning: whoever wrote it may claim any length of a prompt.
    pub(super) fn in_file(file: File) -> io::Result<Prompts> {
        let bytes_left = file.metadata()?.len().min(FILE_BYTES_MAX);
        Ok(Prompts::new(BufReader::new(file), bytes_left))
    }

    pub(super) fn in_memory(entries: Vec<u8>) -> Prompts {
        let bytes_left = entries.len() as u64;
        Prompts::new(Cursor::new(entries), bytes_left)
    }

    fn new(entries: impl Read + 'static, bytes_left: u64) -> Prompts {
        Prompts { entries: Box::new(entries), bytes_left, whole_bytes: 0, last: Vec::new() }
    }

    /// Reads the next prompt into `last`; returns whether there is one.
    fn advance(&mut self) -> io::Result<bool> {
        let Some(left) = self.bytes_left.checked_sub(HEADER_BYTES) else { return Ok(false) };
        let (shared, count) = (self.number()? as usize, u64::from(self.number()?));
        let Some(left) = left.checked_sub(4 * count).filter(|_| shared <= self.last.len()) else {
            self.bytes_left = 0;
            return Ok(false);
        };
        let mut bytes = vec![0; 4 * count as usize];
        self.entries.read_exact(&mut bytes)?;
        self.bytes_left = left;
        self.whole_bytes += HEADER_BYTES + bytes.len() as u64;
        let (words, _) = bytes.as_chunks::<4>();
        self.last.truncate(shared);
        self.last.extend(words.iter().map(|&word| Token::from_le_bytes(word)));
        Ok(true)
    }

    fn number(&mut self) -> io::Result<u32> {
        let mut bytes = [0; 4];
        self.entries.read_exact(&mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// The last of them, empty if there is none, and the bytes of all complete entries.
    pub(super) fn into_last(mut self) -> io::Result<(Vec<Token>, u64)> {
        while self.advance()? {}
        Ok((self.last, self.whole_bytes))
    }
}

impl Iterator for Prompts {
    type Item = io::Result<Vec<Token>>;

    fn next(&mut self) -> Option<io::Result<Vec<Token>>> {
        match self.advance() {
            Ok(is_there) => is_there.then(|| Ok(self.last.clone())),
            Err(error) => {
                self.bytes_left = 0;
                Some(Err(error))
            }
        }
    }
}
