//! Turns that were computed ahead, and what was found of them: decisions over counts.

use std::collections::{BTreeMap, VecDeque};
use std::hash::RandomState;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kvik_cache::{BLOCK_POSITIONS, Token};
use kvik_engine::api::Report;

use super::AheadMode;
use crate::marks::PromptMarks;

/// Maximum turns that are prepared or computed at a time.
const OPEN_MAX: usize = 8;
/// Maximum turns that are remembered until a request finds them.
const RECORDS_MAX: usize = 256;
/// Maximum block hashes of all of them together, 2 MB.
const BLOCKS_MAX: usize = 1 << 18;
/// Maximum clients whose shares are remembered.
const CLIENTS_MAX: usize = 256;
/// Turns of a client that are computed before its share counts.
const TRIES_MIN: u32 = 4;
/// Turns over which the share of a client is averaged.
const WINDOW: f64 = 32.0;
/// The share of tokens that has to be found: below 1 / `USED_MIN` the work does not pay.
const USED_MIN: f64 = 8.0;
/// Where it does not pay, one turn in this many is computed, to see whether it does by now.
const TRY_AGAIN: u32 = 8;

/// Tokens computed ahead.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AheadCounts {
    /// Tokens that were computed.
    pub computed: u64,
    /// Those that a later request of the conversation found.
    pub used: u64,
}

/// The turns of one model.
#[derive(Debug, Default)]
pub(super) struct Records {
    last: u64,
    /// Oldest first.
    turns: VecDeque<Record>,
    clients: BTreeMap<u64, Share>,
    /// Number of the last turn that a client has asked for.
    asked: u64,
    counts: AheadCounts,
}

/// A next turn.
#[derive(Debug)]
struct Record {
    id: u64,
    client: u64,
    stage: Stage,
    /// Of the prompt that was answered; once the next one is known, of that.
    marks: PromptMarks,
    /// Tokens known before, and tokens computed.
    report: Option<(usize, usize)>,
}

#[derive(Debug)]
enum Stage {
    /// Its prompt is not known yet; the tokens that a later request shares with the prompt that was answered.
    Prepared { met: usize },
    /// Its prompt is known. Requests that begin with what it shares with the prompt that was answered are of its
    /// conversation.
    Known { shared: PromptMarks, is_dropped: Arc<AtomicBool> },
}

/// A turn that a request continues, and the tokens it shares with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Expected {
    id: u64,
    common: usize,
}

/// What a client finds of its turns.
#[derive(Debug, Default)]
struct Share {
    /// Number of the turn that it has asked for last.
    asked: u64,
    tries: u32,
    skipped: u32,
    computed: f64,
    used: f64,
}

impl Share {
    /// Whether a turn is to be computed; asked once for each.
    fn pays(&mut self) -> bool {
        if self.tries < TRIES_MIN || self.used * USED_MIN >= self.computed {
            return true;
        }
        self.skipped += 1;
        self.skipped.is_multiple_of(TRY_AGAIN)
    }

    fn computed(&mut self, tokens: usize) {
        let kept = 1.0 - 1.0 / WINDOW;
        self.tries = self.tries.saturating_add(1);
        (self.computed, self.used) = (self.computed * kept + tokens as f64, self.used * kept);
    }
}

impl Records {
    pub(super) fn counts(&self) -> AheadCounts {
        self.counts
    }

    /// Notes a prompt that has arrived: the work on its conversation is dropped. Returns the turn that it continues.
    pub(super) fn arrived(
        &mut self,
        hasher: &RandomState,
        marks: &PromptMarks,
        prompt: &[Token],
    ) -> Option<Expected> {
        let mut expected: Option<Expected> = None;
        for Record { id, stage, marks: earlier, .. } in &mut self.turns {
            let common = marks.common(hasher, earlier, prompt);
            let (shared, is_dropped) = match stage {
                Stage::Prepared { met } => {
                    *met = common.max(*met);
                    continue;
                }
                Stage::Known { shared, is_dropped } => (shared, is_dropped),
            };
            if shared.tokens > 0 && marks.common(hasher, shared, prompt) == shared.tokens {
                is_dropped.store(true, Ordering::Relaxed);
                if expected.is_none_or(|other| common >= other.common) {
                    expected = Some(Expected { id: *id, common });
                }
            }
        }
        expected
    }

    /// Notes how much a request found of the turn that it continues.
    pub(super) fn found(&mut self, expected: Expected, cached_tokens: usize) {
        let Some(Record { client, report: Some((known, computed)), .. }) = self.take(expected.id) else {
            return;
        };
        let used = cached_tokens.min(expected.common).saturating_sub(known).min(computed);
        self.counts.used += used as u64;
        if let Some(share) = self.clients.get_mut(&client) {
            share.used += used as f64;
        }
    }

