//! Which tokens followed which bytes, by owner: bounded, and fair between owners.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use kvik_cache::Token;

use super::splice::Continuation;
use crate::api::{AnswerKey, AnswerOwner};
use crate::store::answer_log::{LogNews, LoggedAnswer};

/// Bytes of all answers.
const BYTES_MAX: usize = 32 << 20;
/// Places of one owner: a prompt is compared at no more.
const PLACES_MAX: usize = 4096;
/// Answers behind the same bytes.
const AT_PLACE_MAX: usize = 4;
/// Bytes of a place beside its tokens.
const PLACE_BYTES: usize = 160;

/// The answers of all owners.
#[derive(Debug, Default)]
pub(super) struct AnswerBook {
    owners: HashMap<AnswerOwner, Owned>,
    bytes: usize,
    uses: u64,
    /// Owners whose answers are not written to disk.
    in_memory: HashSet<AnswerOwner>,
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
    answers: Vec<Arc<[Token]>>,
    used: u64,
    until: Option<Instant>,
    /// Read from the log that another process writes: gone when it is no longer in it.
    is_read: bool,
}

impl AtPlace {
    fn bytes(&self) -> usize {
        PLACE_BYTES + self.answers.iter().map(|answer| size_of_val(&**answer)).sum::<usize>()
    }
}

impl AnswerBook {
    /// Adds an answer, which lasts `until` then; returns whether it is to be written to disk.
    pub(super) fn add(&mut self, answer: &LoggedAnswer, until: Option<Instant>) -> bool {
        let is_new = self.insert(answer, until, false);
        is_new && until.is_none() && !self.in_memory.contains(&answer.owner)
    }

    /// Takes what the log has that another process, or an earlier one, has written.
    pub(super) fn take_news(&mut self, news: Option<LogNews>) {
        let answers = match news {
            None => return,
            Some(LogNews::Added(answers)) => answers,
            Some(LogNews::Replaced(answers)) => {
                self.drop_read();
                answers
            }
        };
        for answer in &answers {
            self.insert(answer, None, true);
        }
    }

