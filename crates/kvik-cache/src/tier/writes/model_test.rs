//! The ends beside a naive twin: a list of everything that was computed, searched from the beginning each time.

use std::time::Duration;

use super::{End, Ends};
use crate::ids::{BLOCK_POSITIONS, NamespaceId, Token};
use crate::tier::tests::Dice;

/// A conversation's turn: its namespace, and the blocks of its tokens by number.
#[derive(Debug, Clone)]
struct Turn {
    namespace: u32,
    blocks: Vec<u8>,
    answer_blocks: usize,
}

/// Up to 40 turns of few kinds, so that many continue or share others.
fn turns(dice: &mut Dice) -> Vec<Turn> {
    (0..1 + dice.below(40)).map(|_| turn(dice)).collect()
}

fn turn(dice: &mut Dice) -> Turn {
    let namespace = dice.below(2) as u32;
    let blocks: Vec<u8> = (0..dice.below(8)).map(|_| dice.below(3) as u8).collect();
    let answer_blocks = (dice.below(3) as usize).min(blocks.len());
    Turn { namespace, blocks, answer_blocks }
}

impl Turn {
    fn end(&self, number: usize) -> End<usize> {
        let tokens: Vec<Token> =
            self.blocks.iter().flat_map(|&block| [Token::from(block); BLOCK_POSITIONS]).collect();
        let prompt_len = tokens.len() - self.answer_blocks * BLOCK_POSITIONS;
        End { namespace: NamespaceId(self.namespace), tokens, prompt_len, more: number }
    }
}

/// Blocks that two turns share.
fn common(one: &Turn, other: &Turn) -> usize {
    if one.namespace != other.namespace {
        return 0;
    }
    one.blocks.iter().zip(&other.blocks).take_while(|(a, b)| a == b).count()
}

/// Whether `later` goes on from the end of `turn`, or answers after it with another last block.
fn continues(later: &Turn, turn: &Turn) -> bool {
    let common = common(later, turn);
    common > 0 && common + 1 >= turn.blocks.len()
}

/// Whether the prompt of `later` is one that `turn` has.
fn repeats(later: &Turn, turn: &Turn) -> bool {
    common(later, turn) >= later.blocks.len() - later.answer_blocks
}

/// Whether `later` asks more after the prompt of `turn`, without its answer.
fn asks_on(later: &Turn, turn: &Turn) -> bool {
    let prompt = |turn: &Turn| turn.blocks.len() - turn.answer_blocks;
    let common = common(later, turn);
    common > 0 && common + 1 >= prompt(turn) && prompt(later) > prompt(turn) + 1
}

#[test]
fn an_end_waits_until_it_goes_on_and_shares_what_others_have() {
    for seed in 1..=300 {
        let (mut ends, mut waiting) = (Ends::default(), Vec::new());
        let turns = turns(&mut Dice(seed));
        for (number, turn) in turns.iter().enumerate() {
            let shares = |&other: &usize| {
                let other = &turns[other];
                let goes_on = continues(turn, other) || asks_on(turn, other);
                if goes_on && !repeats(turn, other) { 0 } else { common(turn, other) }
            };
            let shared = waiting.iter().map(shares).max().unwrap_or(0);
            let found = ends.add(turn.end(number), Duration::from_secs(number as u64));
            assert_eq!(found, shared * BLOCK_POSITIONS, "seed {seed}");
            waiting.retain(|&other| !continues(turn, &turns[other]));
            if !turn.blocks.is_empty() {
                waiting.push(number);
            }
            assert_eq!(ends.check(), Ok(()), "seed {seed}");
        }
        waiting.reverse();
        assert_eq!(numbers(ends.take_all()), waiting, "the latest first, seed {seed}");
        assert_eq!(ends.check(), Ok(()));
    }
}

#[test]
fn the_oldest_leave_once_and_only_as_many_as_must() {
    for seed in 1..=300 {
        let dice = &mut Dice(seed);
        let (blocks, mut ends, mut left) = (dice.below(30) as usize, Ends::default(), Vec::new());
        for (number, turn) in turns(dice).iter().enumerate() {
            let now = Duration::from_secs(number as u64);
            ends.add(turn.end(number), now);
            let before = ends.blocks_waiting();
            left.extend(numbers(ends.leave(blocks, now)));
            assert!(ends.blocks_waiting() <= blocks, "seed {seed}");
            assert!(before > blocks || ends.blocks_waiting() == before, "seed {seed}");
            assert_eq!(ends.check(), Ok(()), "seed {seed}");
        }
        assert!(left.windows(2).all(|pair| pair[0] < pair[1]), "{left:?}, seed {seed}");
        assert!(numbers(ends.take_all()).iter().all(|end| !left.contains(end)), "seed {seed}");
        assert_eq!(ends.check(), Ok(()));
    }
}

fn numbers(ends: Vec<End<usize>>) -> Vec<usize> {
    ends.into_iter().map(|end| end.more).collect()
}

/// A namespace that is gone takes its ends with it, wherever they are in the list.
#[test]
fn ends_are_dropped_by_namespace() {
    let of = |namespace, first| Turn { namespace, blocks: vec![first, 1, 2], answer_blocks: 1 };
    let mut ends = Ends::default();
    for number in 0..6_u8 {
        ends.add(of(u32::from(number % 2), number).end(number.into()), Duration::from_secs(number.into()));
    }
    assert_eq!(ends.leave(9, Duration::from_secs(9)), [], "nobody has come back");
    assert_eq!(ends.blocks_waiting(), 9);
    ends.retain(|end| end.namespace != NamespaceId(1));
    assert_eq!(ends.check(), Ok(()));
    assert_eq!(numbers(ends.take_likely(Duration::from_secs(9))), [4]);
}

/// First turns that go on within a second are written when they leave, whatever later turns do.
#[test]
fn what_was_seen_to_come_back_is_written_when_it_leaves() {
    let of =
        |first, blocks: &[u8]| Turn { namespace: 0, blocks: [&[first], blocks].concat(), answer_blocks: 0 };
    let (mut ends, now) = (Ends::default(), Duration::ZERO);
    for number in 0..6_u8 {
        ends.add(of(number, &[1]).end(0), now);
        ends.add(of(number, &[1, 1, 1]).end(0), now);
    }
    ends.add(of(9, &[1]).end(7), now);
    assert_eq!(numbers(ends.leave(0, now)), [7]);
    assert_eq!(ends.check(), Ok(()));
}
