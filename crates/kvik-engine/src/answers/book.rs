//! Which tokens followed which bytes, by owner: bounded, and fair between owners.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use kvik_cache::Token;

use super::splice::Continuation;
use crate::api::{AnswerKey, AnswerOwner, UsedAnswer};
use crate::store::answer_log::{LogNews, LoggedAnswer};

/// Bytes of all answers.
const BYTES_MAX: usize = 32 << 20;
/// Places of one owner: a prompt is compared at no more.
const PLACES_MAX: usize = 4096;
/// Answers behind the same bytes.
const AT_PLACE_MAX: usize = 4;
/// Bytes of a place beside its tokens.
const PLACE_BYTES: usize = 160;
/// How often answers are looked at that are to expire.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// The answers of all owners.
#[derive(Debug, Default)]
pub(super) struct AnswerBook {
    owners: HashMap<AnswerOwner, Owned>,
    bytes: usize,
    uses: u64,
    /// Owners whose answers are not written to disk.
    in_memory: HashSet<AnswerOwner>,
    /// When to look for answers that have expired, if any will.
    next_look: Option<Instant>,
}

/// The answers of one owner.
#[derive(Debug, Default)]
struct Owned {
    places: BTreeMap<AnswerKey, AtPlace>,
    /// The places by their last use.
    by_use: BTreeMap<u64, AnswerKey>,
    bytes: usize,
}

/// The answers behind the same bytes, the latest last.
#[derive(Debug)]
struct AtPlace {
    answers: Vec<KnownAnswer>,
    used: u64,
    /// Read from the log that another process writes: gone when it is no longer in it.
    is_read: bool,
}

#[derive(Debug)]
struct KnownAnswer {
    tokens: Arc<[Token]>,
    life: AnswerLife,
}

/// How long an answer lasts, as its blocks do: after its last use for the longest time that any of its users asks.
#[derive(Debug, Clone, Copy)]
pub(super) struct AnswerLife {
    /// For ever, if there is none.
    ttl: Option<Duration>,
    used_at: Moment,
}

/// A moment by two clocks. As for blocks, the time counts in which the machine sleeps, which one of them does not see;
/// and a clock that is set back takes no time away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment {
    awake: Instant,
    wall: SystemTime,
}

impl Moment {
    pub(super) fn now() -> Moment {
        Moment { awake: Instant::now(), wall: SystemTime::now() }
    }

    fn since(self, earlier: Moment) -> Duration {
        let awake = self.awake.saturating_duration_since(earlier.awake);
        awake.max(self.wall.duration_since(earlier.wall).unwrap_or_default())
    }
}

impl AnswerLife {
    /// A use now, by a request with this time to live.
    pub(super) fn used_now(ttl: Option<Duration>) -> AnswerLife {
        AnswerLife { ttl, used_at: Moment::now() }
    }

    /// The life after one more use.
    fn and(self, use_: AnswerLife) -> AnswerLife {
        let ttl = self.ttl.zip(use_.ttl).map(|(kept, asked)| kept.max(asked));
        AnswerLife { ttl, used_at: self.used_at.max(use_.used_at) }
    }

    fn has_ended(self, now: Moment) -> bool {
        self.ttl.is_some_and(|ttl| now.since(self.used_at) >= ttl)
    }
}

impl AtPlace {
    fn bytes(&self) -> usize {
        let answers = self.answers.iter();
        PLACE_BYTES
            + answers.map(|known| size_of::<KnownAnswer>() + size_of_val(&*known.tokens)).sum::<usize>()
    }

    fn expires(&self) -> bool {
        self.answers.iter().any(|known| known.life.ttl.is_some())
    }

    /// Keeps such answers only; `None` if there are none.
    fn with(mut self, keeps: impl FnMut(&KnownAnswer) -> bool) -> Option<AtPlace> {
        self.answers.retain(keeps);
        (!self.answers.is_empty()).then_some(self)
    }
}

impl AnswerBook {
    /// Adds an answer with this life; returns whether it is to be written to disk.
    pub(super) fn add(&mut self, answer: &LoggedAnswer, life: AnswerLife) -> bool {
        let is_new = self.insert(answer, life, false);
        is_new && life.ttl.is_none() && !self.in_memory.contains(&answer.owner)
    }

