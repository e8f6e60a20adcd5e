//! The naive twin of a sequence that forgets: the fake model over a plain list of stored positions, without blocks,
//! batches, pieces or a cache.

use kvik_cache::Token;
use kvik_cache::retain::{
    HeadFacts, LayerFacts, Points, PolicyState, Reduce, Retention, Watch, WatchedRows, decide,
};
use kvik_engine::api::Request;
use kvik_engine::retain::repeat::RepeatPrompt;

use super::prompt;
use super::ragged::{fact, rotated, weight};

/// How a fake model computes.
#[derive(Clone, Copy)]
pub struct Arithmetic {
    /// What a position stores, from what the one before it stores (0 for none) and its token.
    pub chain: fn(u64, Token) -> u64,
    /// What the logits are made of, from all stored positions, and whether some were dropped.
    pub seen: fn(&[Stored], bool) -> u64,
}

/// One stored position.
#[derive(Debug, Clone, Copy)]
pub struct Stored {
    /// Its place in the sequence.
    position: u32,
    pub token: Token,
    /// The number that the fake model stores.
    pub chain: u64,
}

/// What a sequence had kept at the last point that it passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thinned {
    /// Tokens that it had then.
    pub tokens: usize,
    /// Positions that it kept of them.
    pub positions: usize,
}

/// One sequence.
#[derive(Clone)]
pub struct Twin {
    arithmetic: Arithmetic,
    forgets: Option<(Retention, Points)>,
    /// Points besides, at which memory was short.
    tightened: Vec<usize>,
    passed: usize,
    stored: Vec<Stored>,
    tokens: Vec<Token>,
    mass: Vec<f32>,
    state: PolicyState,
    sinks: Option<Vec<f32>>,
    /// What it kept last.
    pub kept: Option<Thinned>,
}

/// The words with which sequences of fake models repeat themselves.
pub fn words() -> RepeatPrompt {
    RepeatPrompt { prefix: prompt(1, 3), ask: vec![7, 8, 9], ask_more: vec![8, 8], suffix: vec![5] }
}

/// When the sequences of a request forget, in a context of `context` tokens.
pub fn points(request: &Request, context: usize) -> Option<Points> {
    let retention = request.retention?;
    Some(match request.kept_prefix {
        Some(prefix) => retention.point_at(prefix),
        None => retention.points(request.prompt.len(), context),
    })
}

impl Twin {
    /// A sequence of `request` that has computed nothing yet.
    pub fn new(arithmetic: Arithmetic, request: &Request, context: usize) -> Twin {
        Twin {
            arithmetic,
            forgets: request.retention.zip(points(request, context)),
            tightened: Vec::new(),
            passed: 0,
            stored: Vec::new(),
            tokens: Vec::new(),
            mass: Vec::new(),
            state: PolicyState::default(),
            sinks: None,
            kept: None,
        }
    }

    /// The same with points at which memory was short.
    pub fn tightened(self, tightened: &[usize]) -> Twin {
        Twin { tightened: tightened.to_vec(), ..self }
    }

    /// Computes the next token; forgets first, if it is at a point.
    pub fn push(&mut self, token: Token) {
        if let Some((retention, points)) = self.forgets
            && (points.next(self.passed) == Some(self.tokens.len())
                || self.tightened.contains(&self.tokens.len()))
        {
            self.forget(&retention);
        }
        self.tokens.push(token);
        self.store(token);
        let at = self.tokens.len() - 1;
        let Some((retention, points)) = self.forgets else { return };
        let Watch::Attention { rows, reduce } = retention.watch() else { return };
        let watched = match points.next(self.passed) {
            Some(point) => rows == WatchedRows::All || points.watched(point).contains(&at),
            None => retention.when.under_pressure(),
        };
        if watched {
            self.observe(reduce);
        }
    }

    /// What the logits of the last token are made of.
    pub fn seen(&self) -> u64 {
        (self.arithmetic.seen)(&self.stored, self.kept.is_some())
    }

    /// Forgets what `retention` says.
    pub fn forget(&mut self, retention: &Retention) {
        if retention.watch() == Watch::Repeat {
            self.repeat();
        }
        self.mass.resize(self.stored.len(), 0.0);
        let of = |salt: u64| self.stored.iter().map(|stored| fact(stored.chain, salt)).collect();
        let head = HeadFacts {
            positions: self.stored.iter().map(|stored| stored.position).collect(),
            mass: self.mass.clone(),
            key_norms: of(1),
            value_norms: of(2),
            likeness: of(3),
            expected: of(5),
            gated: of(6),
        };
        let count = retention.rotated_sinks().min(self.stored.len());
        if count > 0 && self.sinks.is_none() {
            self.sinks = Some(self.stored[..count].iter().map(|stored| stored.chain as f32).collect());
        }
        let facts = [LayerFacts { heads: vec![head] }];
        let decision = decide(retention, self.tokens.len(), &facts, None, &mut self.state);
        let kept = &decision.kept[0][0];
        self.stored = kept.iter().map(|&index| self.stored[index as usize]).collect();
        self.mass = match retention.accumulates() {
            true => kept.iter().map(|&index| self.mass[index as usize]).collect(),
            false => Vec::new(),
        };
        self.rotate_sinks();
        self.passed = self.tokens.len();
        self.kept = Some(Thinned { tokens: self.tokens.len(), positions: self.stored.len() });
    }

    fn rotate_sinks(&mut self) {
        let Some(sinks) = &self.sinks else { return };
        let Some(window) = self.stored.get(sinks.len()).map(|stored| stored.position) else { return };
        let position = window - sinks.len() as u32;
        for (&key, stored) in sinks.iter().zip(&mut self.stored) {
            stored.chain = rotated(key, position);
        }
    }

    fn store(&mut self, token: Token) {
        let before = self.stored.last().map_or(0, |stored| stored.chain);
        let chain = (self.arithmetic.chain)(before, token);
        self.stored.push(Stored { position: (self.tokens.len() - 1) as u32, token, chain });
    }

    fn observe(&mut self, reduce: Reduce) {
        self.mass.resize(self.stored.len().max(self.mass.len()), 0.0);
        let query = self.stored[self.stored.len() - 1].chain;
        for (stored, mass) in self.stored.iter().zip(&mut self.mass) {
            let weight = weight(query, stored.chain);
            *mass = match reduce {
                Reduce::Sum => *mass + weight,
                Reduce::Decayed(factor) => *mass * factor + weight,
                Reduce::Above => *mass + f32::from(weight > 0.5),
                Reduce::Max => mass.max(weight),
            };
        }
    }

    fn repeat(&mut self) {
        let exact = self.stored.clone();
        let words = words();
        let common = words.prefix.iter().zip(&self.tokens).take_while(|(a, b)| a == b).count();
        let skipped = if common < self.tokens.len() { common } else { 0 };
        let repeated = &self.tokens[skipped..].to_vec();
        for token in [&words.ask[..], &words.suffix, repeated].concat() {
            self.store(token);
            self.observe(Reduce::Max);
        }
        self.stored = exact;
        self.mass.truncate(self.stored.len());
    }
}
