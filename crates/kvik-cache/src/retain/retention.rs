//! A request's retention: a policy, an amount, and its division.

use std::ops::Range;

use super::amounts::{Budget, Cut, Keep, SINKS, When};
use super::facts::{Needs, Watch, WatchedRows, window};
use super::policies::{Policy, Room};

/// Configures which positions of a sequence are retained. Its text form is canonical: equal texts mean equal
/// decisions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Retention {
    /// The policy, which scores each position.
    pub policy: Policy,
    /// Number of positions to retain.
    pub keep: Keep,
    /// The heads among which positions compete.
    pub budget: Budget,
    /// Which of the positions that fit the quota are retained.
    pub cut: Cut,
    /// Number of forced leading positions of the sequence.
    pub sinks: usize,
    /// Number of forced latest positions; `None` for the policy's default.
    pub recent: Option<usize>,
    /// Tokens between the points at which the sequence evicts positions.
    pub every: usize,
    /// Leading positions that are retained regardless of `sinks`: a system prompt, an opening exchange.
    pub protect: usize,
    /// When the sequence evicts positions: at fixed points, or when memory is short.
    pub when: When,
}

impl Retention {
    /// `policy` with its defaults for everything else.
    pub fn new(policy: Policy, keep: Keep) -> Retention {
        let (budget, every) = (policy.rules().budget(), policy.rules().every());
        Retention {
            policy,
            keep,
            budget,
            cut: Cut::Top,
            sinks: SINKS,
            recent: None,
            every,
            protect: 0,
            when: When::Points,
        }
    }

    /// The observation of the sequence's attention that is needed before each point.
    pub fn watch(&self) -> Watch {
        self.policy.rules().watch(self.sinks)
    }

    /// The facts of each stored position that are needed at a point.
    pub fn needs(&self) -> Needs {
        self.policy.rules().needs()
    }

    /// Returns whether the observations of retained positions accumulate: the caller passes them in again at the
    /// next point, with later observations added; otherwise each point starts from zero.
    pub fn accumulates(&self) -> bool {
        self.policy.rules().accumulates()
    }

    /// Returns whether the values of retained positions are fitted, so that attention to them gives what attention to all
    /// gave while the sequence was repeated.
    pub fn fits_values(&self) -> bool {
        self.policy.rules().fits()
    }

    /// Number of first keys whose RoPE rotation is redone at each point, to the positions just before the following
    /// keys: StreamingLLM (arXiv 2309.17453) counts positions within the cache.
    pub fn rotated_sinks(&self) -> usize {
        match self.policy {
            Policy::Sinks(_) => self.sinks,
            _ => 0,
        }
    }

    /// Adds eviction of positions when memory is short, unless the policy observes rows before its points, or
    /// repeats the sequence there, since it must then know its points beforehand.
    pub fn under_pressure_too(self) -> Retention {
        let when = if self.knows_its_points() { self.when } else { When::Either };
        Retention { when, ..self }
    }

    /// The retention for a compressed prefix: positions are evicted once, at the end of the prefix, regardless of
    /// `when`.
    pub fn of_prefix(self) -> Retention {
        Retention { when: When::Points, ..self }
    }

    /// Returns whether it must know its points beforehand.
    pub(super) fn knows_its_points(&self) -> bool {
        matches!(self.watch(), Watch::Repeat | Watch::Attention { rows: WatchedRows::Last(_), .. })
    }

    /// Converts an amount in bytes to tokens, the keys and values of one token taking `token_bytes` in all layers
    /// and heads.
    pub fn resolve(self, token_bytes: usize) -> Retention {
        let keep = match self.keep {
            Keep::Bytes(bytes) => {
                Keep::Tokens(usize::try_from(bytes / token_bytes.max(1) as u64).unwrap_or(usize::MAX))
            }
            other => other,
        };
        Retention { keep, ..self }
    }

    /// The rows that are observed before a point at `at` tokens if none was observed before. `keep` must not be in
    /// bytes: call [`Retention::resolve`] first.
    pub fn rows_before(&self, at: usize) -> Range<usize> {
        match self.watch() {
            Watch::Attention { rows: WatchedRows::Last(rows), .. } => {
                at - window(rows.min(self.window_max(at)), at)..at
            }
            _ => 0..at,
        }
    }

    /// The maximum length of a window that shrinks, when the sequence has `at` tokens: half of what the keep leaves
    /// after the leading positions, so that some positions remain to be judged. A longer one would be all that is
    /// retained.
    fn window_max(&self, at: usize) -> usize {
        match self.keep {
            Keep::Share(_) | Keep::Tokens(_) if self.policy.rules().window_shrinks() => {
                (self.keep.positions(at, 1).saturating_sub(self.first()) / 2).max(1)
            }
            _ => usize::MAX,
        }
    }

    /// Number of leading positions that are forced.
    fn first(&self) -> usize {
        self.sinks.max(self.protect)
    }

    /// Numbers of leading and of latest positions that are forced when the sequence has `at` tokens. A head whose quota
    /// is smaller retains the leading ones, and as many of the latest as the quota leaves after them.
    pub(super) fn forced(&self, at: usize) -> (usize, usize) {
        let recent = || self.policy.rules().recent(at).min(self.window_max(at));
        (self.first(), self.recent.unwrap_or_else(recent))
    }

    /// The room of a head that retains `quota` positions when the sequence has `at` tokens.
    pub(super) fn room(&self, at: usize, quota: usize) -> Room {
        let (first, mut last) = self.forced(at);
        if let Cut::Hybrid { recent } = self.cut {
            last = last.max((quota as f32 * recent) as usize);
        }
        Room { quota, first, last }
    }
}
