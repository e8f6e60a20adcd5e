//! Detection of regular rules: those that refer to regular rules, and to themselves only at their end.

use super::parse::Grammar;
use super::steps::Steps;
use super::{GbnfError, Term};

/// Maximum nesting of terms in one rule: llguidance parses 30 nested pairs of parentheses.
const NESTED_MAX: usize = 20;

/// The rules of a grammar and their properties. Rules that refer to themselves only at their end become
/// repetitions.
#[derive(Debug)]
pub(super) struct Rules {
    terms: Vec<Term>,
    regular: Vec<bool>,
    /// Whether the rule may match the empty text.
    nullable: Vec<bool>,
    /// Whether the rule may match a non-empty text.
    productive: Vec<bool>,
}

impl Rules {
    /// Analyses the rules.
    pub(super) fn of(grammar: Grammar, steps: &Steps) -> Result<Rules, GbnfError> {
        let count = grammar.rules.len();
        let (nullable, productive) = (Vec::new(), Vec::new());
        let mut rules = Rules { terms: grammar.rules, regular: vec![false; count], nullable, productive };
        rules.find_regular(steps)?;
        rules.flatten();
        rules.find_nullable(steps)?;
        rules.find_productive(steps)?;
        Ok(rules)
    }

    /// The index of the rule of the whole answer.
    pub(super) const ROOT: usize = 0;

    /// The term of a rule.
    pub(super) fn term(&self, rule: usize) -> &Term {
        &self.terms[rule]
    }

    pub(super) fn count(&self) -> usize {
        self.terms.len()
    }

    /// Whether a term is equivalent to a regular expression.
    pub(super) fn is_regular(&self, term: &Term) -> bool {
        !term.any(&|part| match part {
            Term::Rule(rule) => !self.regular[*rule],
            Term::Token(_) => true,
            _ => false,
        })
    }

    /// Whether a term may match the empty text.
    pub(super) fn is_nullable(&self, term: &Term) -> bool {
        match term {
            Term::Text(text) => text.is_empty(),
            Term::Class(_) | Term::Token(_) => false,
            Term::Rule(rule) => self.nullable[*rule],
            Term::Sequence(terms) => terms.iter().all(|term| self.is_nullable(term)),
            Term::Choice(terms) => terms.iter().any(|term| self.is_nullable(term)),
            Term::Repeat(term, min, _) => *min == 0 || self.is_nullable(term),
        }
    }

    /// Whether a term matches the empty text only.
    pub(super) fn is_empty(&self, term: &Term) -> bool {
        !term.any(&|part| match part {
            Term::Text(text) => !text.is_empty(),
            Term::Class(_) | Term::Token(_) => true,
            Term::Rule(rule) => self.productive[*rule],
            _ => false,
        })
    }

    /// Finds the regular rules: a rule becomes one after the last rule that it refers to.
    fn find_regular(&mut self, steps: &Steps) -> Result<(), GbnfError> {
        let mut users: Vec<Vec<usize>> = vec![Vec::new(); self.count()];
        let mut missing = vec![0usize; self.count()];
        for (rule, term) in self.terms.iter().enumerate() {
            let mut used = Vec::new();
            references(term, &mut used);
            used.sort_unstable();
            used.dedup();
            for other in used.into_iter().filter(|&other| other != rule) {
                users[other].push(rule);
                missing[rule] += 1;
            }
        }
        let mut ready: Vec<usize> = (0..self.count()).filter(|&rule| missing[rule] == 0).collect();
        while let Some(rule) = ready.pop() {
            if !self.become_regular(rule, steps)? {
                continue;
            }
            for &user in &users[rule] {
                missing[user] -= 1;
                if missing[user] == 0 {
                    ready.push(user);
                }
            }
        }
        Ok(())
    }

    /// Marks a rule whose other references are regular as regular, if it is.
    fn become_regular(&mut self, rule: usize, steps: &Steps) -> Result<bool, GbnfError> {
        if self.terms[rule].any(&|part| matches!(part, Term::Token(_))) {
            return Ok(false);
        }
        if refers(&self.terms[rule], rule) {
            let ends = ends(&self.terms[rule], rule, steps)?;
            let Some(term) = ends.and_then(Ends::repeated) else { return Ok(false) };
            self.terms[rule] = term;
        }
        self.regular[rule] = true;
        Ok(true)
    }

    /// Moves deeply nested terms into rules of their own.
    fn flatten(&mut self) {
        for rule in 0..self.count() {
            let term = std::mem::replace(&mut self.terms[rule], Term::Sequence(Vec::new()));
            self.terms[rule] = self.flat(term, 0);
        }
    }

