//! Execution of the units of a plan, and the folding of the partial results of split units.

use std::ops::Range;

use super::kernel::{AttentionKernels, ScoreCall, Scoring, Seen, Softmax, ValueCall};
use super::plan::{Member, Plan, SplitRow, Unit, UnitKind};
use super::weights::Watch;
use super::{Attention, SPLIT, SPLIT_BLOCKS};
use crate::Pool;
use crate::kv::{BLOCK_POSITIONS, KvLayer, SeqRow};
use crate::lines::Line;
use crate::threads::Disjoint;

/// The units of a call, with its operands and destinations.
pub(super) struct Units<'a> {
    /// The call, whose `q` is `[n, heads, query_len]`: queries converted for the keys of the layer.
    pub operands: Attention<'a>,
    /// The layer's shape and formats.
    pub shape: &'a KvLayer,
    pub kernels: AttentionKernels,
    pub query_len: usize,
    /// Query heads per KV head.
    pub group: usize,
    pub value_lanes: usize,
    pub value_scales: Range<usize>,
    pub plan: &'a Plan,
    /// Destination of the attention weights of watched rows.
    pub watch: Option<Watch<'a>>,
    pub out: Disjoint<'a, f32>,
    pub partial_out: Disjoint<'a, f32>,
    pub partial_sums: Disjoint<'a, Softmax>,
}

