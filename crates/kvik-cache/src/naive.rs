//! The cache's flat, obviously right twin: the specification that the real one is tested against.
//!
//! Owns a list of cached blocks, each named by *all* tokens from position 0 to its end, and a list
//! of running sequences. Everything else is derived anew whenever it is asked for: no tree, no
//! lock counts, no lists, no physical blocks; every question is a scan. Mirrors the commands of
//! [`Cache`](crate::Cache) and agrees with it on every answer.

use std::collections::{BTreeMap, BTreeSet};

use crate::admission::{Match, NoSpace};
use crate::explain::StopReason;
use crate::ids::{BLOCK_POSITIONS, NamespaceId, SeqId, Token, blocks_for};

/// All there is.
#[derive(Debug)]
pub(crate) struct Naive {
    blocks: usize,
    entries: Vec<Entry>,
    running: BTreeMap<SeqId, Running>,
    /// All blocks ever evicted.
    evicted: BTreeSet<(NamespaceId, Vec<Token>)>,
    /// Counts uses.
    uses: u64,
    pub(crate) events: Events,
}

/// Things that must happen in a test worth its name.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Events {
    pub(crate) superseded: u64,
    pub(crate) tails_known: u64,
    pub(crate) tails_stored: u64,
    pub(crate) copies_given_up: u64,
    pub(crate) sources_in_use: u64,
}

/// A cached block.
#[derive(Debug, Clone)]
struct Entry {
    namespace: NamespaceId,
    /// All tokens up to the block's last valid one.
    prefix: Vec<Token>,
    /// When its last user left it.
    used: u64,
}

/// A running sequence.
#[derive(Debug, Clone)]
struct Running {
    namespace: NamespaceId,
    /// The whole blocks it shares with the cache, as tokens.
    leased: Vec<Token>,
    /// Blocks of its own.
    owned: usize,
}

impl Naive {
    pub(crate) fn new(blocks: usize) -> Naive {
        Naive {
            blocks,
            entries: Vec::new(),
            running: BTreeMap::new(),
            evicted: BTreeSet::new(),
            uses: 0,
            events: Events::default(),
        }
    }

    pub(crate) fn owned(&self) -> usize {
        self.running.values().map(|running| running.owned).sum()
    }

