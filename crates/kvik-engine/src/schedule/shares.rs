//! How the rows of a step are divided, from the measured times of earlier steps.

use std::time::Duration;

use super::background::BackgroundShare;
use super::draft::Drafting;
use super::mixed::MixedRows;
use super::plan::{Budgets, Plan};
use super::running::Running;
use crate::config::EngineConfig;

/// The shares of prompts, drafts and the background.
#[derive(Debug, Default)]
pub(super) struct RowShares {
    pub(super) drafting: Drafting,
    /// The background's share of each step.
    pub(super) background: BackgroundShare,
    /// The prompts' share of steps in which others decode.
    mixed: MixedRows,
}

impl RowShares {
    /// Prompt rows that the next step may compute.
    pub(super) fn budgets(&self, config: &EngineConfig, somebody_waits: bool, running: &Running) -> Budgets {
        let mixed_max = config.prefill_rows_mixed_max;
        Budgets {
            alone: config.prefill_rows_max,
            mixed: self.mixed.rows(mixed_max, somebody_waits),
            background: self.background.alone(mixed_max),
            owed: self.background.own_step(running),
        }
    }

    /// Records how long a step took.
    pub(super) fn note(&mut self, plan: &Plan, running: &Running, elapsed: Duration) {
        self.background.note(plan, running, elapsed);
        self.mixed.note(plan, elapsed);
    }

    /// Records how long a step took with all that its drafts cost, if it only decoded.
    pub(super) fn note_decoded(&mut self, plan: &Plan, elapsed: Duration) {
        if plan.prefill_rows() == 0 {
            self.drafting.note(plan.rows.len(), elapsed);
        }
    }
}
