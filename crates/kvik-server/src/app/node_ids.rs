//! Public ids of nodes of the prefix tree.
//!
//! The cache numbers the nodes of all tenants together, so a raw number would reveal to one tenant the
//! activity of the others. An id is that number enciphered with a key of this process: a Feistel network over
//! place and generation, with BLAKE3 as its round function.

use kvik_cache::NodeName;

use kvik_memory::random::random;

/// Rounds. With four independent round functions, ids are indistinguishable from random ones.
const ROUNDS: u8 = 4;

/// Converts names of nodes to ids and back.
pub(crate) struct NodeIds {
    key: [u8; 32],
}

impl NodeIds {
    pub(crate) fn new() -> NodeIds {
        let mut key = [0; 32];
        key.chunks_exact_mut(8).for_each(|bytes| bytes.copy_from_slice(&random().to_le_bytes()));
        NodeIds { key }
    }

    /// The id of a node.
    pub(crate) fn id(&self, name: NodeName) -> String {
        let NodeName { place, generation } = name;
        let (left, right) = (0..ROUNDS)
            .fold((place, generation), |(left, right), round| (right, left ^ self.mixed(round, right)));
        format!("n{left:08x}{right:08x}")
    }

    /// The node that an id names, if it is well-formed; the cache knows whether the node exists.
    pub(crate) fn name(&self, id: &str) -> Option<NodeName> {
        let digits =
            id.strip_prefix('n').filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))?;
        let (left, right) = digits.split_at_checked(8).filter(|(_, right)| right.len() == 8)?;
        let halves = (u32::from_str_radix(left, 16).ok()?, u32::from_str_radix(right, 16).ok()?);
        let (place, generation) =
            (0..ROUNDS).rev().fold(halves, |(left, right), round| (right ^ self.mixed(round, left), left));
        Some(NodeName { place, generation })
    }

    fn mixed(&self, round: u8, half: u32) -> u32 {
        let [a, b, c, d] = half.to_le_bytes();
        let hash = blake3::keyed_hash(&self.key, &[round, a, b, c, d]);
        let (&mixed, _) = hash.as_bytes().split_first_chunk().expect("a hash has 32 bytes");
        u32::from_le_bytes(mixed)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn an_id_leads_back_and_says_nothing_of_its_neighbours() {
        let (ids, others) = (NodeIds::new(), NodeIds::new());
        let mut seen = BTreeSet::new();
        for name in (0..100).map(|number| NodeName { place: number / 4, generation: number % 4 }) {
            let id = ids.id(name);
            assert_eq!(ids.name(&id), Some(name));
            assert_ne!(others.id(name), id, "a process has a key of its own");
            assert!(seen.insert(id[..9].to_owned()), "no two begin alike");
        }
    }

    #[test]
    fn what_is_no_id_is_refused() {
        let ids = NodeIds::new();
        for text in [
            "",
            "n",
            "17",
            "n17-3",
            "n00000000000000000",
            "m0000000000000000",
            "n000000000000000g",
            "n+000000000000000",
            "n0000000é0000000",
        ] {
            assert_eq!(ids.name(text), None, "{text}");
        }
    }
}
