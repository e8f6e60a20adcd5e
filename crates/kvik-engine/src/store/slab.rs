//! The two files of one store: headers and payloads of its slots, written and read in place.
//!
//! A slot is written in three phases: a header that says so, the payload, the block's header. Nothing is
//! flushed: after a kill the system still has every completed write; after a power loss any part of
//! it may be missing, and a torn record fails its checksum and is a miss.
//! The caller ensures that a slot is not read while it is written; another process may read it, and then finds that the
//! bytes do not belong to the header.

use std::fs::File;
use std::io;

use kvik_cache::Identity;
use kvik_cache::tier::{IoFault, Record, SlotId, Use};

use super::directory::Directory;
use super::format::{
    HEADER_BYTES, Header, HeaderLocation, PAYLOAD_ALIGN, PayloadChecksum, SUPERBLOCK_BYTES, USE_OFFSET,
    encode_use,
};
use super::log::{ChangeLog, Noted};
use super::system::{is_at, punch_hole, read_exact_at, write_all_at};

/// Bytes that are read at once, then hashed while they are still in the core's L2 cache; also, that are zeroed at once.
const PIECE_BYTES: usize = 128 << 10;

/// Why a block is removed from its slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Removal {
    /// It was deleted, has expired or is damaged: no process may use a copy of it.
    Erasure,
    /// It makes room: copies of it stay valid.
    Eviction,
}

/// Deallocates a range of a file, which then reads as zeros; returns whether the system can do so.
type Punch = fn(&File, u64, u64) -> io::Result<bool>;

/// The open files of a store.
#[derive(Debug)]
pub(super) struct Slab {
    pub(super) headers: File,
    pub(super) payloads: File,
    /// The creation number of the file of headers; see [`Superblock`](super::format::Superblock).
    pub(super) creation: u64,
    /// Bytes of one payload.
    pub(super) payload_bytes: u64,
    /// What other processes are told of changes.
    pub(super) log: ChangeLog,
    pub(super) punch: Punch,
}

/// Bytes of disk of one slot: its header, and its payload rounded up to pages.
pub(super) fn slot_bytes(payload_bytes: u64) -> u64 {
    HEADER_BYTES as u64 + payload_bytes.next_multiple_of(PAYLOAD_ALIGN)
}

impl Slab {
    /// The open files of headers and payloads.
    pub(super) fn new((headers, payloads): (File, File), creation: u64, payload_bytes: u64) -> Slab {
        let log = ChangeLog::of(&headers);
        Slab { headers, payloads, creation, payload_bytes, log, punch: punch_hole }
    }

    /// Writes a block. After a failure the slot holds none, or a part of one.
    pub(super) fn write(&self, slot: SlotId, record: &Record, payload: &[u8]) -> io::Result<()> {
        debug_assert_eq!(payload.len() as u64, self.payload_bytes);
        debug_assert_eq!(record.parent.child(record.tokens.as_slice()), record.identity);
        let written = self.write_phases(slot, record, payload);
        self.note(slot, false);
        written
    }

    fn write_phases(&self, slot: SlotId, record: &Record, payload: &[u8]) -> io::Result<()> {
        self.begin(slot)?;
        write_all_at(&self.payloads, payload, self.payload_offset(slot))?;
        let mut sum = PayloadChecksum::new(&record.identity);
        sum.update(payload);
        self.write_header(slot, Header::Block { record: *record, checksum: sum.finish() })
    }

    /// Reads the block `identity` into `payload`, which has the length of a payload.
    ///
    /// # Errors
    /// [`IoFault::Corrupt`] unless the slot holds exactly this block and every byte is as it was
    /// written; the content of `payload` is then unspecified.
    pub(super) fn read(&self, slot: SlotId, identity: Identity, payload: &mut [u8]) -> Result<(), IoFault> {
        let expected = match self.header(slot).map_err(|error| fault(&error))? {
            Header::Block { record, checksum } if record.identity == identity => checksum,
            _ => return Err(IoFault::Corrupt),
        };
        let mut sum = PayloadChecksum::new(&identity);
        let mut offset = self.payload_offset(slot);
        for piece in payload.chunks_mut(PIECE_BYTES) {
            read_exact_at(&self.payloads, piece, offset).map_err(|error| fault(&error))?;
            sum.update(piece);
            offset += piece.len() as u64;
        }
        if sum.finish() == expected { Ok(()) } else { Err(IoFault::Corrupt) }
    }

