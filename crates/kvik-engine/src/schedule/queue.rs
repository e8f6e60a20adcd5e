//! The queue: sequences without blocks, oldest first, and which of them may be admitted next.
//!
//! Preempted sequences come first, oldest first: their clients are already reading. Then tenants take
//! [turns](super::turns), also with the choices of a running request that found no place beside it: otherwise the many
//! choices of one request would come before all tenants. The requests of one tenant are ordered as follows:
//! 1. Those that have waited long enough, oldest first: [`OVERTAKEN_MAX`] younger requests with more than [`PATIENCE`]
//!    times their own work have overtaken them, or they were refused [`OVERTAKEN_MAX`] times because they did not fit.
//!    Neither these nor preempted sequences can be overtaken: while the first does not fit, no sequence is admitted.
//! 2. The others, longest known prefix first, because it may be evicted; then the fewest tokens to compute (L. Schrage
//!    1968), then oldest. A request that does not fit may be overtaken, by younger requests of its tenant and by other
//!    tenants out of their turn.
//!
//! A request whose prompt is being computed by a running sequence is held until that is done, so that identical prompts
//! are computed once. It is held for at most [`HOLDS_MAX`] different sequences. Hence every request waits for a bounded
//! number of others.
//!
//! Background sequences come after all others and outside these rules: they neither overtake nor are overtaken, and a
//! preempted one blocks no other. Among them, preempted ones come first; then tenants take turns.
//!
//! The order is a pure function: it takes [`Facts`] and returns [`Candidates`].

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::ops::{Index, IndexMut};
use std::time::Duration;

use kvik_cache::{NamespaceId, SeqId, TenantId};

use super::disk::Fetch;
use super::job::JobId;
use super::prefix::Known;
use super::sequence::{Sequence, Sharing};

/// Maximum number of younger requests that may overtake a request, and of refusals because it does not fit.
const OVERTAKEN_MAX: u32 = 8;
/// Work of the overtaking requests, as a multiple of its own, after which a request is no longer overtaken.
const PATIENCE: usize = 2;
/// Work of an answer in prompt rows, a guess: its length is not known in advance.
const ANSWER_ROWS: usize = 64;
/// Maximum number of running sequences for whose prefill a request is held, one after the other.
const HOLDS_MAX: u32 = 4;
/// Number of new requests considered in one step, which bounds the time for their lookups. Divided among the tenants
/// whose turns come first, so that one tenant's flood does not hide others.
const WINDOW: usize = 32;
/// Maximum number of tenants considered in one step.
const TENANTS_MAX: usize = 8;

/// The waiting sequences.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Oldest first, background sequences last.
    waiting: Vec<Waiting>,
}

/// A sequence without blocks.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) sequence: Sequence,
    /// Number of younger requests that overtook it, and their total [work].
    overtaken: (u32, usize),
    /// Number of times that others were admitted because it did not fit.
    refused: u32,
    holds: u32,
    /// The running sequence for whose prefill it is held.
    held_by: Option<SeqId>,
    /// The disk's work for it.
    pub(super) fetch: Fetch,
    /// Whether the disk was asked for its compressed prefix; after that it is asked for the exact prefix.
    pub(super) asked_for_kept: bool,
}

/// The position of a waiting sequence in the order of admission; lower is earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Preempted,
    Aged,
    /// By the number of known tokens, most first, then by the number to be computed, fewest first.
    New(Reverse<usize>, usize),
    Background,
}

/// The key of a waiting sequence.
type Key = (JobId, u32);

/// A waiting sequence that may be admitted now.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    rank: Rank,
    pub(super) known: Known,
    key: Key,
}

/// Facts about other parts of the scheduler that determine the order of admission.
pub(super) struct Facts<'a> {
    /// Leading tokens of a sequence that need not be computed.
    pub(super) known: &'a dyn Fn(&Sequence) -> Known,
    /// A tenant's virtual time, in the foreground or in the background, whichever the candidates are of.
    pub(super) time: &'a dyn Fn(TenantId) -> f64,
    /// Number of loads that may start.
    pub(super) loads: usize,
    pub(super) now: Duration,
}

/// The sequences that may be admitted now.
pub(super) struct Candidates {
    /// Preempted sequences, oldest first.
    preempted: VecDeque<Candidate>,
    /// New requests of each tenant, in the order in which they may be admitted.
    by_tenant: BTreeMap<TenantId, VecDeque<Candidate>>,
}

