//! Detection of lexemes that llguidance could split in the wrong place.
//!
//! Its lexer continues as long as any allowed lexeme can continue. That is wrong if one of them has already ended
//! and the next byte could also begin what follows it. This is checked for all pairs of lexemes, with the first
//! bytes of what may follow each, and with expressions that ignore repetition counts: the check reports some
//! correct pairs, and misses no wrong one.

use std::collections::HashSet;

use super::chars::{ByteSet, CharSet};
use super::productions::{Lowered, Production, Symbol};
use super::regular::Rules;
use super::steps::Steps;
use super::{GbnfError, Term};

/// Maximum steps of one search; beyond it everything is split.
const STEPS_MAX: usize = 4_000_000;
/// Maximum characters of all lexemes together.
const PLACES_MAX: usize = 8_000;
/// Maximum nesting of expanded rules, which limits the stack.
const DEPTH_MAX: usize = 200;
/// The byte before a token in llguidance, which no text contains.
const TOKEN_MARK: u8 = 0xFF;

/// The overlaps of the lexemes of a grammar.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Overlap {
    Nothing,
    /// The lexemes with these expressions must be split into smaller ones.
    Lexemes(Vec<String>),
    /// The search would take too long.
    Unknown,
}

/// Searches the lexemes of a grammar.
pub(super) fn find(rules: &Rules, lowered: &Lowered, steps: &Steps) -> Result<Overlap, GbnfError> {
    let mut search = Search { rules, places: Vec::new(), depth: 0, steps: 0 };
    let wrong = search.wrong(lowered);
    steps.take(search.steps)?;
    let Some(wrong) = wrong else { return Ok(Overlap::Unknown) };
    let lexemes = wrong.into_iter().map(|lexeme| &lowered.lexemes[lexeme]);
    let lexemes = lexemes.filter(|lexeme| !is_single(&lexeme.term)).map(|lexeme| lexeme.expression.clone());
    let lexemes: Vec<String> = lexemes.collect();
    Ok(if lexemes.is_empty() { Overlap::Nothing } else { Overlap::Lexemes(lexemes) })
}

/// Whether a lexeme is a single character or a token.
fn is_single(term: &Term) -> bool {
    match term {
        Term::Class(_) | Term::Token(_) => true,
        Term::Text(text) => text.chars().count() == 1,
        _ => false,
    }
}

/// A character position of a lexeme: its allowed characters, and the positions that may follow.
#[derive(Debug)]
struct Place<'a> {
    set: Set<'a>,
    next: Vec<usize>,
}

#[derive(Debug)]
enum Set<'a> {
    Here(CharSet),
    Of(&'a CharSet),
}

impl Set<'_> {
    fn get(&self) -> &CharSet {
        match self {
            Set::Here(set) => set,
            Set::Of(set) => set,
        }
    }
}

/// The first and last positions of a lexeme, or of a part of one.
#[derive(Debug, Default)]
struct Span {
    nullable: bool,
    first: Vec<usize>,
    last: Vec<usize>,
}

struct Search<'a> {
    rules: &'a Rules,
    places: Vec<Place<'a>>,
    depth: usize,
    steps: usize,
}

impl<'a> Search<'a> {
    /// The lexemes that overlap with others or with what follows them; `None` if the search takes too long.
    fn wrong(&mut self, lowered: &'a Lowered) -> Option<Vec<usize>> {
        let mut spans = Vec::with_capacity(lowered.lexemes.len());
        for lexeme in &lowered.lexemes {
            spans.push(self.span(&lexeme.term)?);
        }
        let first = spans.iter().zip(&lowered.lexemes);
        let first = first.map(|(span, lexeme)| self.first_bytes(span, &lexeme.term)).collect();
        let follow = Follow::of(lowered, first, &mut |symbols| self.step(symbols))?;
        let mut wrong = HashSet::new();
        for (one, ended) in spans.iter().enumerate() {
            for (two, going) in spans.iter().enumerate() {
                if self.extends(ended, going)?.meets(follow.lexemes[one]) {
                    wrong.extend([one, two]);
                }
            }
        }
        let mut wrong: Vec<usize> = wrong.into_iter().collect();
        wrong.sort_unstable();
        Some(wrong)
    }

