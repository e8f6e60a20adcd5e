//! Rules as productions over lexemes.

use std::collections::{HashMap, HashSet};

use super::expression::expression;
use super::regular::Rules;
use super::steps::Steps;
use super::{CharSet, GbnfError, Term};

/// Maximum symbols of all productions.
const SYMBOLS_MAX: usize = 20_000;

/// The set of lexemes that are split into smaller ones.
#[derive(Debug)]
pub(super) enum Cut {
    /// The lexemes with these expressions.
    Lexemes(HashSet<String>),
    Everything,
}

impl Default for Cut {
    fn default() -> Cut {
        Cut::Lexemes(HashSet::new())
    }
}

impl Cut {
    /// Adds lexemes to the set.
    pub(super) fn add(&mut self, more: Vec<String>) {
        if let Cut::Lexemes(lexemes) = self {
            lexemes.extend(more);
        }
    }

    fn contains(&self, expression: &str) -> bool {
        match self {
            Cut::Lexemes(lexemes) => lexemes.contains(expression),
            Cut::Everything => true,
        }
    }
}

/// A grammar over lexemes.
#[derive(Debug, Default)]
pub(super) struct Lowered {
    /// The definitions of the symbols; the first is the start symbol.
    pub(super) productions: Vec<Production>,
    pub(super) lexemes: Vec<Lexeme>,
}

impl Lowered {
    /// Number of symbols of all productions, including their own.
    pub(super) fn symbols(&self) -> usize {
        let of = |production: &Production| match production {
            Production::Choice(choices) => 1 + choices.iter().map(|symbols| 1 + symbols.len()).sum::<usize>(),
            Production::Repeat(..) => 2,
        };
        self.productions.iter().map(of).sum()
    }
}

/// The definition of a symbol.
#[derive(Debug)]
pub(super) enum Production {
    /// Any of these sequences.
    Choice(Vec<Vec<Symbol>>),
    /// A repeated symbol with its minimum and maximum count.
    Repeat(Symbol, u32, Option<u32>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Symbol {
    Production(usize),
    Lexeme(usize),
}

/// A text that is matched at once, never empty.
#[derive(Debug)]
pub(super) struct Lexeme {
    pub(super) term: Term,
    /// The expression of its term, which contains no other lexeme.
    pub(super) expression: String,
    /// Whether the term also matches the empty text, which the lexeme does not.
    pub(super) nullable: bool,
}

/// Rewrites the rules over lexemes, splitting those in `cut`.
pub(super) fn lower(rules: &Rules, cut: &Cut, steps: &Steps) -> Result<Lowered, GbnfError> {
    let mut lowering = Lowering::new(rules, cut, steps);
    lowering.lowered.productions.push(Production::Choice(Vec::new()));
    let start = lowering.sequence(&Term::Rule(Rules::ROOT))?;
    lowering.lowered.productions[0] = Production::Choice(vec![start]);
    while let Some(rule) = lowering.open.pop() {
        let choices = lowering.choices(rules.term(rule))?;
        let production = lowering.of_rule[&rule];
        lowering.lowered.productions[production] = Production::Choice(choices);
    }
    Ok(lowering.lowered)
}

struct Lowering<'a> {
    rules: &'a Rules,
    cut: &'a Cut,
    lowered: Lowered,
    /// Productions of rules that are not lexemes.
    of_rule: HashMap<usize, usize>,
    /// Rules whose productions are still empty.
    open: Vec<usize>,
    of_expression: HashMap<String, usize>,
    symbols: usize,
    steps: &'a Steps,
}

impl<'a> Lowering<'a> {
    fn new(rules: &'a Rules, cut: &'a Cut, steps: &'a Steps) -> Lowering<'a> {
        Lowering {
            rules,
            cut,
            lowered: Lowered::default(),
            of_rule: HashMap::new(),
            open: Vec::new(),
            of_expression: HashMap::new(),
            symbols: 0,
            steps,
        }
    }

    fn choices(&mut self, term: &Term) -> Result<Vec<Vec<Symbol>>, GbnfError> {
        match term {
            Term::Choice(terms) if self.lexeme(term)?.is_none() => {
                terms.iter().map(|term| self.sequence(term)).collect()
            }
            _ => Ok(vec![self.sequence(term)?]),
        }
    }

    fn sequence(&mut self, term: &Term) -> Result<Vec<Symbol>, GbnfError> {
        self.symbols += 1;
        if self.symbols > SYMBOLS_MAX {
            return Err(GbnfError::TooLarge { what: "symbols", count: self.symbols, max: SYMBOLS_MAX });
        }
        if let Some(symbols) = self.lexeme(term)? {
            return Ok(symbols);
        }
        Ok(match term {
            Term::Sequence(terms) => {
                let parts = terms.iter().map(|term| self.sequence(term)).collect::<Result<Vec<_>, _>>()?;
                parts.concat()
            }
            Term::Text(text) => text.chars().map(|c| self.single(Term::Class(CharSet::one(c)))).collect(),
            Term::Rule(rule) => vec![self.rule(*rule)],
            Term::Choice(_) => {
                let choices = self.choices(term)?;
                vec![self.production(Production::Choice(choices))]
            }
            Term::Repeat(repeated, min, max) => {
                let symbol = match self.sequence(repeated)?.as_slice() {
                    [symbol] => *symbol,
                    symbols => {
                        let choices = vec![symbols.to_vec()];
                        self.production(Production::Choice(choices))
                    }
                };
                vec![self.production(Production::Repeat(symbol, *min, *max))]
            }
            Term::Class(_) | Term::Token(_) => vec![self.single(term.clone())],
        })
    }

    /// The lexeme of a regular term that is not split.
    fn lexeme(&mut self, term: &Term) -> Result<Option<Vec<Symbol>>, GbnfError> {
        self.steps.take(term.size())?;
        if !self.rules.is_regular(term) {
            return Ok(None);
        }
        if self.rules.is_empty(term) {
            return Ok(Some(Vec::new()));
        }
        let expression = expression(term);
        if self.cut.contains(&expression) {
            return Ok(None);
        }
        let nullable = self.rules.is_nullable(term);
        let lexeme = self.add(term.clone(), expression, nullable);
        Ok(Some(vec![match nullable {
            true => self.production(Production::Choice(vec![vec![lexeme], Vec::new()])),
            false => lexeme,
        }]))
    }

    fn single(&mut self, term: Term) -> Symbol {
        let expression = expression(&term);
        self.add(term, expression, false)
    }

    fn add(&mut self, term: Term, expression: String, nullable: bool) -> Symbol {
        if let Some(&lexeme) = self.of_expression.get(&expression) {
            return Symbol::Lexeme(lexeme);
        }
        let lexeme = self.lowered.lexemes.len();
        self.of_expression.insert(expression.clone(), lexeme);
        self.lowered.lexemes.push(Lexeme { term, expression, nullable });
        Symbol::Lexeme(lexeme)
    }

    fn rule(&mut self, rule: usize) -> Symbol {
        if let Some(&production) = self.of_rule.get(&rule) {
            return Symbol::Production(production);
        }
        let symbol = self.production(Production::Choice(Vec::new()));
        self.of_rule.insert(rule, self.lowered.productions.len() - 1);
        self.open.push(rule);
        symbol
    }

    fn production(&mut self, production: Production) -> Symbol {
        self.lowered.productions.push(production);
        Symbol::Production(self.lowered.productions.len() - 1)
    }
}