impl Units<'_> {
    /// Runs all units, each thread in its own of `workspaces`.
    pub(super) fn run(&self, pool: &Pool, workspaces: &mut [Workspace]) {
        let kv_heads = self.shape.kv_heads;
        let workspaces = Disjoint::new(workspaces);
        // SAFETY: a worker is one thread and executes one task at a time.
        let workspace = |worker: usize| unsafe { &mut workspaces.range(worker, 1)[0] };
        pool.run_by_worker(self.plan.units.len() * kv_heads, &|worker, task| {
            self.run_unit(self.plan.units[task / kv_heads], task % kv_heads, workspace(worker));
        });
        pool.run_by_worker(self.plan.split_rows.len() * kv_heads, &|worker, task| {
            let row = self.plan.split_rows[task / kv_heads];
            let (first_head, out) = (task % kv_heads * self.group, &mut workspace(worker).out);
            (first_head..first_head + self.group).for_each(|head| self.fold_row(row, head, out));
        });
    }

    /// Runs one unit for one KV head.
    fn run_unit(&self, unit: Unit, kv_head: usize, work: &mut Workspace) {
        let members = &self.plan.members[unit.start..unit.start + unit.rows];
        let first_head = kv_head * self.group;
        work.q.clear();
        for member in members {
            let first = (member.row as usize * self.operands.heads + first_head) * self.query_len;
            let heads = self.operands.q[first..].chunks_exact(self.query_len).take(self.group);
            work.q.extend(heads.map(<[f32]>::as_ptr));
        }
        match unit.kind {
            UnitKind::Whole => self.run_whole(unit, members, kv_head, work),
            UnitKind::Split(split) => {
                self.run_split(unit.seq, split, members, kv_head, work);
                self.leave_partials(members, first_head, work);
            }
        }
    }

    /// Processes all splits of a tile of rows and folds them in order.
    fn run_whole(&self, unit: Unit, members: &[Member], kv_head: usize, work: &mut Workspace) {
        let (query_rows, lanes) = (members.len() * self.group, self.value_lanes);
        let visible = members.iter().map(|member| self.visible(member.row, kv_head));
        let visible = visible.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end)).unwrap_or(0..0);
        for (query_row, sum) in work.sums[..query_rows].iter_mut().enumerate() {
            *sum = self.begin(kv_head * self.group + query_row % self.group);
        }
        work.out[..query_rows * lanes].fill(0.0);
        for split in visible.start / SPLIT..visible.end.div_ceil(SPLIT) {
            self.run_split(unit.seq, split, members, kv_head, work);
            for query_row in (0..query_rows).filter(|&query_row| work.seen[query_row] != Seen::NOTHING) {
                let out = &mut work.out[query_row * lanes..][..lanes];
                let split_out = &work.split_out[query_row * lanes..][..lanes];
                // SAFETY: both are `[value_lanes]`, whole lanes.
                unsafe {
                    (self.kernels.fold)(&mut work.sums[query_row], out, work.split_sums[query_row], split_out)
                };
            }
        }
        for (query_row, out) in work.out[..query_rows * lanes].chunks_exact_mut(lanes).enumerate() {
            let row = members[query_row / self.group].row;
            self.finish(row, kv_head * self.group + query_row % self.group, work.sums[query_row], out);
        }
    }

    /// The range of stored positions of a KV head that a row attends to.
    fn visible(&self, row: u32, kv_head: usize) -> Range<usize> {
        let SeqRow { seq, len } = self.operands.rows[row as usize];
        let stored = self.operands.seqs[seq as usize].stored(kv_head, len);
        self.shape.kind.first_visible(len) as usize..stored
    }

    /// The initial softmax state of a query head.
    fn begin(&self, head: usize) -> Softmax {
        self.operands.sinks.map_or(Softmax::EMPTY, |sinks| Softmax::of_sink(sinks[head]))
    }

    /// Processes one split for the queries in `work.q`, into `split_out` and `split_sums`.
    fn run_split(&self, seq: u32, split: usize, members: &[Member], kv_head: usize, work: &mut Workspace) {
        let blocks = self.find_seen(split, members, kv_head, work);
        let first_block = blocks.start;
        self.find_tiles(seq, blocks, kv_head, work);
        let Workspace { q, seen, tiles, value_tiles, scores, .. } = &mut *work;
        let head_dim = self.shape.key_dim;
        let (value_scales, scores) = (self.value_scales.clone(), scores.as_mut_ptr());
        let scores = ScoreCall { q, seen, tiles, value_tiles, value_scales, head_dim, scores };
        // SAFETY: the workspace has room for the query rows, the queries are those of the format, the tiles those
        // of the layer, and all visible positions lie within them.
        unsafe { (self.kernels.scores)(&scores) };

        let scoring = Scoring { scale: self.operands.scale, softcap: self.operands.softcap };
        for (query_row, &seen) in work.seen.iter().enumerate() {
            let scores = &mut work.scores[query_row * SPLIT..][..SPLIT];
            work.split_sums[query_row] = match seen {
                Seen::NOTHING => Softmax::EMPTY,
                // SAFETY: a row of SPLIT, written in all visible blocks.
                _ => unsafe { (self.kernels.softmax)(scores.as_mut_ptr(), seen, scoring) },
            };
        }
        self.keep_weights(first_block, members, kv_head, work);

        let Workspace { seen, value_tiles: tiles, scores, room, turned, split_out, .. } = work;
        let (p, out) = (scores.as_ptr(), split_out.as_mut_ptr());
        let (room, turned) = (room.as_mut_ptr().cast(), turned.as_mut_ptr().cast());
        let (dims, key_dim) = (self.value_lanes, self.shape.key_dim);
        let skipped = first_block - split * SPLIT_BLOCKS;
        let values = ValueCall { p, seen, tiles, skipped, dims, key_dim, room, turned, out };
        // SAFETY: as for the scores.
        unsafe { (self.kernels.values)(&values) };
    }

    /// Computes the visible positions of each query row in a split; returns the blocks of the sequence that at
    /// least one of them sees a part of.
    fn find_seen(
        &self,
        split: usize,
        members: &[Member],
        kv_head: usize,
        work: &mut Workspace,
    ) -> Range<usize> {
        let in_split = |position: usize| position.saturating_sub(split * SPLIT).min(SPLIT) as u32;
        let seen_by = |member: &Member| {
            let visible = self.visible(member.row, kv_head);
            Seen { start: in_split(visible.start), end: in_split(visible.end) }
        };
        let seen = || members.iter().map(seen_by).filter(|seen| seen.start < seen.end);
        let start = seen().map(|seen| seen.blocks().start).min().unwrap_or(0);
        let end = seen().map(|seen| seen.blocks().end).max().unwrap_or(0);
        work.seen.clear();
        for seen in members.iter().map(seen_by) {
            let before = (start * BLOCK_POSITIONS) as u32;
            let seen = match seen.start < seen.end {
                true => Seen { start: seen.start - before, end: seen.end - before },
                false => Seen::NOTHING,
            };
            work.seen.extend(std::iter::repeat_n(seen, self.group));
        }
        split * SPLIT_BLOCKS + start..split * SPLIT_BLOCKS + end
    }

    /// Records the attention weights of watched rows in a split, whose first tile is that of `first_block`.
    fn keep_weights(&self, first_block: usize, members: &[Member], kv_head: usize, work: &Workspace) {
        let Some(watch) = &self.watch else { return };
        for (query_row, &seen) in work.seen.iter().enumerate().filter(|(_, seen)| **seen != Seen::NOTHING) {
            let row = members[query_row / self.group].row;
            let head = kv_head * self.group + query_row % self.group;
            let blocks = seen.blocks();
            let p = blocks.start * BLOCK_POSITIONS..blocks.end * BLOCK_POSITIONS;
            let p = &work.scores[query_row * SPLIT..][p];
            let first = (first_block + blocks.start) * BLOCK_POSITIONS;
            // SAFETY: a row, split and head belong to one unit.
            unsafe { watch.keep(row, head, first, p, work.split_sums[query_row].m) };
        }
    }

    /// Collects the tiles of `blocks` that a sequence stores for a KV head.
    fn find_tiles(&self, seq: u32, blocks: Range<usize>, kv_head: usize, work: &mut Workspace) {
        let Attention { arena, layer, seqs, .. } = self.operands;
        work.tiles.clear();
        work.value_tiles.clear();
        for index in blocks {
            let [key_tile, value_tile] =
                arena.tiles(seqs[seq as usize].tile(arena, layer, kv_head, index), layer);
            work.tiles.push(key_tile);
            work.value_tiles.push(value_tile);
        }
    }

    fn leave_partials(&self, members: &[Member], first_head: usize, work: &Workspace) {
        for (i, member) in members.iter().enumerate() {
            let query_row = i * self.group;
            let to = member.partial * self.operands.heads + first_head;
            // SAFETY: a row, split and head belong to one unit, so no other task uses these ranges.
            let (sums, out) = unsafe {
                let out = self.partial_out.range(to * self.value_lanes, self.group * self.value_lanes);
                (self.partial_sums.range(to, self.group), out)
            };
            sums.copy_from_slice(&work.split_sums[query_row..][..self.group]);
            out.copy_from_slice(
                &work.split_out[query_row * self.value_lanes..][..self.group * self.value_lanes],
            );
        }
    }

    /// Folds the partial results of one row and head, in ascending order of splits.
    fn fold_row(&self, row: SplitRow, head: usize, out: &mut [f32]) {
        let out = &mut out[..self.value_lanes];
        out.fill(0.0);
        let mut state = self.begin(head);
        for split in row.partials() {
            let from = split * self.operands.heads + head;
            // SAFETY: all units have ended, and this task alone folds this row and head.
            // Both slices are `[value_lanes]`, whole lanes.
            unsafe {
                let sum = self.partial_sums.range(from, 1)[0];
                let split_out = self.partial_out.range(from * self.value_lanes, self.value_lanes);
                // Other heads may store more positions than this one.
                if sum != Softmax::EMPTY {
                    (self.kernels.fold)(&mut state, out, sum, split_out);
                }
            }
        }
        self.finish(row.row, head, state, out);
    }

    /// Divides the accumulated values of a row and head by their sum and writes the result.
    fn finish(&self, row: u32, head: usize, sum: Softmax, gathered: &mut [f32]) {
        let (value_dim, rotated_dim) = (self.shape.value_dim, self.shape.rotated_value_dim());
        let start = (row as usize * self.operands.heads + head) * value_dim;
        // SAFETY: whole lanes; and a row and head are finished once, by one task, after all their splits.
        let out = unsafe {
            if let Some(watch) = &self.watch {
                watch.finish(row, head, self.visible(row, head / self.group).end, sum);
            }
            (self.kernels.finish)(gathered, sum.l, rotated_dim);
            self.out.range(start, value_dim)
        };
        out.copy_from_slice(&gathered[..value_dim]);
    }
}

