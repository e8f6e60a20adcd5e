//! Drafts by a smaller model with the same vocabulary.
//!
//! The draft model follows the sequences that ask for drafts: it computes their tokens too, in blocks of a cache of its
//! own, so its prefixes are reused as those of the target model are. It proposes its most likely tokens; which of them
//! are accepted is known later, and rejected ones are overwritten.

use std::time::Duration;

use kvik_cache::{
    Admission, Cache, CacheConfig, CacheError, DeletedPrompts, Lifetime, NamespaceId, Namespaces, SeqId,
    Token,
};
use kvik_model::batch::{Batch, Output, Row, Runner, SequenceKv};
use kvik_text::sampler::likeliest;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::panics::contain;

/// Maximum number of rows of one pass: while the model reads a prompt, other sequences wait.
const ROWS_MAX: usize = 64;

/// Configuration of a draft model.
pub struct DraftSetup {
    /// The model, with storage for as many blocks as `cache` has. Its vocabulary is that of the target model.
    pub runner: Box<dyn Runner + Send>,
    /// Its number of blocks and its eviction policy.
    pub cache: CacheConfig,
    /// Number of tokens that both models know: no other is drafted, and nothing after another one.
    pub vocab_len: usize,
}

/// A sequence of the target model that wants a draft.
#[derive(Debug, Clone, Copy)]
pub(in crate::schedule) struct WantedDraft<'a> {
    pub(in crate::schedule) id: SeqId,
    /// The namespace in which it shares its blocks; `None` if it is private.
    pub(in crate::schedule) namespace: Option<NamespaceId>,
    pub(in crate::schedule) tokens: &'a [Token],
    pub(in crate::schedule) lifetime: Lifetime,
    /// Maximum number of tokens to draft.
    pub(in crate::schedule) most: usize,
}

/// A smaller model, its cache, and the sequences it follows.
pub(in crate::schedule) struct DraftModel {
    runner: Box<dyn Runner + Send>,
    cache: Cache,
    config: CacheConfig,
    vocab_len: usize,
    /// Namespaces of the target model's cache, with those that stand for them here.
    namespaces: FxHashMap<Option<NamespaceId>, NamespaceId>,
    /// Number of namespaces made.
    namespaces_made: u128,
    followers: FxHashMap<SeqId, Follower>,
    next_seq: u64,
}

/// The draft model's state of a sequence.
#[derive(Debug)]
struct Follower {
    seq: SeqId,
    is_private: bool,
    /// Tokens whose keys and values are stored, including draft tokens.
    computed: Vec<Token>,
    /// Number of leading tokens of these that belong to the sequence.
    sampled: usize,
}

impl DraftModel {
    pub(in crate::schedule) fn new(setup: DraftSetup) -> Result<DraftModel, CacheError> {
        let DraftSetup { runner, cache: config, vocab_len } = setup;
        Ok(DraftModel {
            runner,
            cache: Cache::new(config)?,
            config,
            vocab_len,
            namespaces: FxHashMap::default(),
            namespaces_made: 0,
            followers: FxHashMap::default(),
            next_seq: 0,
        })
    }

    /// The draft model's cache.
    pub(in crate::schedule) fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Whether the model has at most `most` tokens to compute before it can draft for a sequence, and has all of them in its
    /// vocabulary.
    pub(in crate::schedule) fn reads(&self, wanted: &WantedDraft<'_>, most: usize) -> bool {
        let missing = &wanted.tokens[self.known(wanted)..];
        missing.len() <= most && missing.iter().all(|&token| (token as usize) < self.vocab_len)
    }

    /// Number of leading tokens of a sequence that the model has computed; of one that it does not follow yet, its cached
    /// prefix.
    fn known(&self, wanted: &WantedDraft<'_>) -> usize {
        match self.followers.get(&wanted.id) {
            Some(follower) => follower.stored(wanted.tokens, &[]),
            None => wanted
                .namespace
                .and_then(|namespace| self.namespaces.get(&Some(namespace)))
                .map_or(0, |&namespace| self.cache.lookup(namespace, wanted.tokens).tokens),
        }
    }

