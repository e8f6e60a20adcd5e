//! GBNF, the grammars of llama.cpp, written as grammars in Lark that llguidance reads.
//!
//! GBNF derives characters; llguidance first cuts the text into lexemes, each as long as possible. So a part of a
//! grammar may be a lexeme only where the longest match is always the right one. `regular` finds the rules that are
//! regular, `productions` cuts the others into lexemes, `overlap` finds those that could be cut in the wrong place,
//! and these are cut into smaller ones, down to single characters. A grammar without real recursion is one lexeme.

mod chars;
mod endless;
mod expression;
mod overlap;
mod parse;
mod productions;
mod regular;
mod steps;
#[cfg(test)]
mod tests;
mod write;

use chars::CharSet;
use overlap::Overlap;
use productions::{Cut, lower};
use steps::{STEPS_MAX, Steps};

/// Times that lexemes are cut before all are cut into characters.
const ROUNDS_MAX: usize = 12;

/// Why a grammar is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GbnfError {
    /// The text is no grammar.
    #[error("line {line}, column {column}: {message}")]
    Syntax {
        /// Line of the text, from 1.
        line: usize,
        /// Character of the line, from 1.
        column: usize,
        /// What is wrong there.
        message: String,
    },
    /// It exceeds a limit.
    #[error("it has {count} {what} and the limit is {max}")]
    TooLarge {
        /// What is counted.
        what: &'static str,
        /// How many there are.
        count: usize,
        /// How many there may be.
        max: usize,
    },
    /// No rule says what the whole answer is.
    #[error("it has no rule `root`, which is what the whole answer follows")]
    NoRoot,
    /// Every way through `root` leads to a rule again that leads to itself.
    #[error(
        "no text is a whole answer: every way through `root` goes on without end; give a rule a way that does not refer to a rule"
    )]
    NeverEnds,
}

/// The grammar in Lark that accepts what `gbnf` accepts.
pub fn to_lark(gbnf: &str) -> Result<String, GbnfError> {
    to_lark_within(gbnf, &Steps::at_most(STEPS_MAX))
}

fn to_lark_within(gbnf: &str, steps: &Steps) -> Result<String, GbnfError> {
    let grammar = endless::without_endless(parse::parse(gbnf)?, steps)?;
    let rules = regular::Rules::of(grammar, steps)?;
    let mut cut = Cut::default();
    let mut lowered = lower(&rules, &cut, steps)?;
    if rules.is_regular(&Term::Rule(regular::Rules::ROOT)) {
        // Nothing follows its one lexeme.
        return Ok(write::grammar(&rules, &lowered));
    }
    for _ in 0..ROUNDS_MAX {
        match overlap::find(&rules, &lowered, steps)? {
            Overlap::Nothing => return Ok(write::grammar(&rules, &lowered)),
            Overlap::Lexemes(wrong) => cut.add(wrong),
            Overlap::Unknown => break,
        }
        lowered = lower(&rules, &cut, steps)?;
    }
    Ok(write::grammar(&rules, &lower(&rules, &Cut::Everything, steps)?))
}

/// A part of a rule.
#[derive(Debug, Clone, PartialEq)]
enum Term {
    /// These characters; there may be none.
    Text(String),
    /// One of these characters.
    Class(CharSet),
    /// What a rule stands for.
    Rule(usize),
    /// A token of the vocabulary, as it is written.
    Token(String),
    /// One after the other.
    Sequence(Vec<Term>),
    /// One of these.
    Choice(Vec<Term>),
    /// So many times, at least and at most.
    Repeat(Box<Term>, u32, Option<u32>),
}

impl Term {
    /// The terms of which it is made.
    fn parts(&self) -> &[Term] {
        match self {
            Term::Sequence(terms) | Term::Choice(terms) => terms,
            Term::Repeat(term, ..) => std::slice::from_ref(term),
            Term::Text(_) | Term::Class(_) | Term::Rule(_) | Term::Token(_) => &[],
        }
    }

    /// Terms in it, itself among them.
    fn size(&self) -> usize {
        1 + self.parts().iter().map(Term::size).sum::<usize>()
    }

    /// Whether some term in it, itself among them, is such a one.
    fn any(&self, is_such: &dyn Fn(&Term) -> bool) -> bool {
        is_such(self) || self.parts().iter().any(|part| part.any(is_such))
    }
}
