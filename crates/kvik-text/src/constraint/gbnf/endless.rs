//! Removal of alternatives of a grammar that never end: a rule that always refers to itself again matches no text.
//!
//! An answer that took such an alternative could not be completed, so they are removed before the rules are
//! translated.

use super::parse::Grammar;
use super::regular::Rules;
use super::steps::Steps;
use super::{GbnfError, Term};

/// The grammar without alternatives that never end; an error if no alternative of the whole answer ends.
pub(super) fn without_endless(grammar: Grammar, steps: &Steps) -> Result<Grammar, GbnfError> {
    let ends = rules_that_end(&grammar.rules, steps)?;
    if !ends[Rules::ROOT] {
        return Err(GbnfError::NeverEnds);
    }
    Ok(Grammar { rules: grammar.rules.into_iter().map(|term| prune(term, &ends)).collect() })
}

/// The rules that match some text, possibly an empty one.
fn rules_that_end(rules: &[Term], steps: &Steps) -> Result<Vec<bool>, GbnfError> {
    let size: usize = rules.iter().map(Term::size).sum();
    let mut ends = vec![false; rules.len()];
    loop {
        steps.take(2 * size)?;
        let before = ends.iter().filter(|&&ends| ends).count();
        // In both directions, since rules are often written in one order or the other.
        for rule in (0..rules.len()).chain((0..rules.len()).rev()) {
            ends[rule] = ends[rule] || term_ends(&rules[rule], &ends);
        }
        if ends.iter().filter(|&&ends| ends).count() == before {
            return Ok(ends);
        }
    }
}

fn term_ends(term: &Term, ends: &[bool]) -> bool {
    match term {
        Term::Text(_) | Term::Token(_) => true,
        Term::Class(class) => !class.is_empty(),
        Term::Rule(rule) => ends[*rule],
        Term::Sequence(terms) => terms.iter().all(|term| term_ends(term, ends)),
        Term::Choice(terms) => terms.iter().any(|term| term_ends(term, ends)),
        Term::Repeat(term, min, _) => *min == 0 || term_ends(term, ends),
    }
}

fn prune(term: Term, ends: &[bool]) -> Term {
    if !term_ends(&term, ends) {
        return term;
    }
    match term {
        Term::Sequence(terms) => Term::Sequence(terms.into_iter().map(|term| prune(term, ends)).collect()),
        Term::Choice(terms) => {
            let end = terms.into_iter().filter(|term| term_ends(term, ends));
            Term::Choice(end.map(|term| prune(term, ends)).collect())
        }
        Term::Repeat(term, ..) if !term_ends(&term, ends) => Term::Sequence(Vec::new()),
        Term::Repeat(term, min, max) => Term::Repeat(Box::new(prune(*term, ends)), min, max),
        other => other,
    }
}