impl Queue {
    /// Adds a sequence in the order of age.
    pub(super) fn insert(&mut self, sequence: Sequence) {
        let index = self.waiting.partition_point(|other| other.sequence.by_age(&sequence).is_lt());
        self.waiting.insert(index, Waiting::new(sequence));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Foreground sequences, oldest first.
    pub(super) fn foreground(&self) -> &[Waiting] {
        &self.waiting[..self.waiting.partition_point(|waiting| !waiting.sequence.is_background())]
    }

    /// The oldest foreground sequence.
    pub(super) fn oldest_foreground(&self) -> Option<&Sequence> {
        self.foreground().first().map(|waiting| &waiting.sequence)
    }

    /// All sequences, oldest first, background sequences last.
    pub(super) fn sequences(&self) -> impl Iterator<Item = &Sequence> {
        self.waiting.iter().map(|waiting| &waiting.sequence)
    }

    /// All sequences, in the same order.
    pub(super) fn sequences_mut(&mut self) -> impl Iterator<Item = &mut Sequence> {
        self.waiting.iter_mut().map(|waiting| &mut waiting.sequence)
    }

    /// Requests that were never admitted, oldest first.
    pub(super) fn new_requests(&self) -> impl Iterator<Item = &Sequence> {
        self.sequences().filter(|sequence| !sequence.started)
    }

    /// The fetches of the waiting sequences.
    pub(super) fn fetches(&self) -> impl Iterator<Item = &Fetch> {
        self.waiting.iter().map(|waiting| &waiting.fetch)
    }

    /// The fetches of the waiting sequences.
    pub(super) fn fetches_mut(&mut self) -> impl Iterator<Item = &mut Fetch> {
        self.waiting.iter_mut().map(|waiting| &mut waiting.fetch)
    }

    /// Whether a waiting sequence will run in this namespace.
    pub(super) fn awaits(&self, namespace: NamespaceId) -> bool {
        self.sequences().any(|sequence| sequence.sharing == Sharing::Namespace(namespace))
    }

    /// Whether a sequence waits for `load`.
    pub(super) fn awaits_load(&self, load: SeqId) -> bool {
        self.fetches().any(|fetch| fetch.waits_for(load))
    }

    /// Whether only background sequences wait for `load`.
    pub(super) fn is_background_load(&self, load: SeqId) -> bool {
        self.awaits_load(load) && !self.foreground().iter().any(|waiting| waiting.fetch.waits_for(load))
    }

    /// Number of sequences of a request.
    pub(super) fn count_of(&self, job: JobId) -> usize {
        self.sequences().filter(|sequence| sequence.job == job).count()
    }

    /// Drops the sequence at `index`.
    pub(super) fn remove(&mut self, index: usize) {
        self.waiting.remove(index);
    }

    /// Drops the sequences of a request.
    pub(super) fn drop_of(&mut self, job: JobId) {
        self.waiting.retain(|waiting| waiting.sequence.job != job);
    }

    /// The foreground sequences that may be admitted now, in order.
    pub(super) fn candidates(&self, facts: &Facts<'_>) -> Candidates {
        let preempted = self.foreground().iter().filter(|waiting| !waiting.is_new());
        let preempted = preempted.map(|waiting| waiting.candidate(facts)).collect();
        let tenants = self.tenants(facts);
        let window = WINDOW / tenants.len().max(1);
        let of = |tenant: TenantId| (tenant, self.candidates_of(tenant, window, facts));
        Candidates { preempted, by_tenant: tenants.into_iter().map(of).collect() }
    }

    /// Whether there are [candidates](Queue::candidates). Looks up no prompt: while all places are taken this is asked in
    /// every step.
    pub(super) fn has_candidates(&self, facts: &Facts<'_>) -> bool {
        let has_preempted = self.foreground().iter().any(|waiting| !waiting.is_new());
        let is_ready = |tenant: TenantId| self.ready_of(tenant, facts).next().is_some();
        has_preempted || self.tenants(facts).into_iter().any(is_ready)
    }

    /// The first `count` background sequences, without those that wait for the disk.
    pub(super) fn background_candidates(&self, count: usize, facts: &Facts<'_>) -> Vec<Candidate> {
        let time = |waiting: &Waiting| (facts.time)(waiting.sequence.tenant);
        let mut all: Vec<&Waiting> = self.waiting[self.foreground().len()..].iter().collect();
        all.sort_by(|a, b| a.is_new().cmp(&b.is_new()).then(time(a).total_cmp(&time(b))));
        let mut loads = facts.loads;
        // Those that wait for the disk count as well, so that the disk reads for few background sequences at a time.
        let first = all.into_iter().take(count);
        let ready = first.filter(|waiting| waiting.fetch.may_go_on(&mut loads, facts.now));
        ready.map(|waiting| waiting.candidate(facts)).collect()
    }

    /// The tenants of new requests whose turns come first.
    fn tenants(&self, facts: &Facts<'_>) -> Vec<TenantId> {
        let mut tenants: Vec<TenantId> = Vec::new();
        for Waiting { sequence, .. } in self.foreground().iter().filter(|waiting| waiting.is_new()) {
            // With few tenants a list is faster than a set.
            if !tenants.contains(&sequence.tenant) {
                tenants.push(sequence.tenant);
            }
        }
        tenants.sort_by(|&a, &b| (facts.time)(a).total_cmp(&(facts.time)(b)));
        tenants.truncate(TENANTS_MAX);
        tenants
    }

    /// The first `window` new requests of a tenant that do not wait for the disk.
    fn candidates_of(&self, tenant: TenantId, window: usize, facts: &Facts<'_>) -> VecDeque<Candidate> {
        let own = self.ready_of(tenant, facts).take(window);
        let mut own: Vec<Candidate> = own.map(|waiting| waiting.candidate(facts)).collect();
        own.sort_by_key(|candidate| (candidate.rank, candidate.key));
        own.into()
    }

    /// The new requests of a tenant that do not wait for the disk, oldest first.
    fn ready_of(&self, tenant: TenantId, facts: &Facts<'_>) -> impl Iterator<Item = &Waiting> {
        let (mut loads, now) = (facts.loads, facts.now);
        let own = self.foreground().iter();
        let own = own.filter(move |waiting| waiting.is_new() && waiting.sequence.tenant == tenant);
        own.filter(move |waiting| waiting.fetch.may_go_on(&mut loads, now))
    }

    /// The index of a candidate, if it still waits.
    pub(super) fn position(&self, candidate: &Candidate) -> Option<usize> {
        self.waiting.iter().position(|waiting| waiting.key() == candidate.key)
    }

    /// Removes a sequence that is admitted and whose first `known` tokens need not be computed. It has overtaken the
    /// `passed` candidates, which had no room at their turn, and older requests of its tenant that are not held for a
    /// prefill.
    pub(super) fn admit(&mut self, index: usize, known: usize, passed: &[Candidate]) -> Waiting {
        let admitted = self.waiting.remove(index);
        let missing = admitted.missing(known);
        let Sequence { job, tenant, .. } = admitted.sequence;
        if admitted.is_new() && !admitted.sequence.is_background() {
            let foreground = self.foreground().len();
            let older =
                self.waiting[..foreground].iter_mut().take_while(|waiting| waiting.sequence.job < job);
            let older = older.filter(|waiting| waiting.sequence.tenant == tenant);
            let older = older.filter(|waiting| waiting.is_new() && waiting.held_by.is_none());
            let older = older.filter(|waiting| passed.iter().all(|passed| passed.key != waiting.key()));
            older.for_each(|waiting| waiting.be_overtaken(missing));
        }
        for passed in passed {
            if let Some(index) = self.position(passed) {
                self[index].refused += 1;
            }
        }
        admitted
    }
}

impl Index<usize> for Queue {
    type Output = Waiting;