    /// Reserves a turn after a prompt that was answered; `None` if its client finds too little, or enough is in work.
    pub(super) fn reserve(&mut self, mode: AheadMode, client: u64, answered: PromptMarks) -> Option<u64> {
        let open = self.turns.iter().filter(|turn| turn.report.is_none()).count();
        if mode == AheadMode::Off || open >= OPEN_MAX {
            return None;
        }
        let pays = self.share_of(client).pays();
        if mode == AheadMode::Auto && !pays {
            return None;
        }
        self.last += 1;
        let stage = Stage::Prepared { met: 0 };
        self.turns.push_back(Record { id: self.last, client, stage, marks: answered, report: None });
        Some(self.last)
    }

    /// The share of a client that asks now. Of too many, the one that has not asked for the longest time is forgotten.
    fn share_of(&mut self, client: u64) -> &mut Share {
        if self.clients.len() >= CLIENTS_MAX && !self.clients.contains_key(&client) {
            let oldest = self.clients.iter().min_by_key(|(_, share)| share.asked);
            if let Some(oldest) = oldest.map(|(client, _)| *client) {
                self.clients.remove(&oldest);
            }
        }
        self.asked += 1;
        let share = self.clients.entry(client).or_default();
        share.asked = self.asked;
        share
    }

    /// Notes the prompt of a reserved turn, and what it shares with the one that was answered. Returns the flag that drops
    /// it; `None` if its conversation has gone on meanwhile.
    pub(super) fn begin(
        &mut self,
        id: u64,
        shared: PromptMarks,
        marks: PromptMarks,
    ) -> Option<Arc<AtomicBool>> {
        let record = self.turns.iter_mut().find(|turn| turn.id == id)?;
        let Stage::Prepared { met } = record.stage else { return None };
        // Of requests that came before, whole blocks are known.
        if met > 0 && met >= shared.tokens - shared.tokens % BLOCK_POSITIONS {
            return None;
        }
        let is_dropped = Arc::<AtomicBool>::default();
        record.stage = Stage::Known { shared, is_dropped: is_dropped.clone() };
        record.marks = marks;
        Some(is_dropped)
    }

    /// Notes the cost of a turn, complete or not.
    pub(super) fn computed(&mut self, id: u64, report: &Report) {
        let computed = report.computed_tokens;
        if computed == 0 {
            return self.give_up(id);
        }
        self.counts.computed += computed as u64;
        let Some(record) = self.turns.iter_mut().find(|turn| turn.id == id) else { return };
        record.report = Some((report.cached_tokens, computed));
        if let Some(share) = self.clients.get_mut(&record.client) {
            share.computed(computed);
        }
        self.bound();
    }

    /// Removes a turn of which nothing was computed.
    pub(super) fn give_up(&mut self, id: u64) {
        self.turns.retain(|turn| turn.id != id || turn.report.is_some());
    }

    /// Drops all that is computed.
    pub(super) fn stop(&mut self) {
        for turn in &self.turns {
            if let Stage::Known { is_dropped, .. } = &turn.stage {
                is_dropped.store(true, Ordering::Relaxed);
            }
        }
        self.turns.retain(|turn| turn.report.is_some());
    }

    fn take(&mut self, id: u64) -> Option<Record> {
        let index = self.turns.iter().position(|turn| turn.id == id)?;
        self.turns.remove(index)
    }

