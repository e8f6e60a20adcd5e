//! The byte layout of a store's files, and the checksums that detect torn records.
//!
//! `docs/format.md` draws this layout. No I/O. Every checksum is XXH3, which detects accidents:
//! bit rot, torn writes, misplaced bytes. A process that may write the user's private files can
//! forge it, but gains no access that it does not have already.
//!
//! Numbers are in the machine's byte order, as keys and values are. The magic is a number too, so
//! a machine of the other byte order rejects the file.

use bytemuck::{Pod, Zeroable};
use kvik_cache::Identity;
use kvik_cache::tier::{BlockTokens, Record, SlotId, Use};
use xxhash_rust::xxh3::{Xxh3, xxh3_64, xxh3_64_with_seed};

/// Version of this layout; files of any other version are not read.
pub(super) const VERSION: u32 = 1;
/// Bytes before the first header.
pub(super) const SUPERBLOCK_BYTES: usize = 4096;
/// Where the ring of changes begins, which fills the rest of those bytes; see [`ChangeLog`](super::log::ChangeLog).
pub(super) const LOG_OFFSET: usize = 128;
/// Bytes of the header of one slot.
pub(super) const HEADER_BYTES: usize = 256;
/// Where a header's mutable part starts. It lies within one sector of 512 bytes.
pub(super) const USE_OFFSET: usize = 224;
/// Bytes of a header's mutable part.
pub(super) const USE_BYTES: usize = HEADER_BYTES - USE_OFFSET;
/// Payloads start on multiples of this, the page and sector size that disks and kernels share.
pub(super) const PAYLOAD_ALIGN: u64 = 4096;

const MAGIC: u64 = u64::from_le_bytes(*b"kvikslab");
/// A header whose slot was written before and holds nothing of a block now.
const VACANT: u32 = u32::from_le_bytes(*b"free");
/// A header whose slot a block is being written to.
const WRITING: u32 = u32::from_le_bytes(*b"writ");
/// A header whose slot holds a block.
const BLOCK: u32 = u32::from_le_bytes(*b"blok");
const PINNED: u8 = 1;
const LACKS_PART: u8 = 2;
/// The block expires as the fixed part of its header says; this holds for every block not used since it was written.
const AS_WRITTEN: u32 = 0;
/// The block never expires, whatever the fixed part says.
const FOR_EVER: u32 = u32::MAX;
const FINGERPRINT_CONTEXT: &str = "kvik 2026-11-21 store fingerprint v1";

/// Identifies the model and the KV format, on which the meaning of a store's bytes depends.
///
/// The fingerprint names the directory and is part of the superblock.
pub(super) fn fingerprint(model: &[u8; 32], kv_format: &str) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_derive_key(FINGERPRINT_CONTEXT);
    hasher.update(model);
    hasher.update(kv_format.as_bytes());
    *hasher.finalize().as_bytes()
}

/// The first bytes of the file of headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Superblock {
    /// See [`fingerprint`].
    pub(super) fingerprint: [u8; 32],
    /// Digest of the model, to tell another model from another KV format.
    pub(super) model: [u8; 32],
    /// Bytes of one block's keys and values.
    pub(super) payload_bytes: u64,
    /// Random, new with every file: headers of an earlier file at the same path are rejected.
    pub(super) creation: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct RawSuperblock {
    magic: u64,
    version: u32,
    zero: u32,
    payload_bytes: u64,
    creation: u64,
    fingerprint: [u8; 32],
    model: [u8; 32],
    /// XXH3-64 of all bytes before it.
    checksum: u64,
}

const RAW_SUPERBLOCK_BYTES: usize = size_of::<RawSuperblock>();
const _: () = assert!(RAW_SUPERBLOCK_BYTES == 104 && RAW_SUPERBLOCK_BYTES <= LOG_OFFSET);

/// Why a superblock is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SuperblockError {
    /// Not a superblock, or damaged.
    Unknown,
    /// Written by a version of kvik with another format.
    Version(u32),
}

impl Superblock {
    /// The bytes at the start of the file of headers.
    pub(super) fn encode(&self) -> [u8; SUPERBLOCK_BYTES] {
        let mut raw = RawSuperblock {
            magic: MAGIC,
            version: VERSION,
            zero: 0,
            payload_bytes: self.payload_bytes,
            creation: self.creation,
            fingerprint: self.fingerprint,
            model: self.model,
            checksum: 0,
        };
        raw.checksum = raw.sum();
        let mut bytes = [0; SUPERBLOCK_BYTES];
        bytes[..RAW_SUPERBLOCK_BYTES].copy_from_slice(bytemuck::bytes_of(&raw));
        bytes
    }

