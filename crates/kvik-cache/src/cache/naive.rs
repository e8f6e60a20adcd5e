//! The cache's flat, obviously right twin: the specification that the real one is tested against.
//!
//! Owns a list of cached blocks, each named by *all* tokens from position 0 to its end, and a list of running sequences.
//! Everything else is derived anew whenever it is asked for: no tree, no lock counts, no lists, no physical blocks; every
//! question is a scan. Mirrors the commands of [`Cache`](crate::Cache) and agrees with it on every answer.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::life::Told;
use crate::admission::{Admission, Match, NoSpace};
use crate::beside::Beside;
use crate::evict::{Cause, Policy, Share};
use crate::explain::{Eviction, StopReason};
use crate::ids::{BLOCK_POSITIONS, NamespaceId, SeqId, TenantId, Token, blocks_for};
use crate::lifetime::{Keep, Lifetime};
use crate::pins::{PinLimit, PinScope};

/// All there is.
#[derive(Debug)]
pub(crate) struct Naive {
    pub(super) blocks: usize,
    pub(super) needs: Beside,
    pub(super) places: Vec<super::naive_places::Place>,
    policy: Policy,
    pub(super) entries: Vec<Entry>,
    pub(super) running: BTreeMap<SeqId, Running>,
    /// Prefixes that are pinned, whole blocks each.
    pub(super) pins: BTreeSet<(NamespaceId, Vec<Token>)>,
    /// Blocks that may be pinned in all.
    pinned_max: usize,
    /// What the derived continue: a namespace, and whole blocks of it.
    pub(super) derived: BTreeMap<NamespaceId, (NamespaceId, Vec<Token>)>,
    /// All blocks ever lost; by expiry when there is no eviction.
    lost: BTreeMap<(NamespaceId, Vec<Token>), Option<Eviction>>,
    /// Whose each namespace is, and when that tenant last admitted something.
    shares: BTreeMap<NamespaceId, Share>,
    asked: BTreeMap<TenantId, Duration>,
    /// The rank of the last victim of each tenant.
    pub(super) ageing: BTreeMap<TenantId, u64>,
    /// What the real cache has decided, to be followed where the policy is not LRU, and about places.
    pub(crate) told: VecDeque<Told>,
    now: Duration,
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
    pub(crate) expired: u64,
    pub(crate) spared_by_priority: u64,
    pub(crate) spared_by_share: u64,
    pub(crate) over_quota: u64,
    pub(crate) pins_refused: u64,
    pub(crate) places_refused_by_quota: u64,
    pub(crate) places_spared_by_priority: u64,
    pub(crate) places_before_blocks: u64,
    pub(crate) blocks_before_places: u64,
}

/// A cached block.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) namespace: NamespaceId,
    /// All tokens up to the block's last valid one.
    pub(super) prefix: Vec<Token>,
    /// When its last user left it.
    used: u64,
    /// The same on the caller's clock.
    used_at: Duration,
    keep: Keep,
    /// The ageing value of its tenant then.
    pub(super) ageing: u64,
}

/// A running sequence.
#[derive(Debug, Clone)]
pub(super) struct Running {
    pub(super) namespace: NamespaceId,
    /// The whole blocks it shares with the cache, as tokens.
    pub(super) leased: Vec<Token>,
    /// Blocks of its own.
    owned: usize,
    pub(super) lifetime: Lifetime,
    pub(super) beside: super::naive_places::Held,
}

