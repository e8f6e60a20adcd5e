//! The tier compared with an obviously correct twin: a list of records, searched from end to end.

use super::*;
use crate::hash::Identity;
use crate::ids::{BLOCK_POSITIONS, Token};
use crate::namespace::Namespaces;

/// A deterministic stream of numbers from a seed.
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

pub(super) fn root(salt: u8) -> Identity {
    let namespaces = Namespaces { model: [0; 32], kv_format: "f16/f16", adapter: None };
    Identity::root(&namespaces.shared([salt; 16]))
}

/// Prompts over few tokens, so that they share prefixes and diverge at every position.
pub(super) fn prompt(dice: &mut Dice) -> Vec<Token> {
    let length = 1 + dice.below(5 * BLOCK_POSITIONS as u64) as usize;
    let calm = dice.below(3) > 0;
    (0..length).map(|_| if calm { 0 } else { Token::from(dice.below(12) == 0) }).collect()
}

/// Time to live of the records that expire.
const TTL_S: u64 = 20;

/// The records of a prompt's blocks.
pub(super) fn records(owner: u64, prompt: &[Token], expires_s: u64) -> Vec<Record> {
    let mut parent = root(owner as u8);
    let blocks = prompt.chunks(BLOCK_POSITIONS).map(|tokens| {
        let identity = parent.child(tokens);
        let tokens = BlockTokens::new(tokens).unwrap();
        let record = Record {
            identity,
            parent,
            owner,
            content_key: 0,
            tokens,
            pinned: false,
            lacks_part: false,
            use_: Use { expires_s, at_s: expires_s.saturating_sub(TTL_S), ..Use::default() },
        };
        parent = identity;
        record
    });
    blocks.collect()
}

/// Matching tokens of a prompt in the records in use: at each step the record with the longest match.
fn naive_find(tier: &Tier, owner: u64, prompt: &[Token], now_s: u64) -> usize {
    let (mut parent, mut known) = (root(owner as u8), 0);
    loop {
        let alive = |record: &&Record| !is_over(record, now_s);
        let next = tier.used().map(|(_, record)| record).filter(|record| record.parent == parent);
        let common = |record: &Record| {
            record.tokens.as_slice().iter().zip(&prompt[known..]).take_while(|(a, b)| a == b).count()
        };
        let best = next.filter(alive).max_by_key(|record| common(record));
        let Some((best, common)) = best.map(|best| (best, common(best))).filter(|&(_, common)| common > 0)
        else {
            return known;
        };
        known += common;
        parent = best.identity;
        if common < BLOCK_POSITIONS {
            return known;
        }
    }
}

/// Returns whether a block counts as absent.
pub(super) fn is_over(record: &Record, now_s: u64) -> bool {
    let expires_s = record.use_.expires_s;
    !record.pinned && expires_s != 0 && expires_s <= now_s
}