    /// Reads what [`encode`](Superblock::encode) wrote.
    pub(super) fn decode(bytes: &[u8; SUPERBLOCK_BYTES]) -> Result<Superblock, SuperblockError> {
        let raw: RawSuperblock = bytemuck::pod_read_unaligned(&bytes[..RAW_SUPERBLOCK_BYTES]);
        match raw {
            _ if raw.magic != MAGIC => Err(SuperblockError::Unknown),
            _ if raw.version != VERSION => Err(SuperblockError::Version(raw.version)),
            _ if raw.checksum != raw.sum() => Err(SuperblockError::Unknown),
            RawSuperblock { fingerprint, model, payload_bytes, creation, .. } => {
                Ok(Superblock { fingerprint, model, payload_bytes, creation })
            }
        }
    }
}

impl RawSuperblock {
    fn sum(&self) -> u64 {
        xxh3_64(&bytemuck::bytes_of(self)[..RAW_SUPERBLOCK_BYTES - size_of::<u64>()])
    }
}

/// The content of a slot's header.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Header {
    /// Never written, or damaged: the state of the slot is unknown.
    Nothing,
    /// Written before, holds nothing of a block now.
    Vacant,
    /// Holds a part of a block, which is being written: or was, when a process was killed or the disk failed.
    Writing,
    /// A block.
    Block {
        /// Its metadata.
        record: Record,
        /// The checksum of its bytes, `RawHeader::payload_checksum`.
        checksum: u128,
    },
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct RawHeader {
    state: u32,
    token_count: u8,
    flags: u8,
    zero: [u8; 2],
    owner: u64,
    content_key: u64,
    expires_s: u64,
    identity: [u8; 32],
    parent: [u8; 32],
    tokens: [u32; 16],
    payload_checksum: u128,
    payload_bytes: u64,
    /// XXH3-64 of all bytes before it, seeded with their location.
    checksum: u64,
    unused: [u8; 32],
    use_: RawUse,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct RawUse {
    stamp: u64,
    at_s: u64,
    heat: f32,
    /// Seconds after `at_s` at which the block expires, [`AS_WRITTEN`] or [`FOR_EVER`].
    lifetime_s: u32,
    /// XXH3-64 of all bytes of this part before it, seeded with their location.
    checksum: u64,
}

const SUMMED_BYTES: usize = std::mem::offset_of!(RawHeader, checksum);
const _: () = assert!(size_of::<RawHeader>() == HEADER_BYTES);
const _: () = assert!(size_of::<RawUse>() == USE_BYTES);
const _: () = assert!(SUMMED_BYTES == 184 && std::mem::offset_of!(RawHeader, use_) == USE_OFFSET);

/// Where a header lies: it is valid only in the slot and the file it was written for.
#[derive(Debug, Clone, Copy)]
pub(super) struct HeaderLocation {
    /// [`Superblock::creation`] of the file.
    pub(super) creation: u64,
    /// The slot of the header.
    pub(super) slot: SlotId,
    /// [`Superblock::payload_bytes`] of the file.
    pub(super) payload_bytes: u64,
}

impl HeaderLocation {
    fn seed(&self) -> u64 {
        self.creation ^ u64::from(self.slot.0)
    }
}

impl Header {
    /// The bytes of this header at `location`.
    pub(super) fn encode(&self, location: HeaderLocation) -> [u8; HEADER_BYTES] {
        let raw = match self {
            Header::Nothing => RawHeader::zeroed(),
            Header::Vacant => RawHeader { state: VACANT, ..RawHeader::zeroed() },
            Header::Writing => RawHeader { state: WRITING, ..RawHeader::zeroed() },
            Header::Block { record, checksum } => RawHeader::block(record, *checksum, location),
        };
        bytemuck::cast(raw)
    }

    /// Reads what [`encode`](Header::encode) wrote for the same location; any other bytes give [`Header::Nothing`].
    pub(super) fn decode(bytes: &[u8; HEADER_BYTES], location: HeaderLocation) -> Header {
        let raw: RawHeader = bytemuck::pod_read_unaligned(bytes);
        match raw.state {
            VACANT => Header::Vacant,
            WRITING => Header::Writing,
            BLOCK => raw
                .record(location)
                .map_or(Header::Nothing, |record| Header::Block { record, checksum: raw.payload_checksum }),
            _ => Header::Nothing,
        }
    }
}

impl RawHeader {
    fn block(record: &Record, payload_checksum: u128, location: HeaderLocation) -> RawHeader {
        let tokens = record.tokens.as_slice();
        let mut raw = RawHeader {
            state: BLOCK,
            token_count: tokens.len() as u8,
            flags: if record.pinned { PINNED } else { 0 } | if record.lacks_part { LACKS_PART } else { 0 },
            owner: record.owner,
            content_key: record.content_key,
            expires_s: record.use_.expires_s,
            identity: record.identity.0,
            parent: record.parent.0,
            payload_checksum,
            payload_bytes: location.payload_bytes,
            use_: RawUse::new(&record.use_, AS_WRITTEN, location),
            ..RawHeader::zeroed()
        };
        raw.tokens[..tokens.len()].copy_from_slice(tokens);
        raw.checksum = raw.sum(location);
        raw
    }

    /// The record, if the fixed part is intact and was written for this location, and the identity is
    /// that of the tokens after the parent.
    fn record(&self, location: HeaderLocation) -> Option<Record> {
        let whole = self.checksum == self.sum(location) && self.payload_bytes == location.payload_bytes;
        let tokens = BlockTokens::new(self.tokens.get(..usize::from(self.token_count))?)?;
        let (identity, parent) = (Identity(self.identity), Identity(self.parent));
        (whole && parent.child(tokens.as_slice()) == identity).then(|| Record {
            identity,
            parent,
            owner: self.owner,
            content_key: self.content_key,
            tokens,
            pinned: self.flags & PINNED != 0,
            lacks_part: self.flags & LACKS_PART != 0,
            use_: self.use_.read(self.expires_s, location).unwrap_or_else(|| unused(self.expires_s)),
        })
    }

    fn sum(&self, location: HeaderLocation) -> u64 {
        xxh3_64_with_seed(&bytemuck::bytes_of(self)[..SUMMED_BYTES], location.seed())
    }
}

/// The bytes of a header's mutable part.
pub(super) fn encode_use(use_: &Use, location: HeaderLocation) -> [u8; USE_BYTES] {
    let lifetime_s = match use_.expires_s {
        0 => FOR_EVER,
        expires_s => lifetime(expires_s.saturating_sub(use_.at_s)),
    };
    bytemuck::cast(RawUse::new(use_, lifetime_s, location))
}

/// Clamps to the values other than [`AS_WRITTEN`] and [`FOR_EVER`], which have a special meaning.
fn lifetime(seconds: u64) -> u32 {
    u32::try_from(seconds).map_or(FOR_EVER - 1, |seconds| seconds.clamp(AS_WRITTEN + 1, FOR_EVER - 1))
}

/// The use of a block whose mutable part is damaged: never used, expires as it was written.
fn unused(expires_s: u64) -> Use {
    Use { at_s: expires_s, expires_s, ..Use::default() }
}

impl RawUse {
    fn new(use_: &Use, lifetime_s: u32, location: HeaderLocation) -> RawUse {
        let Use { stamp, heat, at_s, .. } = *use_;
        let mut raw = RawUse { stamp, at_s, heat, lifetime_s, checksum: 0 };
        raw.checksum = raw.sum(location);
        raw
    }

    /// The use of a block that was written to expire at `written_s`.
    fn read(&self, written_s: u64, location: HeaderLocation) -> Option<Use> {
        let RawUse { stamp, at_s, heat, lifetime_s, .. } = *self;
        let expires_s = match lifetime_s {
            AS_WRITTEN => written_s,
            FOR_EVER => 0,
            seconds => at_s.saturating_add(u64::from(seconds)),
        };
        let sound = heat.is_finite() && heat >= 0.0 && self.checksum == self.sum(location);
        sound.then_some(Use { stamp, heat, at_s, expires_s })
    }

    fn sum(&self, location: HeaderLocation) -> u64 {
        xxh3_64_with_seed(&bytemuck::bytes_of(self)[..USE_BYTES - size_of::<u64>()], location.seed())
    }
}

/// Incremental checksum of a block's bytes.
///
/// The identity is hashed first: the bytes of one block never pass for those of another, whichever
/// slot or file they are moved to.
pub(super) struct PayloadChecksum(Xxh3);

impl PayloadChecksum {
    /// Starts the checksum of a block.
    pub(super) fn new(identity: &Identity) -> PayloadChecksum {
        let mut hasher = Xxh3::new();
        hasher.update(&identity.0);
        PayloadChecksum(hasher)
    }

    /// Adds the next bytes.
    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The checksum of all bytes added.
    pub(super) fn finish(&self) -> u128 {
        self.0.digest128()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: [u8; 32] = [7; 32];
    const CREATION: u64 = 0x0123_4567_89ab_cdef;
    const PAYLOAD_BYTES: u64 = 10_007;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Files outlive versions of kvik: a change of these bytes requires another [`VERSION`]. The digests were
    /// computed from `docs/format.md` with other implementations (Python's `struct`, `xxhash` and `blake3`).
    #[test]
    fn bytes_match_the_documented_layout() {
        let location = HeaderLocation { creation: CREATION, slot: SlotId(9), payload_bytes: PAYLOAD_BYTES };
        let superblock = Superblock {
            fingerprint: fingerprint(&MODEL, "q8/q4"),
            model: MODEL,
            payload_bytes: PAYLOAD_BYTES,
            creation: CREATION,
        };
        let header = header();
        let digest = |bytes: &[u8]| hex(blake3::hash(bytes).as_bytes());
        assert_eq!(
            digest(&superblock.encode()),
            "679b9cc18963affad138bdab2bb648ada50d44f25d5b949b0c9d478347d4027d"
        );
        assert_eq!(
            digest(&header.encode(location)),
            "673615702db2333c621e39b336266900b83958e05d65b275427967a141df3cca"
        );
        assert_eq!(Superblock::decode(&superblock.encode()), Ok(superblock));
        for header in [header, Header::Vacant, Header::Writing, Header::Nothing] {
            assert_eq!(Header::decode(&header.encode(location), location), header);
        }
        assert_eq!(Header::Writing.encode(location)[..4], *b"writ");
    }

    fn header() -> Header {
        let parent = Identity(std::array::from_fn(|index| index as u8));
        let tokens = BlockTokens::new(&[5, 6, 150_000]).unwrap();
        let identity = parent.child(tokens.as_slice());
        let use_ = Use { stamp: 77, heat: 2.5, at_s: 1_700_000_000, expires_s: 1_800_000_000 };
        let (owner, content_key, pinned) = (11, 22, true);
        let lacks_part = false;
        let record = Record { identity, parent, owner, content_key, tokens, pinned, lacks_part, use_ };
        let payload: Vec<u8> = (0..PAYLOAD_BYTES).map(|index| (index * 31 % 251) as u8).collect();
        let mut sum = PayloadChecksum::new(&identity);
        payload.chunks(999).for_each(|piece| sum.update(piece));
        Header::Block { record, checksum: sum.finish() }
    }

    /// A use changes the expiry without rewriting the fixed part; versions that do not know this still read the
    /// fixed part.
    #[test]
    fn a_use_overrides_when_a_block_expires() {
        let location = HeaderLocation { creation: CREATION, slot: SlotId(9), payload_bytes: PAYLOAD_BYTES };
        let Header::Block { record, .. } = header() else { panic!("a block") };
        let after = |expires_s: u64| {
            let use_ = Use { at_s: 1_790_000_000, expires_s, ..record.use_ };
            let mut bytes = header().encode(location);
            bytes[USE_OFFSET..].copy_from_slice(&encode_use(&use_, location));
            let Header::Block { record, .. } = Header::decode(&bytes, location) else { panic!("a block") };
            record.use_.expires_s
        };
        for expires_s in [0, 1_790_000_001, 1_790_000_060, 1_800_000_000, 1_790_000_000 + (1 << 31)] {
            assert_eq!(after(expires_s), expires_s);
        }
        assert_eq!(after(1), 1_790_000_001, "an expiry in the past becomes one second after the use");
        assert_eq!(after(u64::MAX), 1_790_000_000 + u64::from(u32::MAX - 1), "for more than a century");
        let mut torn = header().encode(location);
        torn[USE_OFFSET] ^= 1;
        let Header::Block { record: read, .. } = Header::decode(&torn, location) else { panic!("a block") };
        assert_eq!(read.use_, Use { at_s: 1_800_000_000, expires_s: 1_800_000_000, ..Use::default() });
        assert_eq!(encode_use(&Use { expires_s: 0, ..record.use_ }, location)[20..24], [0xff; 4]);
    }

    #[test]
    fn a_fingerprint_depends_on_the_model_and_the_format() {
        let all = [
            fingerprint(&MODEL, "q8/q4"),
            fingerprint(&MODEL, "q8/q8"),
            fingerprint(&[8; 32], "q8/q4"),
            fingerprint(&MODEL, ""),
        ];
        assert_eq!(all.into_iter().collect::<std::collections::HashSet<_>>().len(), all.len());
    }
}
