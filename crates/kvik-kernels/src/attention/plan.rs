//! Planning: rows are grouped into units of work that share their reads.
//!
//! A *whole* unit is a tile of rows of one sequence that processes all its splits and folds them in order:
//! prefill. A *split* unit is one split read by all rows that see the same blocks there, of any sequence: decode,
//! long contexts spread over threads, shared prefixes read once. The kind of a row's unit changes the work, never
//! the result.

use std::ops::Range;

use super::{SPLIT, SPLIT_BLOCKS};
use crate::kv::{BLOCK_POSITIONS, KvKind, SeqKv, SeqRow};

/// Minimum rows of a sequence for which a tile is worth folding in place.
const WHOLE_ROWS_MIN: usize = 8;

/// A unit: rows that read the same keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unit {
    /// Start and number of its rows in [`Plan::members`].
    pub start: usize,
    pub rows: usize,
    /// The sequence whose blocks are read.
    pub seq: u32,
    pub kind: UnitKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UnitKind {
    /// All splits of the unit's rows, folded in place.
    Whole,
    /// A single split; a row's results are folded when all its splits are done.
    Split(usize),
}

/// A row of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Member {
    pub row: u32,
    /// Index of the partial result that a split unit writes for the row.
    pub partial: usize,
}

/// A row whose splits are computed separately and folded afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SplitRow {
    pub row: u32,
    /// Index of the partial result of its first visible split; the others follow.
    first_partial: usize,
    /// The first visible split, and the end of the visible ones; those before `planned` have a unit.
    splits: (usize, usize),
    planned: usize,
}

impl SplitRow {
    /// The indices of the row's partial results, in the order of splits.
    pub(super) fn partials(&self) -> Range<usize> {
        self.first_partial..self.first_partial + self.splits.1 - self.splits.0
    }

    /// Whether `split` is the next one that needs a unit.
    fn pending(&self, split: usize) -> bool {
        self.planned == split && split < self.splits.1
    }
}

/// The units of one call, and the mapping from split rows to partial results.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub units: Vec<Unit>,
    /// The rows of the units, unit by unit.
    pub members: Vec<Member>,
    /// Rows in split units, ascending.
    pub split_rows: Vec<SplitRow>,
    /// Number of partial results of all split rows: one per row and split.
    pub partials: usize,
}

/// Parameters of the plan besides the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PlanLimits {
    /// The visibility of positions in the layer.
    pub kind: KvKind,
    /// Maximum rows of a unit.
    pub unit_rows_max: usize,
    /// Minimum number of whole units, below which threads would be idle.
    pub whole_units_min: usize,
}