    /// Marks a slot as holding a part of a block: if nothing else is written to it, it is to be removed.
    pub(super) fn begin(&self, slot: SlotId) -> io::Result<()> {
        self.write_header(slot, Header::Writing)
    }

    /// Removes the slot's block and deallocates its bytes; returns whether they were deallocated, as they are where files
    /// can have holes. The header is written last: a block whose payload is partly erased fails its checksum.
    pub(super) fn remove(&self, slot: SlotId, why: Removal) -> io::Result<bool> {
        let removed = self.remove_phases(slot);
        self.note(slot, why == Removal::Erasure);
        removed
    }

    fn remove_phases(&self, slot: SlotId) -> io::Result<bool> {
        let length = self.payload_bytes.next_multiple_of(PAYLOAD_ALIGN);
        let is_given_back = (self.punch)(&self.payloads, self.payload_offset(slot), length)?;
        if is_given_back {
            write_all_at(&self.headers, &[0; HEADER_BYTES], header_offset(slot))?;
        } else {
            self.zero_payload(slot)?;
            self.write_header(slot, Header::Vacant)?;
        }
        Ok(is_given_back)
    }

    /// Overwrites a payload that cannot be deallocated: what was deleted must not stay in the file, and a deletion does not
    /// find what was evicted before it.
    fn zero_payload(&self, slot: SlotId) -> io::Result<()> {
        let (zeros, start) = (vec![0_u8; PIECE_BYTES], self.payload_offset(slot));
        for done in (0..self.payload_bytes).step_by(PIECE_BYTES) {
            let length = (self.payload_bytes - done).min(PIECE_BYTES as u64) as usize;
            write_all_at(&self.payloads, &zeros[..length], start + done)?;
        }
        Ok(())
    }

    /// Pins or unpins the slot's block by rewriting its header. Does nothing if the slot holds none.
    pub(super) fn pin(&self, slot: SlotId, pinned: bool) -> io::Result<()> {
        match self.header(slot)? {
            Header::Block { record, checksum } => {
                let record = Record { pinned, ..record };
                let written = self.write_header(slot, Header::Block { record, checksum });
                self.note(slot, false);
                written
            }
            _ => Ok(()),
        }
    }

    /// Rewrites the mutable part of the slot's header.
    pub(super) fn touch(&self, slot: SlotId, use_: &Use) -> io::Result<()> {
        let bytes = encode_use(use_, self.location(slot));
        write_all_at(&self.headers, &bytes, header_offset(slot) + USE_OFFSET as u64)
    }

    /// Whether the files are still at the paths where they were opened.
    pub(super) fn is_at(&self, directory: &Directory) -> bool {
        is_at(&self.headers, &directory.headers()) && is_at(&self.payloads, &directory.payloads())
    }

    fn note(&self, slot: SlotId, is_erased: bool) {
        self.log.note(&self.headers, Noted { slot, is_erased });
    }

    /// Reads the header of a slot.
    pub(super) fn header(&self, slot: SlotId) -> io::Result<Header> {
        let mut bytes = [0; HEADER_BYTES];
        read_exact_at(&self.headers, &mut bytes, header_offset(slot))?;
        Ok(Header::decode(&bytes, self.location(slot)))
    }

    fn write_header(&self, slot: SlotId, header: Header) -> io::Result<()> {
        write_all_at(&self.headers, &header.encode(self.location(slot)), header_offset(slot))
    }

    /// Where the header of a slot lies.
    pub(super) fn location(&self, slot: SlotId) -> HeaderLocation {
        HeaderLocation { creation: self.creation, slot, payload_bytes: self.payload_bytes }
    }

    /// Where the payload of a slot begins.
    pub(super) fn payload_offset(&self, slot: SlotId) -> u64 {
        u64::from(slot.0) * self.payload_bytes.next_multiple_of(PAYLOAD_ALIGN)
    }
}

/// Offset of a slot's header in the file of headers.
pub(super) fn header_offset(slot: SlotId) -> u64 {
    SUPERBLOCK_BYTES as u64 + u64::from(slot.0) * HEADER_BYTES as u64
}

/// Maps an I/O error to the fault that the cache decides on.
pub(super) fn fault(error: &io::Error) -> IoFault {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull, UnexpectedEof};
    match error.kind() {
        StorageFull | QuotaExceeded | FileTooLarge => IoFault::Full,
        UnexpectedEof => IoFault::Corrupt,
        _ => IoFault::Failed,
    }
}