    /// Drafts for each of the sequences; empty for one that it has not read to its end yet. After each pass, `passed`
    /// is called with its sequences and with whether it had one row for each.
    pub(in crate::schedule) fn propose(
        &mut self,
        wanted: &[WantedDraft<'_>],
        mut passed: impl FnMut(&[SeqId], bool),
    ) -> Vec<Vec<Token>> {
        let mut drafts = vec![Vec::new(); wanted.len()];
        let mut open: Vec<usize> = (0..wanted.len()).filter(|&index| self.follow(&wanted[index])).collect();
        while !open.is_empty() {
            let only_goes_on = open.iter().all(|&index| self.rows_of(&wanted[index], &drafts[index]) == 1);
            let Some(next) = self.pass(wanted, &open, &drafts) else { break };
            passed(&open.iter().map(|&index| wanted[index].id).collect::<Vec<SeqId>>(), only_goes_on);
            let mut still = Vec::new();
            for (index, token) in next {
                drafts[index].push(token);
                if drafts[index].len() < wanted[index].most {
                    still.push(index);
                }
            }
            open = still;
        }
        drafts
    }

    /// Releases the sequences for which `running` is false; their own tokens stay in the cache.
    pub(in crate::schedule) fn follow_only(&mut self, running: impl Fn(SeqId) -> bool) {
        let ended: Vec<SeqId> = self.followers.keys().copied().filter(|&id| !running(id)).collect();
        ended.into_iter().for_each(|id| self.leave(id));
    }

    /// Sets the clock for times to live.
    pub(in crate::schedule) fn set_now(&mut self, now: Duration) {
        self.cache.set_now(now);
    }

    /// Drops cached blocks of a prompt in a namespace, with this command of the cache, unless a sequence uses them.
    pub(in crate::schedule) fn evict(
        &mut self,
        namespace: NamespaceId,
        tokens: &[Token],
        evict: fn(&mut Cache, NamespaceId, &[Token]) -> usize,
    ) {
        if let Some(&own) = self.namespaces.get(&Some(namespace)) {
            evict(&mut self.cache, own, tokens);
        }
    }

    /// Drops deleted prompts in a namespace; returns the number of their blocks that are in use.
    pub(in crate::schedule) fn forget(&mut self, namespace: NamespaceId, prompts: &DeletedPrompts) -> usize {
        let own = self.namespaces.get(&Some(namespace));
        own.map_or(0, |&own| self.cache.forget(own, prompts).in_use)
    }

    /// Drops the cached blocks of a namespace, or of all, unless a sequence uses them.
    pub(in crate::schedule) fn clear(&mut self, namespace: Option<NamespaceId>) {
        match namespace {
            None => drop(self.cache.clear(None)),
            Some(namespace) => {
                if let Some(&own) = self.namespaces.get(&Some(namespace)) {
                    self.cache.clear(Some(own));
                }
            }
        }
    }

    /// Starts with an empty cache, as the target model's cache is.
    pub(in crate::schedule) fn renew(&mut self) {
        self.followers.clear();
        self.namespaces.clear();
        let new = Cache::new(self.config).expect("the same settings worked before");
        let old = std::mem::replace(&mut self.cache, new);
        let _ = contain(|| drop(old));
    }

    /// Allocates blocks for a sequence and its draft; returns whether there is room.
    fn follow(&mut self, wanted: &WantedDraft<'_>) -> bool {
        if let Some(follower) = self.followers.get_mut(&wanted.id) {
            follower.sampled = follower.stored(wanted.tokens, &[]);
            let fits = self.cache.reserve(follower.seq, wanted.tokens.len() + wanted.most).is_ok();
            if !fits {
                self.leave(wanted.id);
            }
            return fits;
        }
        self.next_seq += 1;
        let seq = SeqId(self.next_seq);
        let namespace = self.own_namespace(wanted.namespace);
        let admission = Admission {
            seq,
            namespace,
            prompt: wanted.tokens,
            reuse_max: if wanted.namespace.is_some() { wanted.tokens.len() - 1 } else { 0 },
            positions: wanted.tokens.len() + wanted.most,
            lifetime: Lifetime { pin: false, ..wanted.lifetime },
        };
        let Ok(admitted) = self.cache.admit(admission) else { return false };
        if let Some(copy) = admitted.copy {
            self.runner.copy_partial(copy.from, copy.to, copy.positions);
        }
        let computed = wanted.tokens[..admitted.reused].to_vec();
        let follower =
            Follower { seq, is_private: wanted.namespace.is_none(), sampled: computed.len(), computed };
        self.followers.insert(wanted.id, follower);
        true
    }

    /// Releases a sequence.
    fn leave(&mut self, id: SeqId) {
        let Some(Follower { seq, is_private, computed, sampled }) = self.followers.remove(&id) else {
            return;
        };
        match is_private {
            true => self.cache.abandon(seq),
            false => self.cache.finish(seq, &computed[..sampled]),
        }
    }

    /// Drops the namespaces whose counterparts in the target model's cache are not `there` any more.
    pub(in crate::schedule) fn keep_namespaces(&mut self, there: impl Fn(NamespaceId) -> bool) {
        let ended = self.namespaces.iter().filter(|(large, _)| large.is_some_and(|large| !there(large)));
        let ended: FxHashSet<NamespaceId> = ended.map(|(_, &own)| own).collect();
        for &own in &ended {
            self.cache.clear(Some(own));
        }
        let dropped = self.cache.drop_namespaces(|own| ended.contains(&own));
        self.namespaces.retain(|_, own| !dropped.contains(own));
    }

    fn own_namespace(&mut self, namespace: Option<NamespaceId>) -> NamespaceId {
        let cache = &mut self.cache;
        let made = &mut self.namespaces_made;
        // This cache belongs to one model: a number suffices to name a namespace.
        let names = Namespaces { model: [0; 32], kv_format: "draft", adapter: None };
        *self.namespaces.entry(namespace).or_insert_with(|| {
            *made += 1;
            cache.namespace(&names.shared(made.to_le_bytes()))
        })
    }

    /// Number of rows that a sequence with this draft needs before its next token is known.
    fn rows_of(&self, wanted: &WantedDraft<'_>, draft: &[Token]) -> usize {
        let follower = &self.followers[&wanted.id];
        wanted.tokens.len() + draft.len() - follower.stored(wanted.tokens, draft)
    }

    /// Computes the next rows of the `open` sequences, and returns the most likely next token of those that are read to
    /// their end. `None` if the model fails.
    fn pass(
        &mut self,
        wanted: &[WantedDraft<'_>],
        open: &[usize],
        drafts: &[Vec<Token>],
    ) -> Option<Vec<(usize, Token)>> {
        let mut rows = Vec::new();
        let mut read = Vec::new();
        for (sequence, &index) in (0..).zip(open) {
            let first = rows.len();
            let ends =
                self.add_rows(&mut rows, sequence, &wanted[index], &drafts[index], ROWS_MAX / open.len());
            read.push((index, first..rows.len(), ends));
        }
        let tables = open.iter().map(|&index| self.cache.table(self.followers[&wanted[index].id].seq));
        let sequences: Vec<SequenceKv<'_>> = tables.map(SequenceKv::in_blocks).collect();
        let (runner, batch) = (&mut self.runner, Batch { rows: &rows, sequences: &sequences });
        let (row_len, vocab_len) = (runner.vocab_len(), self.vocab_len);
        let computed = contain(|| runner.forward(&batch, &mut []));
        let error =
            |error| tracing::error!("the draft model failed and drafts nothing in this step: {error}");
        let logits = computed.map_err(error).ok()?.chunks_exact(row_len);
        let next = logits.map(|row| likeliest(&row[..vocab_len.min(row_len)]).unwrap_or(0));
        let at_end = read.iter().filter(|(_, _, ends)| *ends).map(|&(index, ..)| index);
        let next = at_end.zip(next).collect();
        for (index, range, _) in read {
            self.note_read(&wanted[index], &rows[range]);
        }
        Some(next)
    }

    /// Adds the next rows of a sequence with its draft, at most `most` but at least one; returns whether they reach its
    /// end.
    fn add_rows(
        &self,
        rows: &mut Vec<Row>,
        sequence: u32,
        wanted: &WantedDraft<'_>,
        draft: &[Token],
        most: usize,
    ) -> bool {
        let first = self.followers[&wanted.id].stored(wanted.tokens, draft);
        let left = wanted.tokens.len() + draft.len() - first;
        let count = most.max(1).min(left);
        let tokens = wanted.tokens.iter().chain(draft).skip(first).take(count);
        rows.extend(tokens.zip(first as u32..).map(|(&token, position)| Row {
            sequence,
            token,
            position,
            cache_position: position,
            output: Output::None,
        }));
        if let Some(last) = rows.last_mut() {
            last.output = Output::logits_if(count == left);
        }
        count == left
    }

    /// Marks these rows of a sequence as stored, and publishes those that are its own tokens.
    fn note_read(&mut self, wanted: &WantedDraft<'_>, rows: &[Row]) {
        let (Some(follower), Some(first)) = (self.followers.get_mut(&wanted.id), rows.first()) else {
            return;
        };
        let read = rows.iter().map(|row| row.token);
        follower.note_read(first.cache_position as usize, read, wanted.tokens.len());
        // The last token may be computed again, and published blocks are never written.
        let shared = follower.sampled.min(wanted.tokens.len() - 1);
        if !follower.is_private {
            self.cache.publish(follower.seq, &follower.computed[..shared]);
        }
    }
}

impl Follower {
    /// Number of leading tokens of a sequence and its draft that are stored. The last token is always computed, for its
    /// logits. A sequence only grows while it has its id, so what belonged to it is not compared again.
    fn stored(&self, tokens: &[Token], draft: &[Token]) -> usize {
        let (own, computed) = self.computed.split_at(self.sampled);
        debug_assert!(tokens.starts_with(own), "a sequence keeps its tokens");
        let pairs = computed.iter().zip(tokens[own.len()..].iter().chain(draft));
        let common = pairs.take_while(|(computed, sampled)| computed == sampled).count();
        (own.len() + common).min(tokens.len() + draft.len() - 1)
    }

    /// Records that `read` was computed from position `first` on, of a sequence of `len` tokens and its draft.
    fn note_read(&mut self, first: usize, read: impl Iterator<Item = Token>, len: usize) {
        self.computed.truncate(first);
        self.computed.extend(read);
        self.sampled = self.computed.len().min(len);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Leading tokens of a sequence and its draft that are stored, by a comparison of all of them.
    fn stored(follower: &Follower, tokens: &[Token], draft: &[Token]) -> usize {
        let pairs = follower.computed.iter().zip(tokens.iter().chain(draft));
        let common = pairs.take_while(|(computed, sampled)| computed == sampled).count();
        common.min(tokens.len() + draft.len() - 1)
    }

    /// Reads a sequence and then drafts as `propose` does, at most so many rows in a pass.
    fn draft(follower: &mut Follower, tokens: &[Token], drafted: &[Token], rows_max: usize) {
        let mut draft = Vec::new();
        follower.sampled = follower.stored(tokens, &[]);
        while draft.len() < drafted.len() {
            let first = follower.stored(tokens, &draft);
            assert_eq!(first, stored(follower, tokens, &draft));
            let all = [tokens, &draft].concat();
            let end = all.len().min(first + rows_max);
            follower.note_read(first, all[first..end].iter().copied(), tokens.len());
            if end == all.len() {
                draft.push(drafted[draft.len()]);
            }
        }
        assert_eq!(follower.stored(tokens, &draft), stored(follower, tokens, &draft));
    }

    proptest! {
        /// Whatever becomes of the drafts: of each round, some tokens of the draft are sampled, then others, or none.
        #[test]
        fn what_was_compared_is_not_compared_again_and_makes_no_difference(
            prompt in prop::collection::vec(0u32..3, 1..40),
            reused in 0usize..40,
            rounds in prop::collection::vec(
                (
                    prop::collection::vec(0u32..3, 1..9),
                    0usize..9,
                    prop::collection::vec(0u32..3, 0..3),
                    1usize..20,
                ),
                1..20,
            ),
        ) {
            let computed = prompt[..reused.min(prompt.len() - 1)].to_vec();
            let mut follower =
                Follower { seq: SeqId(1), is_private: false, sampled: computed.len(), computed };
            let mut tokens = prompt;
            for (drafted, accepted, others, rows_max) in rounds {
                draft(&mut follower, &tokens, &drafted, rows_max);
                prop_assert!(tokens.starts_with(&follower.computed[..follower.sampled]));
                tokens.extend(drafted.iter().take(accepted).chain(&others));
                prop_assert_eq!(follower.stored(&tokens, &[]), stored(&follower, &tokens, &[]));
            }
        }
    }
}
