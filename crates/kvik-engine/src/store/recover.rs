//! Opening a store: recovers intact headers from existing files, or creates new files. Files that the system fails to
//! open or read stay as they are, since they may hold a store.
//!
//! The headers are one contiguous file, read once from front to back: 300,000 of them are 77 MB.
//! Payloads are not read here; each is verified when it is read.

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::ops::Range;
use std::path::Path;

use kvik_cache::tier::{Record, SlotId};
use rustc_hash::FxHashSet;

use super::StoreError;
use super::directory::{Directory, Missing, is_no_file, open_private, replace_file};
use super::format::{HEADER_BYTES, Header, HeaderLocation, SUPERBLOCK_BYTES, Superblock, SuperblockError};
use super::slab::{Slab, header_offset};
use super::system::{read_at, read_exact_at, write_all_at};

/// Headers read at once: 1 MiB.
const HEADERS_PER_READ: u32 = 4096;

/// The layout that the files of a store must have.
#[derive(Debug, Clone, Copy)]
pub(super) struct Geometry {
    pub(super) fingerprint: [u8; 32],
    pub(super) model: [u8; 32],
    pub(super) payload_bytes: u64,
    pub(super) slots: u32,
}

/// Why existing files are not used.
#[derive(Debug)]
pub(super) enum Unusable {
    /// There are none, or they hold something else, for this reason.
    Replaceable(Option<String>),
    /// The system fails: what they hold is not known.
    Failed(StoreError),
}

/// An opened store.
#[derive(Debug)]
pub(super) struct Recovered {
    pub(super) slab: Slab,
    /// Blocks with intact headers, by slot, each identity once.
    pub(super) records: Vec<(SlotId, Record)>,
    /// What the slots take on disk.
    pub(super) taken: TakenSlots,
    /// Messages for the operator.
    pub(super) notes: Vec<String>,
}

/// What the slots of a store take on disk.
#[derive(Debug)]
pub(super) struct TakenSlots {
    /// By slot: whether its bytes may be allocated on disk.
    pub(super) written: Vec<bool>,
    /// Slots without a block that have bytes of one: it was being written when a process was killed, or is the block of
    /// another slot too. No deletion would find these bytes.
    pub(super) stale: Vec<SlotId>,
}

impl TakenSlots {
    fn nothing(geometry: &Geometry) -> TakenSlots {
        TakenSlots { written: vec![false; geometry.slots as usize], stale: Vec::new() }
    }
}

/// Opens the files in `directory`, or creates them. The caller holds the lock.
///
/// # Errors
/// Only if the system fails to open, read or create files: existing files are used or replaced, whatever bytes they
/// hold.
pub(super) fn open(directory: &Directory, geometry: &Geometry) -> Result<Recovered, StoreError> {
    directory.create()?;
    match open_existing(directory, geometry) {
        Ok(slab) => {
            truncate(&slab.headers, header_offset(SlotId(geometry.slots)));
            truncate(&slab.payloads, slab.payload_offset(SlotId(geometry.slots)));
            slab.log.skip(&slab.headers);
            Ok(read_records(slab, geometry))
        }
        Err(Unusable::Failed(error)) => Err(error),
        Err(Unusable::Replaceable(reason)) => {
            let notes =
                reason.map(|reason| format!("disk cache {}: {reason}; starting empty", directory.name()));
            let slab = create(directory, geometry)?;
            let (records, taken) = (Vec::new(), TakenSlots::nothing(geometry));
            Ok(Recovered { slab, records, taken, notes: notes.into_iter().collect() })
        }
    }
}

/// The existing files if they have the layout.
pub(super) fn open_existing(directory: &Directory, geometry: &Geometry) -> Result<Slab, Unusable> {
    let (files, found) = open_files(directory)?;
    if (found.fingerprint, found.payload_bytes) != (geometry.fingerprint, geometry.payload_bytes) {
        return Err(replaceable("the file is of another model or has blocks of another size"));
    }
    Ok(Slab::new(files, found.creation, found.payload_bytes))
}

/// The existing files of headers and payloads, of whatever layout, and the superblock.
pub(super) fn open_files(directory: &Directory) -> Result<((File, File), Superblock), Unusable> {
    let headers = open_file(&directory.headers())?;
    let payloads = open_file(&directory.payloads())?;
    let failed = |error| Unusable::Failed(StoreError::io(&directory.headers())(error));
    let found = read_superblock(&headers).map_err(failed)?;
    let found = found.map_err(|reason| match reason {
        SuperblockError::Unknown => replaceable("the file is not a disk cache of kvik, or is damaged"),
        SuperblockError::Version(version) => replaceable(&format!("the file is of format version {version}")),
    })?;
    Ok(((headers, payloads), found))
}