#[test]
fn what_is_stored_is_found_whatever_happened_before() {
    for seed in 1..=60 {
        let mut dice = Dice(seed * 0x9e37_79b9);
        let mut tier = Tier::new(3 + dice.below(30) as u32);
        let mut lent: Vec<SlotId> = Vec::new();
        let mut writing: Vec<SlotId> = Vec::new();
        for now_s in 0..300 {
            let owner = dice.below(2);
            let prompt = prompt(&mut dice);
            match dice.below(9) {
                0..=3 => {
                    let expires_s = if dice.below(4) == 0 { now_s + dice.below(50) } else { 0 };
                    for record in records(owner, &prompt, expires_s) {
                        if let Placement::Write(slot) = tier.place(record, &root(owner as u8), now_s) {
                            tier.check().unwrap();
                            writing.push(slot);
                        }
                    }
                    let done = if dice.below(3) == 0 { 0 } else { writing.len() };
                    for slot in writing.drain(..done) {
                        tier.written(slot, dice.below(10) > 0);
                    }
                }
                4 => {
                    let slots = tier.find(&root(owner as u8), &prompt, now_s).slots;
                    tier.pin_for_reading(&slots);
                    lent.extend(slots);
                }
                5 => {
                    let intact = [Some(true), Some(true), Some(false), None][dice.below(4) as usize];
                    for slot in lent.drain(..) {
                        let _ = tier.unpin_after_reading(slot, intact);
                    }
                }
                6 => drop(tier.remove(now_s, |record| record.owner == owner && now_s % 97 == 0)),
                7 if dice.below(2) == 0 => {
                    for record in records(owner, &prompt, 0).iter().rev() {
                        tier.drop_leaf(&record.identity);
                    }
                }
                7 => {
                    let most = dice.below(5) as usize;
                    assert!(tier.sweep(now_s, most).len() <= most);
                }
                _ => {
                    let used: Vec<Identity> = tier.used().map(|(_, record)| record.identity).collect();
                    if !used.is_empty() {
                        let ttl_s = [None, Some(0), Some(30)][dice.below(3) as usize];
                        tier.touch(&used[dice.below(used.len() as u64) as usize], ttl_s, now_s);
                    }
                }
            }
            tier.check().unwrap_or_else(|problem| panic!("seed {seed}, step {now_s}: {problem}"));
            let found = tier.find(&root(owner as u8), &prompt, now_s);
            if lent.is_empty() && writing.is_empty() {
                let expected = naive_find(&tier, owner, &prompt, now_s);
                assert_eq!(found.tokens, expected, "seed {seed}, step {now_s}");
            }
            let held = found.slots.iter().flat_map(|&slot| tier.record(slot).tokens.as_slice());
            assert!(held.zip(&prompt).take(found.tokens).all(|(a, b)| a == b));
        }
    }
}

fn store(tier: &mut Tier, owner: u64, prompt: &[Token]) {
    for record in records(owner, prompt, 0) {
        if let Placement::Write(slot) = tier.place(record, &root(owner as u8), 0) {
            tier.written(slot, true);
        }
    }
}

/// Stores a prompt as a sequence that ends at `now_s` does, with a time to live of `ttl_s`; returns the written
/// slots.
fn leave(tier: &mut Tier, prompt: &[Token], ttl_s: Option<u64>, now_s: u64) -> Vec<SlotId> {
    let mut written = Vec::new();
    let expires_s = ttl_s.map_or(0, |ttl_s| now_s + ttl_s);
    for mut record in records(0, prompt, expires_s) {
        record.use_.at_s = now_s;
        match tier.place(record, &root(0), now_s) {
            Placement::Write(slot) => {
                tier.written(slot, true);
                written.push(slot);
            }
            Placement::Held(_) => drop(tier.keep(&record.identity, ttl_s, now_s)),
            other => panic!("{other:?}"),
        }
        tier.check().unwrap();
    }
    written
}

fn known(tier: &Tier, prompt: &[Token], now_s: u64) -> usize {
    tier.find(&root(0), prompt, now_s).tokens
}

#[test]
fn a_use_begins_the_time_to_live_anew_for_the_whole_prefix() {
    let mut tier = Tier::new(20);
    let prompt = numbered(0, 3);
    assert_eq!(leave(&mut tier, &prompt[..32], Some(60), 100).len(), 2);
    assert_eq!(leave(&mut tier, &prompt[..32], Some(10), 150), [], "it is there");
    assert_eq!(
        known(&tier, &prompt, 209),
        32,
        "the longest time that anybody asked for, from the last use on"
    );
    assert_eq!(known(&tier, &prompt, 210), 0);
    // A request before the expiry continues it, without a time limit.
    assert_eq!(leave(&mut tier, &prompt, None, 200).len(), 1);
    assert_eq!(known(&tier, &prompt, 1_000_000), 48, "with all that it follows");
    assert_eq!(tier.next_expiry_s(), None);
}