    fn index(&self, index: usize) -> &Waiting {
        &self.waiting[index]
    }
}

impl IndexMut<usize> for Queue {
    fn index_mut(&mut self, index: usize) -> &mut Waiting {
        &mut self.waiting[index]
    }
}

impl Waiting {
    fn new(sequence: Sequence) -> Waiting {
        Waiting {
            sequence,
            overtaken: (0, 0),
            refused: 0,
            holds: 0,
            held_by: None,
            fetch: Fetch::default(),
            asked_for_kept: false,
        }
    }

    /// Whether the sequence never ran. Its request may have begun, with another choice.
    fn is_new(&self) -> bool {
        !self.sequence.has_run()
    }

    /// Holds the sequence for `source`, a running sequence that is about to compute more of its tokens than are known.
    /// Returns whether it must wait.
    pub(super) fn hold(&mut self, source: Option<SeqId>) -> bool {
        if source.is_some() && self.held_by != source {
            self.holds += 1;
        }
        self.held_by = source;
        source.is_some() && self.holds <= HOLDS_MAX
    }

    fn candidate(&self, facts: &Facts<'_>) -> Candidate {
        let known = (facts.known)(&self.sequence);
        Candidate { rank: self.rank(known), known, key: self.key() }
    }

    fn rank(&self, known: Known) -> Rank {
        let missing = self.missing(known.tokens);
        if self.sequence.is_background() {
            Rank::Background
        } else if !self.is_new() {
            Rank::Preempted
        } else if self.has_waited(missing) {
            Rank::Aged
        } else {
            Rank::New(Reverse(known.tokens), missing)
        }
    }