    fn insert(&mut self, answer: &LoggedAnswer, until: Option<Instant>, is_read: bool) -> bool {
        let LoggedAnswer { owner, place, tokens } = answer;
        self.uses += 1;
        let mut at =
            self.take(owner, place).unwrap_or(AtPlace { answers: Vec::new(), used: 0, until, is_read });
        let known = at.answers.iter().position(|known| known == tokens);
        if let Some(index) = known {
            at.answers.remove(index);
        }
        at.answers.push(tokens.clone());
        let surplus = at.answers.len().saturating_sub(AT_PLACE_MAX);
        at.answers.drain(..surplus);
        at.used = self.uses;
        // The longest life counts, and an answer of this process is its own.
        let lasts = at.until.is_none() || until.is_none();
        at.until = if lasts { None } else { at.until.max(until) };
        at.is_read &= is_read;
        self.put(*owner, *place, at);
        self.make_room(owner);
        known.is_none()
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

    /// The answers behind these places, which are ascending; they count as used.
    pub(super) fn at(
        &mut self,
        owner: &AnswerOwner,
        places: &[AnswerKey],
        now: Instant,
    ) -> Vec<Continuation> {
        let mut found = Vec::new();
        for place in places {
            let Some(mut at) = self.take(owner, place) else { continue };
            if at.until.is_some_and(|until| until <= now) {
                continue;
            }
            self.uses += 1;
            at.used = self.uses;
            let one =
                |tokens: &Arc<[Token]>| Continuation { at: place.bytes as usize, tokens: tokens.clone() };
            found.extend(at.answers.iter().map(one));
            self.put(*owner, *place, at);
        }
        found
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

    /// Drops what was read from a log that has been replaced.
    fn drop_read(&mut self) {
        let places = |(owner, owned): (&AnswerOwner, &Owned)| {
            let read = owned.places.iter().filter(|(_, at)| at.is_read);
            read.map(|(place, _)| (*owner, *place)).collect::<Vec<_>>()
        };
        let read: Vec<_> = self.owners.iter().flat_map(places).collect();
        read.iter().for_each(|(owner, place)| drop(self.take(owner, place)));
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
        let has = at.is_some_and(|at| at.until.is_none() && at.answers.contains(&answer.tokens));
        has && !self.in_memory.contains(&answer.owner)
    }

    /// The answers that are to be on disk, the least recently used first.
    pub(super) fn durable(&self) -> Vec<LoggedAnswer> {
        let owners = self.owners.iter().filter(|(owner, _)| !self.in_memory.contains(*owner));
        let places =
            owners.flat_map(|(owner, owned)| owned.places.iter().map(move |(place, at)| (owner, place, at)));
        let mut places: Vec<_> = places.filter(|(_, _, at)| at.until.is_none()).collect();
        places.sort_unstable_by_key(|(_, _, at)| at.used);
        let answers = places.into_iter().flat_map(|(owner, place, at)| {
            let one =
                |tokens: &Arc<[Token]>| LoggedAnswer { owner: *owner, place: *place, tokens: tokens.clone() };
            at.answers.iter().map(one)
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
    use std::time::Duration;

    use super::*;

    fn answer(owner: u8, bytes: u32, tokens: &[Token]) -> LoggedAnswer {
        LoggedAnswer { owner: [owner; 16], place: AnswerKey { bytes, hash: [7; 16] }, tokens: tokens.into() }
    }

    fn found(book: &mut AnswerBook, owner: u8, bytes: u32) -> Vec<Vec<Token>> {
        let places = [AnswerKey { bytes, hash: [7; 16] }];
        let found = book.at(&[owner; 16], &places, Instant::now());
        found.iter().map(|one| one.tokens.to_vec()).collect()
    }

    #[test]
    fn answers_belong_to_their_owner_and_their_place() {
        let mut book = AnswerBook::default();
        assert!(book.add(&answer(1, 5, &[1, 2]), None));
        assert!(!book.add(&answer(1, 5, &[1, 2]), None), "it is there already");
        assert!(book.add(&answer(1, 5, &[3]), None));
        assert_eq!(found(&mut book, 1, 5), [vec![1, 2], vec![3]]);
        assert!(found(&mut book, 2, 5).is_empty() && found(&mut book, 1, 6).is_empty());
        for token in 0..9 {
            book.add(&answer(1, 5, &[token]), None);
        }
        assert_eq!(found(&mut book, 1, 5), [[5], [6], [7], [8]]);
        book.drop_at(&[1; 16], [answer(1, 5, &[]).place]);
        assert_eq!((found(&mut book, 1, 5).len(), book.bytes), (0, 0));
    }

    #[test]
    fn an_owner_with_many_answers_takes_no_room_of_others() {
        let mut book = AnswerBook::default();
        book.add(&answer(1, 5, &[1]), None);
        let long = vec![0; 1 << 18];
        for at in 0..64 {
            book.add(&answer(2, at, &long), None);
        }
        assert!(book.bytes <= BYTES_MAX);
        assert_eq!((found(&mut book, 1, 5).len(), found(&mut book, 2, 63).len()), (1, 1));
        assert!(found(&mut book, 2, 0).is_empty());
        for at in 0..2 * PLACES_MAX as u32 {
            book.add(&answer(3, at, &[1]), None);
        }
        assert_eq!(book.lengths(&[3; 16]).len(), PLACES_MAX);
    }

    #[test]
    fn what_expires_or_stays_in_memory_is_not_written() {
        let mut book = AnswerBook::default();
        let now = Instant::now();
        assert!(!book.add(&answer(1, 5, &[1]), Some(now)));
        assert!(found(&mut book, 1, 5).is_empty(), "it has expired");
        assert!(!book.add(&answer(1, 6, &[1]), Some(now + Duration::from_secs(3600))));
        assert_eq!((found(&mut book, 1, 6).len(), book.durable().len()), (1, 0));
        book.add(&answer(2, 5, &[1]), None);
        assert!(book.keep_in_memory(HashSet::from([[2; 16], [3; 16]])));
        assert!(!book.add(&answer(3, 5, &[1]), None));
        assert!(book.durable().is_empty() && !book.is_durable(&answer(2, 5, &[1])));
        assert_eq!(found(&mut book, 3, 5).len(), 1);
    }

    #[test]
    fn what_was_read_goes_with_its_file() {
        let mut book = AnswerBook::default();
        book.take_news(Some(LogNews::Added(vec![answer(1, 5, &[1]), answer(1, 6, &[1])])));
        book.add(&answer(1, 6, &[2]), None);
        assert_eq!(found(&mut book, 1, 5).len(), 1);
        book.take_news(Some(LogNews::Replaced(Vec::new())));
        assert_eq!((found(&mut book, 1, 5).len(), found(&mut book, 1, 6).len()), (0, 2));
        book.clear(Some(&[1; 16]));
        assert_eq!((book.lengths(&[1; 16]).len(), book.bytes), (0, 0));
    }
}