    /// Takes what the log has that another process, or an earlier one, has written.
    pub(super) fn take_news(&mut self, news: Option<LogNews>) {
        let answers = match news {
            None => return,
            Some(LogNews::Added(answers)) => answers,
            Some(LogNews::Replaced(answers)) => {
                self.keep_if(|at, _| !at.is_read);
                answers
            }
        };
        for answer in &answers {
            self.insert(answer, AnswerLife::used_now(None), true);
        }
    }

    /// Returns whether it is new, or was to expire before.
    fn insert(&mut self, answer: &LoggedAnswer, life: AnswerLife, is_read: bool) -> bool {
        let LoggedAnswer { owner, place, tokens } = answer;
        self.uses += 1;
        let there = self.take(owner, place);
        let there = there.and_then(|at| at.with(|known| !known.life.has_ended(life.used_at)));
        let mut at = there.unwrap_or(AtPlace { answers: Vec::new(), used: 0, is_read });
        let known = at.answers.iter().position(|known| known.tokens == *tokens);
        let known = known.map(|index| at.answers.remove(index).life);
        let life = known.map_or(life, |known| known.and(life));
        at.answers.push(KnownAnswer { tokens: tokens.clone(), life });
        let surplus = at.answers.len().saturating_sub(AT_PLACE_MAX);
        at.answers.drain(..surplus);
        at.used = self.uses;
        // An answer of this process is its own.
        at.is_read &= is_read;
        self.put(*owner, *place, at);
        self.make_room(owner);
        known.is_none_or(|known| known.ttl.is_some())
    }

    /// Bytes of all answers.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The lengths of the places of an owner, ascending.
    pub(super) fn lengths(&self, owner: &AnswerOwner) -> Vec<u32> {
        let places = self.owners.get(owner).into_iter().flat_map(|owned| owned.places.keys());
        let mut lengths: Vec<u32> = places.map(|place| place.bytes).collect();
        lengths.dedup();
        lengths
    }

    /// The answers behind these places, which are ascending, that have not expired. Changes nothing: whoever computes with
    /// them [uses](AnswerBook::use_at) them.
    pub(super) fn at(&self, owner: &AnswerOwner, places: &[AnswerKey], now: Moment) -> Vec<Continuation> {
        let Some(owned) = self.owners.get(owner) else { return Vec::new() };
        let mut found = Vec::new();
        for place in places {
            let Some(at) = owned.places.get(place) else { continue };
            let known = at.answers.iter().filter(|known| !known.life.has_ended(now));
            found.extend(
                known.map(|known| Continuation { at: place.bytes as usize, tokens: known.tokens.clone() }),
            );
        }
        found
    }

    /// Counts a use of these answers, and of no others behind the same bytes. What is in use does not expire, however long
    /// that takes.
    pub(super) fn use_at(&mut self, owner: &AnswerOwner, used: &[UsedAnswer], life: AnswerLife) {
        for UsedAnswer { place, tokens } in used {
            let Some(mut at) = self.take(owner, place) else { continue };
            self.uses += 1;
            at.used = self.uses;
            let known = at.answers.iter_mut().filter(|known| known.tokens == *tokens);
            known.for_each(|known| known.life = known.life.and(life));
            self.put(*owner, *place, at);
        }
    }

    /// Drops the answers behind these places.
    pub(super) fn drop_at(&mut self, owner: &AnswerOwner, places: impl IntoIterator<Item = AnswerKey>) {
        places.into_iter().for_each(|place| drop(self.take(owner, &place)));
    }

    /// Drops the answers of one owner, or of all.
    pub(super) fn clear(&mut self, owner: Option<&AnswerOwner>) {
        match owner {
            None => (self.bytes, self.owners) = (0, HashMap::new()),
            Some(owner) => self.bytes -= self.owners.remove(owner).map_or(0, |owned| owned.bytes),
        }
    }

    /// When to call [`drop_ended`](AnswerBook::drop_ended); `None` while nothing is to expire.
    pub(super) fn next_look(&self) -> Option<Instant> {
        self.next_look
    }

    /// Drops the answers that have expired, if it is time to look for them.
    pub(super) fn drop_ended(&mut self, now: Moment) {
        if self.next_look.is_none_or(|look| now.awake < look) {
            return;
        }
        self.keep_if(|_, known| !known.life.has_ended(now));
        let mut left = self.owners.values().flat_map(|owned| owned.places.values());
        self.next_look = left.any(AtPlace::expires).then(|| now.awake + LOOK_EVERY);
    }