/// The buffers of one thread for a unit.
#[derive(Debug, Default)]
pub(super) struct Workspace {
    q: Vec<*const f32>,
    seen: Vec<Seen>,
    tiles: Vec<*const u8>,
    value_tiles: Vec<*const u8>,
    /// `[query_rows, SPLIT]`
    scores: Vec<f32>,
    /// Aligned buffer for the kernel of values.
    room: Vec<[f32; 2]>,
    /// Tiles that the kernel of values has transposed.
    turned: Vec<Line>,
    /// `[query_rows, value_lanes]` and `[query_rows]`: of the current split, then accumulated over splits.
    split_out: Vec<f32>,
    split_sums: Vec<Softmax>,
    out: Vec<f32>,
    sums: Vec<Softmax>,
}

// SAFETY: the pointers are only used within the call that stores them.
unsafe impl Send for Workspace {}
// SAFETY: as above.
unsafe impl Sync for Workspace {}

impl Workspace {
    /// Makes room for units of `query_rows` query rows whose values have `lanes` lanes and need `room_bytes`, and
    /// `turned_bytes` if keys hold them.
    pub(super) fn grow(&mut self, query_rows: usize, lanes: usize, room_bytes: usize, turned_bytes: usize) {
        let larger = |len: usize, needed: usize| len.max(needed);
        self.scores.resize(larger(self.scores.len(), query_rows * SPLIT), 0.0);
        self.split_out.resize(larger(self.split_out.len(), query_rows * lanes), 0.0);
        self.out.resize(larger(self.out.len(), query_rows * lanes), 0.0);
        let room = room_bytes.div_ceil(size_of::<[f32; 2]>());
        self.room.resize(larger(self.room.len(), room), [0.0; 2]);
        let turned = turned_bytes.div_ceil(size_of::<Line>());
        self.turned.resize(larger(self.turned.len(), turned), Line::ZERO);
        self.split_sums.resize(larger(self.split_sums.len(), query_rows), Softmax::EMPTY);
        self.sums.resize(larger(self.sums.len(), query_rows), Softmax::EMPTY);
        self.q.reserve(query_rows);
        self.seen.reserve(query_rows);
        self.tiles.reserve(SPLIT_BLOCKS);
        self.value_tiles.reserve(SPLIT_BLOCKS);
    }
}