fn open_file(path: &Path) -> Result<File, Unusable> {
    open_private(path, Missing::Fail).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Unusable::Replaceable(None),
        _ if is_no_file(path) => replaceable(&format!("{} cannot be opened ({error})", path.display())),
        _ => Unusable::Failed(StoreError::io(path)(error)),
    })
}

fn replaceable(reason: &str) -> Unusable {
    Unusable::Replaceable(Some(reason.to_owned()))
}

/// Truncates a longer file to `length`. A failure wastes disk space and is otherwise harmless.
fn truncate(file: &File, length: u64) {
    if file.metadata().is_ok_and(|found| found.len() > length) {
        let _ = file.set_len(length);
    }
}

/// Reads and checks the first bytes of a file of headers.
///
/// # Errors
/// If the system fails to read them; a file that is too short has no superblock.
pub(super) fn read_superblock(headers: &File) -> io::Result<Result<Superblock, SuperblockError>> {
    let mut bytes = [0; SUPERBLOCK_BYTES];
    match read_exact_at(headers, &mut bytes, 0) {
        Ok(()) => Ok(Superblock::decode(&bytes)),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(Err(SuperblockError::Unknown)),
        Err(error) => Err(error),
    }
}

/// Creates new files, replacing existing ones.
fn create(directory: &Directory, geometry: &Geometry) -> Result<Slab, StoreError> {
    let replace = |path: &Path| replace_file(path).map_err(StoreError::io(path));
    let payloads = replace(&directory.payloads())?;
    let headers = replace(&directory.headers())?;
    let &Geometry { fingerprint, model, payload_bytes, .. } = geometry;
    // The standard library seeds its hashers from the system: the number does not repeat.
    let creation = RandomState::new().hash_one(fingerprint);
    let superblock = Superblock { fingerprint, model, payload_bytes, creation };
    write_all_at(&headers, &superblock.encode(), 0).map_err(StoreError::io(&directory.headers()))?;
    Ok(Slab::new((headers, payloads), creation, payload_bytes))
}

/// Reads all headers.
pub(super) fn read_records(slab: Slab, geometry: &Geometry) -> Recovered {
    let mut records = Vec::new();
    let mut taken = TakenSlots::nothing(geometry);
    let mut known = FxHashSet::default();
    // What cannot be read is a miss.
    let _ = scan(&slab.headers, slab.location(SlotId(0)), 0..geometry.slots, |slot, header| {
        taken.written[slot.index()] = header != Header::Nothing;
        match header {
            Header::Block { record, .. } if known.insert(record.identity) => records.push((slot, record)),
            Header::Block { .. } | Header::Writing => taken.stale.push(slot),
            Header::Vacant | Header::Nothing => {}
        }
    });
    Recovered { slab, records, taken, notes: Vec::new() }
}

/// Reads the headers of these slots in order, as far as there are any; `file` says where they lie. Skips headers that
/// cannot be read.
///
/// # Errors
/// The first failure to read, after the others have been read.
pub(super) fn scan(
    headers: &File,
    file: HeaderLocation,
    slots: Range<u32>,
    mut found: impl FnMut(SlotId, Header),
) -> io::Result<()> {
    let length = headers.metadata()?.len();
    let held = length.saturating_sub(header_offset(SlotId(0))) / HEADER_BYTES as u64;
    let end = u32::try_from(held).map_or(slots.end, |held| held.min(slots.end));
    let count_max = HEADERS_PER_READ.min(end.saturating_sub(slots.start));
    let mut bytes = vec![0; count_max as usize * HEADER_BYTES];
    let mut all_read = Ok(());
    for first in (slots.start..end).step_by(HEADERS_PER_READ as usize) {
        let count = (end - first).min(HEADERS_PER_READ) as usize;
        let wanted = &mut bytes[..count * HEADER_BYTES];
        let (length, read) = read_up_to(headers, wanted, header_offset(SlotId(first)));
        for (slot, header) in (first..).map(SlotId).zip(wanted[..length].as_chunks().0) {
            found(slot, Header::decode(header, HeaderLocation { slot, ..file }));
        }
        all_read = all_read.and(read);
    }
    all_read
}

/// Fills `bytes` from `offset` as far as the file can be read; returns the length read, and why it is not all if that is
/// not the end of the file.
fn read_up_to(file: &File, bytes: &mut [u8], offset: u64) -> (usize, io::Result<()>) {
    let mut length = 0;
    while length < bytes.len() {
        match read_at(file, &mut bytes[length..], offset + length as u64) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (length, Err(error)),
        }
    }
    (length, Ok(()))
}