#[test]
fn the_end_of_a_sequence_prolongs_what_it_used() {
    let mut tier = Tier::new(20);
    let prompt = numbered(0, 3);
    leave(&mut tier, &prompt[..16], None, 100);
    leave(&mut tier, &prompt, Some(60), 100);
    let end = records(0, &prompt, 0)[2].identity;
    let news = tier.keep_path(&end, Some(5), 140);
    assert_eq!(news.len(), 2, "the first block is for ever as it is");
    assert!(news.iter().all(|(_, use_)| use_.expires_s == 200), "{news:?}");
    assert!(tier.keep_path(&end, None, 150).iter().all(|(_, use_)| use_.expires_s == 0));
    assert_eq!(known(&tier, &prompt, 1_000_000), 48);
}

/// The rest of a prompt is copied after another request has asked for more than the first, whose part is stored.
#[test]
fn a_block_that_outlives_those_before_it_takes_them_along() {
    let mut tier = Tier::new(20);
    let prompt = numbered(0, 4);
    leave(&mut tier, &prompt[..32], Some(60), 100);
    let place = |tier: &mut Tier, index: usize, use_: Use| {
        let record = Record { use_, ..records(0, &prompt, 0)[index] };
        let Placement::Write(slot) = tier.place(record, &root(0), use_.at_s) else { panic!("no room") };
        tier.written(slot, true);
        let news = tier.keep_ancestors(slot, use_.at_s);
        tier.check().unwrap();
        news
    };
    let longer = Use { at_s: 150, expires_s: 750, ..Use::default() };
    let news = place(&mut tier, 2, longer);
    assert_eq!(news.len(), 2);
    assert!(news.iter().all(|(_, use_)| use_.expires_s == 750), "{news:?}");
    let first = tier.slot(&records(0, &prompt, 0)[0].identity);
    assert_eq!(first, news.first().map(|&(slot, _)| slot), "what others follow is stored first");
    assert_eq!(known(&tier, &prompt, 749), 48);
    let news = place(&mut tier, 3, Use { at_s: 200, expires_s: 0, ..Use::default() });
    assert_eq!(news.len(), 3);
    assert_eq!((known(&tier, &prompt, 1_000_000), tier.next_expiry_s()), (64, None));
    // One that lives as long or less changes nothing.
    leave(&mut tier, &numbered(5000, 1), Some(60), 100);
    let short = records(0, &numbered(5000, 2), 0)[1];
    let record = Record { use_: Use { at_s: 110, expires_s: 170, ..Use::default() }, ..short };
    let Placement::Write(slot) = tier.place(record, &root(0), 110) else { panic!("no room") };
    assert_eq!(tier.keep_ancestors(slot, 110), []);
}

#[test]
fn a_tail_that_replaces_a_shorter_one_lives_as_long_from_then_on() {
    let mut tier = Tier::new(4);
    let prompt = numbered(0, 2);
    leave(&mut tier, &prompt[..20], Some(60), 100);
    leave(&mut tier, &prompt[..25], Some(10), 150);
    assert_eq!([209, 210].map(|now_s| known(&tier, &prompt, now_s)), [25, 0]);
    leave(&mut tier, &prompt[..26], None, 200);
    leave(&mut tier, &prompt[..27], Some(10), 205);
    assert_eq!(known(&tier, &prompt, 1_000_000), 27);
}

#[test]
fn what_has_outlived_its_time_is_written_again() {
    let mut tier = Tier::new(3);
    let prompt = numbered(0, 3);
    let first = leave(&mut tier, &prompt[..32], Some(60), 100);
    let mut again = leave(&mut tier, &prompt, None, 200);
    again.sort_unstable();
    assert_eq!(again.len(), 3, "nothing of it counted as held");
    assert!(first.iter().all(|slot| again.contains(slot)), "each in its own place");
    assert_eq!(known(&tier, &prompt, 1_000_000), 48, "and what continues it is found");
}