    pub(crate) fn shared(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn free(&self) -> usize {
        self.blocks - self.owned() - self.shared()
    }

    pub(crate) fn evictable(&self) -> usize {
        self.entries.iter().filter(|entry| !self.is_locked(entry)).count()
    }

    /// Valid tokens of all cached blocks.
    pub(crate) fn tokens(&self) -> usize {
        self.entries.iter().map(|entry| entry.prefix.len() - block_start(&entry.prefix)).sum()
    }

    /// Blocks of a running sequence that are cached, and those that are not.
    pub(crate) fn table(&self, seq: SeqId) -> (usize, usize) {
        let running = &self.running[&seq];
        (blocks_for(running.leased.len()), running.owned)
    }

    /// The unlocked blocks in the order in which they would be evicted.
    pub(crate) fn eviction_order(&self) -> Vec<(NamespaceId, Vec<Token>)> {
        let mut order: Vec<&Entry> = self.entries.iter().filter(|entry| !self.is_locked(entry)).collect();
        order.sort_by_key(|entry| entry.used);
        order.into_iter().map(|entry| (entry.namespace, entry.prefix.clone())).collect()
    }

    pub(crate) fn lookup(&self, namespace: NamespaceId, prompt: &[Token]) -> Match {
        let tokens = self.known(namespace, prompt);
        let next_block_end = tokens - tokens % BLOCK_POSITIONS + BLOCK_POSITIONS;
        let lost = (tokens + 1..=next_block_end.min(prompt.len()))
            .any(|end| self.evicted.contains(&(namespace, prompt[..end].to_vec())));
        let stop = if lost { StopReason::Evicted } else { self.stop_if_all_is_forgotten(namespace, prompt) };
        Match { tokens, stop }
    }

    /// Why the known part of a prompt ends, if nothing was known of what has been evicted.
    pub(crate) fn stop_if_all_is_forgotten(&self, namespace: NamespaceId, prompt: &[Token]) -> StopReason {
        let tokens = self.known(namespace, prompt);
        let goes_on =
            |entry: &Entry| entry.prefix.len() > tokens && entry.prefix.starts_with(&prompt[..tokens]);
        if tokens == prompt.len() {
            StopReason::Complete
        } else if tokens > 0 && self.entries_of(namespace).any(goes_on) {
            StopReason::Diverged
        } else {
            StopReason::FirstSeen
        }
    }

    /// Returns the tokens reused.
    pub(crate) fn admit(
        &mut self,
        seq: SeqId,
        namespace: NamespaceId,
        prompt: &[Token],
        reuse_max: usize,
        positions: usize,
    ) -> Result<usize, NoSpace> {
        let usable = &prompt[..reuse_max.min(prompt.len())];
        let tokens = self.known(namespace, usable);
        let whole = tokens - tokens % BLOCK_POSITIONS;
        let lease = usable[..whole].to_vec();
        let path = |entry: &&Entry| entry.namespace == namespace && lease.starts_with(&entry.prefix);
        let on_path = self.entries.iter().filter(path).filter(|entry| !self.is_locked(entry)).count();
        let available = self.free() + self.evictable() - on_path;
        let fits = |needed: usize| {
            if needed <= available { Ok(()) } else { Err(NoSpace { needed, available }) }
        };
        let blocks = |tokens: usize| blocks_for(positions.max(tokens)) - blocks_for(whole);
        let mut reused = tokens;
        let mut source =
            (tokens > whole).then(|| self.closest(namespace, &usable[..whole], &usable[whole..]));
        if let Some(index) = source {
            let held = usize::from(!self.is_locked(&self.entries[index]));
            self.events.sources_in_use += 1 - held as u64;
            if fits(blocks(tokens) + held).is_err() {
                (reused, source) = (whole, None);
            }
        }
        fits(blocks(reused))?;
        self.events.copies_given_up += u64::from(reused < tokens);

        self.running.insert(seq, Running { namespace, leased: lease, owned: 0 });
        let source = source.map(|index| self.entries[index].prefix.clone());
        self.make_room(blocks(reused), source.as_deref().map(|prefix| (namespace, prefix)));
        self.running.get_mut(&seq).unwrap().owned = blocks(reused);
        source.into_iter().for_each(|prefix| self.touch(namespace, &prefix));
        Ok(reused)
    }

    pub(crate) fn reserve(&mut self, seq: SeqId, positions: usize) -> Result<(), NoSpace> {
        let (leased, owned) = self.table(seq);
        let needed = blocks_for(positions).saturating_sub(leased + owned);
        self.check_room(needed)?;
        self.make_room(needed, None);
        self.running.get_mut(&seq).unwrap().owned += needed;
        Ok(())
    }

    pub(crate) fn publish(&mut self, seq: SeqId, tokens: &[Token]) {
        let namespace = self.running[&seq].namespace;
        let published = self.running[&seq].leased.len();
        let whole = tokens.len() - tokens.len() % BLOCK_POSITIONS;
        for end in (published + BLOCK_POSITIONS..=whole).step_by(BLOCK_POSITIONS) {
            self.store(namespace, &tokens[..end]);
            let running = self.running.get_mut(&seq).unwrap();
            running.leased = tokens[..end].to_vec();
            running.owned -= 1;
        }
    }

    pub(crate) fn fork(&mut self, parent: SeqId, child: SeqId, tokens: &[Token]) -> Result<(), NoSpace> {
        self.publish(parent, tokens);
        let needed = blocks_for(tokens.len() % BLOCK_POSITIONS);
        self.check_room(needed)?;
        self.make_room(needed, None);
        let forked = Running { owned: needed, ..self.running[&parent].clone() };
        self.running.insert(child, forked);
        Ok(())
    }

    pub(crate) fn finish(&mut self, seq: SeqId, tokens: &[Token]) {
        self.publish(seq, tokens);
        let Running { namespace, leased, .. } = self.running[&seq].clone();
        if leased.len() < tokens.len() {
            let tail = &tokens[leased.len()..];
            let closest = self.entries_of(namespace).filter(|entry| entry.prefix.starts_with(tokens));
            if closest.count() > 0 {
                self.events.tails_known += 1;
                let known = self.entries[self.closest(namespace, &leased, tail)].prefix.clone();
                self.touch(namespace, &known);
            } else {
                self.events.tails_stored += 1;
                self.store(namespace, tokens);
                self.touch(namespace, tokens);
            }
        }
        self.abandon(seq);
    }

    pub(crate) fn abandon(&mut self, seq: SeqId) {
        let Running { namespace, leased, .. } = self.running.remove(&seq).unwrap();
        for block in (1..=leased.len() / BLOCK_POSITIONS).rev() {
            self.touch(namespace, &leased[..block * BLOCK_POSITIONS]);
        }
    }

    fn entries_of(&self, namespace: NamespaceId) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(move |entry| entry.namespace == namespace)
    }

