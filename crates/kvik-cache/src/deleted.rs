//! Prompts of which nothing is to be known any more, and what of them others share.
//!
//! ```text
//! mine    [system][question][answer]          everything of it goes, and what was computed behind it
//! others  [system][another]                   [system] stays
//! ```
//!
//! Blocks are compared from the first on, by what they hold. A block that one of the others has as a whole stays; what goes
//! on behind mine, and that nobody says is another's, is what was answered to it.

use crate::ids::Token;

/// Prompts to be forgotten beside those that stay.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeletedPrompts {
    mine: Vec<Vec<Token>>,
    others: Vec<Vec<Token>>,
}

/// Where a walk from the first block on stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeletedWalk {
    tokens: usize,
    /// Those that begin with what was walked, or with which it begins.
    mine: Vec<usize>,
    /// Those that begin with what was walked.
    others: Vec<usize>,
}

impl DeletedPrompts {
    /// Empty prompts say nothing.
    pub fn new(mine: Vec<Vec<Token>>, others: Vec<Vec<Token>>) -> DeletedPrompts {
        let mine = mine.into_iter().filter(|prompt| !prompt.is_empty()).collect();
        DeletedPrompts { mine, others }
    }

    /// Those that are to be forgotten.
    pub fn mine(&self) -> &[Vec<Token>] {
        &self.mine
    }

    /// Before the first block.
    pub fn start(&self) -> DeletedWalk {
        DeletedWalk {
            tokens: 0,
            mine: (0..self.mine.len()).collect(),
            others: (0..self.others.len()).collect(),
        }
    }

    /// Behind a block with these tokens; `None` where it is of none that is to be forgotten.
    pub fn behind(&self, walk: &DeletedWalk, block: &[Token]) -> Option<DeletedWalk> {
        let agrees = |rest: &[Token]| rest.iter().zip(block).all(|(a, b)| a == b);
        let is_mine = |&index: &usize| agrees(rest(&self.mine[index], walk.tokens));
        let mine: Vec<usize> = walk.mine.iter().copied().filter(is_mine).collect();
        let is_others = |&index: &usize| rest(&self.others[index], walk.tokens).starts_with(block);
        let others = walk.others.iter().copied().filter(is_others).collect();
        (!mine.is_empty()).then(|| DeletedWalk { tokens: walk.tokens + block.len(), mine, others })
    }

    /// Whether these tokens, from the first on, are of a prompt that is to be forgotten and of no other.
    pub fn are_gone(&self, tokens: &[Token]) -> bool {
        self.behind(&self.start(), tokens).is_some_and(|walk| walk.is_gone())
    }
}

/// The tokens of a prompt behind so many.
fn rest(prompt: &[Token], tokens: usize) -> &[Token] {
    prompt.get(tokens..).unwrap_or_default()
}

impl DeletedWalk {
    /// Whether the last block is to be forgotten.
    pub fn is_gone(&self) -> bool {
        self.others.is_empty()
    }
}

#[cfg(test)]
mod tests {
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
}