#[test]
fn what_has_outlived_its_time_is_swept_with_what_follows_it_a_bit_at_a_time() {
    let mut tier = Tier::new(100);
    leave(&mut tier, &numbered(0, 10), Some(60), 100);
    leave(&mut tier, &numbered(5000, 3), None, 100);
    // A file may claim that a block outlives its parent.
    let mut odd = records(0, &numbered(0, 12), 0);
    odd.drain(..10).for_each(drop);
    for record in odd {
        let Placement::Write(slot) = tier.place(record, &root(0), 100) else { panic!() };
        tier.written(slot, true);
    }
    assert_eq!((tier.next_expiry_s(), tier.sweep(159, 100)), (Some(160), vec![]));
    let mut swept = Vec::new();
    for _ in 0..100 {
        let some = tier.sweep(160, 4);
        assert!(some.len() <= 4);
        tier.check().unwrap();
        swept.extend(some);
    }
    assert_eq!((swept.len(), tier.stats().used), (12, 3));
    assert_eq!((tier.stats().totals.expired, tier.next_expiry_s()), (12, None));
    let found = tier.find(&root(0), &numbered(0, 10), 161);
    assert!(found.slots.is_empty() && found.expired > 0, "a miss is still explained");
    assert_eq!(tier.find(&root(0), &numbered(7000, 2), 161).expired, 0);
}

#[test]
fn what_is_pinned_does_not_outlive_its_time() {
    let mut tier = Tier::new(10);
    let prompt = numbered(0, 2);
    leave(&mut tier, &prompt, Some(60), 100);
    for record in records(0, &prompt, 0) {
        assert!(tier.pin(&record.identity, true).is_some());
    }
    assert_eq!((known(&tier, &prompt, 500), tier.sweep(500, 10)), (32, vec![]));
    for record in records(0, &prompt, 0) {
        assert!(tier.pin(&record.identity, false).is_some());
    }
    assert_eq!((known(&tier, &prompt, 500), tier.sweep(500, 10).len()), (0, 2));
}

/// A block whose parent was evicted, or could not be written, could never be found.
#[test]
fn a_block_is_stored_only_behind_what_is_there() {
    let mut tier = Tier::new(10);
    let blocks = records(0, &numbered(0, 3), 0);
    let Placement::Write(first) = tier.place(blocks[0], &root(0), 0) else { panic!() };
    let Placement::Write(second) = tier.place(blocks[1], &root(0), 0) else { panic!() };
    assert!(tier.written(first, false), "what was there before is erased");
    assert!(!tier.written(second, true));
    assert_eq!(tier.place(blocks[0], &root(1), 0), Placement::Unreachable, "another namespace's root");
    assert_eq!(tier.drop_leaf(&blocks[1].identity), Some(second));
    assert_eq!(tier.place(blocks[2], &root(0), 0), Placement::Unreachable);
    assert_eq!(tier.stats().used, 0);
}

fn numbered(first: Token, blocks: usize) -> Vec<Token> {
    (first..).take(blocks * BLOCK_POSITIONS).collect()
}

#[test]
fn the_end_of_what_was_used_longest_ago_goes_first() {
    let mut tier = Tier::new(6);
    store(&mut tier, 0, &numbered(0, 3));
    store(&mut tier, 0, &numbered(1000, 3));
    let last = records(0, &numbered(0, 3), 0)[2].identity;
    assert!(tier.touch(&last, None, 5).is_some());
    store(&mut tier, 0, &numbered(2000, 2));
    assert_eq!(tier.find(&root(0), &numbered(0, 3), 0).tokens, 48, "it was used later");
    assert_eq!(tier.find(&root(0), &numbered(1000, 3), 0).tokens, 16, "its end went");
    assert_eq!(tier.stats().totals.evicted, 2);
}