    /// A block is locked when a running sequence shares it.
    fn is_locked(&self, entry: &Entry) -> bool {
        let shares = |running: &Running| {
            running.namespace == entry.namespace && running.leased.starts_with(&entry.prefix)
        };
        self.running.values().any(shares)
    }

    /// Leading tokens of a prompt that some cached block and those before it hold.
    fn known(&self, namespace: NamespaceId, prompt: &[Token]) -> usize {
        self.entries_of(namespace).map(|entry| common(&entry.prefix, prompt)).max().unwrap_or(0)
    }

    /// The block after `before` that shares the most tokens with `rest`: of equal ones the
    /// smallest that is not less than `rest`, or else the largest.
    fn closest(&self, namespace: NamespaceId, before: &[Token], rest: &[Token]) -> usize {
        let rest = &rest[..rest.len().min(BLOCK_POSITIONS)];
        let follows = |index: &usize| {
            let entry = &self.entries[*index];
            entry.namespace == namespace
                && block_start(&entry.prefix) == before.len()
                && entry.prefix.starts_with(before)
        };
        let rank = |index: usize| {
            let block = &self.entries[index].prefix[before.len()..];
            let (above, below) = match block >= rest {
                true => (Some(std::cmp::Reverse(block)), None),
                false => (None, Some(block)),
            };
            (common(block, rest), above, below)
        };
        (0..self.entries.len()).filter(follows).max_by_key(|&index| rank(index)).unwrap()
    }

    /// Caches the block that ends `prefix`, unless it is. A partial block that it extends goes.
    fn store(&mut self, namespace: NamespaceId, prefix: &[Token]) {
        if self.entries_of(namespace).any(|entry| entry.prefix == prefix) {
            return;
        }
        let count = self.entries.len();
        self.entries.retain(|entry| {
            let is_partial = !entry.prefix.len().is_multiple_of(BLOCK_POSITIONS);
            !(is_partial && entry.namespace == namespace && prefix.starts_with(&entry.prefix))
        });
        self.events.superseded += (count - self.entries.len()) as u64;
        self.entries.push(Entry { namespace, prefix: prefix.to_vec(), used: 0 });
    }

    /// Notes that a block was used just now; while somebody uses it this means nothing.
    fn touch(&mut self, namespace: NamespaceId, prefix: &[Token]) {
        self.uses += 1;
        let is_it = |entry: &&mut Entry| entry.namespace == namespace && entry.prefix == prefix;
        self.entries.iter_mut().find(is_it).unwrap().used = self.uses;
    }

    fn check_room(&self, needed: usize) -> Result<(), NoSpace> {
        let available = self.free() + self.evictable();
        if needed <= available { Ok(()) } else { Err(NoSpace { needed, available }) }
    }

    /// Evicts what was used longest ago, but never `held`, until `needed` blocks are free.
    fn make_room(&mut self, needed: usize, held: Option<(NamespaceId, &[Token])>) {
        while self.free() < needed {
            let may_go = |index: &usize| {
                let entry = &self.entries[*index];
                !self.is_locked(entry) && held != Some((entry.namespace, &entry.prefix))
            };
            let oldest = (0..self.entries.len()).filter(may_go).min_by_key(|&index| self.entries[index].used);
            let Entry { namespace, prefix, .. } = self.entries.remove(oldest.unwrap());
            let orphan = self.entries_of(namespace).find(|entry| entry.prefix.starts_with(&prefix));
            assert!(orphan.is_none(), "a block goes before what follows it");
            self.evicted.insert((namespace, prefix));
        }
    }
}

/// Where the last block of a prefix starts.
fn block_start(prefix: &[Token]) -> usize {
    (blocks_for(prefix.len()) - 1) * BLOCK_POSITIONS
}

fn common(a: &[Token], b: &[Token]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
