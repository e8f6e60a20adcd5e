//! Prompts to be deleted, and what other prompts share of them.
//!
//! ```text
//! mine    [system][question][answer]          is deleted, with everything that continues it
//! others  [system][another]                   [system] remains
//! ```
//!
//! Blocks are compared from the first on, by content. A block that one of the others contains as a whole remains; a
//! continuation of mine that belongs to none of the others is an answer to it.

use crate::ids::{BLOCK_POSITIONS, Token};

/// Prompts to be deleted, and prompts that remain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeletedPrompts {
    mine: Vec<Vec<Token>>,
    others: Vec<Vec<Token>>,
}

/// The state of a walk over blocks, from the first one on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeletedWalk {
    tokens: usize,
    /// Prompts to be deleted that begin with the walked tokens, or are a prefix of them.
    mine: Vec<usize>,
    /// Remaining prompts that begin with the walked tokens.
    others: Vec<usize>,
}

impl DeletedPrompts {
    /// Empty prompts are ignored.
    pub fn new(mine: Vec<Vec<Token>>, others: Vec<Vec<Token>>) -> DeletedPrompts {
        let mine = mine.into_iter().filter(|prompt| !prompt.is_empty()).collect();
        DeletedPrompts { mine, others }
    }

    /// The prompts to be deleted.
    pub fn mine(&self) -> &[Vec<Token>] {
        &self.mine
    }

    /// The walk before the first block.
    pub fn start(&self) -> DeletedWalk {
        DeletedWalk {
            tokens: 0,
            mine: (0..self.mine.len()).collect(),
            others: (0..self.others.len()).collect(),
        }
    }

    /// The walk after a block with these tokens; `None` if no prompt to be deleted continues like this.
    pub fn behind(&self, walk: &DeletedWalk, block: &[Token]) -> Option<DeletedWalk> {
        let agrees = |rest: &[Token]| rest.iter().zip(block).all(|(a, b)| a == b);
        let is_mine = |&index: &usize| agrees(rest(&self.mine[index], walk.tokens));
        let mine: Vec<usize> = walk.mine.iter().copied().filter(is_mine).collect();
        let is_others = |&index: &usize| rest(&self.others[index], walk.tokens).starts_with(block);
        let others = walk.others.iter().copied().filter(is_others).collect();
        (!mine.is_empty()).then(|| DeletedWalk { tokens: walk.tokens + block.len(), mine, others })
    }

    /// Number of whole blocks at the beginning of a prompt to be deleted that remain, because others contain them.
    pub fn remaining_blocks(&self, prompt: &[Token]) -> usize {
        self.others.iter().map(|other| common_blocks(prompt, other)).max().unwrap_or(0)
    }

    /// Returns whether these tokens, from the first on, belong to a prompt to be deleted and to no other.
    pub fn are_gone(&self, tokens: &[Token]) -> bool {
        self.behind(&self.start(), tokens).is_some_and(|walk| walk.is_gone())
    }
}

/// Number of whole blocks with which both prompts begin.
fn common_blocks(a: &[Token], b: &[Token]) -> usize {
    let blocks = a.chunks_exact(BLOCK_POSITIONS).zip(b.chunks_exact(BLOCK_POSITIONS));
    blocks.take_while(|(a, b)| a == b).count()
}

/// The tokens of a prompt after the first `tokens`.
fn rest(prompt: &[Token], tokens: usize) -> &[Token] {
    prompt.get(tokens..).unwrap_or_default()
}

impl DeletedWalk {
    /// Returns whether the last block is to be deleted.
    pub fn is_gone(&self) -> bool {
        self.others.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use kvik_testing::mix;

    use super::*;

    #[test]
    fn what_others_have_stays_and_what_follows_goes() {
        let prompts = DeletedPrompts::new(
            vec![(0..40).collect(), vec![], vec![90; 5]],
            vec![(0..20).collect(), (0..16).chain(200..230).collect()],
        );
        let block = |from: u32| (from..from + 16).collect::<Vec<Token>>();
        let first = prompts.behind(&prompts.start(), &block(0)).unwrap();
        assert!(!first.is_gone(), "others begin so");
        let second = prompts.behind(&first, &block(16)).unwrap();
        assert!(second.is_gone(), "another has a part of it alone");
        assert_eq!(prompts.behind(&first, &block(200)), None, "that is another's");
        let tail: Vec<Token> = (32..40).chain(500..508).collect();
        let third = prompts.behind(&second, &tail).unwrap();
        assert!(third.is_gone(), "what was answered to it");
        assert!(prompts.behind(&third, &block(700)).unwrap().is_gone(), "and what follows that");
        assert_eq!(prompts.behind(&second, &block(33)), None);
        assert!(prompts.are_gone(&[90; 16]) && !prompts.are_gone(&[91; 16]), "of one that is short");
        assert!(prompts.are_gone(&(0..40).collect::<Vec<_>>()) && !prompts.are_gone(&block(0)));
        assert!(!DeletedPrompts::default().are_gone(&[1]));
    }

    /// Random prompts of few tokens and with common beginnings: those that remain end anywhere in those that go.
    #[test]
    fn the_first_block_that_is_gone_follows_those_that_remain() {
        for case in 0..2000 {
            let dice = |index: u64| mix((case << 20) | index);
            let token = |index: u64| (dice(index) % 2) as Token;
            let tokens: Vec<Token> = (0..80).map(token).collect();
            let prompt = |index: u64| {
                let common = &tokens[..(dice(100 + index) % 80) as usize];
                let own = (0..dice(200 + index) % 40).map(|at| token(300 + 50 * index + at));
                common.iter().copied().chain(own).collect::<Vec<Token>>()
            };
            let prompts = DeletedPrompts::new((0..3).map(prompt).collect(), (3..6).map(prompt).collect());
            for mine in prompts.mine() {
                let mut blocks = 1..=mine.len() / BLOCK_POSITIONS;
                let first_gone = blocks.find(|blocks| prompts.are_gone(&mine[..blocks * BLOCK_POSITIONS]));
                let after = prompts.remaining_blocks(mine) + 1;
                let expect = (after <= mine.len() / BLOCK_POSITIONS).then_some(after);
                assert_eq!(first_gone, expect, "{mine:?} of {prompts:?}");
            }
        }
    }
}