#[test]
fn a_flood_takes_from_its_own() {
    let mut tier = Tier::new(20);
    store(&mut tier, 1, &numbered(0, 8));
    for flood in 0..50 {
        store(&mut tier, 2, &numbered(10_000 + flood * 1000, 3));
    }
    assert_eq!(tier.find(&root(1), &numbered(0, 8), 0).tokens, 128, "less than half of the tier stays");
    tier.set_share(3, DiskShare { weight: 1.0, slots_max: Some(2) });
    store(&mut tier, 3, &numbered(0, 8));
    assert_eq!(tier.slots_of(3), 2, "a quota holds");
}

#[test]
fn what_is_stored_of_an_owner_that_is_gone_makes_way_first() {
    let mut tier = Tier::new(20);
    store(&mut tier, 0, &numbered(0, 4));
    store(&mut tier, 1, &numbered(1000, 4));
    store(&mut tier, 2, &numbered(2000, 8));
    let share = DiskShare { weight: 0.001, slots_max: None };
    tier.withdraw_shares();
    tier.set_share(1, share);
    // As of another process that still has this tenant.
    store(&mut tier, 3, &numbered(3000, 4));
    let slots = |tier: &Tier| [0, 1, 2, 3].map(|owner| tier.slots_of(owner));
    assert_eq!(slots(&tier), [4, 4, 8, 4]);
    store(&mut tier, 1, &numbered(4000, 12));
    assert_eq!(slots(&tier), [4, 16, 0, 0], "nobody who is there has lost anything");
    tier.set_share(2, share);
    store(&mut tier, 2, &numbered(5000, 4));
    assert_eq!(slots(&tier), [4, 12, 4, 0], "it has come back");
    tier.check().unwrap();
}

#[test]
fn a_share_that_was_lowered_is_kept_a_few_slots_at_a_time() {
    let mut tier = Tier::new(20);
    store(&mut tier, 1, &numbered(0, 8));
    store(&mut tier, 2, &numbered(0, 4));
    let lower = |tier: &mut Tier, slots| {
        tier.set_share(1, DiskShare { weight: 1.0, slots_max: Some(slots) });
    };
    assert!(!tier.exceeds_share() && tier.keep_shares(20).is_empty(), "there is no limit");
    lower(&mut tier, 3);
    assert!(tier.exceeds_share());
    for expected in [4, 1, 0] {
        assert_eq!(tier.keep_shares(4).len(), expected);
        tier.check().unwrap();
    }
    assert_eq!((tier.slots_of(1), tier.slots_of(2), tier.exceeds_share()), (3, 4, false));
    assert_eq!(tier.find(&root(1), &numbered(0, 8), 0).tokens, 48, "its beginning stays");
    assert!(tier.pin(&records(1, &numbered(0, 3), 0)[2].identity, true).is_some());
    lower(&mut tier, 1);
    assert!(!tier.exceeds_share() && tier.keep_shares(4).is_empty(), "nothing of it can be dropped");
    assert!(tier.pin(&records(1, &numbered(0, 3), 0)[2].identity, false).is_some());
    assert_eq!((tier.keep_shares(4).len(), tier.slots_of(1)), (2, 1));
}

