//! Validation of a retention, alone and for a model.

use super::amounts::{Budget, Cut, Keep};
use super::error::RetentionError;
use super::facts::{Watch, WatchedRows};
use super::heads::HeadImportance;
use super::retention::Retention;

/// Minimum distance of points: below it decisions would cost more than the computation.
const EVERY_MIN: usize = 16;
/// Above the length of any sequence.
const EVERY_MAX: usize = 1 << 29;

/// The properties of a model on which it depends whether a retention can be used with it.
#[derive(Debug, Clone, Copy)]
pub struct ModelShape<'a> {
    /// KV heads of each layer that stores keys and values.
    pub kv_heads: &'a [usize],
    /// Whether layers see a window of positions, or keep a state.
    pub windows: bool,
    /// Whether layers have latent attention.
    pub latent: bool,
    /// The measured importance of its heads, if there is one.
    pub heads: Option<&'a HeadImportance>,
    /// Whether it has gates.
    pub gated: bool,
}

impl ModelShape<'_> {
    /// Checks that every layer stores keys and values of heads for all positions, as every retention needs.
    ///
    /// # Errors
    /// If a layer does not.
    pub fn check_layers(&self) -> Result<(), RetentionError> {
        match self {
            ModelShape { windows: true, .. } => Err(RetentionError::Windows),
            ModelShape { latent: true, .. } => Err(RetentionError::Latent),
            _ => Ok(()),
        }
    }
}

impl Retention {
    /// Checks that the retention can be used with a model.
    ///
    /// # Errors
    /// What the model lacks, or the first invalid field, and what to do instead.
    pub fn check_model(&self, model: &ModelShape<'_>) -> Result<(), RetentionError> {
        model.check_layers()?;
        self.check(model.kv_heads)?;
        self.check_heads(model.kv_heads, model.heads)?;
        self.check_gates(model.gated)
    }

    /// Checks that the retention can be used with a model that has `shape[layer]` KV heads in each layer. A budget
    /// in bytes is assumed to be sufficient unless it was resolved.
    ///
    /// # Errors
    /// The first invalid field, and what to write instead.
    pub fn check(&self, shape: &[usize]) -> Result<(), RetentionError> {
        self.check_fields()?;
        let needed = match self.budget {
            Budget::Pyramid { .. } if shape.len() < 2 => "two layers or more",
            Budget::Layer { .. } if shape.iter().all(|&heads| heads < 2) => "two KV heads or more in a layer",
            Budget::All | Budget::Calibrated if shape.iter().sum::<usize>() < 2 => "two KV heads or more",
            _ => return Ok(()),
        };
        Err(RetentionError::BudgetNeeds { budget: self.budget.to_string(), needed })
    }

    /// Checks that the calibrated budget, if requested, has an importance for every KV head of `shape`.
    ///
    /// # Errors
    /// If an importance is missing.
    pub fn check_heads(&self, shape: &[usize], heads: Option<&HeadImportance>) -> Result<(), RetentionError> {
        let measured = heads.is_some_and(|heads| heads.layers.iter().map(Vec::len).eq(shape.iter().copied()));
        match self.budget == Budget::Calibrated && !measured {
            true => Err(RetentionError::NotCalibrated),
            false => Ok(()),
        }
    }

    /// Checks that the model has gates if the policy goes by them.
    ///
    /// # Errors
    /// If it has none.
    pub fn check_gates(&self, has_gates: bool) -> Result<(), RetentionError> {
        match self.needs().gated && !has_gates {
            true => Err(RetentionError::NoGates),
            false => Ok(()),
        }
    }

    /// Checks everything that does not depend on the model.
    ///
    /// # Errors
    /// The first invalid field, and what to write instead.
    pub fn check_fields(&self) -> Result<(), RetentionError> {
        self.keep.check()?;
        self.budget.check()?;
        self.cut.check()?;
        let every = EVERY_MIN..=EVERY_MAX;
        let expected = format!("between {EVERY_MIN} and {EVERY_MAX}");
        require(every.contains(&self.every), "every", self.every, &expected)?;
        if let Some((field, value, expected)) = self.policy.rules().fault() {
            return Err(RetentionError::Value { field, value, expected });
        }
        if let Watch::Attention { rows: WatchedRows::Last(rows), .. } = self.watch() {
            require(
                rows <= self.every,
                "every",
                self.every,
                &format!("at least the {rows} rows observed before a point"),
            )?;
        }
        let expected = format!(
            "points: {} must know where it forgets, as it observes what comes before or repeats it",
            self.policy.name()
        );
        require(!self.when.under_pressure() || !self.knows_its_points(), "when", self.when, &expected)?;
        // For a long sequence: a short one may have a smaller window.
        let (first, last) = self.forced(usize::MAX);
        match self.keep {
            Keep::Tokens(keep) if keep < first.saturating_add(last) => {
                Err(RetentionError::KeepBelowForced { keep, first, last })
            }
            _ => Ok(()),
        }
    }
}

impl Keep {
    /// Checks the amount.
    pub(super) fn check(self) -> Result<(), RetentionError> {
        let possible = match self {
            Keep::Share(share) => share > 0.0 && share <= 1.0,
            Keep::Tokens(tokens) => tokens >= 2,
            Keep::Bytes(bytes) => bytes > 0,
        };
        require(possible, "keep", self, "a share above 0 and up to 1, or 2 tokens or more, or bytes above 0")
    }
}

impl Budget {
    fn check(self) -> Result<(), RetentionError> {
        match self {
            Budget::Pyramid { beta } => require(
                beta.is_finite() && beta >= 1.0,
                "budget",
                self,
                "pyramid with a number of at least 1",
            ),
            Budget::Layer { floor } => {
                require((0.0..=1.0).contains(&floor), "budget", self, "layer with a share from 0 to 1")
            }
            Budget::Head | Budget::All | Budget::Calibrated => Ok(()),
        }
    }
}

impl Cut {
    fn check(self) -> Result<(), RetentionError> {
        let (possible, expected) = match self {
            Cut::Top => (true, ""),
            Cut::Threshold(score) => (score.is_finite(), "threshold with a finite number"),
            Cut::Dynamic { beta } => (beta.is_finite(), "dynamic with a finite number"),
            Cut::Hybrid { recent } => ((0.0..=1.0).contains(&recent), "hybrid with a share from 0 to 1"),
        };
        require(possible, "cut", self, expected)
    }
}

fn require(
    possible: bool,
    field: &'static str,
    value: impl ToString,
    expected: &str,
) -> Result<(), RetentionError> {
    if possible {
        return Ok(());
    }
    Err(RetentionError::Value { field, value: value.to_string(), expected: expected.to_owned() })
}
