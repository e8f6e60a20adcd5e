//! The names of values in the store: keyed hashes, so that the operator of the store cannot test guesses of prompts.

use std::fmt;

use kvik_cache::Identity;

use crate::config::FleetKey;

/// Contexts of key derivation; changing one orphans everything stored.
const NAME_CONTEXT: &str = "kvik 2026-11-26 remote store, names v1";
const SPACE_CONTEXT: &str = "kvik 2026-11-26 remote store, layout of blocks v1";

/// A pseudonym of an owner: the same for all values of that owner, and meaningless otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OwnerTag(pub [u8; 8]);

/// Identifies a value of an owner with 128 bits. A collision is harmless, since a seal binds the whole identity.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// The owner.
    pub owner: OwnerTag,
    /// The name among the owner's values.
    pub name: [u8; 16],
}

impl fmt::Display for OwnerTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hexadecimal(&self.0, f)
    }
}

impl fmt::Debug for OwnerTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Key {
    /// `OWNER:NAME`, 16 and 32 hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.owner)?;
        hexadecimal(&self.name, f)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn hexadecimal(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

/// Computes names for one fleet and one model.
pub struct Names {
    key: [u8; 32],
    space: [u8; 32],
}

impl Names {
    /// Names of runs of at most `run_max` blocks of `payload_bytes`. Nodes that differ in any of these share nothing.
    pub fn new(key: &FleetKey, fingerprint: &[u8; 32], payload_bytes: usize, run_max: usize) -> Names {
        let mut space = blake3::Hasher::new_derive_key(SPACE_CONTEXT);
        space.update(fingerprint);
        space.update(&(payload_bytes as u64).to_le_bytes());
        space.update(&(run_max as u64).to_le_bytes());
        Names { key: blake3::derive_key(NAME_CONTEXT, &key.0), space: *space.finalize().as_bytes() }
    }

    /// A digest of everything that determines the bits of blocks and their layout in values.
    pub fn space(&self) -> &[u8; 32] {
        &self.space
    }

    /// The tag that separates this fleet from others in the same store.
    pub fn fleet(&self) -> OwnerTag {
        OwnerTag(self.hash(b"fleet", &[]))
    }

    /// The pseudonym of an owner.
    pub fn owner(&self, owner: u64) -> OwnerTag {
        OwnerTag(self.hash(b"owner", &[&owner.to_le_bytes()]))
    }

    /// The name of the run that ends with a block.
    pub fn run(&self, owner: u64, end: &Identity) -> Key {
        let name = self.hash(b"block", &[&self.space, &owner.to_le_bytes(), &end.0]);
        Key { owner: self.owner(owner), name }
    }

    /// The first bytes of the hash of `parts`, whose lengths are fixed for each `purpose`.
    pub(crate) fn hash<const N: usize>(&self, purpose: &[u8; 5], parts: &[&[u8]]) -> [u8; N] {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(purpose);
        parts.iter().for_each(|part| {
            hasher.update(part);
        });
        let mut hash = [0; N];
        hasher.finalize_xof().fill(&mut hash);
        hash
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn all_that_differs_gives_another_name() {
        let key = |byte| FleetKey::new([byte; 32]);
        let name = |fleet, model: u8, payload, run_max, owner, end: u8| {
            Names::new(&key(fleet), &[model; 32], payload, run_max).run(owner, &Identity([end; 32]))
        };
        let names = [
            name(1, 1, 1, 1, 1, 1),
            name(2, 1, 1, 1, 1, 1),
            name(1, 2, 1, 1, 1, 1),
            name(1, 1, 2, 1, 1, 1),
            name(1, 1, 1, 2, 1, 1),
            name(1, 1, 1, 1, 2, 1),
            name(1, 1, 1, 1, 1, 2),
        ];
        assert_eq!(names.iter().map(|key| key.name).collect::<HashSet<_>>().len(), names.len());
        assert_eq!(names[0], name(1, 1, 1, 1, 1, 1));
        assert_eq!(names[0].owner, names[2].owner, "budgets of an owner are over all models");
        assert_eq!(names[0].to_string().len(), 49);
    }
}