    fn flat(&mut self, term: Term, depth: usize) -> Term {
        if depth == NESTED_MAX && !term.parts().is_empty() {
            let term = self.flat(term, 0);
            self.regular.push(self.is_regular(&term));
            self.terms.push(term);
            return Term::Rule(self.count() - 1);
        }
        let mut flat = |terms: Vec<Term>| terms.into_iter().map(|term| self.flat(term, depth + 1)).collect();
        match term {
            Term::Sequence(terms) => Term::Sequence(flat(terms)),
            Term::Choice(terms) => Term::Choice(flat(terms)),
            Term::Repeat(term, min, max) => Term::Repeat(Box::new(self.flat(*term, depth + 1)), min, max),
            term => term,
        }
    }

    fn find_nullable(&mut self, steps: &Steps) -> Result<(), GbnfError> {
        self.nullable = vec![false; self.count()];
        let size = self.size();
        while let Some(rule) =
            self.first(|rules, rule| !rules.nullable[rule] && rules.is_nullable(&rules.terms[rule]))
        {
            steps.take(2 * size)?;
            for rule in (0..=rule).rev().chain(rule..self.count()) {
                self.nullable[rule] |= self.is_nullable(&self.terms[rule]);
            }
        }
        Ok(())
    }

    fn find_productive(&mut self, steps: &Steps) -> Result<(), GbnfError> {
        self.productive = vec![false; self.count()];
        let size = self.size();
        while let Some(rule) =
            self.first(|rules, rule| !rules.productive[rule] && !rules.is_empty(&rules.terms[rule]))
        {
            steps.take(2 * size)?;
            for rule in (0..=rule).rev().chain(rule..self.count()) {
                self.productive[rule] |= !self.is_empty(&self.terms[rule]);
            }
        }
        Ok(())
    }

    /// Number of terms in all rules.
    fn size(&self) -> usize {
        self.terms.iter().map(Term::size).sum()
    }

    /// The first rule that satisfies `is_such`.
    fn first(&self, is_such: impl Fn(&Rules, usize) -> bool) -> Option<usize> {
        (0..self.count()).find(|&rule| is_such(self, rule))
    }
}

fn references(term: &Term, found: &mut Vec<usize>) {
    if let Term::Rule(rule) = term {
        found.push(*rule);
    }
    for part in term.parts() {
        references(part, found);
    }
}

fn refers(term: &Term, rule: usize) -> bool {
    term.any(&|part| *part == Term::Rule(rule))
}

/// The alternatives of a rule: those that end with the rule itself, without that reference, and the others.
struct Ends {
    again: Vec<Term>,
    last: Vec<Term>,
}

impl Ends {
    /// `x ::= again x | last` as `again* last`; `None` if no alternative ends.
    fn repeated(self) -> Option<Term> {
        let again = Term::Repeat(Box::new(Term::Choice(self.again)), 0, None);
        (!self.last.is_empty()).then(|| Term::Sequence(vec![again, Term::Choice(self.last)]))
    }
}

/// The alternatives of a term of `rule`; `None` if the rule occurs in them other than at their end.
fn ends(term: &Term, rule: usize, steps: &Steps) -> Result<Option<Ends>, GbnfError> {
    steps.take(term.size())?;
    if !refers(term, rule) {
        return Ok(Some(Ends { again: Vec::new(), last: vec![term.clone()] }));
    }
    Ok(match term {
        Term::Rule(_) => Some(Ends { again: vec![Term::Sequence(Vec::new())], last: Vec::new() }),
        Term::Choice(terms) => {
            let mut all = Ends { again: Vec::new(), last: Vec::new() };
            for term in terms {
                let Some(ends) = ends(term, rule, steps)? else { return Ok(None) };
                all.again.extend(ends.again);
                all.last.extend(ends.last);
            }
            Some(all)
        }
        Term::Sequence(terms) => {
            let Some((end, before)) = terms.split_last() else { return Ok(None) };
            if before.iter().any(|term| refers(term, rule)) {
                return Ok(None);
            }
            let Some(ends) = ends(end, rule, steps)? else { return Ok(None) };
            let after = |ways: Vec<Term>| match ways.is_empty() {
                true => Vec::new(),
                false => vec![Term::Sequence([before, &[Term::Choice(ways)]].concat())],
            };
            Some(Ends { again: after(ends.again), last: after(ends.last) })
        }
        Term::Repeat(term, 0, Some(1)) => {
            let Some(mut ends) = ends(term, rule, steps)? else { return Ok(None) };
            ends.last.push(Term::Sequence(Vec::new()));
            Some(ends)
        }
        _ => None,
    })
}