impl Naive {
    pub(crate) fn new(blocks: usize, policy: Policy, pinned_max: usize, needs: Beside) -> Naive {
        Naive {
            blocks,
            needs,
            places: Vec::new(),
            policy,
            entries: Vec::new(),
            running: BTreeMap::new(),
            pins: BTreeSet::new(),
            pinned_max,
            derived: BTreeMap::new(),
            lost: BTreeMap::new(),
            shares: BTreeMap::new(),
            asked: BTreeMap::new(),
            ageing: BTreeMap::new(),
            told: VecDeque::new(),
            now: Duration::ZERO,
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
        self.blocks - self.owned() - self.shared() - self.withheld()
    }

    pub(crate) fn evictable(&self) -> usize {
        self.entries.iter().filter(|entry| !self.is_locked(entry)).count()
    }

    /// Valid tokens of all cached blocks.
    pub(crate) fn tokens(&self) -> usize {
        self.entries.iter().map(|entry| entry.prefix.len() - block_start(&entry.prefix)).sum()
    }

    /// Tokens that a tenant, or all, have cached of a prefix from `start` on, and of all that continues it.
    pub(crate) fn weight(
        &self,
        namespace: NamespaceId,
        prefix: &[Token],
        start: usize,
        tenant: Option<TenantId>,
    ) -> usize {
        let belongs = |entry: &&Entry| match self.derived.get(&entry.namespace) {
            _ if tenant.is_some_and(|tenant| self.tenant(entry.namespace) != tenant) => false,
            _ if entry.namespace == namespace => {
                let leads_there = prefix.starts_with(&entry.prefix) || entry.prefix.starts_with(prefix);
                entry.prefix.len() > start && leads_there
            }
            Some((base, tokens)) => *base == namespace && tokens.starts_with(prefix),
            None => false,
        };
        let entries = self.entries.iter().filter(belongs);
        entries.map(|entry| entry.prefix.len() - block_start(&entry.prefix)).sum()
    }

    /// Blocks of a running sequence that are cached, and those that are not.
    pub(crate) fn table(&self, seq: SeqId) -> (usize, usize) {
        let running = &self.running[&seq];
        (blocks_for(running.leased.len()), running.owned)
    }

    /// The unlocked blocks, the least recently used first.
    pub(crate) fn oldest_first(&self) -> Vec<(NamespaceId, Vec<Token>)> {
        let mut order: Vec<&Entry> = self.entries.iter().filter(|entry| !self.is_locked(entry)).collect();
        order.sort_by_key(|entry| entry.used);
        order.into_iter().map(|entry| (entry.namespace, entry.prefix.clone())).collect()
    }

    pub(crate) fn lookup(&self, namespace: NamespaceId, prompt: &[Token]) -> Match {
        let (tokens, matched) = (self.usable(namespace, prompt), self.known(namespace, prompt));
        let (stop, evicted) = match self.losses(namespace, prompt).next() {
            _ if tokens < matched && self.needs.state_bytes > 0 => (StopReason::NoStateKept, None),
            _ if tokens < matched => (StopReason::WindowDropped, None),
            Some(Some(eviction)) => (StopReason::Evicted, Some(*eviction)),
            Some(None) => (StopReason::Expired, None),
            None => (self.stop_if_all_is_forgotten(namespace, prompt), None),
        };
        Match { tokens, stop, evicted }
    }

    /// What was lost of the block that goes on from the known part of a prompt, the longest first; by expiry
    /// where there is no eviction.
    pub(crate) fn losses(
        &self,
        namespace: NamespaceId,
        prompt: &[Token],
    ) -> impl Iterator<Item = &Option<Eviction>> {
        let tokens = self.known(namespace, prompt);
        let next_block_end = tokens - tokens % BLOCK_POSITIONS + BLOCK_POSITIONS;
        (tokens + 1..=next_block_end.min(prompt.len()))
            .rev()
            .filter_map(move |end| self.lost.get(&(namespace, prompt[..end].to_vec())))
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
    pub(crate) fn admit(&mut self, admission: Admission<'_>) -> Result<usize, NoSpace> {
        let Admission { namespace, prompt, reuse_max, .. } = admission;
        let reuse_max = reuse_max.max(self.base(namespace).len());
        let usable = &prompt[..reuse_max.min(prompt.len())];
        let tokens = self.usable(namespace, usable);
        match self.admit_after(admission, usable, tokens) {
            Err(_) if !self.needs.is_nothing() => {
                let base = self.base(namespace).len().min(tokens);
                self.admit_after(admission, usable, base)
            }
            admitted => admitted,
        }
    }

    /// Admits a sequence that can reuse `tokens`.
    fn admit_after(
        &mut self,
        admission: Admission<'_>,
        usable: &[Token],
        tokens: usize,
    ) -> Result<usize, NoSpace> {
        let Admission { seq, namespace, prompt, positions, lifetime, .. } = admission;
        let whole = tokens - tokens % BLOCK_POSITIONS;
        let lease = usable[..whole].to_vec();
        let path = |entry: &&Entry| entry.namespace == namespace && lease.starts_with(&entry.prefix);
        let on_path = self.entries.iter().filter(path).filter(|entry| !self.is_locked(entry)).count();
        let state = self.state_behind(namespace, usable, tokens);
        let kept = state.map(|place| &self.places[place]).filter(|place| !self.is_kept(place));
        let kept = kept.map_or(0, |place| place.units);
        let available = self.free() + self.evictable() + self.places_evictable() - on_path - kept;
        let fits = |needed: usize| {
            if needed <= available { Ok(()) } else { Err(NoSpace { needed, available }) }
        };
        let units = |tokens: usize| self.needs.of_running(positions.max(tokens));
        let blocks = |tokens: usize| blocks_for(positions.max(tokens)) - blocks_for(whole);
        let mut reused = tokens;
        let mut source =
            (tokens > whole).then(|| self.closest(namespace, &usable[..whole], &usable[whole..]));
        if let Some(index) = source {
            let held = usize::from(!self.is_locked(&self.entries[index]));
            self.events.sources_in_use += 1 - held as u64;
            if fits(blocks(tokens) + units(tokens) + held).is_err() {
                if !self.needs.is_nothing() {
                    return fits(blocks(tokens) + units(tokens) + held).map(|()| 0);
                }
                (reused, source) = (whole, None);
            }
        }
        fits(blocks(reused) + units(reused))?;
        self.events.copies_given_up += u64::from(reused < tokens);

        let (blocks, units) = (blocks(reused), units(reused));
        let matched = self.known(namespace, usable);
        let marks = super::marks::Known { reused, matched, prompt: prompt.len() };
        let marks = super::marks::marks(&self.needs, marks, lifetime);
        let beside = self.held_from(namespace, &lease, reused);
        self.running.insert(seq, Running { namespace, leased: lease, owned: 0, lifetime, beside });
        let source = source.map(|index| self.entries[index].prefix.clone());
        if reused > 0 && !self.needs.is_nothing() {
            let block = self.block_of(namespace, usable, matched, (reused - 1) / BLOCK_POSITIONS);
            self.touch_places(namespace, &block, lifetime.priority);
        }
        let state = state.map(|place| self.places[place].name());
        self.keep_state(state.clone(), true);
        self.make_room(blocks + units, namespace, source.as_deref());
        self.keep_state(state, false);
        let running = self.running.get_mut(&seq).unwrap();
        (running.owned, running.beside.units, running.beside.marks) = (blocks, units, marks);
        source.into_iter().for_each(|prefix| self.touch(namespace, &prefix));
        self.asked.insert(self.tenant(namespace), self.now);
        self.keep_quota(namespace, 0, None);
        Ok(reused)
    }

    pub(crate) fn reserve(&mut self, seq: SeqId, positions: usize) -> Result<(), NoSpace> {
        let (leased, owned) = self.table(seq);
        let needed = blocks_for(positions).saturating_sub(leased + owned);
        let units = self.needs.of_running(positions).saturating_sub(self.running[&seq].beside.units);
        self.check_room(needed + units)?;
        self.make_room(needed + units, self.running[&seq].namespace, None);
        let running = self.running.get_mut(&seq).unwrap();
        running.owned += needed;
        running.beside.units += units;
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
        let units = self.needs.of_running(tokens.len());
        self.check_room(needed + units)?;
        self.make_room(needed + units, self.running[&parent].namespace, None);
        let beside = self.running[&parent].beside.forked(units);
        let forked = Running { owned: needed, beside, ..self.running[&parent].clone() };
        self.running.insert(child, forked);
        Ok(())
    }

    pub(crate) fn finish(&mut self, seq: SeqId, tokens: &[Token]) {
        self.publish(seq, tokens);
        let Running { namespace, leased, lifetime, .. } = self.running[&seq].clone();
        if leased.len() < tokens.len() {
            let tail = &tokens[leased.len()..];
            let closest = self.entries_of(namespace).filter(|entry| entry.prefix.starts_with(tokens));
            let known = if closest.count() > 0 {
                self.events.tails_known += 1;
                let known = self.entries[self.closest(namespace, &leased, tail)].prefix.clone();
                self.pass_tail(seq, &known, tokens.len());
                known
            } else {
                self.events.tails_stored += 1;
                self.store(namespace, tokens);
                tokens.to_vec()
            };
            self.keep(namespace, &known, lifetime);
            // It uses its last block until it has ended.
            let running = self.running.get_mut(&seq).unwrap();
            running.owned -= 1;
            running.leased = known.clone();
            self.end_with(seq, tokens.len(), Some(known.clone()));
            self.touch(namespace, &known);
            self.running.get_mut(&seq).unwrap().leased = leased;
        } else {
            self.end_with(seq, tokens.len(), None);
        }
        self.abandon(seq);
    }

    pub(crate) fn abandon(&mut self, seq: SeqId) {
        let Running { namespace, leased, lifetime, .. } = self.running.remove(&seq).unwrap();
        for block in (1..=leased.len() / BLOCK_POSITIONS).rev() {
            self.keep(namespace, &leased[..block * BLOCK_POSITIONS], lifetime);
            self.touch(namespace, &leased[..block * BLOCK_POSITIONS]);
        }
        self.drop_expired();
        self.keep_quota(namespace, 0, None);
    }

    pub(crate) fn set_now(&mut self, now: Duration) {
        self.now = self.now.max(now);
        self.drop_expired();
    }

    pub(crate) fn pin(&mut self, namespace: NamespaceId, tokens: &[Token]) -> Result<bool, PinLimit> {
        let whole = tokens[..tokens.len() - tokens.len() % BLOCK_POSITIONS].to_vec();
        if !self.is_known(namespace, &whole) {
            return Ok(false);
        }
        let mut more = self.pins.clone();
        more.insert((namespace, whole));
        self.check_pins(&more, namespace).inspect_err(|_| self.events.pins_refused += 1)?;
        self.pins = more;
        Ok(true)
    }

    /// Whether there may be `more` pins than there are: one more, in a namespace.
    fn check_pins(
        &self,
        more: &BTreeSet<(NamespaceId, Vec<Token>)>,
        namespace: NamespaceId,
    ) -> Result<(), PinLimit> {
        let (tenant, share) = (self.tenant(namespace), self.shares.get(&namespace));
        let quota = share.and_then(|share| share.quota_blocks).unwrap_or(usize::MAX);
        let part = share.and_then(|share| share.pinned_max).unwrap_or(usize::MAX).min(quota);
        let needed = self.pinned_by(more, None) - self.pinned();
        let scopes = [(PinScope::Tenant, Some(tenant), part), (PinScope::All, None, self.pinned_max)];
        for (scope, tenant, limit) in scopes {
            let pinned = self.pinned_by(&self.pins, tenant);
            if needed > 0 && pinned + needed > limit {
                return Err(PinLimit { needed, pinned, limit, scope });
            }
        }
        Ok(())
    }

    pub(crate) fn pinned(&self) -> usize {
        self.pinned_by(&self.pins, None)
    }

    /// The pinned prefixes of a namespace that begin with these tokens.
    pub(crate) fn pins_through(&self, namespace: NamespaceId, tokens: &[Token]) -> Vec<Vec<Token>> {
        let through = self.pins.iter().filter(|(of, whole)| *of == namespace && whole.starts_with(tokens));
        through.map(|(_, whole)| whole.clone()).collect()
    }

    /// Blocks that some pins keep, of a tenant or of all.
    fn pinned_by(&self, pins: &BTreeSet<(NamespaceId, Vec<Token>)>, tenant: Option<TenantId>) -> usize {
        let keeps = |entry: &&Entry| {
            pins.iter().any(|(namespace, whole)| {
                *namespace == entry.namespace
                    && tenant.is_none_or(|tenant| self.tenant(*namespace) == tenant)
                    && whole.starts_with(&entry.prefix)
            })
        };
        self.entries.iter().filter(keeps).count()
    }

    pub(crate) fn unpin(&mut self, namespace: NamespaceId, tokens: &[Token]) -> bool {
        let whole = tokens[..tokens.len() - tokens.len() % BLOCK_POSITIONS].to_vec();
        let is_pinned = self.pins.contains(&(namespace, whole.clone()));
        if is_pinned {
            self.take_back(vec![(namespace, whole)]);
        }
        is_pinned
    }

    pub(crate) fn unpin_under(&mut self, namespace: NamespaceId, tokens: &[Token]) -> usize {
        let whole = &tokens[..tokens.len() - tokens.len() % BLOCK_POSITIONS];
        let under = |(of, pin): &&(NamespaceId, Vec<Token>)| *of == namespace && pin.starts_with(whole);
        let pins: Vec<_> = self.pins.iter().filter(under).filter(|_| !whole.is_empty()).cloned().collect();
        let count = pins.len();
        self.take_back(pins);
        count
    }

    /// Takes back pins, the shorter ones first.
    fn take_back(&mut self, pins: Vec<(NamespaceId, Vec<Token>)>) {
        for (namespace, whole) in &pins {
            self.pins.remove(&(*namespace, whole.clone()));
            self.unkeep_places(self.home(*namespace, whole), whole);
            for block in (1..=whole.len() / BLOCK_POSITIONS).rev() {
                self.touch(*namespace, &whole[..block * BLOCK_POSITIONS]);
            }
        }
        self.drop_expired();
        pins.iter().for_each(|(namespace, _)| self.keep_quota(*namespace, 0, None));
    }

    pub(crate) fn evict_prefix(&mut self, namespace: NamespaceId, tokens: &[Token]) -> usize {
        let whole = &tokens[..tokens.len() - tokens.len() % BLOCK_POSITIONS];
        if !whole.is_empty() && self.base(namespace).starts_with(whole) {
            return self.clear(namespace);
        }
        if !self.is_known(namespace, whole) {
            return 0;
        }
        let count = self.entries.len();
        while let Some(index) = self.leaves(None).into_iter().find(|&index| {
            let entry = &self.entries[index];
            let related = entry.prefix.starts_with(whole) || whole.starts_with(&entry.prefix);
            entry.namespace == namespace && related
        }) {
            self.entries.remove(index);
            self.drop_lost_places();
        }
        count - self.entries.len()
    }

    pub(crate) fn clear(&mut self, namespace: NamespaceId) -> usize {
        let count = self.entries.len();
        let gone = |naive: &Naive, entry: &Entry| entry.namespace == namespace && !naive.is_locked(entry);
        while let Some(index) = self.entries.iter().position(|entry| gone(self, entry)) {
            self.entries.remove(index);
            self.drop_lost_places();
        }
        count - self.entries.len()
    }

    /// The whole blocks of `tokens` must be known in `base`.
    pub(crate) fn derive_namespace(&mut self, derived: NamespaceId, base: NamespaceId, tokens: &[Token]) {
        let whole = tokens[..tokens.len() - tokens.len() % BLOCK_POSITIONS].to_vec();
        assert!(self.is_known(base, &whole));
        self.derived.insert(derived, (base, whole));
    }

    pub(crate) fn drop_derived(&mut self, derived: NamespaceId) -> bool {
        if self.running.values().any(|running| running.namespace == derived) {
            return false;
        }
        self.take_back(self.pins.iter().filter(|(namespace, _)| *namespace == derived).cloned().collect());
        self.clear(derived);
        let (base, whole) = self.derived.remove(&derived).unwrap();
        self.unkeep_places(base, &whole);
        for block in (1..=whole.len() / BLOCK_POSITIONS).rev() {
            self.touch(base, &whole[..block * BLOCK_POSITIONS]);
        }
        self.drop_expired();
        self.keep_quota(base, 0, None);
        true
    }

    pub(crate) fn drop_namespace(&mut self, namespace: NamespaceId) -> bool {
        let holds = self.entries_of(namespace).next().is_some();
        let runs = self.running.values().any(|running| running.namespace == namespace);
        let is_free = !holds && !runs && !self.derived.contains_key(&namespace);
        if is_free {
            self.shares.remove(&namespace);
        }
        is_free
    }

    /// A namespace that was dropped is there again: what was lost of it is still explained.
    pub(crate) fn renew_namespace(&mut self, before: NamespaceId, namespace: NamespaceId) {
        let lost = std::mem::take(&mut self.lost).into_iter();
        let renew = |((of, tokens), why)| ((if of == before { namespace } else { of }, tokens), why);
        self.lost = lost.map(renew).collect();
    }

    pub(crate) fn set_share(&mut self, namespace: NamespaceId, share: Share) {
        self.shares
            .values_mut()
            .filter(|other| other.tenant == share.tenant)
            .for_each(|other| *other = share);
        self.shares.insert(namespace, share);
        self.keep_quota(namespace, 0, None);
    }

    /// Whether these tokens stand somewhere in a prefix of the namespace.
    pub(crate) fn holds(&self, namespace: NamespaceId, tokens: &[Token]) -> bool {
        let mut prefixes = self.entries_of(namespace).map(|entry| &entry.prefix);
        prefixes.any(|prefix| prefix.windows(tokens.len()).any(|window| window == tokens))
    }

    fn entries_of(&self, namespace: NamespaceId) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(move |entry| entry.namespace == namespace)
    }

    /// A block is locked when a running sequence, a pin or a derived shares it.
    pub(super) fn is_locked(&self, entry: &Entry) -> bool {
        let shares = |running: &Running| {
            running.namespace == entry.namespace && running.leased.starts_with(&entry.prefix)
        };
        let pinned = self
            .pins
            .iter()
            .any(|(namespace, prefix)| *namespace == entry.namespace && prefix.starts_with(&entry.prefix));
        let continued = self
            .derived
            .values()
            .any(|(base, whole)| *base == entry.namespace && whole.starts_with(&entry.prefix));
        pinned || continued || self.running.values().any(shares)
    }

    /// Leading tokens of a prompt that some cached block and those before it hold.
    pub(super) fn known(&self, namespace: NamespaceId, prompt: &[Token]) -> usize {
        let base = self.base(namespace);
        if !prompt.starts_with(base) {
            return 0;
        }
        let own = self.entries_of(namespace).map(|entry| common(&entry.prefix, prompt)).max();
        own.unwrap_or(0).max(base.len())
    }

    /// Whether whole blocks are cached, some of them in the namespace itself.
    pub(super) fn is_known(&self, namespace: NamespaceId, whole: &[Token]) -> bool {
        whole.len() > self.base(namespace).len() && self.known(namespace, whole) == whole.len()
    }

    /// What a derived continues; nothing for other namespaces.
    pub(super) fn base(&self, namespace: NamespaceId) -> &[Token] {
        self.derived.get(&namespace).map_or(&[], |(_, base)| base)
    }

    /// The block after `before` that shares the most tokens with `rest`: of equal ones the
    /// smallest that is not less than `rest`, or else the largest.
    pub(super) fn closest(&self, namespace: NamespaceId, before: &[Token], rest: &[Token]) -> usize {
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

    /// Caches the block that ends `prefix`, unless it is. A partial block that it extends is removed.
    fn store(&mut self, namespace: NamespaceId, prefix: &[Token]) {
        if self.entries_of(namespace).any(|entry| entry.prefix == prefix) {
            return;
        }
        let superseded = |entry: &mut Entry| {
            let is_partial = !entry.prefix.len().is_multiple_of(BLOCK_POSITIONS);
            is_partial && entry.namespace == namespace && prefix.starts_with(&entry.prefix)
        };
        let superseded: Vec<Entry> = self.entries.extract_if(.., superseded).collect();
        self.events.superseded += superseded.len() as u64;
        superseded.iter().for_each(|entry| self.move_places(namespace, &entry.prefix, prefix));
        // A request for what is replaced asked for what it begins with as well.
        let asked = superseded.iter().fold(Keep::NOTHING, |keep, entry| keep.join(entry.keep));
        for entry in self.entries.iter_mut().filter(|entry| entry.namespace == namespace) {
            if prefix.starts_with(&entry.prefix) {
                entry.keep = entry.keep.join(asked);
            }
        }
        let (used_at, keep) = (self.now, asked);
        let prefix = prefix.to_vec();
        self.entries.push(Entry { namespace, prefix, used: 0, used_at, keep, ageing: 0 });
    }

    /// Notes that a block was used just now; while somebody uses it this means nothing.
    fn touch(&mut self, namespace: NamespaceId, prefix: &[Token]) {
        self.uses += 1;
        let (used, used_at) = (self.uses, self.now);
        let ageing = self.ageing_of(self.home(namespace, prefix));
        let entry = self.entry_mut(namespace, prefix);
        (entry.used, entry.used_at, entry.ageing) = (used, used_at, ageing);
    }

    /// Keeps a block as is asked, unless a derived only continues it.
    fn keep(&mut self, namespace: NamespaceId, prefix: &[Token], lifetime: Lifetime) {
        if self.base(namespace).starts_with(prefix) {
            return;
        }
        let entry = self.entry_mut(namespace, prefix);
        entry.keep = entry.keep.and(lifetime);
    }

    fn entry_mut(&mut self, namespace: NamespaceId, prefix: &[Token]) -> &mut Entry {
        let home = self.home(namespace, prefix);
        let is_it = |entry: &&mut Entry| entry.namespace == home && entry.prefix == prefix;
        self.entries.iter_mut().find(is_it).unwrap()
    }

    fn check_room(&self, needed: usize) -> Result<(), NoSpace> {
        let available = self.free() + self.evictable() + self.places_evictable();
        if needed <= available { Ok(()) } else { Err(NoSpace { needed, available }) }
    }

    /// Evicts, but never `held`, until `needed` blocks are free for a namespace.
    fn make_room(&mut self, needed: usize, namespace: NamespaceId, held: Option<&[Token]>) {
        let held = held.map(|prefix| (namespace, prefix));
        self.keep_quota(namespace, needed, held);
        self.free_up(needed, held);
    }

    /// Evicts, as it is told, until `needed` blocks are free.
    pub(super) fn free_up(&mut self, needed: usize, held: Option<(NamespaceId, &[Token])>) {
        while self.free() < needed {
            let tenant = self.victim_tenant(held);
            self.evict_of(tenant, held);
        }
    }

    /// Of the tenants of whom something may go, the one with the most for its weight.
    fn victim_tenant(&mut self, held: Option<(NamespaceId, &[Token])>) -> TenantId {
        let tenants = self.tenants_with_victims(held);
        self.events.spared_by_share += u64::from(tenants.len() > 1);
        let more = |best, tenant| if self.excess(tenant) > self.excess(best) { tenant } else { best };
        tenants.into_iter().reduce(more).unwrap()
    }

    pub(super) fn quota(&self, namespace: NamespaceId) -> Option<usize> {
        self.shares.get(&namespace)?.quota_blocks
    }

    /// Evicts what a tenant keeps beyond its quota, as if `coming` blocks were there already.
    pub(super) fn keep_quota(
        &mut self,
        namespace: NamespaceId,
        coming: usize,
        held: Option<(NamespaceId, &[Token])>,
    ) {
        let (tenant, Some(quota)) = (self.tenant(namespace), self.quota(namespace)) else { return };
        while self.held_by(tenant) + coming > quota && self.tenants_with_victims(held).contains(&tenant) {
            self.events.over_quota += 1;
            self.evict_of(tenant, held);
        }
    }

    /// Evicts of a tenant, of the lowest priority, the oldest block, or the one that is evicted; or a place, whichever has
    /// the lower rank.
    fn evict_of(&mut self, tenant: TenantId, held: Option<(NamespaceId, &[Token])>) {
        let mut leaves = self.leaves(held);
        leaves.retain(|&index| self.tenant(self.entries[index].namespace) == tenant);
        let priority = |index: usize| self.entries[index].keep.priority;
        let lowest = leaves.iter().map(|&index| priority(index)).min();
        let count = leaves.len();
        leaves.retain(|&index| Some(priority(index)) == lowest);
        let spared = leaves.len() < count;
        let told = self.told.pop_front();
        let is_told = |entry: &Entry| {
            let Some(Told::Evicted(namespace, prefix, _)) = &told else { return false };
            entry.namespace == *namespace && entry.prefix == *prefix
        };
        let by_policy = match self.policy {
            Policy::Lru => leaves.into_iter().min_by_key(|&index| self.entries[index].used),
            _ => leaves.into_iter().find(|&index| is_told(&self.entries[index])),
        };
        let place = self.places_of(tenant).map(|place| (place.priority, place.rank)).min();
        let ranked = by_policy.map(|index| (index, priority(index), self.rank_of(index)));
        let goes_first =
            |&(_, priority, rank): &(usize, i8, u64)| place.is_none_or(|place| (priority, rank) <= place);
        let chosen = ranked.filter(goes_first);
        self.events.places_before_blocks += u64::from(chosen.is_none() && count > 0);
        self.events.blocks_before_places += u64::from(chosen.is_some() && place.is_some());
        let Some((chosen, _, rank)) = chosen else { return self.evict_place_of(tenant, told) };
        assert!(is_told(&self.entries[chosen]), "{told:?} went before {:?}", self.entries[chosen]);
        self.events.spared_by_priority += u64::from(spared);
        self.age(tenant, rank);
        let Entry { namespace, prefix, .. } = self.entries.remove(chosen);
        self.drop_lost_places();
        let Some(Told::Evicted(.., Cause::Evicted(policy))) = told else {
            panic!("{told:?} has not expired")
        };
        assert!(policy == self.policy || self.policy == Policy::Auto, "{policy:?} chose {told:?}");
        self.lost.insert((namespace, prefix), Some(Eviction { at: self.now, policy }));
    }

    /// Drops what has outlived its time, in whatever order it is evicted.
    fn drop_expired(&mut self) {
        let now = self.now;
        let expired = |entry: &Entry| entry.keep.ttl.is_some_and(|ttl| entry.used_at + ttl <= now);
        while let Some(index) = self.entries.iter().position(|entry| expired(entry) && !self.is_locked(entry))
        {
            let Entry { namespace, prefix, .. } = self.entries.remove(index);
            self.drop_lost_places();
            let told = Told::Evicted(namespace, prefix.clone(), Cause::Expired);
            let told = self.told.iter().position(|other| *other == told);
            self.told.remove(told.expect("what has expired is evicted"));
            self.lost.insert((namespace, prefix), None);
            self.events.expired += 1;
        }
    }

    pub(super) fn tenant(&self, namespace: NamespaceId) -> TenantId {
        self.shares.get(&namespace).map_or(TenantId(0), |share| share.tenant)
    }

    /// Blocks' worth of what a tenant has cached, in blocks and in places, and of what is owned by what it runs.
    pub(super) fn held_by(&self, tenant: TenantId) -> usize {
        let cached = self.entries.iter().filter(|entry| self.tenant(entry.namespace) == tenant).count();
        let places = self.places.iter().filter(|place| self.tenant(place.namespace) == tenant);
        let running = self.running.values().filter(|running| self.tenant(running.namespace) == tenant);
        let running = running.map(|running| running.owned + running.beside.all_units(&self.needs));
        cached + places.map(|place| place.units).sum::<usize>() + running.sum::<usize>()
    }

    /// How many blocks a tenant has for its weight; half the weight without demand.
    fn excess(&self, tenant: TenantId) -> f64 {
        let share = self.shares.values().find(|share| share.tenant == tenant);
        let asked = self.asked.get(&tenant).copied().unwrap_or_default();
        let demand = if self.now - asked <= Duration::from_secs(600) { 1.0 } else { 0.5 };
        self.held_by(tenant) as f64 / (share.map_or(1.0, |share| share.weight) * demand)
    }

    /// Tenants that have something to give, in the order of their ids.
    fn tenants_with_victims(&self, held: Option<(NamespaceId, &[Token])>) -> Vec<TenantId> {
        let leaves = self.leaves(held).into_iter().map(|index| self.entries[index].namespace);
        let places = self.places.iter().filter(|place| !self.is_kept(place)).map(|place| place.namespace);
        let tenants: BTreeSet<TenantId> =
            leaves.chain(places).map(|namespace| self.tenant(namespace)).collect();
        tenants.into_iter().collect()
    }

    /// The unlocked blocks that no other follows, but never `held`.
    fn leaves(&self, held: Option<(NamespaceId, &[Token])>) -> Vec<usize> {
        let is_leaf = |index: &usize| {
            let leaf = &self.entries[*index];
            let follows =
                |entry: &Entry| entry.prefix != leaf.prefix && entry.prefix.starts_with(&leaf.prefix);
            !self.is_locked(leaf)
                && held != Some((leaf.namespace, &leaf.prefix))
                && !self.entries_of(leaf.namespace).any(follows)
        };
        (0..self.entries.len()).filter(is_leaf).collect()
    }
}

/// Where the last block of a prefix starts.
pub(super) fn block_start(prefix: &[Token]) -> usize {
    (blocks_for(prefix.len()) - 1) * BLOCK_POSITIONS
}

fn common(a: &[Token], b: &[Token]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
