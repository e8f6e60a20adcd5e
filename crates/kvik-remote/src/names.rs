//! Under which names the store keeps values: hashes with a key, so that whoever runs the store learns no prompt by
//! trying what it might be.

use std::fmt;

use kvik_cache::Identity;

use crate::config::FleetKey;

/// Contexts of derivation; another one makes everything stored unknown.
const NAME_CONTEXT: &str = "kvik 2026-11-26 remote store, names v1";
const SPACE_CONTEXT: &str = "kvik 2026-11-26 remote store, layout of blocks v1";

/// An owner as the store sees it: the same for all values of one, and nothing else.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OwnerTag(pub [u8; 8]);

/// Names a value of an owner: 128 bits. Two values of one name do no harm, since a seal binds the whole identity.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Whose it is.
    pub owner: OwnerTag,
    /// Which of them it is.
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

/// Makes names for one fleet and one model.
pub struct Names {
    key: [u8; 32],
    space: [u8; 32],
}

impl Names {
    /// Names of runs of at most `run_max` blocks of `payload_bytes`. Nodes that differ in one of them share nothing.
    pub fn new(key: &FleetKey, fingerprint: &[u8; 32], payload_bytes: usize, run_max: usize) -> Names {
        let mut space = blake3::Hasher::new_derive_key(SPACE_CONTEXT);
        space.update(fingerprint);
        space.update(&(payload_bytes as u64).to_le_bytes());
        space.update(&(run_max as u64).to_le_bytes());
        Names { key: blake3::derive_key(NAME_CONTEXT, &key.0), space: *space.finalize().as_bytes() }
    }

    /// What determines the bits of blocks and how they stand in values.
    pub fn space(&self) -> &[u8; 32] {
        &self.space
    }

    /// What sets this fleet apart from others in the same store.
    pub fn fleet(&self) -> OwnerTag {
        OwnerTag(self.hash(b"fleet", &[]))
    }

    /// An owner as the store sees it.
    pub fn owner(&self, owner: u64) -> OwnerTag {
        OwnerTag(self.hash(b"owner", &[&owner.to_le_bytes()]))
    }

    /// The name of the run that ends with a block.
    pub fn run(&self, owner: u64, end: &Identity) -> Key {
        let name = self.hash(b"block", &[&self.space, &owner.to_le_bytes(), &end.0]);
        Key { owner: self.owner(owner), name }
    }

    /// The first bytes of the hash of `parts`, whose lengths `purpose` fixes.
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
