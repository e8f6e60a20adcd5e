//! Steps the cache and its naive twin through the same random operations.
//!
//! A small pool, prompts made of few patterns and several concurrent sequences make collisions, partial blocks,
//! evictions and refusals frequent. In addition to the twin there is a simulated memory of the blocks: every
//! position computed or copied leaves a mark there that stands for all tokens up to it, so a block used for the
//! wrong prefix, or too early, is detected.
//!
//! Half of the seeds use LRU, of which the twin predicts every victim; of another policy's victims it checks that
//! they are evictable: unlocked leaves, of the victim tenant and its lowest priority. Half of the seeds set times
//! to live and priorities, some of which end, and pin, and half have tenants with shares. `KVIK_MODEL_SEED=7` runs one
//! seed alone.

mod auxiliary;
mod lease;
mod lookup;
mod telling;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::life::{Cache, CacheConfig};
use super::naive::Naive;
use super::outline::{Outline, OutlineNode, OutlineScan};
use crate::admission::{Admission, CopyPartial, Forked, NoSpace};
use crate::auxiliary::AuxiliaryState;
use crate::evict::{Policy, Share};
use crate::ids::{
    BLOCK_POSITIONS, BlockId, NamespaceId, NodeId, NodeName, PinId, SeqId, StateId, TenantId, Token,
};
use crate::lifetime::{Lifetime, RaisedPriority};
use crate::namespace::{Namespace, Namespaces};
use auxiliary::some_needs;

const SEEDS: u64 = 200;
const STEPS_PER_SEED: u64 = 5_000;
/// Enough slots that no two evictions of a seed collide.
const GHOSTS_FOR_ALL: usize = 1 << 22;
const RUNNING_MAX: usize = 5;
const PROMPT_BLOCKS_MAX: usize = 7;
/// Pins remembered, to be unpinned again.
const PINS_MAX: usize = 16;

#[test]
fn random_operations_agree_with_the_naive_twin() {
    let count = kvik_testing::effort(SEEDS / 4, SEEDS);
    let seeds = match std::env::var("KVIK_MODEL_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (0..count).collect(),
    };
    let mut seen = Seen::default();
    for &seed in &seeds {
        let result = std::panic::catch_unwind(|| World::new(seed).run());
        match result {
            Ok(more) => seen.add(&more),
            Err(panic) => {
                eprintln!("the model test failed with KVIK_MODEL_SEED={seed}");
                std::panic::resume_unwind(panic);
            }
        }
    }
    if seeds.len() as u64 == count {
        assert_eq!(seen.steps, count * STEPS_PER_SEED);
        seen.assert_all(count / 2);
    }
}

/// How often each event happened, over all seeds.
#[derive(Debug, Default)]
struct Seen {
    steps: u64,
    counts: BTreeMap<&'static str, u64>,
}

impl Seen {
    fn note(&mut self, what: &'static str, times: u64) {
        *self.counts.entry(what).or_default() += times;
    }

    fn add(&mut self, other: &Seen) {
        self.steps += other.steps;
        other.counts.iter().for_each(|(what, &times)| self.note(what, times));
    }

    /// Every seed notes every event, if only with zero: none may be rare.
    fn assert_all(&self, least: u64) {
        for (what, &times) in &self.counts {
            assert!(times >= least, "{what} happened {times} times: the test does not reach it");
        }
        assert!(self.counts.len() >= 30, "only {} kinds of events are noted", self.counts.len());
    }
}

/// A sequence as its user sees it.
#[derive(Debug, Clone)]
struct Run {
    namespace: NamespaceId,
    tokens: Vec<Token>,
    /// Leading tokens whose keys and values are in its blocks.
    computed: usize,
}