    /// Forgets the oldest turns that nobody has found.
    fn bound(&mut self) {
        let blocks =
            |turns: &VecDeque<Record>| -> usize { turns.iter().map(|turn| turn.marks.chain.len()).sum() };
        while self.turns.len() > RECORDS_MAX || blocks(&self.turns) > BLOCKS_MAX {
            let Some(oldest) = self.turns.iter().position(|turn| turn.report.is_some()) else { return };
            self.turns.remove(oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Turns of clients whose prompts are numbers, with the tokens of what was answered.
    #[derive(Default)]
    struct Clients(Records, RandomState);

    impl Clients {
        fn marks(&self, prompt: &[Token]) -> PromptMarks {
            PromptMarks::of(&self.1, 0, prompt)
        }

        /// A turn that is being computed after `from` tokens of a prompt of the conversation.
        fn begin(
            &mut self,
            mode: AheadMode,
            conversation: Token,
            from: usize,
        ) -> Option<(u64, Arc<AtomicBool>)> {
            let prompt = said(conversation, from + 50);
            let id = self.0.reserve(mode, 1, self.marks(&prompt))?;
            let (shared, ahead) =
                (self.marks(&prompt[..from]), self.marks(&said_otherwise(conversation, from)));
            Some((id, self.0.begin(id, shared, ahead)?))
        }

        fn arrived(&mut self, prompt: &[Token]) -> Option<Expected> {
            let marks = self.marks(prompt);
            self.0.arrived(&self.1, &marks, prompt)
        }
    }

    fn said(conversation: Token, tokens: usize) -> Vec<Token> {
        (0..tokens as Token).map(|token| 1000 * conversation + token).collect()
    }

    /// The first `from` tokens, and a hundred others.
    fn said_otherwise(conversation: Token, from: usize) -> Vec<Token> {
        [said(conversation, from), said(conversation + 100, 100)].concat()
    }

    fn report(cached_tokens: usize, computed_tokens: usize) -> Report {
        Report { cached_tokens, computed_tokens, ..Report::default() }
    }

    #[test]
    fn what_a_later_request_finds_is_counted_once() {
        let mut clients = Clients::default();
        let (id, is_dropped) = clients.begin(AheadMode::Auto, 1, 64).unwrap();
        clients.0.computed(id, &report(64, 100));
        let next = [said_otherwise(1, 64), vec![7; 30]].concat();
        let expected = clients.arrived(&next).unwrap();
        assert!(is_dropped.load(Ordering::Relaxed), "the next turn computes the rest itself");
        clients.0.found(expected, 164);
        clients.0.found(expected, 164);
        assert_eq!(clients.0.counts(), AheadCounts { computed: 100, used: 100 });
        assert_eq!(clients.arrived(&next), None);
    }

    #[test]
    fn only_requests_of_the_conversation_end_its_work() {
        let mut clients = Clients::default();
        let (_, is_dropped) = clients.begin(AheadMode::Auto, 1, 70).unwrap();
        clients.arrived(&said(2, 200));
        clients.arrived(&[said(1, 69), vec![7; 100]].concat());
        assert!(!is_dropped.load(Ordering::Relaxed), "they begin in the same way and are others");
        clients.arrived(&[said(1, 70), vec![7; 100]].concat());
        assert!(is_dropped.load(Ordering::Relaxed));
    }

    #[test]
    fn a_turn_that_comes_before_its_prompt_is_known_is_not_computed() {
        let mut clients = Clients::default();
        let prompt = said(1, 114);
        let marks = clients.marks(&prompt);
        let id = clients.0.reserve(AheadMode::Auto, 1, marks).unwrap();
        clients.arrived(&[said(1, 114), vec![7; 100]].concat());
        let (shared, marks) = (clients.marks(&prompt[..64]), clients.marks(&said_otherwise(1, 64)));
        assert!(clients.0.begin(id, shared, marks).is_none());
    }

    #[test]
    fn a_client_that_finds_nothing_is_tried_now_and_then() {
        let tried = |mode, finds: bool| {
            let mut clients = Clients::default();
            let mut tried = 0;
            for conversation in 1..=40 {
                let Some((id, _)) = clients.begin(mode, conversation, 64) else { continue };
                tried += 1;
                clients.0.computed(id, &report(64, 100));
                if finds {
                    let expected = clients.arrived(&said_otherwise(conversation, 64)).unwrap();
                    clients.0.found(expected, 164);
                }
            }
            tried
        };
        assert_eq!(tried(AheadMode::Auto, true), 40);
        assert_eq!(tried(AheadMode::Auto, false), 4 + 36 / TRY_AGAIN as usize);
        assert_eq!(tried(AheadMode::On, false), 40);
        assert_eq!(tried(AheadMode::Off, true), 0);
    }

    #[test]
    fn a_client_that_asks_is_remembered_however_many_others_come() {
        let mut clients = Clients::default();
        let mut is_tried = |client: u64| {
            let marks = clients.marks(&said(1, 20));
            let Some(id) = clients.0.reserve(AheadMode::Auto, client, marks) else { return false };
            clients.0.computed(id, &report(0, 100));
            true
        };
        let mut tried = 0;
        for turn in 0..40 {
            tried += usize::from(is_tried(0));
            for other in 0..CLIENTS_MAX as u64 / 4 {
                is_tried(1 + 1000 * turn + other);
            }
        }
        assert_eq!(tried, 4 + 36 / TRY_AGAIN as usize);
    }

    #[test]
    fn all_is_bounded() {
        let mut clients = Clients::default();
        let open: Vec<_> = (1..20).filter_map(|it| clients.begin(AheadMode::On, it, 64)).collect();
        assert_eq!(open.len(), OPEN_MAX);
        open.iter().for_each(|(id, _)| clients.0.computed(*id, &report(0, 1)));
        for conversation in 0..2 * RECORDS_MAX {
            let marks = clients.marks(&said(conversation as Token, 20));
            let id = clients.0.reserve(AheadMode::On, conversation as u64, marks).unwrap();
            clients.0.computed(id, &report(0, 1));
        }
        assert_eq!((clients.0.turns.len(), clients.0.clients.len()), (RECORDS_MAX, CLIENTS_MAX));
        let (_, is_dropped) = clients.begin(AheadMode::On, 1, 64).unwrap();
        clients.0.stop();
        assert!(is_dropped.load(Ordering::Relaxed));
        assert_eq!(clients.0.turns.len(), RECORDS_MAX, "it leaves nothing behind");
    }
}
