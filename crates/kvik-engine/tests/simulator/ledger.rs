//! What the nodes of a fleet have asked for and computed, ever: a list of token sequences, and the names of their blocks.
//!
//! It is the model of the store that nodes share. Nothing in it expires or is lost, so it says what a node *may* find there
//! and never what it must. It also says whose a name is and what its block holds, so that nothing else is asked for or
//! offered.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use kvik_cache::tier::run_ending_at;
use kvik_cache::{BLOCK_POSITIONS, Identity, Token};

use crate::disk::common;
use crate::runner::{BLOCK_BYTES, chain};

/// A sequence that a node was asked for.
struct Computed {
    salt: u8,
    tokens: Vec<Token>,
    /// Leading tokens that may have been computed and published.
    maybe: usize,
    /// The node, and the number of the sequence in its memory.
    node: usize,
    number: usize,
}

/// A whole block of a sequence that a node was asked for.
struct Named {
    salt: u8,
    parent: Identity,
    /// Blocks of the prefix that ends with it.
    blocks: usize,
    /// What is stored at its positions.
    stored: [u64; BLOCK_POSITIONS],
    /// Whether it may have been computed and published.
    is_computed: bool,
}

#[derive(Default)]
pub(crate) struct Ledger {
    computed: Vec<Computed>,
    names: HashMap<Identity, Named>,
    /// Whom the store knows under which salt.
    owners: HashMap<u8, u64>,
}

impl Ledger {
    /// A node was asked for a sequence, number `number` of those it was, of which `maybe` tokens may be published.
    pub(crate) fn note(
        &mut self,
        (salt, root): (u8, Identity),
        tokens: &[Token],
        maybe: usize,
        (node, number): (usize, usize),
    ) {
        self.computed.push(Computed { salt, tokens: tokens.to_vec(), maybe, node, number });
        let (mut parent, mut last) = (root, 0);
        for (block, blocks) in tokens.chunks_exact(BLOCK_POSITIONS).zip(1..) {
            let stored: [u64; BLOCK_POSITIONS] = std::array::from_fn(|at| {
                last = chain(last, block[at]);
                last
            });
            let identity = parent.child(block);
            let named = Named { salt, parent, blocks, stored, is_computed: false };
            let named = self.names.entry(identity).or_insert(named);
            named.is_computed |= blocks * BLOCK_POSITIONS <= maybe;
            parent = identity;
        }
    }

    /// Leading tokens of a prompt that a node may have from others, whole blocks, or still have itself, because it held them to
    /// offer them; its sequences `own` do not count.
    pub(crate) fn may_have(&self, salt: u8, prompt: &[Token], (node, own): (usize, &Range<usize>)) -> usize {
        let is_own = |computed: &Computed| computed.node == node && own.contains(&computed.number);
        let others = self.computed.iter().filter(|computed| computed.salt == salt && !is_own(computed));
        let shared = others.map(|computed| {
            let shared = common(&computed.tokens, prompt).min(computed.maybe);
            if computed.node == node { shared } else { shared - shared % BLOCK_POSITIONS }
        });
        shared.max().unwrap_or(0)
    }

    /// The blocks named so far.
    pub(crate) fn names(&self) -> impl Iterator<Item = Identity> {
        self.names.keys().copied()
    }

    /// The names of a chain are those of a prompt that somebody was asked for and that is not private, and the owner is
    /// whose they are.
    pub(crate) fn check_chain(&mut self, owner: u64, blocks: &[Identity]) {
        for (block, count) in blocks.iter().zip(1..) {
            let named = self.names.get(block).expect("a name that nobody may ask for is asked for");
            assert_eq!(named.blocks, count, "a name stands at the wrong place of a chain");
            assert_eq!(named.salt, self.names[&blocks[0]].salt, "a chain is of two tenants");
        }
        self.check_owner(owner, &blocks[0]);
    }

    /// A run is one that the store takes, it is nobody else's, and it holds what its names say; none of it is `banned`.
    pub(crate) fn check_run(
        &mut self,
        owner: u64,
        end: Identity,
        (bytes, run_max): (&[u8], usize),
        banned: &HashSet<Identity>,
    ) {
        self.check_owner(owner, &end);
        let (mut at, blocks) = (end, self.names[&end].blocks);
        assert_eq!(bytes.len(), run_ending_at(blocks, run_max).len() * BLOCK_BYTES, "blocks of a run");
        for bytes in bytes.chunks_exact(BLOCK_BYTES).rev() {
            let named = &self.names[&at];
            assert!(named.is_computed, "what cannot have been computed is offered");
            assert!(!banned.contains(&at), "what was dropped is offered");
            let expected = named.stored.iter().chain(&named.stored);
            let offered = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
            assert!(offered.eq(expected.copied()), "block {} of a run is another one", named.blocks);
            at = named.parent;
        }
    }

    fn check_owner(&mut self, owner: u64, block: &Identity) {
        let named = self.names.get(block).expect("a name that nobody may know is used");
        let known = *self.owners.entry(named.salt).or_insert(owner);
        assert_eq!(known, owner, "the owner of salt {}", named.salt);
        assert_eq!(owner == 0, named.salt == 0, "nobody's is what has no salt");
        let same = self.owners.values().filter(|&&other| other == owner).count();
        assert_eq!(same, 1, "two tenants are one owner");
    }
}