impl Plan {
    /// Groups `rows`; buffers are reused by the next call.
    pub(super) fn fill(&mut self, rows: &[SeqRow], seqs: &[SeqKv<'_>], limits: PlanLimits) {
        self.units.clear();
        self.members.clear();
        self.split_rows.clear();
        self.partials = 0;
        let tiles = || {
            let runs = rows.chunk_by(|a, b| a.seq == b.seq);
            runs.flat_map(|run| run.chunks(limits.unit_rows_max))
        };
        let enough = tiles().filter(|tile| tile.len() >= WHOLE_ROWS_MIN).count() >= limits.whole_units_min;
        let mut first = 0;
        for tile in tiles() {
            let one_split = tile.iter().all(|row| splits(row, seqs, limits.kind).len() == 1);
            if one_split || (enough && tile.len() >= WHOLE_ROWS_MIN) {
                self.push_whole(first, tile);
            } else {
                self.push_split_rows(first, tile, seqs, limits.kind);
            }
            first += tile.len() as u32;
        }
        // Later rows of a prompt see more positions: long units run first, so that threads finish together.
        self.units.reverse();
        self.group_splits(rows, seqs, limits);
    }

    fn push_whole(&mut self, first: u32, tile: &[SeqRow]) {
        let start = self.members.len();
        self.members.extend((first..first + tile.len() as u32).map(|row| Member { row, partial: 0 }));
        self.units.push(Unit { start, rows: tile.len(), seq: tile[0].seq, kind: UnitKind::Whole });
    }

    fn push_split_rows(&mut self, first: u32, tile: &[SeqRow], seqs: &[SeqKv<'_>], kind: KvKind) {
        for (attn_row, row) in tile.iter().zip(first..) {
            let Range { start, end } = splits(attn_row, seqs, kind);
            let (first_partial, splits) = (self.partials, (start, end));
            self.split_rows.push(SplitRow { row, first_partial, splits, planned: start });
            self.partials += end - start;
        }
    }

    /// Groups rows that read the same blocks in a split into one unit of that split.
    fn group_splits(&mut self, rows: &[SeqRow], seqs: &[SeqKv<'_>], limits: PlanLimits) {
        let start = self.split_rows.iter().map(|row| row.splits.0).min().unwrap_or(0);
        let end = self.split_rows.iter().map(|row| row.splits.1).max().unwrap_or(0);
        for split in start..end {
            for i in 0..self.split_rows.len() {
                if self.split_rows[i].pending(split) {
                    self.gather(i, split, rows, seqs, limits);
                }
            }
        }
    }

    /// Adds a unit of the split row at `i` and of the later ones that read the same blocks, as far as they read;
    /// their visible positions may differ.
    fn gather(&mut self, i: usize, split: usize, rows: &[SeqRow], seqs: &[SeqKv<'_>], limits: PlanLimits) {
        let start = self.members.len();
        let mut reader = SplitReads::default();
        for split_row in &mut self.split_rows[i..] {
            let row = rows[split_row.row as usize];
            if !split_row.pending(split) || !reader.join(SplitReads::of(row, seqs, split)) {
                continue;
            }
            split_row.planned += 1;
            let partial = split_row.first_partial + split - split_row.splits.0;
            self.members.push(Member { row: split_row.row, partial });
            if self.members.len() - start == limits.unit_rows_max {
                break;
            }
        }
        let rows = self.members.len() - start;
        self.units.push(Unit { start, rows, seq: reader.seq, kind: UnitKind::Split(split) });
    }
}

/// The maximum over heads of the number of stored positions among those that a row attends to.
fn stored(row: &SeqRow, seqs: &[SeqKv<'_>]) -> usize {
    seqs[row.seq as usize].stored_max(row.len)
}

/// The splits that contain stored positions that a row sees.
fn splits(row: &SeqRow, seqs: &[SeqKv<'_>], kind: KvKind) -> Range<usize> {
    kind.first_visible(row.len) as usize / SPLIT..stored(row, seqs).div_ceil(SPLIT)
}

/// The blocks that rows read in a split, up to the last position that they see there. Blocks before a window are
/// compared as if they were read: sequences that share a block share those before it.
#[derive(Debug, Default, Clone, Copy)]
struct SplitReads<'a> {
    /// The sequence with the most blocks among them.
    seq: u32,
    blocks: &'a [u32],
    /// Whether the split reaches into the sequence's tails, which belong to it alone.
    private: bool,
}

impl<'a> SplitReads<'a> {
    /// The blocks that one row reads.
    fn of(row: SeqRow, seqs: &[SeqKv<'a>], split: usize) -> SplitReads<'a> {
        let SeqKv { blocks, .. } = seqs[row.seq as usize];
        let end = stored(&row, seqs).div_ceil(BLOCK_POSITIONS).min((split + 1) * SPLIT_BLOCKS);
        let shared = end.min(blocks.len());
        let start = shared.min(split * SPLIT_BLOCKS);
        SplitReads { seq: row.seq, blocks: &blocks[start..shared], private: end > shared }
    }

    /// Merges `other` if either reads all that the other reads.
    fn join(&mut self, other: SplitReads<'a>) -> bool {
        let common = self.blocks.len().min(other.blocks.len());
        let alike = self.blocks[..common] == other.blocks[..common];
        let first = self.blocks.is_empty() && !self.private;
        if !first && (!alike || ((self.private || other.private) && self.seq != other.seq)) {
            return false;
        }
        if first || other.blocks.len() > self.blocks.len() || other.private {
            *self = other;
        }
        true
    }
}
