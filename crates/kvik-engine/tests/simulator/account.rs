//! An account of the cache that is kept by its events alone, as a router keeps one, next to the tree.

use std::collections::HashSet;

use kvik_cache::{BLOCK_POSITIONS, Identity, OutlineScan};
use kvik_engine::api::{KvEvent, KvStored};

use crate::world::World;

/// The salts of those of whom events tell; of all that others compute nothing is heard.
pub(crate) const TOLD: [u8; 2] = [0, 2];
/// The account is compared when something was told, and every so many steps.
const COMPARED_STEPS: u64 = 16;

/// The names of the blocks that are there, by all events so far.
#[derive(Debug, Default)]
pub(crate) struct Account {
    blocks: HashSet<Identity>,
}

impl Account {
    fn follow(&mut self, event: KvEvent) {
        match event {
            KvEvent::Cleared => self.blocks.clear(),
            KvEvent::Removed(gone) => {
                assert!(
                    gone.iter().all(|block| self.blocks.remove(block)),
                    "what is gone was there: {gone:?}"
                );
            }
            KvEvent::Stored(KvStored { parent, blocks, tokens, adapter }) => {
                assert!(
                    parent.is_none_or(|parent| self.blocks.contains(&parent)),
                    "{blocks:?} follow nothing"
                );
                assert_eq!((tokens.len(), adapter), (blocks.len() * BLOCK_POSITIONS, None));
                assert!(
                    blocks.iter().all(|&block| self.blocks.insert(block)),
                    "{blocks:?} are there already"
                );
            }
        }
    }
}

impl World {
    /// Follows the events of a step, and compares the account with the tree.
    pub(crate) fn follow_events(&mut self) {
        let events = self.scheduler.prefixes.take_kv_events();
        let is_due = !events.is_empty() || self.steps.is_multiple_of(COMPARED_STEPS);
        self.coverage.told += events.len() as u64;
        events.into_iter().for_each(|event| self.account.follow(event));
        if is_due {
            assert_eq!(self.account.blocks, self.blocks_in_tree(), "what was told and what is in the tree");
        }
    }

    /// The names of the whole blocks of those of whom events tell, worked out from their tokens.
    fn blocks_in_tree(&self) -> HashSet<Identity> {
        let cache = self.scheduler.cache();
        let mut scan = OutlineScan::new(None);
        while cache.scan_outline(&mut scan) {}
        let outline = scan.heaviest(usize::MAX, None).expect("no part is asked for");
        let mut blocks = HashSet::new();
        for salt in TOLD {
            let namespace = self.regime.engine.namespaces().shared([salt; 16]);
            let id = cache.known_namespace(&namespace);
            let names = outline.nodes.iter().map(|node| node.name);
            for name in names.filter(|&name| cache.node(name, None).map(|node| node.namespace) == id) {
                let prefix = cache.node_prefix(name).expect("it was found a moment ago");
                let whole = prefix.len() / BLOCK_POSITIONS;
                blocks.extend(Identity::chain(&namespace, &prefix).take(whole));
            }
        }
        blocks
    }
}