struct World {
    random: Random,
    cache: Cache,
    ghosts: usize,
    /// Whether requests ask for times to live, priorities and pins.
    sets_lifetimes: bool,
    /// Whether namespaces belong to different tenants.
    divides: bool,
    naive: Naive,
    namespaces: [NamespaceId; 3],
    /// A namespace that continues whole blocks of the first one.
    derived: Option<(NamespaceId, Vec<Token>)>,
    derivations: u8,
    now: Duration,
    /// Pinned prefixes, by a request or otherwise, that were not unpinned since.
    pins: Vec<(NamespaceId, Vec<Token>)>,
    running: BTreeMap<SeqId, Run>,
    /// A sequence that only leases.
    leased: Option<SeqId>,
    next_seq: u64,
    needs: AuxiliaryState,
    /// Content of each position of each block, shape `[blocks][16]`.
    memory: Vec<[u64; BLOCK_POSITIONS]>,
    /// Content of the windowed parts, same shape.
    parts: Vec<[u64; BLOCK_POSITIONS]>,
    /// The mark of the tokens that each state has processed.
    states: BTreeMap<StateId, u64>,
    /// Recent token sequences, to make prompts that share prefixes.
    history: Vec<Vec<Token>>,
    seen: Seen,
    account: telling::Account,
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Random(seed + 1_000);
        let needs = some_needs(&mut random);
        let small = 8 + random.below(33);
        let blocks = small * if needs.is_nothing() { 1 } else { 2 + random.below(4) };
        let ghosts = [0, 64, GHOSTS_FOR_ALL][random.below(3)];
        let policy = match random.below(2) {
            0 => Policy::Lru,
            _ => Policy::ALL[random.below(Policy::ALL.len())],
        };
        let pinned_max = 2 + random.below(small / 5);
        let mut cache = Cache::new(CacheConfig { blocks, policy, ghosts, pinned_max }).unwrap();
        cache.index_followers();
        cache.hold_auxiliary(needs);
        cache.keep_journal();
        let namespaces = [0, 1, 2].map(|salt| cache.namespace(&shared(salt)));
        World {
            sets_lifetimes: random.below(2) == 0,
            divides: random.below(2) == 0,
            random,
            cache,
            ghosts,
            naive: Naive::new(blocks, policy, pinned_max, needs),
            namespaces,
            derived: None,
            derivations: 0,
            now: Duration::ZERO,
            pins: Vec::new(),
            running: BTreeMap::new(),
            leased: None,
            next_seq: 0,
            needs,
            memory: vec![[0; BLOCK_POSITIONS]; blocks],
            parts: vec![[0; BLOCK_POSITIONS]; blocks],
            states: BTreeMap::new(),
            history: vec![vec![]],
            seen: Seen::default(),
            account: Default::default(),
        }
    }

    fn run(mut self) -> Seen {
        for _ in 0..STEPS_PER_SEED {
            self.step();
            self.apply_changes();
            self.compare();
            self.follow_journal();
            self.cache.check().unwrap();
            if self.seen.steps.is_multiple_of(8) {
                self.compare_outline();
            }
            self.seen.steps += 1;
        }
        self.note_totals();
        self.seen
    }

    fn step(&mut self) {
        let choice = self.random.below(100);
        let seq = self.some_running();
        match (choice, seq) {
            (0..4, _) => self.pass_time(),
            (4..6, _) if self.divides => self.set_share(),
            (6..8, _) if self.sets_lifetimes => self.pin(),
            (8, _) => self.unpin(),
            (9, _) => self.unpin_under(),
            (10, _) => self.drop_prefix(),
            (11, _) => self.derive_or_drop(),
            (12, _) => self.followers(),
            (13, _) => self.drop_namespace(),
            (14, _) => self.lease_or_release(),
            (0..20, _) => self.lookup(),
            (20..100, None) => self.admit(),
            (20..45, Some(_)) if self.running.len() < RUNNING_MAX => self.admit(),
            (20..60, Some(seq)) => self.compute(seq),
            (60..68, Some(seq)) => self.reserve(seq),
            (68..80, Some(seq)) => self.publish(seq),
            (80..85, Some(seq)) => self.fork(seq),
            (85..97, Some(seq)) => self.finish(seq),
            (_, Some(seq)) => self.abandon(seq),
            (100.., None) => unreachable!("choices are below 100"),
        }
    }

    /// Followers that are found occur after the same tokens in a cached prefix of the namespace.
    fn followers(&mut self) {
        let (namespace, mut prompt) = self.some_place();
        prompt.truncate(self.random.below(prompt.len() + 1));
        let found = self.cache.followers(namespace, &prompt, 1 + self.random.below(20));
        if let Some(found) = &found {
            let said = [&prompt[prompt.len() - found.same..], &found.tokens].concat();
            assert!(self.naive.holds(namespace, &said), "{said:?} is nowhere");
        }
        self.seen.note("followers found", u64::from(found.is_some()));
        self.seen.note("no followers found", u64::from(found.is_none()));
    }

    fn pass_time(&mut self) {
        self.now += Duration::from_secs(self.random.below(300) as u64);
        self.cache.set_now(self.now);
        self.tell();
        self.naive.set_now(self.now);
    }

    /// Assigns a namespace to one of two tenants, or changes its tenant's share.
    fn set_share(&mut self) {
        let index = self.random.below(3);
        let scale = if self.needs.is_nothing() { 1 } else { 4 };
        let quota = [None, Some(4 * scale), Some(12 * scale)][self.random.below(3)];
        let tenant = TenantId([1, 1, 2][index]);
        let pinned_max = [None, Some(2), Some(6)][self.random.below(3)];
        let weight = 1.0 + self.random.below(3) as f64;
        let share = Share { tenant, weight, quota_blocks: quota, pinned_max };
        self.cache.set_share(self.namespaces[index], share).unwrap();
        self.tell();
        self.naive.set_share(self.namespaces[index], share);
        self.seen.note("shares set", 1);
    }

    fn pin(&mut self) {
        let (namespace, mut prompt) = self.some_place();
        if self.random.below(2) == 0 {
            prompt.truncate(self.naive.lookup(namespace, &prompt).tokens);
        }
        if self.pins.len() < PINS_MAX {
            let pinned = self.cache.pin(namespace, &prompt);
            assert_eq!(pinned, self.naive.pin(namespace, &prompt));
            self.pins.extend((pinned == Ok(true)).then_some((namespace, prompt)));
            self.seen.note("pinned", u64::from(pinned == Ok(true)));
        }
    }

    /// Unpins a prefix, usually one that is pinned.
    fn unpin(&mut self) {
        let (namespace, prompt) = match self.pins.is_empty() {
            true => (self.some_namespace(), self.some_prompt()),
            false => self.pins.swap_remove(self.random.below(self.pins.len())),
        };
        let unpinned = self.cache.unpin(namespace, &prompt);
        self.tell();
        assert_eq!(unpinned, self.naive.unpin(namespace, &prompt));
        self.seen.note("unpinned", u64::from(unpinned));
    }

    /// Unpins everything at or below some prefix.
    fn unpin_under(&mut self) {
        let (namespace, mut prompt) = match self.pins.is_empty() {
            true => self.some_place(),
            false => self.pins[self.random.below(self.pins.len())].clone(),
        };
        prompt.truncate(self.random.below(prompt.len() + 1));
        let unpinned = self.cache.unpin_under(namespace, &prompt);
        self.tell();
        assert_eq!(unpinned, self.naive.unpin_under(namespace, &prompt), "{prompt:?}");
        self.seen.note("unpinned under", unpinned as u64);
    }

    fn derive_or_drop(&mut self) {
        let base = self.namespaces[0];
        if let Some((derived, _)) = self.derived.clone() {
            let ended = self.cache.drop_derived(derived);
            self.tell();
            assert_eq!(ended, self.naive.drop_derived(derived));
            let dropped = self.cache.drop_namespaces(|id| id == derived) == [derived];
            assert_eq!((dropped, self.naive.drop_namespace(derived)), (ended, ended));
            self.pins.retain(|(of, _)| !dropped || *of != derived);
            self.seen.note("dropped", u64::from(ended));
            self.derived.take_if(|_| ended);
            return;
        }
        let prompt = self.some_prompt();
        let over = Namespaces { model: [3; 32], kv_format: "", adapter: None }.shared([self.derivations; 16]);
        let known = self.naive.known(base, &prompt);
        let derived = self.cache.derive_namespace(base, &prompt, &over);
        let whole = prompt.len() - prompt.len() % BLOCK_POSITIONS;
        let can_go_on = self.needs.is_nothing() || self.naive.has_place(base, &prompt[..whole]);
        assert_eq!(derived.is_some(), whole > 0 && known >= whole && can_go_on);
        if let Some(derived) = derived {
            assert_eq!(self.cache.derive_namespace(base, &prompt, &over), Some(derived));
            assert_eq!(self.cache.known_derived(base, &prompt, &over), Some(derived));
            self.naive.derive_namespace(derived, base, &prompt);
            self.derived = Some((derived, prompt[..whole].to_vec()));
            self.derivations = self.derivations.wrapping_add(1);
            self.seen.note("derived", 1);
        }
    }

    /// Drops a namespace if it is empty, usually after its content; then it is created again.
    fn drop_namespace(&mut self) {
        let index = [0, 1, 1, 2][self.random.below(4)];
        let before = self.namespaces[index];
        if self.random.below(4) > 0 {
            assert_eq!(self.cache.clear(Some(before)), self.naive.clear(before));
        }
        let dropped = self.cache.drop_namespaces(|id| id == before) == [before];
        assert_eq!(dropped, self.naive.drop_namespace(before));
        self.seen.note("namespaces dropped", u64::from(dropped));
        self.seen.note("namespaces not dropped", u64::from(!dropped));
        if dropped {
            assert_eq!(self.cache.known_namespace(&shared(index as u8)), None);
            let prompt = self.some_prompt();
            let absent = self.cache.lookup_absent(&shared(index as u8), &prompt);
            let namespace = self.cache.namespace(&shared(index as u8));
            assert!(namespace > before, "an id is given out once");
            self.naive.renew_namespace(before, namespace);
            assert_eq!(absent, self.cache.lookup(namespace, &prompt), "made anew it knows no more");
            self.namespaces[index] = namespace;
            self.pins.retain(|(of, _)| *of != before);
        }
    }

    /// A namespace and a prompt for it; for a derived namespace, one that continues it.
    fn some_place(&mut self) -> (NamespaceId, Vec<Token>) {
        let prompt = self.some_prompt();
        match self.derived.clone().filter(|_| self.random.below(3) == 0) {
            None => (self.some_namespace(), prompt),
            Some((derived, mut tokens)) if prompt.starts_with(&tokens) && prompt.len() > tokens.len() => {
                tokens = prompt;
                (derived, tokens)
            }
            Some((derived, mut tokens)) => {
                tokens.extend(prompt.iter().take(40));
                tokens.push(1);
                (derived, tokens)
            }
        }
    }

    /// Evicts a prompt by hand; now and then everything.
    fn drop_prefix(&mut self) {
        let (namespace, prompt) = self.some_place();
        let dropped = match self.random.below(8) {
            0 => {
                let dropped = self.cache.clear(Some(namespace));
                assert_eq!(dropped, self.naive.clear(namespace));
                dropped
            }
            1 => {
                let dropped = self.cache.evict_chain(namespace, &prompt);
                assert_eq!(dropped, self.naive.evict_chain(namespace, &prompt), "{prompt:?}");
                dropped
            }
            _ => {
                let dropped = self.cache.evict_prefix(namespace, &prompt);
                assert_eq!(dropped, self.naive.evict_prefix(namespace, &prompt), "{prompt:?}");
                dropped
            }
        };
        self.seen.note("dropped by hand", dropped as u64);
    }

    /// Passes the evictions on to the twin.
    fn tell(&mut self) {
        self.naive.told.extend(self.cache.told.drain(..));
    }

    fn some_lifetime(&mut self) -> Lifetime {
        if !self.sets_lifetimes {
            return Lifetime::default();
        }
        let lasts = Duration::from_secs([50, 200, 2000][self.random.below(3)]);
        let raised = RaisedPriority { priority: self.random.below(3) as i8, lasts };
        Lifetime {
            ttl: [None, Some(0), Some(100), Some(1000)][self.random.below(4)].map(Duration::from_secs),
            priority: self.random.below(3) as i8 - 1,
            raised: [None, Some(raised)][self.random.below(2)],
            pin: false,
        }
    }

    fn admit(&mut self) {
        let (seq, (namespace, prompt)) = (self.new_seq(), self.some_place());
        let reuse_max = match self.random.below(8) {
            0 => self.random.below(prompt.len() + 1),
            1 => prompt.len() + 3,
            _ => prompt.len().saturating_sub(1),
        };
        let positions = self.random.below(prompt.len() + 20);
        let lifetime = self.some_lifetime();
        let admission = Admission { seq, namespace, prompt: &prompt, reuse_max, positions, lifetime };
        let known = self.cache.lookup_up_to(namespace, &prompt, reuse_max);
        let result = self.cache.admit(admission);
        self.tell();
        let expected = self.naive.admit(admission);
        match result {
            Err(refused) => assert_eq!(Err(refused), expected, "{admission:?}"),
            Ok(admitted) => {
                assert_eq!(Ok(admitted.reused), expected, "{admission:?}");
                assert_eq!((admitted.stop, admitted.evicted), (known.stop, known.evicted));
                let partial = admitted.reused % BLOCK_POSITIONS;
                assert_eq!(admitted.copy.map_or(0, |copy| copy.positions), partial);
                self.seen.note("admitted", 1);
                self.copy(admitted.copy);
                self.copy_state(admitted.state);
                let computed = admitted.reused;
                self.running.insert(seq, Run { namespace, tokens: prompt, computed });
            }
        }
    }

    /// Computes some positions that the table holds, past the end of the prompt if need be.
    fn compute(&mut self, seq: SeqId) {
        let room = self.cache.table(seq).len() * BLOCK_POSITIONS;
        let Some(run) = self.running.get_mut(&seq) else { return };
        let end = room.min(run.computed + self.random.below(3 * BLOCK_POSITIONS));
        while run.tokens.len() < end {
            run.tokens.push(self.random.below(2) as Token);
        }
        let (from, wants) = (run.computed, self.random.below(end + 1));
        if self.random.below(8) == 0 {
            self.cache.mark(seq, wants);
            self.naive.mark(seq, wants);
        }
        self.cache.prepare(seq, from, end);
        self.naive.told.extend(self.cache.told.drain(..));
        self.naive.prepare(seq, from, end);
        self.compute_auxiliary(seq, end);
        let Some(run) = self.running.get_mut(&seq) else { return };
        let table = self.cache.table(seq);
        let content =
            if self.namespaces.contains(&run.namespace) { run.namespace } else { self.namespaces[0] };
        for (position, mark) in marks(content, &run.tokens[..end]).enumerate().skip(run.computed) {
            let block = table[position / BLOCK_POSITIONS];
            self.memory[block.index()][position % BLOCK_POSITIONS] = mark;
        }
        run.computed = end;
        if !self.needs.is_nothing() {
            self.publish(seq);
            self.cache.advance(seq, end);
            self.tell();
            self.naive.advance(seq, end);
        }
    }

    fn reserve(&mut self, seq: SeqId) {
        let positions = self.running[&seq].computed + self.random.below(4 * BLOCK_POSITIONS);
        let result = self.cache.reserve(seq, positions);
        self.tell();
        assert_eq!(result, self.naive.reserve(seq, positions), "reserve {positions} for {seq:?}");
    }

    fn publish(&mut self, seq: SeqId) {
        let run = &self.running[&seq];
        self.cache.publish(seq, &run.tokens[..run.computed]);
        self.naive.publish(seq, &run.tokens[..run.computed]);
    }

    fn fork(&mut self, parent: SeqId) {
        let child = self.new_seq();
        let mut run = self.running[&parent].clone();
        run.tokens.truncate(run.computed);
        let result = self.cache.fork(parent, child, &run.tokens);
        self.tell();
        let expected: Result<(), NoSpace> = self.naive.fork(parent, child, &run.tokens);
        assert_eq!(result.map(|_| ()), expected);
        if let Ok(Forked { copy, state }) = result {
            assert_eq!(copy.map_or(0, |copy| copy.positions), run.computed % BLOCK_POSITIONS);
            self.seen.note("forked", 1);
            self.seen.note("forked with a copy", u64::from(copy.is_some()));
            self.copy(copy);
            self.copy_state(state);
            self.running.insert(child, run);
        }
    }

    fn finish(&mut self, seq: SeqId) {
        let Some(run) = self.running.remove(&seq) else { return };
        let computed = &run.tokens[..run.computed];
        self.cache.finish(seq, computed);
        self.naive.told.extend(self.cache.told.drain(..));
        self.naive.finish(seq, computed);
        self.history.push(run.tokens);
        if self.history.len() > 24 {
            let index = self.random.below(self.history.len());
            self.history.swap_remove(index);
        }
    }

    fn abandon(&mut self, seq: SeqId) {
        self.running.remove(&seq);
        self.cache.abandon(seq);
        self.tell();
        self.naive.abandon(seq);
        self.seen.note("abandoned", 1);
    }

    fn copy(&mut self, copy: Option<CopyPartial>) {
        if let Some(CopyPartial { from, to, positions }) = copy {
            assert_ne!(from, to);
            let source = self.memory[from.index()];
            self.memory[to.index()][..positions].copy_from_slice(&source[..positions]);
            let source = self.parts[from.index()];
            self.parts[to.index()][..positions].copy_from_slice(&source[..positions]);
        }
    }

    /// Both hold the same and would evict in the same order, and every block has the expected content.
    fn compare(&self) {
        let stats = self.cache.stats();
        let real = (stats.free, stats.owned, stats.shared, stats.evictable, stats.tokens, stats.pinned);
        let naive = &self.naive;
        let twin =
            (naive.free(), naive.owned(), naive.shared(), naive.evictable(), naive.tokens(), naive.pinned());
        assert_eq!(real, twin, "free, owned, shared, evictable, tokens, pinned");
        let twin = (naive.withheld(), naive.places_evictable(), naive.places.len());
        assert_eq!((stats.withheld, stats.places_evictable, stats.places), twin, "what stands beside blocks");
        for (&seq, run) in &self.running {
            let table = &self.cache.sequences[&seq];
            assert_eq!((table.shared().len(), table.owned().len()), naive.table(seq));
            self.assert_memory(run.namespace, &run.tokens[..run.computed], table.blocks());
        }
        assert!(naive.told.is_empty(), "the twin would not have decided {:?}", naive.told);
        if self.seen.steps.is_multiple_of(4) {
            assert_eq!(self.oldest_first(), naive.oldest_first());
        }
    }

    /// The outline has the heaviest nodes, by the weights of the twin, and folds all others into the nodes above
    /// them.
    fn compare_outline(&mut self) {
        let tenant = [None, Some(TenantId(0)), Some(TenantId(1)), Some(TenantId(2))][self.random.below(4)];
        let all = self.outline(tenant, usize::MAX, None);
        let above: BTreeMap<NodeName, Option<NodeName>> =
            all.nodes.iter().map(|node| (node.name, node.parent)).collect();
        for node in &all.nodes {
            let id = self.cache.radix.arena.named(node.name).unwrap();
            let (namespace, tokens, _) = self.path(id);
            assert_eq!(node.start + node.tokens, tokens.len());
            assert_eq!(node.weight, self.naive.weight(namespace, &tokens, node.start, tenant), "{tokens:?}");
            assert_eq!((node.folded_nodes, node.folded_tokens), (0, 0));
            self.compare_pins_through(node.name, &tokens, namespace);
            assert!(
                node.parent.is_some() || node.start == 0 || !self.namespaces.contains(&namespace),
                "{node:?}"
            );
        }
        // The weight of the base includes that of the derived namespaces.
        let everything = self.namespaces.iter().map(|&id| self.naive.weight(id, &[], 0, tenant));
        assert_eq!(all.tokens_total, everything.sum::<usize>());
        assert_eq!((all.nodes_total, all.truncated), (all.nodes.len(), false));

        let limit = self.random.below(all.nodes.len() + 2);
        let few = self.outline(tenant, limit, None);
        assert!(
            few.nodes.iter().zip(&all.nodes).all(|(a, b)| a.name == b.name),
            "the heaviest, in their order"
        );
        assert!(all.nodes.is_sorted_by_key(|node| Reverse(node.weight)));
        let shown: BTreeSet<NodeName> = few.nodes.iter().map(|node| node.name).collect();
        let mut folded: BTreeMap<NodeName, (usize, usize)> = BTreeMap::new();
        for node in all.nodes.iter().filter(|node| !shown.contains(&node.name)) {
            let mut at = node.parent;
            while let Some(name) = at.filter(|name| !shown.contains(name)) {
                at = above[&name];
            }
            at.map(|name| folded.entry(name).or_default()).into_iter().for_each(|(nodes, tokens)| {
                (*nodes, *tokens) = (*nodes + 1, *tokens + node.tokens);
            });
        }
        for node in &few.nodes {
            let expect = folded.get(&node.name).copied().unwrap_or_default();
            assert_eq!((node.folded_nodes, node.folded_tokens), expect, "{node:?}");
        }
        assert_eq!((few.truncated, few.tokens_total), (shown.len() < above.len(), all.tokens_total));
        if let Some(top) = few.nodes.last() {
            let part = self.outline(tenant, usize::MAX, Some(top.name));
            assert_eq!((part.tokens_total, part.nodes[0].name), (top.weight, top.name));
            assert!(part.nodes.iter().skip(1).all(|node| node.parent.is_some()));
        }
        self.seen.note("outlines", 1);
        self.seen.note("folded", folded.len() as u64);
        let continues_base = |node: &&OutlineNode| node.parent.is_none() && node.start > 0;
        self.seen.note("base not shown", all.nodes.iter().filter(continues_base).count() as u64);
    }

    /// The pins that protect a node are those that the twin finds by their tokens, oldest first.
    fn compare_pins_through(&mut self, node: NodeName, tokens: &[Token], namespace: NamespaceId) {
        let pins = self.cache.pins_through(node, usize::MAX);
        assert!(pins.is_sorted());
        assert_eq!(self.cache.pins_through(node, 1), pins[..pins.len().min(1)]);
        let end = |&pin: &PinId| self.path(self.cache.pins.node_of(pin).unwrap()).1;
        let mut pinned: Vec<Vec<Token>> = pins.iter().map(end).collect();
        pinned.sort_unstable();
        assert_eq!(pinned, self.naive.pins_through(namespace, tokens), "{tokens:?}");
        self.seen.note("nodes with several pins", u64::from(pins.len() > 1));
    }

    fn outline(&self, tenant: Option<TenantId>, limit: usize, under: Option<NodeName>) -> Outline {
        let mut scan = OutlineScan::new(tenant);
        while self.cache.scan_outline(&mut scan) {}
        scan.heaviest(limit, under).unwrap()
    }

    /// The unlocked blocks, each by its tokens from position 0, least recently used first; of a node the last block
    /// first.
    fn oldest_first(&self) -> Vec<(NamespaceId, Vec<Token>)> {
        let arena = &self.cache.radix.arena;
        let unlocked = arena.iter().filter(|(_, node)| node.locks == 0 && !node.is_root());
        let mut nodes: Vec<_> = unlocked.map(|(id, node)| (node.life.used, !node.depth, id)).collect();
        nodes.sort_unstable();
        let mut order = Vec::new();
        for (_, _, id) in nodes {
            let (namespace, tokens, blocks) = self.path(id);
            self.assert_memory(namespace, &tokens, &blocks);
            let start = blocks.len() - arena[id].blocks().len();
            for block in (start..blocks.len()).rev() {
                let end = tokens.len().min((block + 1) * BLOCK_POSITIONS);
                order.push((namespace, tokens[..end].to_vec()));
            }
        }
        order
    }

    /// Namespace, tokens and blocks from the root to the end of a node.
    fn path(&self, id: NodeId) -> (NamespaceId, Vec<Token>, Vec<BlockId>) {
        let radix = &self.cache.radix;
        let mut nodes: Vec<NodeId> = radix.path_up(id).collect();
        nodes.reverse();
        let blocks = nodes.into_iter().flat_map(|id| radix.arena[id].blocks().iter().copied()).collect();
        (radix.arena[id].namespace, radix.prefix(id, usize::MAX), blocks)
    }

    fn assert_memory(&self, namespace: NamespaceId, tokens: &[Token], blocks: &[BlockId]) {
        // The base of a derived namespace is part of the first namespace, so its content is computed there.
        let content = if self.namespaces.contains(&namespace) { namespace } else { self.namespaces[0] };
        for (position, mark) in marks(content, tokens).enumerate() {
            let block = blocks[position / BLOCK_POSITIONS];
            let held = self.memory[block.index()][position % BLOCK_POSITIONS];
            assert_eq!(held, mark, "position {position} of {tokens:?} in {block:?}");
        }
    }

    fn new_seq(&mut self) -> SeqId {
        self.next_seq += 1;
        SeqId(self.next_seq)
    }

    fn some_running(&mut self) -> Option<SeqId> {
        let count = self.running.len();
        if count == 0 { None } else { self.running.keys().nth(self.random.below(count)).copied() }
    }

    /// Mostly the first namespace; with tenants, the third nearly as often.
    fn some_namespace(&mut self) -> NamespaceId {
        self.namespaces[match self.random.below(8) {
            0 => 1,
            1..4 if self.divides => 2,
            _ => 0,
        }]
    }

    /// The beginning of an earlier prompt, usually cut near a block's edge, followed by new tokens.
    fn some_prompt(&mut self) -> Vec<Token> {
        let index = self.random.below(self.history.len());
        let mut prompt = self.history[index].clone();
        let cut = match self.random.below(4) {
            0 => self.random.below(prompt.len() + 1),
            1 => prompt.len(),
            _ => (self.random.below(PROMPT_BLOCKS_MAX) * BLOCK_POSITIONS + self.random.below(3))
                .saturating_sub(1),
        };
        prompt.truncate(cut.min(PROMPT_BLOCKS_MAX * BLOCK_POSITIONS));
        for _ in 0..self.random.below(4) {
            let length = [1, 3, BLOCK_POSITIONS, 2 * BLOCK_POSITIONS][self.random.below(4)];
            let token = self.random.below(3) as Token;
            prompt.extend(std::iter::repeat_n(token, length));
        }
        prompt
    }

    fn note_totals(&mut self) {
        let totals = self.cache.stats().totals;
        for (what, times) in [
            ("hits", totals.hits),
            ("misses", totals.admitted - totals.hits),
            ("refused", totals.refused),
            ("copies", totals.copies),
            ("published", totals.published),
            ("duplicates", totals.duplicates),
            ("evicted", totals.evicted),
            ("places", totals.places),
            ("places evicted", totals.places_evicted),
        ] {
            self.seen.note(what, times);
        }
        self.naive.events.named().into_iter().for_each(|(what, times)| self.seen.note(what, times));
    }
}

fn shared(salt: u8) -> Namespace {
    Namespaces { model: [3; 32], kv_format: "f32/f32", adapter: None }.shared([salt; 16])
}

/// For each position, a mark that stands for all tokens up to it.
fn marks(namespace: NamespaceId, tokens: &[Token]) -> impl Iterator<Item = u64> {
    tokens.iter().scan(u64::from(namespace.0) + 1, |mark, &token| {
        *mark = mix(*mark ^ (u64::from(token) + 1));
        Some(*mark)
    })
}

/// SplitMix64: small, and good enough to choose test operations.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        (mix(self.0) % end as u64) as usize
    }
}

fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