    /// Number of tokens to compute, given that the first `known` are known.
    fn missing(&self, known: usize) -> usize {
        self.sequence.tokens.len().saturating_sub(known)
    }

    /// Whether the sequence can no longer be overtaken, given its number of tokens to compute.
    fn has_waited(&self, missing: usize) -> bool {
        let (others, their_work) = self.overtaken;
        self.refused >= OVERTAKEN_MAX || others >= OVERTAKEN_MAX && their_work > PATIENCE * work(missing)
    }

    /// Records that a sequence with `missing` tokens to compute overtook this one.
    fn be_overtaken(&mut self, missing: usize) {
        self.overtaken = (self.overtaken.0 + 1, self.overtaken.1 + work(missing));
    }

    fn key(&self) -> Key {
        (self.sequence.job, self.sequence.choice)
    }
}

/// Estimated cost of a request with `missing` tokens to compute, in prompt rows.
fn work(missing: usize) -> usize {
    missing + ANSWER_ROWS
}

impl Candidate {
    /// Whether others may be admitted before it if it does not fit.
    pub(super) fn may_be_overtaken(&self) -> bool {
        matches!(self.rank, Rank::New(..))
    }

    /// True if it is a background sequence.
    pub(super) fn is_background(&self) -> bool {
        self.rank == Rank::Background
    }
}

impl Candidates {
    /// The next candidate: the oldest preempted one, otherwise the first of the tenant with the smallest `time`; of two
    /// such tenants, the one whose first request is older.
    pub(super) fn next(&mut self, time: impl Fn(TenantId) -> f64) -> Option<Candidate> {
        if let Some(preempted) = self.preempted.pop_front() {
            return Some(preempted);
        }
        let first = self.by_tenant.iter().filter_map(|(&tenant, own)| Some((tenant, own.front()?.key)));
        let order =
            |a: &(TenantId, Key), b: &(TenantId, Key)| time(a.0).total_cmp(&time(b.0)).then(a.1.cmp(&b.1));
        let (tenant, _) = first.min_by(order)?;
        self.by_tenant.get_mut(&tenant)?.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Admits all waiting sequences for which `fits` is true, one at a time; returns the jobs in the order of
    /// admission. Each admission advances its tenant's virtual time by ten rows.
    fn admitted(queue: &mut Queue, known: &dyn Fn(u64) -> usize, fits: &dyn Fn(u64) -> bool) -> Vec<u64> {
        let times = std::cell::RefCell::new(BTreeMap::<TenantId, f64>::new());
        let time = |tenant: TenantId| times.borrow().get(&tenant).copied().unwrap_or(0.0);
        let known = |sequence: &Sequence| Known::cached(known(sequence.job.0));
        let facts = Facts { known: &known, time: &time, loads: 0, now: Duration::ZERO };
        let (mut candidates, mut passed, mut admitted) = (queue.candidates(&facts), Vec::new(), Vec::new());
        while let Some(candidate) = candidates.next(time) {
            let job = candidate.key.0.0;
            if fits(job) {
                let index = queue.position(&candidate).expect("candidates wait");
                let waiting = queue.admit(index, 0, &passed);
                *times.borrow_mut().entry(waiting.sequence.tenant).or_default() += 10.0;
                admitted.push(job);
            } else if candidate.may_be_overtaken() {
                passed.push(candidate);
            } else {
                break;
            }
        }
        admitted
    }

    /// A queue of requests 0, 1, ... of these tenants.
    fn queue(tenants: &[u32]) -> Queue {
        let mut queue = Queue::default();
        for (job, &tenant) in (0..).zip(tenants) {
            queue.insert(Sequence { job: JobId(job), ..Sequence::fake(TenantId(tenant), vec![1; 9]) });
        }
        queue
    }

    #[test]
    fn tenants_take_turns_and_the_longest_known_prefix_goes_first() {
        let check = |tenants: &[u32], known: [usize; 6], expect: &[u64]| {
            let order = admitted(&mut queue(tenants), &|job| known[job as usize], &|_| true);
            assert_eq!(order, expect, "{tenants:?} {known:?}");
        };
        check(&[0; 6], [0; 6], &[0, 1, 2, 3, 4, 5]);
        check(&[0; 6], [1, 5, 2, 5, 0, 9], &[5, 1, 3, 2, 0, 4]);
        check(&[0, 0, 0, 0, 1, 1], [0; 6], &[0, 4, 1, 5, 2, 3]);
        check(&[2, 1, 0, 0, 1, 2], [0, 0, 0, 4, 4, 4], &[3, 4, 5, 0, 1, 2]);
    }

    /// This sequence after it ran.
    fn preempted(job: JobId, sequence: Sequence) -> Sequence {
        Sequence { job, id: SeqId(1), started: true, ..sequence }
    }

    #[test]
    fn preempted_sequences_come_first_and_stop_the_others() {
        let preempted = |job| preempted(JobId(job), Sequence::fake(TenantId(3), vec![1; 9]));
        let mut queue = queue(&[0, 1]);
        [9, 7, 8].into_iter().for_each(|job| queue.insert(preempted(job)));
        assert!(queue.sequences().is_sorted_by_key(|sequence| sequence.job));
        assert_eq!(admitted(&mut queue, &|_| 0, &|job| job != 8), [7], "nobody overtakes the second");
        assert_eq!(queue.new_requests().count(), 2);
        assert_eq!(admitted(&mut queue, &|_| 0, &|_| true), [8, 9, 0, 1]);
    }

    /// Background jobs that may be admitted, at most two.
    fn background(queue: &Queue) -> Vec<u64> {
        let known = |_: &Sequence| Known::cached(0);
        let facts = Facts { known: &known, time: &|_| 0.0, loads: 0, now: Duration::ZERO };
        let candidates = queue.background_candidates(2, &facts);
        assert!(candidates.iter().all(|candidate| candidate.is_background()));
        candidates.iter().map(|candidate| candidate.key.0.0).collect()
    }

    #[test]
    fn choices_that_never_ran_take_turns() {
        let mut queue = queue(&[0, 1]);
        let parent = preempted(JobId(9), Sequence::fake(TenantId(3), vec![1; 9]));
        (1..4).for_each(|choice| queue.insert(parent.sibling(choice, parent.answer.sibling(choice))));
        assert_eq!(admitted(&mut queue, &|_| 0, &|_| true), [0, 1, 9, 9, 9]);
        assert_eq!(queue.new_requests().count(), 0, "a request that has begun is not new");
    }

    fn in_background(job: u64, has_run: bool) -> Sequence {
        let sequence = Sequence::fake_in(true, TenantId(3), vec![1; 9]);
        match has_run {
            true => preempted(JobId(job), sequence),
            false => Sequence { job: JobId(job), ..sequence },
        }
    }

    #[test]
    fn the_background_comes_last_and_stops_nobody() {
        let mut queue = Queue::default();
        [(7, false), (6, false), (9, true)]
            .into_iter()
            .for_each(|(job, has_run)| queue.insert(in_background(job, has_run)));
        for job in [8, 10] {
            let sequence = Sequence::fake(TenantId(0), vec![1; 9]);
            queue.insert(Sequence { job: JobId(job), ..sequence });
        }
        assert_eq!(queue.oldest_foreground().map(|sequence| sequence.job.0), Some(8));
        assert_eq!(admitted(&mut queue, &|_| 0, &|_| true), [8, 10]);
        assert_eq!(background(&queue), [9, 6], "of those that were preempted first, then the oldest");
    }

    #[test]
    fn the_background_neither_overtakes_nor_is_overtaken() {
        let mut queue = queue(&[0]);
        queue.insert(in_background(1, false));
        for job in 2..30 {
            queue.insert(in_background(job, false));
            let index = queue.waiting.iter().position(|waiting| waiting.sequence.job.0 == job);
            queue.admit(index.expect("it waits"), 0, &[]);
            let sequence = Sequence::fake(TenantId(3), vec![1; 9]);
            queue.insert(Sequence { job: JobId(100 + job), ..sequence });
            let index = queue.waiting.iter().position(|waiting| waiting.sequence.job.0 == 100 + job);
            queue.admit(index.expect("it waits"), 0, &[]);
        }
        assert!(queue.waiting.iter().all(|waiting| (waiting.overtaken, waiting.refused) == ((0, 0), 0)));
        assert_eq!(background(&queue), [1]);
    }

    /// A request that never fits is overtaken a bounded number of times, by its own tenant and by others.
    #[test]
    fn overtaking_is_bounded() {
        for other in [0, 1] {
            let mut queue = queue(&[0]);
            let mut overtakers = 0;
            for job in 1..100 {
                let sequence = Sequence::fake(TenantId(other), vec![1; 9]);
                queue.insert(Sequence { job: JobId(job), ..sequence });
                overtakers += admitted(&mut queue, &|_| 0, &|job| job != 0).len();
            }
            assert_eq!(overtakers, OVERTAKEN_MAX as usize, "by tenant {other}");
            assert_eq!(admitted(&mut queue, &|_| 0, &|_| true)[0], 0);
        }
    }

    /// Among requests without a known prefix the shortest goes first, until enough of them with enough work have.
    #[test]
    fn a_long_one_waits_for_as_much_work_as_twice_its_own() {
        let of = |job, tokens| Sequence { job: JobId(job), ..Sequence::fake(TenantId(0), vec![1; tokens]) };
        for (long, expect) in [(20, OVERTAKEN_MAX as usize), (1_000, PATIENCE * work(1_000) / work(9) + 1)] {
            let mut queue = Queue::default();
            queue.insert(of(0, long));
            let before = (1..100).take_while(|&job| {
                queue.insert(of(job, 9));
                let place = std::cell::Cell::new(true);
                admitted(&mut queue, &|_| 0, &|_| place.replace(false)) == [job]
            });
            assert_eq!(before.count(), expect, "before {long} tokens");
        }
    }

    #[test]
    fn a_flood_of_one_tenant_hides_nobody() {
        let tenants: Vec<u32> = std::iter::repeat_n(0, 100).chain([1]).collect();
        let order = admitted(&mut queue(&tenants), &|_| 0, &|_| true);
        assert_eq!((order.len(), order[1]), (WINDOW / 2 + 1, 100));
    }

    /// Whether a full step with these facts has candidates; panics if a prompt is looked up.
    fn has_candidates(queue: &Queue, now: Duration) -> bool {
        let known = |_: &Sequence| -> Known { panic!("a prompt is looked up while there is no place") };
        queue.has_candidates(&Facts { known: &known, time: &|_| 0.0, loads: 0, now })
    }

    /// Whether there are candidates is what the look-up of all of them would say, for new requests and preempted ones,
    /// and where some or all wait for the disk.
    #[test]
    fn that_there_are_candidates_is_known_without_a_look_up() {
        let waiting_for_the_disk = [0, 1, 2].map(|count| {
            let mut queue = queue(&[0, 1]);
            let until = Duration::from_millis(5);
            queue.fetches_mut().take(count).for_each(|fetch| *fetch = Fetch::without_capacity(until));
            queue
        });
        let mut has_run = Queue::default();
        has_run.insert(preempted(JobId(7), Sequence::fake(TenantId(3), vec![1; 9])));
        let mut in_the_background = Queue::default();
        in_the_background.insert(in_background(8, false));
        let [none, one, all] = waiting_for_the_disk;
        let queues = [Queue::default(), none, one, all, has_run, in_the_background];
        for (queue, expect) in queues.iter().zip([false, true, true, false, true, false]) {
            for (millis, expect) in [(0, expect), (5, queue.oldest_foreground().is_some())] {
                let now = Duration::from_millis(millis);
                let known = |_: &Sequence| Known::cached(0);
                let facts = Facts { known: &known, time: &|_| 0.0, loads: 0, now };
                assert_eq!(queue.candidates(&facts).next(|_| 0.0).is_some(), expect);
                assert_eq!(has_candidates(queue, now), expect);
            }
        }
    }

    #[test]
    fn holds_are_bounded() {
        let mut waiting = Waiting::new(Sequence::fake(TenantId(0), vec![1]));
        for source in 1..=u64::from(HOLDS_MAX) {
            assert!(waiting.hold(Some(SeqId(source))) && waiting.hold(Some(SeqId(source))));
        }
        assert!(!waiting.hold(Some(SeqId(99))), "it has waited for as many as it may");
        assert!(!waiting.hold(None));
    }
}
