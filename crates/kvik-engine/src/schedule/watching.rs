//! The observations of the sequences of a batch, taken out while the batch is computed.

use std::ops::Range;

use kvik_cache::retain::Watch;
use kvik_model::observation::{Observation, Repeated, Watched};

use super::plan::{Kind, Plan};
use super::running::Running;

/// The observations that a batch updates.
pub(super) struct Watching(Vec<Taken>);

/// The observed rows of one sequence.
struct Taken {
    /// Index among the running sequences.
    index: usize,
    rows: Range<usize>,
    watch: Watch,
    among: Vec<Range<usize>>,
    repeated: Option<Repeated>,
    observation: Observation,
}

impl Watching {
    /// Takes the observations of all sequences of which `plan` has observed rows.
    pub(super) fn take(plan: &Plan, running: &mut Running) -> Watching {
        let (mut watching, mut first) = (Vec::new(), 0);
        for span in &plan.spans {
            let sequence = &mut running[span.index];
            let (stored, rows) = (sequence.stored, first..first + span.rows);
            first = rows.end;
            let Some(forgetting) = &mut sequence.forgetting else { continue };
            let (rows, among, repeated) = match span.kind {
                Kind::Repeat => {
                    let repeated = forgetting.repeats(rows.clone(), stored);
                    (rows, forgetting.among(stored), repeated)
                }
                Kind::Tokens => {
                    let watched = forgetting.watched(stored..stored + span.rows);
                    let watched = rows.start + watched.start - stored..rows.start + watched.end - stored;
                    (watched, Vec::new(), None)
                }
            };
            if !rows.is_empty() {
                let observation = std::mem::take(&mut forgetting.observation);
                let watch = forgetting.retention.watch();
                watching.push(Taken { index: span.index, rows, watch, among, repeated, observation });
            }
        }
        Watching(watching)
    }

    /// The observed rows in the form that a batch takes.
    pub(super) fn watched(&mut self) -> Vec<Watched<'_>> {
        let watched =
            self.0.iter_mut().map(|Taken { rows, watch, among, repeated, observation, .. }| Watched {
                rows: rows.clone(),
                watch: *watch,
                among: among.clone(),
                repeated: repeated.clone(),
                observation,
            });
        watched.collect()
    }

    /// Returns the updated observations to their sequences.
    pub(super) fn put_back(self, running: &mut Running) {
        for Taken { index, observation, .. } in self.0 {
            if let Some(forgetting) = &mut running[index].forgetting {
                forgetting.observation = observation;
            }
        }
    }

    /// Indices of the running sequences whose observations are taken out.
    pub(super) fn indices(&self) -> Vec<usize> {
        self.0.iter().map(|watch| watch.index).collect()
    }
}
