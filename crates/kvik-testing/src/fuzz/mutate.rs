//! Mutations aware of the structure of binary files: counts, lengths, offsets and names.

/// A small fast generator; the same seed gives the same run.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Creates a generator from any seed.
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// A number below `end`; 0 if `end` is 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() >> 16) as usize % end.max(1)
    }

    /// Picks an item.
    ///
    /// # Panics
    /// If there are no items.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }
}

/// Boundary values of counts and offsets.
const BOUNDARIES: [u64; 18] = [
    0,
    1,
    2,
    3,
    7,
    31,
    32,
    255,
    256,
    65_535,
    1 << 24,
    (1 << 31) - 1,
    1 << 31,
    u32::MAX as u64,
    1 << 32,
    1 << 62,
    i64::MAX as u64,
    u64::MAX,
];

/// Changes `input` in one to eight ways; parts of `other` may be mixed in. Half of the mutants keep their structure,
/// with one to three changed values, so that they are read to the end.
pub fn mutate(input: &[u8], other: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = input.to_vec();
    if random.below(2) == 0 {
        (0..1 + random.below(3)).for_each(|_| replace_value(&mut bytes, random));
        return bytes;
    }
    for _ in 0..1 + random.below(8) {
        change(&mut bytes, other, random);
    }
    bytes
}

fn change(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    match random.below(10) {
        0 => flip_bit(bytes, random),
        1 => bytes.truncate(random.below(bytes.len() + 1)),
        2 => splice(bytes, other, random),
        3 => copy_within(bytes, random),
        4 => remove(bytes, random),
        5 => swap_names(bytes, random),
        6 => overwrite_after_name(bytes, random),
        _ => overwrite(bytes, random),
    }
}

fn flip_bit(bytes: &mut [u8], random: &mut Random) {
    let at = random.below(bytes.len());
    if let Some(byte) = bytes.get_mut(at) {
        *byte ^= 1 << random.below(8);
    }
}

fn splice(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    let (from, at) = (random.below(other.len()), random.below(bytes.len() + 1));
    let len = random.below(other.len() - from.min(other.len()) + 1).min(4096);
    bytes.splice(at..at, other[from..from + len].iter().copied());
}

fn copy_within(bytes: &mut [u8], random: &mut Random) {
    let (from, to) = (random.below(bytes.len()), random.below(bytes.len()));
    let len = random.below(64).min(bytes.len() - from.max(to));
    bytes.copy_within(from..from + len, to);
}

fn remove(bytes: &mut Vec<u8>, random: &mut Random) {
    let from = random.below(bytes.len());
    let to = (from + random.below(32)).min(bytes.len());
    bytes.drain(from..to);
}

/// Writes a boundary value, or one near the file's length, over 1, 4 or 8 bytes.
fn overwrite(bytes: &mut [u8], random: &mut Random) {
    let at = random.below(bytes.len());
    overwrite_at(bytes, at, random);
}

fn overwrite_at(bytes: &mut [u8], at: usize, random: &mut Random) {
    let value = match random.below(4) {
        0 => (bytes.len() as u64).wrapping_add(random.below(5) as u64).wrapping_sub(2),
        1 => random.next() >> random.below(64),
        _ => BOUNDARIES[random.below(BOUNDARIES.len())],
    };
    let width = [1, 4, 8, 8][random.below(4)].min(bytes.len() - at);
    bytes[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
}

/// Overwrites a field, which directly follows its name.
fn overwrite_after_name(bytes: &mut [u8], random: &mut Random) {
    let ends = name_ends(bytes);
    if !ends.is_empty() {
        let at = ends[random.below(ends.len())] + 4 * random.below(8);
        overwrite_at(bytes, at.min(bytes.len() - 1), random);
    }
}

/// Overwrites the value of a GGUF key, or the first dimension of a tensor: they follow four bytes after the name.
fn replace_value(bytes: &mut [u8], random: &mut Random) {
    let ends = name_ends(bytes);
    let Some(&end) = ends.get(random.below(ends.len())) else { return };
    let value = match random.below(3) {
        0 => random.below(200) as u64,
        1 => u64::from((random.below(2000) as f32 / 100.0 - 10.0).to_bits()),
        _ => BOUNDARIES[random.below(BOUNDARIES.len())],
    };
    let from = (end + 4).min(bytes.len());
    let width = [1, 4][random.below(2)].min(bytes.len() - from);
    bytes[from..from + width].copy_from_slice(&value.to_le_bytes()[..width]);
}

/// Copies the end of one name over another: makes duplicates and missing keys.
fn swap_names(bytes: &mut [u8], random: &mut Random) {
    let ends = name_ends(bytes);
    if ends.len() > 1 {
        let (a, b) = (ends[random.below(ends.len())], ends[random.below(ends.len())]);
        let len = random.below(16).min(a).min(b);
        bytes.copy_within(a - len..a, b - len);
    }
}

/// Ends of runs of six or more characters that can be names.
fn name_ends(bytes: &[u8]) -> Vec<usize> {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.');
    let mut ends = Vec::new();
    let mut len = 0;
    for (i, &byte) in bytes.iter().enumerate() {
        if is_name(byte) {
            len += 1;
        } else {
            if len >= 6 {
                ends.push(i);
            }
            len = 0;
        }
    }
    ends
}
