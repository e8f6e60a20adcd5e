//! Translation of GBNF, the grammars of llama.cpp, to Lark grammars for llguidance.
//!
//! GBNF derives characters; llguidance first splits the text into lexemes, each as long as possible. So a part of
//! a grammar may be a lexeme only if the longest match is always the right one. `regular` finds the rules that
//! are regular, `productions` splits the others into lexemes, `overlap` finds the lexemes whose longest match may
//! be wrong, and these are split into smaller ones, down to single characters. A grammar without real recursion
//! is one lexeme.

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

/// Maximum rounds of splitting lexemes, before all are split into characters.
const ROUNDS_MAX: usize = 12;

/// The reason why a grammar is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GbnfError {
    /// The text is not a grammar.
    #[error("line {line}, column {column}: {message}")]
    Syntax {
        /// Line of the text, from 1.
        line: usize,
        /// Character of the line, from 1.
        column: usize,
        /// The error.
        message: String,
    },
    /// The grammar exceeds a limit.
    #[error("it has {count} {what} and the limit is {max}; write fewer or shorter rules")]
    TooLarge {
        /// The counted things.
        what: &'static str,
        /// Their number.
        count: usize,
        /// Their maximum number.
        max: usize,
    },
    /// The grammar lacks the rule of the whole answer.
    #[error("it has no rule `root`; give this name to the rule that the whole answer follows")]
    NoRoot,
    /// Every alternative of `root` recurses without end.
    #[error(
        "no text is a whole answer: every way through `root` goes on without end; give a rule a way that does not refer to a rule"
    )]
    NeverEnds,
}

/// Translates `gbnf` to an equivalent Lark grammar.
pub fn to_lark(gbnf: &str) -> Result<String, GbnfError> {
    to_lark_within(gbnf, &Steps::at_most(STEPS_MAX))
}

fn to_lark_within(gbnf: &str, steps: &Steps) -> Result<String, GbnfError> {
    let grammar = endless::without_endless(parse::parse(gbnf)?, steps)?;
    let rules = regular::Rules::of(grammar, steps)?;
    let mut cut = Cut::default();
    let mut lowered = lower(&rules, &cut, steps)?;
    if rules.is_regular(&Term::Rule(regular::Rules::ROOT)) {
        // Nothing follows the only lexeme.
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
    /// A literal text; possibly empty.
    Text(String),
    /// Any of these characters.
    Class(CharSet),
    /// A reference to a rule.
    Rule(usize),
    /// A token of the vocabulary, as written.
    Token(String),
    /// A sequence.
    Sequence(Vec<Term>),
    /// Alternatives.
    Choice(Vec<Term>),
    /// A repetition with its minimum and maximum count.
    Repeat(Box<Term>, u32, Option<u32>),
}

impl Term {
    /// The direct parts of the term.
    fn parts(&self) -> &[Term] {
        match self {
            Term::Sequence(terms) | Term::Choice(terms) => terms,
            Term::Repeat(term, ..) => std::slice::from_ref(term),
            Term::Text(_) | Term::Class(_) | Term::Rule(_) | Term::Token(_) => &[],
        }
    }

    /// Number of terms in it, including itself.
    fn size(&self) -> usize {
        1 + self.parts().iter().map(Term::size).sum::<usize>()
    }

    /// Whether the term or any term in it satisfies `is_such`.
    fn any(&self, is_such: &dyn Fn(&Term) -> bool) -> bool {
        is_such(self) || self.parts().iter().any(|part| part.any(is_such))
    }
}