    fn step(&mut self, steps: usize) -> Option<()> {
        self.steps += steps;
        (self.steps <= STEPS_MAX).then_some(())
    }

    fn first_bytes(&self, span: &Span, term: &Term) -> ByteSet {
        let mut bytes = ByteSet::default();
        if matches!(term, Term::Token(_)) {
            bytes.add(TOKEN_MARK);
        }
        for &place in &span.first {
            bytes.extend(self.places[place].set.get().first_bytes());
        }
        bytes
    }

    /// The first bytes with which `going` continues after a text that `ended` matches as a whole.
    fn extends(&mut self, ended: &Span, going: &Span) -> Option<ByteSet> {
        let mut seen = HashSet::new();
        let mut bytes = ByteSet::default();
        let mut open = Vec::new();
        self.pair(&ended.first, &going.first, &mut seen, &mut open)?;
        while let Some((one, two)) = open.pop() {
            self.step(ended.last.len() + self.places[two].next.len())?;
            if ended.last.contains(&one) {
                for &next in &self.places[two].next {
                    bytes.extend(self.places[next].set.get().first_bytes());
                }
            }
            let (ones, twos) = (self.places[one].next.clone(), self.places[two].next.clone());
            self.pair(&ones, &twos, &mut seen, &mut open)?;
        }
        Some(bytes)
    }

    /// Adds the pairs of positions that share an allowed character.
    fn pair(
        &mut self,
        ones: &[usize],
        twos: &[usize],
        seen: &mut HashSet<(usize, usize)>,
        open: &mut Vec<(usize, usize)>,
    ) -> Option<()> {
        for &one in ones {
            for &two in twos {
                let (a, b) = (self.places[one].set.get(), self.places[two].set.get());
                let cost = 1 + a.len() + b.len();
                let meet = a.meets(b);
                self.step(cost)?;
                if meet && seen.insert((one, two)) {
                    open.push((one, two));
                }
            }
        }
        Some(())
    }

    /// Expands a term to positions.
    fn span(&mut self, term: &'a Term) -> Option<Span> {
        self.step(1)?;
        match term {
            Term::Text(text) => {
                let spans = text
                    .chars()
                    .map(|c| self.place(Set::Here(CharSet::one(c))))
                    .collect::<Option<Vec<_>>>()?;
                self.sequence(spans)
            }
            Term::Class(set) => self.place(Set::Of(set)),
            // A token contains no text.
            Term::Token(_) => Some(Span::default()),
            Term::Rule(rule) => {
                self.depth += 1;
                let span = (self.depth <= DEPTH_MAX).then(|| self.span(self.rules.term(*rule)))?;
                self.depth -= 1;
                span
            }
            Term::Sequence(terms) => {
                let spans = terms.iter().map(|term| self.span(term)).collect::<Option<Vec<_>>>()?;
                self.sequence(spans)
            }
            Term::Choice(terms) => {
                let mut all = Span::default();
                for term in terms {
                    let span = self.span(term)?;
                    all.nullable |= span.nullable;
                    all.first.extend(span.first);
                    all.last.extend(span.last);
                }
                Some(all)
            }
            Term::Repeat(term, min, max) => {
                let mut span = self.span(term)?;
                span.nullable |= *min == 0;
                if *max != Some(1) {
                    self.link(&span.last, &span.first)?;
                }
                Some(span)
            }
        }
    }

    fn place(&mut self, set: Set<'a>) -> Option<Span> {
        if self.places.len() == PLACES_MAX {
            return None;
        }
        let place = self.places.len();
        self.places.push(Place { set, next: Vec::new() });
        Some(Span { nullable: false, first: vec![place], last: vec![place] })
    }

    fn sequence(&mut self, spans: Vec<Span>) -> Option<Span> {
        let mut all = Span { nullable: true, ..Span::default() };
        for span in spans {
            self.link(&all.last, &span.first)?;
            if all.nullable {
                all.first.extend(&span.first);
            }
            if !span.nullable {
                all.last.clear();
            }
            self.step(1 + all.first.len().min(span.first.len()) + span.last.len())?;
            all.last.extend(span.last);
            all.nullable &= span.nullable;
        }
        Some(all)
    }