    /// Keeps such answers only.
    fn keep_if(&mut self, keeps: impl Fn(&AtPlace, &KnownAnswer) -> bool) {
        let is_changed = |at: &AtPlace| at.answers.iter().any(|known| !keeps(at, known));
        let places = |(owner, owned): (&AnswerOwner, &Owned)| {
            let changed = owned.places.iter().filter(|(_, at)| is_changed(at));
            changed.map(|(place, _)| (*owner, *place)).collect::<Vec<_>>()
        };
        let changed: Vec<_> = self.owners.iter().flat_map(places).collect();
        for (owner, place) in changed {
            let Some(mut at) = self.take(&owner, &place) else { continue };
            let answers = std::mem::take(&mut at.answers);
            at.answers = answers.into_iter().filter(|known| keeps(&at, known)).collect();
            if !at.answers.is_empty() {
                self.put(owner, place, at);
            }
        }
    }

    /// Sets the owners whose answers are not written to disk; returns whether one is new among them.
    pub(super) fn keep_in_memory(&mut self, owners: HashSet<AnswerOwner>) -> bool {
        let is_new = !owners.is_subset(&self.in_memory);
        self.in_memory = owners;
        is_new
    }

    /// Whether an answer is known and to be on disk.
    pub(super) fn is_durable(&self, answer: &LoggedAnswer) -> bool {
        let at = self.owners.get(&answer.owner).and_then(|owned| owned.places.get(&answer.place));
        let is_it = |known: &KnownAnswer| known.life.ttl.is_none() && known.tokens == answer.tokens;
        let has = at.is_some_and(|at| at.answers.iter().any(is_it));
        has && !self.in_memory.contains(&answer.owner)
    }

    /// The answers that are to be on disk, the least recently used first.
    pub(super) fn durable(&self) -> Vec<LoggedAnswer> {
        let owners = self.owners.iter().filter(|(owner, _)| !self.in_memory.contains(*owner));
        let places =
            owners.flat_map(|(owner, owned)| owned.places.iter().map(move |(place, at)| (owner, place, at)));
        let mut places: Vec<_> = places.collect();
        places.sort_unstable_by_key(|(_, _, at)| at.used);
        let answers = places.into_iter().flat_map(|(owner, place, at)| {
            let lasting = at.answers.iter().filter(|known| known.life.ttl.is_none());
            lasting.map(|known| LoggedAnswer { owner: *owner, place: *place, tokens: known.tokens.clone() })
        });
        answers.collect()
    }

    fn take(&mut self, owner: &AnswerOwner, place: &AnswerKey) -> Option<AtPlace> {
        let owned = self.owners.get_mut(owner)?;
        let at = owned.places.remove(place)?;
        owned.by_use.remove(&at.used);
        owned.bytes -= at.bytes();
        self.bytes -= at.bytes();
        if owned.places.is_empty() {
            self.owners.remove(owner);
        }
        Some(at)
    }

    fn put(&mut self, owner: AnswerOwner, place: AnswerKey, at: AtPlace) {
        let owned = self.owners.entry(owner).or_default();
        owned.bytes += at.bytes();
        self.bytes += at.bytes();
        owned.by_use.insert(at.used, place);
        let expiring = at.answers.iter().filter(|known| known.life.ttl.is_some());
        if let Some(used_at) = expiring.map(|known| known.life.used_at.awake).min() {
            self.next_look.get_or_insert(used_at + LOOK_EVERY);
        }
        owned.places.insert(place, at);
    }

    /// Drops the least recently used answers: of an owner with too many places, then of the owner that has most.
    fn make_room(&mut self, owner: &AnswerOwner) {
        if self.owners.get(owner).is_some_and(|owned| owned.places.len() > PLACES_MAX) {
            self.drop_oldest(owner);
        }
        while self.bytes > BYTES_MAX {
            let Some((&largest, _)) = self.owners.iter().max_by_key(|(_, owned)| owned.bytes) else { return };
            self.drop_oldest(&largest);
        }
    }