/// Each of these ends, or begins anew, the whole of a long prefix, from its beginning on.
#[test]
fn a_long_prefix_is_visited_a_few_times_however_it_goes() {
    type Way = (&'static str, fn(&mut Tier));
    const BLOCKS: usize = 4000;
    let ways: [Way; 5] = [
        ("swept", |tier| while !tier.sweep(160, 64).is_empty() {}),
        ("removed", |tier| assert_eq!(tier.remove(100, |_| true).len(), BLOCKS)),
        ("computed again", |tier| {
            for record in records(0, &numbered(0, BLOCKS), 0) {
                let Placement::Write(slot) = tier.place(record, &root(0), 160) else { panic!("it expired") };
                tier.written(slot, true);
            }
        }),
        ("observed as it is", |tier| {
            let seen: Vec<Observed> =
                tier.used().map(|(slot, &record)| Observed { slot, record: Some(record) }).collect();
            assert!(tier.observe(seen).is_empty());
        }),
        ("moved, the end first", |tier| {
            let mut seen: Vec<(SlotId, Record)> = tier.used().map(|(slot, &record)| (slot, record)).collect();
            seen.reverse();
            let empty = |&(slot, _): &(SlotId, Record)| Observed { slot, record: None };
            assert!(tier.observe(seen.iter().map(empty)).is_empty());
            let moved = seen
                .iter()
                .zip(0..)
                .map(|(&(_, record), slot)| Observed { slot: SlotId(slot), record: Some(record) });
            assert!(tier.observe(moved).is_empty());
            assert_eq!(known(tier, &numbered(0, BLOCKS), 100), BLOCKS * BLOCK_POSITIONS);
        }),
    ];
    for (way, go) in ways {
        let mut tier = Tier::new(BLOCKS as u32);
        tier.index_followers();
        for record in records(0, &numbered(0, BLOCKS), 160) {
            let Placement::Write(slot) = tier.place(record, &root(0), 100) else { panic!("there is room") };
            tier.written(slot, true);
        }
        tier.visits = 0;
        go(&mut tier);
        assert!(tier.visits <= 4 * BLOCKS, "{way}: {} visits", tier.visits);
        tier.check().unwrap();
    }
}

#[test]
fn a_longer_tail_takes_the_place_of_a_shorter_one() {
    let mut tier = Tier::new(4);
    let prompt = numbered(0, 2);
    store(&mut tier, 0, &prompt[..20]);
    store(&mut tier, 0, &prompt[..25]);
    assert_eq!(tier.stats().used, 2);
    store(&mut tier, 0, &prompt[..18]);
    assert_eq!(tier.stats().used, 2, "a shorter one is held by the longer one");
    assert_eq!(tier.find(&root(0), &prompt, 0).tokens, 25);
}

#[test]
fn the_warmest_come_whole_and_within_the_budget() {
    let mut tier = Tier::new(16);
    for (first, uses) in [(0, 1), (1000, 3), (2000, 2)] {
        let prompt = numbered(first, 4);
        store(&mut tier, 0, &prompt);
        let end = records(0, &prompt, 0)[3].identity;
        (0..uses).for_each(|_| assert!(tier.touch(&end, None, 100).is_some()));
    }
    let firsts = |tier: &Tier, blocks| -> Vec<Token> {
        tier.warmest(blocks, 100).iter().map(|chain| chain.tokens[0]).collect()
    };
    assert_eq!(firsts(&tier, 16), [1000, 2000, 0]);
    assert_eq!(firsts(&tier, 9), [1000, 2000]);
    let expected = |tier: &Tier, now_s| tier.warmest(4, now_s)[0].expected_uses;
    let (now, a_day_later) = (expected(&tier, 100), expected(&tier, 100 + 24 * 3600));
    assert!(now > 1.0 && (a_day_later / now - 0.5).abs() < 1e-3, "{now} and {a_day_later}");
    let pinned = records(0, &numbered(0, 4), 0)[3].identity;
    assert!(tier.pin(&pinned, true).is_some());
    assert_eq!(firsts(&tier, 9), [0, 1000]);
}

#[test]
fn records_from_a_file_may_be_anything() {
    let mut cycle = records(0, &numbered(0, 2), 0);
    cycle[0].parent = cycle[1].identity;
    for record in &mut cycle {
        record.use_ = Use { stamp: u64::MAX, heat: f32::NAN, at_s: u64::MAX, expires_s: 7 };
    }
    let slots = [SlotId(0), SlotId(1), SlotId(1), SlotId(900), SlotId(2)];
    let all = [cycle[0], cycle[1], cycle[1], cycle[0], cycle[0]];
    let (mut tier, surplus) = Tier::with(4, slots.into_iter().zip(all));
    assert_eq!(surplus, [SlotId(1), SlotId(900), SlotId(2)]);
    tier.check().unwrap();
    assert!(tier.warmest(10, 0).is_empty(), "a prefix without a first block is none");
    store(&mut tier, 0, &numbered(500, 2));
    tier.check().unwrap();
}
