//! The cache's flat, obviously correct twin: the specification that the real one is tested against.
//!
//! Owns a list of cached blocks, each named by *all* tokens from position 0 to its end, and a list of running
//! sequences. Everything else is derived anew on demand: no tree, no lock counts, no lists, no physical blocks;
//! every question is a scan. Mirrors the commands of [`Cache`](crate::Cache) and agrees with it on every answer.

mod data;
mod pins;
mod places;
mod room;

use std::time::Duration;

pub(crate) use self::data::{Entry, Naive};
use self::data::{Held, Running};
use crate::admission::{Admission, Match, NoSpace};
use crate::evict::Share;
use crate::explain::{Eviction, StopReason};
use crate::ids::{BLOCK_POSITIONS, NamespaceId, SeqId, TenantId, Token, blocks_for};
use crate::lifetime::{Keep, Lifetime};

impl Naive {
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

    /// The numbers of cached and of other blocks of a running sequence.
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
        self.lookup_up_to(namespace, prompt, prompt.len())
    }

    pub(crate) fn lookup_up_to(&self, namespace: NamespaceId, prompt: &[Token], reuse_max: usize) -> Match {
        let reusable = &prompt[..reuse_max.max(self.base(namespace).len()).min(prompt.len())];
        let (tokens, matched) = (self.usable(namespace, reusable), self.known(namespace, reusable));
        let (stop, evicted) = match self.losses(namespace, prompt).next() {
            _ if tokens < matched && self.needs.state_bytes > 0 => (StopReason::NoStateKept, None),
            _ if tokens < matched => (StopReason::WindowDropped, None),
            Some(Some(eviction)) => (StopReason::Evicted, Some(*eviction)),
            Some(None) => (StopReason::Expired, None),
            None => (self.stop_if_all_is_forgotten(namespace, prompt), None),
        };
        Match { tokens, stop, evicted }
    }

    /// The losses of the block that follows the cached part of a prompt, the longest first; `None` for an expiry.
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

    /// Returns why the cached part of a prompt ends, disregarding losses.
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
        let auxiliary = self.held_from(namespace, &lease, reused);
        let running = Running { namespace, leased: lease, owned: 0, lifetime, is_copy: false, auxiliary };
        self.running.insert(seq, running);
        let source = source.map(|index| self.entries[index].prefix.clone());
        if reused > 0 && !self.needs.is_nothing() {
            let block = self.block_of(namespace, usable, matched, (reused - 1) / BLOCK_POSITIONS);
            self.touch_places(namespace, &block, lifetime);
        }
        let state = state.map(|place| self.places[place].name());
        self.keep_state(state.clone(), true);
        self.make_room(blocks + units, namespace, source.as_deref());
        self.keep_state(state, false);
        let running = self.running.get_mut(&seq).unwrap();
        (running.owned, running.auxiliary.units, running.auxiliary.marks) = (blocks, units, marks);
        source.into_iter().for_each(|prefix| self.touch(namespace, &prefix));
        self.asked.insert(self.tenant(namespace), self.now);
        self.keep_quota(namespace, 0, None);
        Ok(reused)
    }

    /// Returns the tokens leased.
    pub(crate) fn lease(&mut self, seq: SeqId, namespace: NamespaceId, tokens: &[Token]) -> usize {
        let whole = &tokens[..tokens.len() - tokens.len() % BLOCK_POSITIONS];
        let known = self.known(namespace, whole);
        let leased = whole[..known - known % BLOCK_POSITIONS].to_vec();
        let held = leased.len();
        let auxiliary = Held { parts_from: held / BLOCK_POSITIONS, ..Held::default() };
        let lifetime = Lifetime::NOTHING;
        self.running.insert(seq, Running { namespace, leased, owned: 0, lifetime, is_copy: true, auxiliary });
        held
    }

    pub(crate) fn reserve(&mut self, seq: SeqId, positions: usize) -> Result<(), NoSpace> {
        let (leased, owned) = self.table(seq);
        let needed = blocks_for(positions).saturating_sub(leased + owned);
        let units = self.needs.of_running(positions).saturating_sub(self.running[&seq].auxiliary.units);
        self.check_room(needed + units)?;
        self.make_room(needed + units, self.running[&seq].namespace, None);
        let running = self.running.get_mut(&seq).unwrap();
        running.owned += needed;
        running.auxiliary.units += units;
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
        let auxiliary = self.running[&parent].auxiliary.forked(units);
        let forked = Running { owned: needed, auxiliary, ..self.running[&parent].clone() };
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
        let Running { namespace, leased, lifetime, is_copy, .. } = self.running.remove(&seq).unwrap();
        let used = if is_copy { 0 } else { leased.len() / BLOCK_POSITIONS };
        for block in (1..=used).rev() {
            self.keep(namespace, &leased[..block * BLOCK_POSITIONS], lifetime);
            self.touch(namespace, &leased[..block * BLOCK_POSITIONS]);
        }
        // What a copy held may have passed its time meanwhile.
        self.lower_ended();
        self.drop_expired();
        self.keep_quota(namespace, 0, None);
    }

    pub(crate) fn set_now(&mut self, now: Duration) {
        self.now = self.now.max(now);
        self.lower_ended();
        self.drop_expired();
    }

    pub(crate) fn evict_prefix(&mut self, namespace: NamespaceId, tokens: &[Token]) -> usize {
        let whole = &tokens[..tokens.len() - tokens.len() % BLOCK_POSITIONS];
        if !whole.is_empty() && self.base(namespace).starts_with(whole) {
            return self.clear(namespace);
        }
        let follows = |prefix: &[Token]| !whole.is_empty() && prefix.starts_with(whole);
        self.drop_leaves(namespace, |prefix| tokens.starts_with(prefix) || follows(prefix))
    }

    pub(crate) fn evict_chain(&mut self, namespace: NamespaceId, tokens: &[Token]) -> usize {
        self.drop_leaves(namespace, |prefix| tokens.starts_with(prefix))
    }

    /// Removes the blocks of a namespace that are `unwanted`, as long as one of them is a leaf.
    fn drop_leaves(&mut self, namespace: NamespaceId, unwanted: impl Fn(&[Token]) -> bool) -> usize {
        let count = self.entries.len();
        while let Some(index) = self.leaves(None).into_iter().find(|&index| {
            let entry = &self.entries[index];
            entry.namespace == namespace && unwanted(&entry.prefix)
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

    /// Precondition: the whole blocks of `tokens` are cached in `base`.
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

    /// Recreates a namespace that was dropped: its earlier losses still explain misses.
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

    /// Returns whether these tokens occur in a prefix of the namespace.
    pub(crate) fn holds(&self, namespace: NamespaceId, tokens: &[Token]) -> bool {
        let mut prefixes = self.entries_of(namespace).map(|entry| &entry.prefix);
        prefixes.any(|prefix| prefix.windows(tokens.len()).any(|window| window == tokens))
    }

    fn entries_of(&self, namespace: NamespaceId) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(move |entry| entry.namespace == namespace)
    }

    /// A block is locked when a running sequence, a pin or a derived namespace shares it.
    fn is_locked(&self, entry: &Entry) -> bool {
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

    /// Leading tokens of a prompt that are cached.
    pub(super) fn known(&self, namespace: NamespaceId, prompt: &[Token]) -> usize {
        let base = self.base(namespace);
        if !prompt.starts_with(base) {
            return 0;
        }
        let own = self.entries_of(namespace).map(|entry| common(&entry.prefix, prompt)).max();
        own.unwrap_or(0).max(base.len())
    }

    /// Returns whether whole blocks are cached, some of them in the namespace itself.
    fn is_known(&self, namespace: NamespaceId, whole: &[Token]) -> bool {
        whole.len() > self.base(namespace).len() && self.known(namespace, whole) == whole.len()
    }

    /// The base of a derived namespace; empty for other namespaces.
    fn base(&self, namespace: NamespaceId) -> &[Token] {
        self.derived.get(&namespace).map_or(&[], |(_, base)| base)
    }

    /// The block after `before` that shares the most tokens with `rest`: of equal ones the smallest that is not
    /// less than `rest`, or else the largest.
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

    /// Caches the block that ends `prefix`, unless it is cached. A partial block that it extends is removed.
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
        // A request for the replaced block applies to the blocks before it as well.
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

    /// Marks a block as just used; this has no effect while it is locked.
    fn touch(&mut self, namespace: NamespaceId, prefix: &[Token]) {
        self.uses += 1;
        let (used, used_at) = (self.uses, self.now);
        let ageing = self.ageing_of(self.home(namespace, prefix));
        let entry = self.entry_mut(namespace, prefix);
        (entry.used, entry.used_at, entry.ageing) = (used, used_at, ageing);
    }

    /// Applies a lifetime to a block, unless it belongs to the base of a derived namespace.
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
}

/// Position at which the last block of a prefix starts.
fn block_start(prefix: &[Token]) -> usize {
    (blocks_for(prefix.len()) - 1) * BLOCK_POSITIONS
}

fn common(a: &[Token], b: &[Token]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
