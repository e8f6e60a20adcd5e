//! Plans that are kept from layer to layer.
//!
//! All layers of a kind have the same plan in a batch, and where many long sequences are joined it takes milliseconds
//! to make. A kept plan belongs to the rows and the blocks that it was made for, which are compared: this takes a
//! small part of the time. Tails differ from layer to layer, so a batch with tails is planned in each.

use super::plan::{Plan, PlanLimits};
use crate::kv::{SeqKv, SeqRow};

/// Maximum number of kept plans: a model has few kinds of layers.
const KEPT_MAX: usize = 4;

/// The plan of the current call, and those of earlier ones.
#[derive(Debug, Default)]
pub(super) struct Plans {
    kept: Vec<KeptPlan>,
    /// The current plan among those; `None` for `with_tails`.
    current: Option<usize>,
    with_tails: Plan,
}

/// A plan, and all that it was made of.
#[derive(Debug)]
struct KeptPlan {
    limits: PlanLimits,
    rows: Vec<SeqRow>,
    /// The blocks of all sequences, one after the other.
    blocks: Vec<u32>,
    /// Where each sequence's blocks end.
    ends: Vec<usize>,
    plan: Plan,
}

impl Plans {
    /// Finds or makes the plan of a call.
    pub(super) fn set(&mut self, rows: &[SeqRow], seqs: &[SeqKv<'_>], limits: PlanLimits) {
        if seqs.iter().any(|kv| !kv.tails.is_empty()) {
            self.with_tails.fill(rows, seqs, limits);
            self.current = None;
            return;
        }
        let found = self.kept.iter().position(|kept| kept.limits == limits);
        let index = found.unwrap_or_else(|| self.add(limits));
        let kept = &mut self.kept[index];
        if !kept.is_of(rows, seqs) {
            kept.make(rows, seqs);
        }
        self.current = Some(index);
    }

    /// The plan of the current call.
    pub(super) fn current(&self) -> &Plan {
        self.current.map_or(&self.with_tails, |index| &self.kept[index].plan)
    }

    /// Makes room for a plan with these limits, if need be in place of the oldest one; returns its index.
    fn add(&mut self, limits: PlanLimits) -> usize {
        if self.kept.len() == KEPT_MAX {
            self.kept.remove(0);
        }
        let (rows, blocks, ends, plan) = (Vec::new(), Vec::new(), Vec::new(), Plan::default());
        self.kept.push(KeptPlan { limits, rows, blocks, ends, plan });
        self.kept.len() - 1
    }
}

impl KeptPlan {
    /// Whether the plan is that of a call with the same limits and without tails.
    fn is_of(&self, rows: &[SeqRow], seqs: &[SeqKv<'_>]) -> bool {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let mut sequences = seqs.iter().zip(starts.zip(&self.ends));
        self.rows == rows
            && self.ends.len() == seqs.len()
            && sequences.all(|(kv, (start, &end))| self.blocks[start..end] == *kv.blocks)
    }

    fn make(&mut self, rows: &[SeqRow], seqs: &[SeqKv<'_>]) {
        self.rows.clear();
        self.rows.extend_from_slice(rows);
        self.blocks.clear();
        self.ends.clear();
        for kv in seqs {
            self.blocks.extend_from_slice(kv.blocks);
            self.ends.push(self.blocks.len());
        }
        self.plan.fill(rows, seqs, self.limits);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::kv::{HeadTail, KvKind};

    const KINDS: [KvKind; 2] = [KvKind::Full, KvKind::Window { positions: 300 }];

    fn limits(kind: usize, unit_rows_max: usize) -> PlanLimits {
        PlanLimits { kind: KINDS[kind], unit_rows_max, whole_units_min: 2 }
    }

    fn views(tables: &[Vec<u32>]) -> Vec<SeqKv<'_>> {
        tables.iter().map(|blocks| SeqKv { blocks, tails: &[] }).collect()
    }

    fn fresh(rows: &[SeqRow], seqs: &[SeqKv<'_>], limits: PlanLimits) -> Plan {
        let mut plan = Plan::default();
        plan.fill(rows, seqs, limits);
        plan
    }

    /// The last `count` positions of each sequence.
    fn last_rows(tables: &[Vec<u32>], count: u32) -> Vec<SeqRow> {
        let rows = |(seq, table): (u32, &Vec<u32>)| {
            let len = table.len() as u32 * 16;
            (len - count.min(len)..len).map(move |before| SeqRow { seq, len: before + 1 })
        };
        (0..).zip(tables).flat_map(rows).collect()
    }

    proptest! {
        #![proptest_config(crate::testing::cases(128))]

        /// Blocks are drawn from few, so that sequences share them, and calls repeat.
        #[test]
        fn a_kept_plan_equals_a_fresh_one(
            batches in prop::collection::vec(
                prop::collection::vec(prop::collection::vec(0u32..2, 1..60), 1..5),
                1..3,
            ),
            calls in prop::collection::vec(
                (any::<prop::sample::Index>(), 1u32..12, 0usize..2, 1usize..7),
                1..30,
            ),
        ) {
            let mut plans = Plans::default();
            for (batch, count, kind, unit_rows_max) in calls {
                let (tables, limits) = (batch.get(&batches), limits(kind, unit_rows_max));
                let (rows, seqs) = (last_rows(tables, count), views(tables));
                plans.set(&rows, &seqs, limits);
                prop_assert_eq!(plans.current(), &fresh(&rows, &seqs, limits));
            }
        }
    }

    /// A kept plan is marked here to be told from a new one.
    #[test]
    fn a_plan_is_made_once_for_the_layers_of_a_kind() {
        const MARK: usize = 12_345;
        let tables = vec![(0..40).collect::<Vec<u32>>(), (40..80).collect()];
        let (rows, seqs) = (last_rows(&tables, 1), views(&tables));
        let mut plans = Plans::default();
        let mut is_kept = |kind, rows: &[SeqRow], seqs: &[SeqKv<'_>]| {
            plans.set(rows, seqs, limits(kind, 8));
            let is_kept = plans.current().partials == MARK;
            if let Some(index) = plans.current {
                plans.kept[index].plan.partials = MARK;
            }
            is_kept
        };
        let layers = [0, 1, 0, 1, 1, 0].map(|kind| is_kept(kind, &rows, &seqs));
        assert_eq!(layers, [false, false, true, true, true, true]);
        assert!(!is_kept(0, &rows[..1], &seqs), "as in a last layer, of which few rows are needed");
        assert!(is_kept(0, &rows[..1], &seqs) && is_kept(1, &rows, &seqs));
        let mut other = tables.clone();
        other[1][39] = 7;
        assert!(!is_kept(1, &rows, &views(&other)), "other blocks");
        let tails = [HeadTail { tiles: &[], dropped: 0 }];
        let with_tails = [seqs[0], SeqKv { tails: &tails, ..seqs[1] }];
        assert!(!is_kept(0, &rows[..1], &with_tails) && !is_kept(0, &rows[..1], &with_tails));
        assert!(is_kept(0, &rows[..1], &seqs));
    }
}
