//! What a request asks for: a policy, how much it keeps, and how that is divided.

use super::amounts::{Budget, Cut, Keep, SINKS, When};
use super::facts::{Needs, Watch, WatchedRows};
use super::policies::{Policy, Room};

/// Which positions of a sequence are kept. Its text form is canonical: equal texts mean equal decisions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Retention {
    /// What gives each position its score.
    pub policy: Policy,
    /// How many positions stay.
    pub keep: Keep,
    /// Over which heads positions compete.
    pub budget: Budget,
    /// Which of the positions that would fit stay.
    pub cut: Cut,
    /// Leading positions of the sequence that are kept always; `None`: as many as the policy says.
    pub sinks: Option<usize>,
    /// Latest positions that are kept always; `None`: as many as the policy says.
    pub recent: Option<usize>,
    /// Tokens from one point at which the sequence forgets to the next.
    pub every: usize,
    /// Leading positions that are kept whatever `sinks` says: a system prompt, an opening exchange.
    pub protect: usize,
    /// Whether it forgets at fixed points, or when memory is short.
    pub when: When,
}

impl Retention {
    /// `policy` with everything else as it has it by default.
    pub fn new(policy: Policy, keep: Keep) -> Retention {
        let (budget, every) = (policy.rules().budget(), policy.rules().every());
        Retention {
            policy,
            keep,
            budget,
            cut: Cut::Top,
            sinks: None,
            recent: None,
            every,
            protect: 0,
            when: When::Points,
        }
    }

    /// What must be observed of the sequence's attention before each point.
    pub fn watch(&self) -> Watch {
        self.policy.rules().watch(self.sinks.unwrap_or(self.policy.rules().sinks()))
    }

    /// What must be known of each stored position at a point.
    pub fn needs(&self) -> Needs {
        self.policy.rules().needs()
    }

    /// Whether what was observed of the kept positions is handed in again at the next point, with what is
    /// observed until then added; otherwise each point starts from nothing.
    pub fn accumulates(&self) -> bool {
        self.policy.rules().accumulates()
    }

    /// How many of the first keys are rotated anew at each point, to the positions just before what follows them:
    /// StreamingLLM (arXiv 2309.17453) counts positions within the cache.
    pub fn rotated_sinks(&self) -> usize {
        match self.policy {
            Policy::Sinks(_) => self.sinks.unwrap_or(SINKS),
            _ => 0,
        }
    }

    /// The same, which forgets when memory is short as well: unless it observes rows before its points, or repeats the
    /// sequence there, as then it must know its points beforehand.
    pub fn under_pressure_too(self) -> Retention {
        let when = if self.knows_its_points() { self.when } else { When::Either };
        Retention { when, ..self }
    }

    /// The same for a prefix of which a part is kept: it forgets once, at its end, whatever else is asked for.
    pub fn of_prefix(self) -> Retention {
        Retention { when: When::Points, ..self }
    }

    /// Whether it must know its points before it comes to them.
    pub(super) fn knows_its_points(&self) -> bool {
        matches!(self.watch(), Watch::Repeat | Watch::Attention { rows: WatchedRows::Last(_), .. })
    }

    /// The same with bytes as tokens, one token's keys and values taking `token_bytes` in all layers and heads.
    pub fn resolve(self, token_bytes: usize) -> Retention {
        let keep = match self.keep {
            Keep::Bytes(bytes) => {
                Keep::Tokens(usize::try_from(bytes / token_bytes.max(1) as u64).unwrap_or(usize::MAX))
            }
            other => other,
        };
        Retention { keep, ..self }
    }

    /// How many leading and how many latest positions are kept always when the sequence has `at` tokens.
    pub(super) fn forced(&self, at: usize) -> (usize, usize) {
        let rules = self.policy.rules();
        let (mut sinks, recent) = (rules.sinks(), rules.recent(at));
        if matches!(self.cut, Cut::Hybrid { .. }) {
            sinks = sinks.max(SINKS);
        }
        (self.sinks.unwrap_or(sinks).max(self.protect), self.recent.unwrap_or(recent))
    }

    /// What a head that keeps `quota` positions has room for when the sequence has `at` tokens.
    pub(super) fn room(&self, at: usize, quota: usize) -> Room {
        let (first, mut last) = self.forced(at);
        if let Cut::Hybrid { recent } = self.cut {
            last = last.max((quota as f32 * recent) as usize);
        }
        Room { quota, first, last }
    }
}
