//! The prediction head of the fake model: guesses what the model says next, or something else.
//!
//! It keeps the hash that each row which it is given has stored. Where it is asked, that of the last one must be the hash
//! of the sequence's tokens: a refused draft, another sequence or a position that was computed again would show.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kvik_cache::{SeqId, Token};
use kvik_model::batch::{PredictionHead, WantedTokens};
use kvik_text::sampler::likeliest;

use crate::runner::{IN_DISORDER, Model, Oracle, push_logits};
use crate::time::Time;

/// Sequences that it follows at a time.
const SEQUENCES_MAX: usize = 3;

pub(crate) struct SimHead {
    /// What its logits are mixed with: not 0 for a head that says something else.
    salt: u64,
    time: Time,
    pass_time: Duration,
    /// Positions and hashes of the rows of each sequence.
    followed: HashMap<SeqId, Vec<(u32, u64)>>,
}

impl SimHead {
    pub(crate) fn new(salt: u64, time: Time, pass_time: Duration) -> SimHead {
        SimHead { salt, time, pass_time, followed: HashMap::new() }
    }

    /// Notes what the row at a position has stored.
    pub(crate) fn note(&mut self, id: SeqId, position: u32, stored: u64) {
        let rows = self.followed.entry(id).or_default();
        rows.truncate(rows.partition_point(|&(other, _)| other < position));
        rows.push((position, stored));
        if self.followed.len() > SEQUENCES_MAX {
            IN_DISORDER.store(true, Ordering::Relaxed);
        }
    }

    /// Whether it holds nothing of any sequence.
    pub(crate) fn is_empty(&self) -> bool {
        self.followed.is_empty()
    }

    fn continued(&self, wanted: &WantedTokens<'_>) -> Vec<Token> {
        let (&last, computed) = wanted.tokens.split_last().unwrap();
        let is_last = |&&(position, _): &&(u32, u64)| position as usize + 1 == computed.len();
        let rows = self.followed.get(&wanted.id).into_iter().flatten();
        let Some(&(_, stored)) = rows.clone().find(is_last) else { return Vec::new() };
        let mut oracle = Oracle::default();
        computed.iter().for_each(|&token| oracle.push(token));
        if oracle.stored() != stored {
            IN_DISORDER.store(true, Ordering::Relaxed);
        }
        let (mut draft, mut next, mut logits) = (Vec::new(), last, Vec::new());
        while draft.len() < wanted.most {
            oracle.push(next);
            logits.clear();
            push_logits(&mut logits, oracle.seen() ^ self.salt);
            next = likeliest(&logits).unwrap();
            draft.push(next);
        }
        draft
    }
}

impl PredictionHead for SimHead {
    fn sequences_max(&self) -> usize {
        SEQUENCES_MAX
    }

    fn predict(&mut self, wanted: &[WantedTokens<'_>]) -> Vec<Vec<Token>> {
        let drafts: Vec<Vec<Token>> = wanted.iter().map(|wanted| self.continued(wanted)).collect();
        let passes = drafts.iter().map(Vec::len).max().unwrap_or(0);
        self.time.advance(self.pass_time * passes as u32);
        drafts
    }

    fn follow_only(&mut self, running: &dyn Fn(SeqId) -> bool) {
        self.followed.retain(|&id, _| running(id));
    }
}
