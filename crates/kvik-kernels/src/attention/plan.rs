//! Who reads what together: rows grouped into units of work.
//!
//! A *whole* unit is a tile of rows of one sequence that goes through all its splits and folds them as
//! it goes: prefill. A *split* unit is one split read by all rows that see the same blocks there,
//! of whatever sequence: decode, long contexts spread over threads, shared prefixes read once.
//! Which kind a row belongs to changes the work, never the result.

use std::ops::Range;

use super::{SPLIT, SPLIT_BLOCKS};
use crate::kv::{BLOCK_POSITIONS, KvKind, SeqKv, SeqRow};

/// Rows of a sequence from which a tile is worth folding in place.
const WHOLE_ROWS_MIN: usize = 8;

/// Rows that read the same keys and values.
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
    /// All splits of its rows, folded in place.
    Whole,
    /// This split alone; the results of a row are folded when all its splits are there.
    Split(usize),
}

/// A row in a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Member {
    pub row: u32,
    /// Where a split unit leaves the row's partial result.
    pub partial: usize,
}

/// A row whose splits are worked on apart and folded afterwards.
#[derive(Debug, Clone, Copy)]
pub(super) struct SplitRow {
    pub row: u32,
    /// Index of its first visible split's partial result; the others follow.
    first_partial: usize,
    /// The first split that it sees something of, and the end of those; the ones before `planned` have a unit.
    splits: (usize, usize),
    planned: usize,
}

impl SplitRow {
    /// The indices of its partial results, in the order of splits.
    pub(super) fn partials(&self) -> Range<usize> {
        self.first_partial..self.first_partial + self.splits.1 - self.splits.0
    }

    /// Whether `split` is the next one that needs a unit.
    fn pending(&self, split: usize) -> bool {
        self.planned == split && split < self.splits.1
    }
}

/// The units of one call, and the split rows' place among the partial results.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub units: Vec<Unit>,
    /// The rows of the units, unit by unit.
    pub members: Vec<Member>,
    /// Rows in split units, ascending.
    pub split_rows: Vec<SplitRow>,
    /// Partial results of all split rows: one per row and split.
    pub partials: usize,
}

/// What the plan depends on besides the rows.
#[derive(Debug, Clone, Copy)]
pub(super) struct PlanLimits {
    /// Which positions the layer lets a row see.
    pub kind: KvKind,
    /// Most rows of a unit.
    pub unit_rows_max: usize,
    /// Whole units below which they would leave threads idle.
    pub whole_units_min: usize,
}

impl Plan {
    /// Groups `rows`; its buffers are kept for the next call.
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
        // Later rows of a prompt see more positions: the long units first, so that threads end together.
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

    /// Puts rows that read the same blocks in a split into one unit of that split.
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

    /// A unit of the split row at `i` and of those after it that read the same blocks, as far as they read; which
    /// of the positions there each sees does not matter.
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

/// The maximum of the positions that a head stores of those that a row attends to.
fn stored(row: &SeqRow, seqs: &[SeqKv<'_>]) -> usize {
    seqs[row.seq as usize].stored_max(row.len)
}

/// The splits in which a row sees something that a head stores.
fn splits(row: &SeqRow, seqs: &[SeqKv<'_>], kind: KvKind) -> Range<usize> {
    kind.first_visible(row.len) as usize / SPLIT..stored(row, seqs).div_ceil(SPLIT)
}

/// What rows read in a split, up to the last position that they see there. Blocks before a window are compared as if
/// they were read: sequences that share a block share those before it.
#[derive(Debug, Default, Clone, Copy)]
struct SplitReads<'a> {
    /// The sequence with the largest number of blocks among them.
    seq: u32,
    blocks: &'a [u32],
    /// Whether the split reaches into the sequence's tails, which are nobody else's.
    private: bool,
}

impl<'a> SplitReads<'a> {
    /// What one row reads.
    fn of(row: SeqRow, seqs: &[SeqKv<'a>], split: usize) -> SplitReads<'a> {
        let SeqKv { blocks, .. } = seqs[row.seq as usize];
        let end = stored(&row, seqs).div_ceil(BLOCK_POSITIONS).min((split + 1) * SPLIT_BLOCKS);
        let shared = end.min(blocks.len());
        let start = shared.min(split * SPLIT_BLOCKS);
        SplitReads { seq: row.seq, blocks: &blocks[start..shared], private: end > shared }
    }

    /// Takes `other` in if one of both reads all that the other reads.
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