    fn drop_oldest(&mut self, owner: &AnswerOwner) {
        let oldest = self.owners.get(owner).and_then(|owned| owned.by_use.values().next().copied());
        if let Some(place) = oldest {
            self.take(owner, &place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(owner: u8, bytes: u32, tokens: &[Token]) -> LoggedAnswer {
        LoggedAnswer { owner: [owner; 16], place: AnswerKey { bytes, hash: [7; 16] }, tokens: tokens.into() }
    }

    fn lasting(secs: Option<u64>) -> AnswerLife {
        AnswerLife::used_now(secs.map(Duration::from_secs))
    }

    fn minutes(minutes: u64) -> Duration {
        Duration::from_secs(60 * minutes)
    }

    /// So many minutes later, of which the machine was awake for some.
    fn later(began: Moment, awake: u64, shown: u64) -> Moment {
        Moment { awake: began.awake + minutes(awake), wall: began.wall + minutes(shown) }
    }

    fn found(book: &AnswerBook, owner: u8, bytes: u32) -> Vec<Vec<Token>> {
        let places = [AnswerKey { bytes, hash: [7; 16] }];
        let found = book.at(&[owner; 16], &places, Moment::now());
        found.iter().map(|one| one.tokens.to_vec()).collect()
    }

    #[test]
    fn answers_belong_to_their_owner_and_their_place() {
        let mut book = AnswerBook::default();
        assert!(book.add(&answer(1, 5, &[1, 2]), lasting(None)));
        assert!(!book.add(&answer(1, 5, &[1, 2]), lasting(None)), "it is there already");
        assert!(book.add(&answer(1, 5, &[3]), lasting(None)));
        assert_eq!(found(&book, 1, 5), [vec![1, 2], vec![3]]);
        assert!(found(&book, 2, 5).is_empty() && found(&book, 1, 6).is_empty());
        for token in 0..9 {
            book.add(&answer(1, 5, &[token]), lasting(None));
        }
        assert_eq!(found(&book, 1, 5), [[5], [6], [7], [8]]);
        book.drop_at(&[1; 16], [answer(1, 5, &[]).place]);
        assert_eq!((found(&book, 1, 5).len(), book.bytes), (0, 0));
    }

    #[test]
    fn an_owner_with_many_answers_takes_no_room_of_others() {
        let mut book = AnswerBook::default();
        book.add(&answer(1, 5, &[1]), lasting(None));
        let long = vec![0; 1 << 18];
        for at in 0..64 {
            book.add(&answer(2, at, &long), lasting(None));
        }
        assert!(book.bytes <= BYTES_MAX);
        assert_eq!((found(&book, 1, 5).len(), found(&book, 2, 63).len()), (1, 1));
        assert!(found(&book, 2, 0).is_empty());
        for at in 0..2 * PLACES_MAX as u32 {
            book.add(&answer(3, at, &[1]), lasting(None));
        }
        assert_eq!(book.lengths(&[3; 16]).len(), PLACES_MAX);
    }

    #[test]
    fn what_expires_or_stays_in_memory_is_not_written() {
        let mut book = AnswerBook::default();
        assert!(!book.add(&answer(1, 5, &[1]), lasting(Some(0))));
        assert!(found(&book, 1, 5).is_empty(), "it has expired");
        assert!(!book.add(&answer(1, 6, &[1]), lasting(Some(3600))));
        assert_eq!((found(&book, 1, 6).len(), book.durable().len()), (1, 0));
        book.add(&answer(2, 5, &[1]), lasting(None));
        assert!(book.keep_in_memory(HashSet::from([[2; 16], [3; 16]])));
        assert!(!book.add(&answer(3, 5, &[1]), lasting(None)));
        assert!(book.durable().is_empty() && !book.is_durable(&answer(2, 5, &[1])));
        assert_eq!(found(&book, 3, 5).len(), 1);
    }

    #[test]
    fn a_use_restarts_a_life_and_the_longest_one_counts() {
        let (place, began) = (answer(1, 5, &[]).place, Moment::now());
        let it = UsedAnswer { place, tokens: [1].into() };
        let used = |minute: u64, ttl: Option<u64>| AnswerLife {
            ttl: ttl.map(minutes),
            used_at: later(began, minute, minute),
        };
        for (uses, then, expect) in [
            (vec![], 59, true),
            (vec![], 60, false),
            (vec![used(50, Some(1))], 109, true),
            (vec![used(50, Some(1))], 110, false),
            (vec![used(50, Some(90))], 139, true),
            (vec![used(50, None)], 10_000, true),
            (vec![used(100, Some(1))], 159, true),
        ] {
            let mut book = AnswerBook::default();
            book.add(&answer(1, 5, &[1]), used(0, Some(60)));
            for &life in &uses {
                book.use_at(&[1; 16], std::slice::from_ref(&it), life);
            }
            let found = !book.at(&[1; 16], &[place], used(then, None).used_at).is_empty();
            assert_eq!(found, expect, "minute {then}, {uses:?}");
        }
    }

    #[test]
    fn of_answers_to_the_same_prompt_each_has_its_own_life() {
        let (place, began) = (answer(1, 5, &[]).place, Moment::now());
        let life = |minute: u64, ttl: Option<u64>| AnswerLife {
            ttl: ttl.map(minutes),
            used_at: later(began, minute, minute),
        };
        let mut book = AnswerBook::default();
        assert!(!book.add(&answer(1, 5, &[1]), life(0, Some(60))));
        assert!(book.add(&answer(1, 5, &[2]), life(0, None)));
        assert!(!book.add(&answer(1, 5, &[3]), life(0, Some(60))));
        book.use_at(&[1; 16], &[UsedAnswer { place, tokens: [3].into() }], life(50, Some(1)));
        let found = |book: &AnswerBook, minute: u64| -> Vec<Token> {
            let found = book.at(&[1; 16], &[place], later(began, minute, minute));
            found.iter().map(|one| one.tokens[0]).collect()
        };
        assert_eq!([59, 60, 110].map(|minute| found(&book, minute)), [vec![1, 2, 3], vec![2, 3], vec![2]]);
        let lasting = |book: &AnswerBook| book.durable().iter().map(|one| one.tokens[0]).collect::<Vec<_>>();
        assert_eq!(lasting(&book), [2]);
        assert!(!book.is_durable(&answer(1, 5, &[1])) && book.is_durable(&answer(1, 5, &[2])));
        let before = book.bytes;
        book.drop_ended(later(began, 60, 60));
        assert_eq!(found(&book, 0), [2, 3], "the first one is dropped");
        assert!(book.bytes < before && book.next_look().is_some());
        book.drop_ended(later(began, 111, 111));
        assert_eq!((found(&book, 0), book.next_look()), (vec![2], None));
        book.clear(Some(&[1; 16]));
        assert_eq!(book.bytes, 0);
    }

    #[test]
    fn an_answer_expires_while_the_machine_sleeps_and_is_dropped() {
        let (began, mut book) = (Moment::now(), AnswerBook::default());
        let place = answer(1, 5, &[]).place;
        book.add(&answer(1, 6, &[1]), AnswerLife { ttl: None, used_at: began });
        assert_eq!(book.next_look(), None, "nothing is to expire");
        book.add(&answer(1, 5, &[1]), AnswerLife { ttl: Some(minutes(60)), used_at: began });
        for (awake, shown, expect) in [(1, 59, true), (1, 60, false), (59, 0, true), (60, 0, false)] {
            let found = book.at(&[1; 16], &[place], later(began, awake, shown));
            assert_eq!(found.len(), usize::from(expect), "{awake} minutes awake, {shown} by the clock");
        }
        for (awake, shown, lengths, next) in
            [(0, 90, vec![5, 6], Some(1)), (1, 59, vec![5, 6], Some(2)), (2, 60, vec![6], None)]
        {
            book.drop_ended(later(began, awake, shown));
            assert_eq!(book.lengths(&[1; 16]), lengths, "{awake} minutes awake, {shown} by the clock");
            assert_eq!(book.next_look(), next.map(|awake| later(began, awake, 0).awake));
        }
    }

    #[test]
    fn what_was_read_goes_with_its_file() {
        let mut book = AnswerBook::default();
        book.take_news(Some(LogNews::Added(vec![answer(1, 5, &[1]), answer(1, 6, &[1])])));
        book.add(&answer(1, 6, &[2]), lasting(None));
        assert_eq!(found(&book, 1, 5).len(), 1);
        book.take_news(Some(LogNews::Replaced(Vec::new())));
        assert_eq!((found(&book, 1, 5).len(), found(&book, 1, 6).len()), (0, 2));
        book.clear(Some(&[1; 16]));
        assert_eq!((book.lengths(&[1; 16]).len(), book.bytes), (0, 0));
    }
}