    fn link(&mut self, from: &[usize], to: &[usize]) -> Option<()> {
        self.step(from.len() * to.len())?;
        for &place in from {
            self.places[place].next.extend(to);
        }
        Some(())
    }
}

/// The first bytes of what may follow each production and each lexeme.
struct Follow {
    lexemes: Vec<ByteSet>,
}

impl Follow {
    /// The follow sets of a grammar whose `lexemes` have these first bytes; `None` if `step` runs out.
    fn of(
        lowered: &Lowered,
        lexemes: Vec<ByteSet>,
        step: &mut dyn FnMut(usize) -> Option<()>,
    ) -> Option<Follow> {
        let symbols = lowered.symbols();
        step(symbols)?;
        let mut begin = Begin {
            lexemes,
            productions: vec![ByteSet::default(); lowered.productions.len()],
            nullable: vec![false; lowered.productions.len()],
        };
        while lowered
            .productions
            .iter()
            .enumerate()
            .rev()
            .fold(false, |new, (i, body)| begin.add(i, body) || new)
        {
            step(symbols)?;
        }
        step(symbols)?;
        let mut after = After {
            lexemes: vec![ByteSet::default(); lowered.lexemes.len()],
            productions: vec![ByteSet::default(); lowered.productions.len()],
        };
        while lowered
            .productions
            .iter()
            .enumerate()
            .fold(false, |new, (i, body)| after.add(&begin, i, body) || new)
        {
            step(symbols)?;
        }
        Some(Follow { lexemes: after.lexemes })
    }
}

/// First bytes of lexemes and productions, and the nullable productions.
struct Begin {
    lexemes: Vec<ByteSet>,
    productions: Vec<ByteSet>,
    nullable: Vec<bool>,
}

impl Begin {
    fn of(&self, symbol: Symbol) -> (ByteSet, bool) {
        match symbol {
            Symbol::Production(i) => (self.productions[i], self.nullable[i]),
            Symbol::Lexeme(i) => (self.lexemes[i], false),
        }
    }

    fn of_sequence(&self, symbols: &[Symbol]) -> (ByteSet, bool) {
        let mut bytes = ByteSet::default();
        for &symbol in symbols {
            let (first, nullable) = self.of(symbol);
            bytes.extend(first);
            if !nullable {
                return (bytes, false);
            }
        }
        (bytes, true)
    }

    /// Processes a production; returns whether the sets grew.
    fn add(&mut self, production: usize, body: &Production) -> bool {
        let (bytes, nullable) = match body {
            Production::Repeat(symbol, min, _) => {
                let (bytes, nullable) = self.of(*symbol);
                (bytes, nullable || *min == 0)
            }
            Production::Choice(choices) => {
                let mut all = (ByteSet::default(), false);
                for symbols in choices {
                    let (bytes, nullable) = self.of_sequence(symbols);
                    all.0.extend(bytes);
                    all.1 |= nullable;
                }
                all
            }
        };
        let new = nullable && !self.nullable[production];
        self.nullable[production] |= nullable;
        self.productions[production].extend(bytes) || new
    }
}

/// First bytes of what follows lexemes and productions.
struct After {
    lexemes: Vec<ByteSet>,
    productions: Vec<ByteSet>,
}

impl After {
    /// Processes a production; returns whether the sets grew.
    fn add(&mut self, begin: &Begin, production: usize, body: &Production) -> bool {
        let end = self.productions[production];
        match body {
            Production::Repeat(symbol, _, max) => {
                let mut follow = end;
                if *max != Some(1) {
                    follow.extend(begin.of(*symbol).0);
                }
                self.extend(*symbol, follow)
            }
            Production::Choice(choices) => {
                let mut new = false;
                for symbols in choices {
                    let mut follow = end;
                    for &symbol in symbols.iter().rev() {
                        new |= self.extend(symbol, follow);
                        let (bytes, nullable) = begin.of(symbol);
                        let after = if nullable { follow } else { ByteSet::default() };
                        follow = bytes;
                        follow.extend(after);
                    }
                }
                new
            }
        }
    }

    fn extend(&mut self, symbol: Symbol, bytes: ByteSet) -> bool {
        match symbol {
            Symbol::Production(i) => self.productions[i].extend(bytes),
            Symbol::Lexeme(i) => self.lexemes[i].extend(bytes),
        }
    }
}
