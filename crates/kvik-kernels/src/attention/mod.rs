//! Attention over paged keys and values in any storage format.
//!
//! A row's result depends on its query, its position count and what is stored for those positions,
//! to the bit: not on the other rows, the threads, or the bytes behind the last position.
//! [`kernel`] states the arithmetic, [`plan`] decides which rows share a read, this module runs the plan.

use std::ops::Range;

use crate::kv::{BLOCK_POSITIONS, HEAD_DIM_MAX, KvArena};
use crate::threads::Disjoint;
use crate::{Isa, Pool};
use kernel::{AttentionKernels, ScoreCall, Softmax, ValueCall};
use plan::{Member, Plan, PlanLimits, SplitRow, Unit, UnitKind};

pub(crate) mod codes;
pub(crate) mod floats;
pub(crate) mod kernel;
mod plan;

/// Positions that are worked on at a time. Part of the arithmetic: results change with it.
const SPLIT: usize = 256;
const SPLIT_BLOCKS: usize = SPLIT / BLOCK_POSITIONS;

/// Lines of a unit, unless a KV head has more query heads: enough to hide the reads of K and V,
/// few enough for their scores to stay in the second-level cache.
const UNIT_LINES: usize = 96;

/// Query heads that a task prepares: a decode row's are not worth waking a thread for.
const QUERY_HEADS: usize = 64;

/// The stored keys and values of one sequence in the layer at hand.
#[derive(Debug, Clone, Copy)]
pub struct SeqKv<'a> {
    /// Block `i` holds stored positions `16 i .. 16 i + 16` of every KV head; others may read it too.
    pub blocks: &'a [u32],
    /// What each KV head stores behind the blocks, `[kv_heads]`; or empty if that is nothing.
    pub tails: &'a [HeadTail<'a>],
}

/// What one KV head of one sequence stores by itself, behind the blocks that all heads share.
///
/// Heads that have dropped positions store the others without gaps, so each has its own count.
#[derive(Debug, Clone, Copy)]
pub struct HeadTail<'a> {
    /// Tile `i`, as [`KvArena::tile`] numbers them, holds the head's stored positions
    /// `16 (blocks + i) .. 16 (blocks + i) + 16`.
    pub tiles: &'a [u32],
    /// Positions of the sequence that this head no longer stores.
    pub dropped: u32,
}

impl SeqKv<'_> {
    /// How many of the first `len` positions a KV head still stores.
    fn stored(&self, head: usize, len: u32) -> usize {
        (len - self.tails.get(head).map_or(0, |tail| tail.dropped)) as usize
    }

    /// The greatest of the heads' [`SeqKv::stored`].
    fn most_stored(&self, len: u32) -> usize {
        (len - self.tails.iter().map(|tail| tail.dropped).min().unwrap_or(0)) as usize
    }

    /// Positions that a KV head has room for.
    fn held(&self, head: usize) -> usize {
        (self.blocks.len() + self.tails.get(head).map_or(0, |tail| tail.tiles.len())) * BLOCK_POSITIONS
    }
}

/// One row of queries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttnRow {
    /// The sequence it belongs to.
    pub seq: u32,
    /// It attends to positions `0..len` of that sequence, as far as they are stored.
    pub len: u32,
}

/// Buffers that calls of [`attention`] reuse, so that a call allocates nothing once they have grown.
#[derive(Debug, Default)]
pub struct AttnScratch {
    plan: Plan,
    workspaces: Vec<Workspace>,
    /// Results of split units: `[partials, heads, dims]` and `[partials, heads]`.
    partial_out: Vec<f32>,
    partial_sums: Vec<Softmax>,
    /// `[n, heads]` queries as coded keys meet them.
    queries: Vec<f32>,
}

impl AttnScratch {
    /// Empty buffers.
    pub fn new() -> AttnScratch {
        AttnScratch::default()
    }
}

/// What one thread needs for a unit.
#[derive(Debug, Default)]
struct Workspace {
    q: Vec<*const f32>,
    counts: Vec<u32>,
    tiles: Vec<*const u8>,
    value_tiles: Vec<*const u8>,
    /// `[lines, SPLIT]`
    scores: Vec<f32>,
    /// `[lines]` of what the format of the values needs, in aligned pieces.
    weights: Vec<[f32; 2]>,
    /// `[lines, dims]` and `[lines]`: of the split at hand, then gathered over splits.
    split_out: Vec<f32>,
    split_sums: Vec<Softmax>,
    out: Vec<f32>,
    sums: Vec<Softmax>,
}

// SAFETY: the pointers are only used within the call that puts them there.
unsafe impl Send for Workspace {}
// SAFETY: as above.
unsafe impl Sync for Workspace {}

impl Workspace {
    /// Makes room for units of `lines` lines of `dims` dimensions and `weight_bytes`.
    fn grow(&mut self, lines: usize, dims: usize, weight_bytes: usize) {
        let larger = |len: usize, needed: usize| len.max(needed);
        self.scores.resize(larger(self.scores.len(), lines * SPLIT), 0.0);
        self.split_out.resize(larger(self.split_out.len(), lines * dims), 0.0);
        self.out.resize(larger(self.out.len(), lines * dims), 0.0);
        let weights = (lines * weight_bytes).div_ceil(size_of::<[f32; 2]>());
        self.weights.resize(larger(self.weights.len(), weights), [0.0; 2]);
        self.split_sums.resize(larger(self.split_sums.len(), lines), Softmax::EMPTY);
        self.sums.resize(larger(self.sums.len(), lines), Softmax::EMPTY);
        self.q.reserve(lines);
        self.counts.reserve(lines);
        self.tiles.reserve(SPLIT_BLOCKS);
        self.value_tiles.reserve(SPLIT_BLOCKS);
    }
}

/// Attention of `n` rows in one layer: `out = softmax(scale q K) V`, head by head.
///
/// * `q`: `[n, heads, head_dim]`; query head `h` reads KV head `h * kv_heads / heads`
/// * `rows`: `[n]` which positions each row attends to; rows of a sequence stand together
/// * `seqs`: what the rows' `seq` refers to
/// * `out`: `[n, heads, head_dim]`
///
/// # Panics
/// When a shape does not fit, or a row attends to no position, to an unknown sequence,
/// to positions that its sequence's blocks and tails do not hold, or where a head has dropped all it could see.
#[expect(clippy::too_many_arguments, reason = "the operands of one operation")]
pub fn attention(
    pool: &Pool,
    arena: &KvArena,
    layer: usize,
    q: &[f32],
    heads: usize,
    rows: &[AttnRow],
    seqs: &[SeqKv<'_>],
    scale: f32,
    scratch: &mut AttnScratch,
    out: &mut [f32],
) {
    attention_with(Isa::current(), pool, arena, layer, q, heads, rows, seqs, scale, scratch, out);
}

/// [`attention`] with the kernels of `isa`, which the machine must have.
#[expect(clippy::too_many_arguments, reason = "the operands of one operation")]
fn attention_with(
    isa: Isa,
    pool: &Pool,
    arena: &KvArena,
    layer: usize,
    q: &[f32],
    heads: usize,
    rows: &[AttnRow],
    seqs: &[SeqKv<'_>],
    scale: f32,
    scratch: &mut AttnScratch,
    out: &mut [f32],
) {
    check(arena, layer, q, heads, rows, seqs, out);
    let layout = arena.layout();
    let group = heads / layout.kv_heads;
    let unit_rows_max = (UNIT_LINES / group).max(1);
    let dims = layout.value_dims();
    let whole_units_min = (2 * pool.threads()).div_ceil(layout.kv_heads);
    scratch.plan.fill(rows, seqs, PlanLimits { unit_rows_max, whole_units_min });

    let AttnScratch { plan, workspaces, partial_out, partial_sums, queries } = scratch;
    workspaces.resize_with(pool.threads().max(workspaces.len()), Workspace::default);
    let weight_bytes = codes::weight_bytes(layout.v, dims);
    workspaces.iter_mut().for_each(|workspace| workspace.grow(unit_rows_max * group, dims, weight_bytes));
    partial_out.resize(partial_out.len().max(plan.partials * heads * dims), 0.0);
    partial_sums.resize(partial_sums.len().max(plan.partials * heads), Softmax::EMPTY);
    let kernels = kernels(isa, arena);
    let query_len = codes::query_len(layout.k, layout.head_dim);
    if query_len > 0 {
        queries.resize(rows.len() * heads * query_len, 0.0);
        prepare_queries(pool, kernels, q, layout.head_dim, queries, query_len);
    }
    let (q, query_len) = if query_len > 0 { (&queries[..], query_len) } else { (q, layout.head_dim) };
    let call = Call {
        kernels,
        arena,
        layer,
        q,
        query_len,
        heads,
        group,
        dims,
        value_scales: codes::value_scales(layout.v, dims),
        rows,
        seqs,
        scale,
        plan,
        out: Disjoint::new(out),
        partial_out: Disjoint::new(partial_out),
        partial_sums: Disjoint::new(partial_sums),
    };
    let workspaces = Disjoint::new(workspaces);
    pool.run_by_worker(plan.units.len() * layout.kv_heads, &|worker, task| {
        // SAFETY: a worker is one thread and does one task at a time.
        let workspace = unsafe { &mut workspaces.range(worker, 1)[0] };
        let unit = plan.units[task / layout.kv_heads];
        call.run_unit(unit, task % layout.kv_heads, workspace);
    });
    pool.run(plan.split_rows.len() * layout.kv_heads, &|task| {
        let row = plan.split_rows[task / layout.kv_heads];
        let first_head = task % layout.kv_heads * group;
        (first_head..first_head + group).for_each(|head| call.fold_row(row, head));
    });
}

/// Makes of every query vector in `q` what coded keys meet, `[n, heads, query_len]`.
fn prepare_queries(
    pool: &Pool,
    kernels: AttentionKernels,
    q: &[f32],
    head_dim: usize,
    queries: &mut [f32],
    query_len: usize,
) {
    pool.run_chunks(queries, QUERY_HEADS * query_len, |chunk, queries| {
        let q = &q[chunk * QUERY_HEADS * head_dim..];
        for (q, query) in q.chunks_exact(head_dim).zip(queries.chunks_exact_mut(query_len)) {
            // SAFETY: the kernels are those of the machine and of the format that `query_len` is of.
            unsafe { (kernels.query)(q, query) };
        }
    });
}

/// Everything that could make a kernel read or write outside its operands.
fn check(
    arena: &KvArena,
    layer: usize,
    q: &[f32],
    heads: usize,
    rows: &[AttnRow],
    seqs: &[SeqKv<'_>],
    out: &[f32],
) {
    let layout = arena.layout();
    assert!(layer < layout.layers, "layer {layer} of {}", layout.layers);
    assert!(
        heads > 0 && heads.is_multiple_of(layout.kv_heads),
        "{heads} heads share {} KV heads",
        layout.kv_heads
    );
    let len = rows.len() * heads * layout.head_dim;
    assert!(q.len() == len && out.len() == len, "q and out are [n, heads, head_dim]");
    for kv in seqs {
        let complete = kv.tails.is_empty() || kv.tails.len() == layout.kv_heads;
        assert!(complete, "{} tails of {} KV heads", kv.tails.len(), layout.kv_heads);
    }
    for &AttnRow { seq, len } in rows {
        let kv = &seqs[seq as usize];
        for head in 0..kv.tails.len().max(1) {
            let (held, dropped) = (kv.held(head), kv.tails.get(head).map_or(0, |tail| tail.dropped));
            let some = len > dropped && (len - dropped) as usize <= held;
            assert!(some, "{len} positions, {dropped} dropped, of {held} in sequence {seq}");
        }
    }
}

fn kernels(isa: Isa, arena: &KvArena) -> AttentionKernels {
    let (k, v) = (arena.layout().k, arena.layout().v);
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Bf16 => crate::x86::attention_avx512::kernels(k, v),
        #[cfg(target_arch = "x86_64")]
        Isa::AvxVnni => crate::x86::attention_avxvnni::kernels(k, v),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => crate::x86::attention_avx2::kernels(k, v),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon | Isa::NeonDot | Isa::NeonI8mm => crate::arm::attention_neon::kernels(k, v),
        _ => crate::scalar::attention::kernels(k, v),
    }
}

/// The operands of a call and where its results go.
struct Call<'a> {
    kernels: AttentionKernels,
    arena: &'a KvArena,
    layer: usize,
    /// `[n, heads, query_len]`
    q: &'a [f32],
    query_len: usize,
    heads: usize,
    /// Query heads per KV head.
    group: usize,
    dims: usize,
    value_scales: Range<usize>,
    rows: &'a [AttnRow],
    seqs: &'a [SeqKv<'a>],
    scale: f32,
    plan: &'a Plan,
    out: Disjoint<'a, f32>,
    partial_out: Disjoint<'a, f32>,
    partial_sums: Disjoint<'a, Softmax>,
}

impl Call<'_> {
    /// One unit for one KV head.
    fn run_unit(&self, unit: Unit, kv_head: usize, work: &mut Workspace) {
        let members = &self.plan.members[unit.start..unit.start + unit.rows];
        let first_head = kv_head * self.group;
        work.q.clear();
        for member in members {
            let first = (member.row as usize * self.heads + first_head) * self.query_len;
            let heads = self.q[first..].chunks_exact(self.query_len).take(self.group);
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

    /// All splits of a tile of rows, folded as they come.
    fn run_whole(&self, unit: Unit, members: &[Member], kv_head: usize, work: &mut Workspace) {
        let (lines, dims) = (members.len() * self.group, self.dims);
        let longest = members.iter().map(|member| self.stored(member.row, kv_head)).max();
        work.sums[..lines].fill(Softmax::EMPTY);
        work.out[..lines * dims].fill(0.0);
        for split in 0..longest.unwrap_or(0).div_ceil(SPLIT) {
            self.run_split(unit.seq, split, members, kv_head, work);
            for line in (0..lines).filter(|&line| work.counts[line] > 0) {
                let out = &mut work.out[line * dims..][..dims];
                let split_out = &work.split_out[line * dims..][..dims];
                // SAFETY: both are `[dims]`, whole lanes.
                unsafe { (self.kernels.fold)(&mut work.sums[line], out, work.split_sums[line], split_out) };
            }
        }
        for (line, out) in work.out[..lines * dims].chunks_exact_mut(dims).enumerate() {
            let row = members[line / self.group].row;
            self.finish(row, kv_head * self.group + line % self.group, work.sums[line], out);
        }
    }

    /// Positions that a KV head stores of those that a row attends to.
    fn stored(&self, row: u32, kv_head: usize) -> usize {
        let AttnRow { seq, len } = self.rows[row as usize];
        self.seqs[seq as usize].stored(kv_head, len)
    }

    /// One split for the queries in `work.q`: leaves `split_out` and `split_sums`.
    fn run_split(&self, seq: u32, split: usize, members: &[Member], kv_head: usize, work: &mut Workspace) {
        work.counts.clear();
        for member in members {
            let stored = self.stored(member.row, kv_head);
            let count = stored.saturating_sub(split * SPLIT).min(SPLIT) as u32;
            work.counts.extend(std::iter::repeat_n(count, self.group));
        }
        let most = work.counts.iter().max().copied().unwrap_or(0) as usize;
        self.find_tiles(seq, split * SPLIT_BLOCKS, most.div_ceil(BLOCK_POSITIONS), kv_head, work);
        let Workspace { q, counts, tiles, value_tiles, scores, .. } = &mut *work;
        let head_dim = self.arena.layout().head_dim;
        let (value_scales, scores) = (self.value_scales.clone(), scores.as_mut_ptr());
        let scores = ScoreCall { q, counts, tiles, value_tiles, value_scales, head_dim, scores };
        // SAFETY: the workspace has room for the lines, the queries are those of the format, the tiles those
        // of the arena's, and each count lies within them.
        unsafe { (self.kernels.scores)(&scores) };

        for (line, &count) in work.counts.iter().enumerate() {
            let scores = &mut work.scores[line * SPLIT..][..SPLIT];
            work.split_sums[line] = match count {
                0 => Softmax::EMPTY,
                // SAFETY: a row of SPLIT, written up to the block that holds the last position.
                _ => unsafe { (self.kernels.softmax)(scores.as_mut_ptr(), count as usize, self.scale) },
            };
        }

        let Workspace { counts, value_tiles: tiles, scores, weights, split_out, .. } = work;
        let (p, weights) = (scores.as_ptr(), weights.as_mut_ptr().cast());
        let values = ValueCall { p, counts, tiles, dims: self.dims, weights, out: split_out.as_mut_ptr() };
        // SAFETY: as for the scores.
        unsafe { (self.kernels.values)(&values) };
    }

    /// The tiles of `count` blocks from block `first` on that a sequence stores for a KV head.
    fn find_tiles(&self, seq: u32, first: usize, count: usize, kv_head: usize, work: &mut Workspace) {
        let SeqKv { blocks, tails } = self.seqs[seq as usize];
        work.tiles.clear();
        work.value_tiles.clear();
        for index in first..first + count {
            let tile = match blocks.get(index) {
                Some(&block) => self.arena.tile(block, self.layer, kv_head),
                None => tails[kv_head].tiles[index - blocks.len()],
            };
            work.tiles.push(self.arena.key_tile(tile));
            work.value_tiles.push(self.arena.value_tile(tile));
        }
    }

    fn leave_partials(&self, members: &[Member], first_head: usize, work: &Workspace) {
        for (i, member) in members.iter().enumerate() {
            let line = i * self.group;
            let to = member.partial * self.heads + first_head;
            // SAFETY: a row, split and head belong to one unit, so nobody else has these ranges.
            let (sums, out) = unsafe {
                let out = self.partial_out.range(to * self.dims, self.group * self.dims);
                (self.partial_sums.range(to, self.group), out)
            };
            sums.copy_from_slice(&work.split_sums[line..][..self.group]);
            out.copy_from_slice(&work.split_out[line * self.dims..][..self.group * self.dims]);
        }
    }

    /// Folds the partial results of one row and head, in ascending order of splits.
    fn fold_row(&self, row: SplitRow, head: usize) {
        let mut buffer = [0.0; HEAD_DIM_MAX];
        let out = &mut buffer[..self.dims];
        let mut state = Softmax::EMPTY;
        for split in row.first_partial..row.first_partial + row.splits {
            let from = split * self.heads + head;
            // SAFETY: all units have ended, and this task alone folds this row and head.
            // Both slices are `[dims]`, whole lanes.
            unsafe {
                let sum = self.partial_sums.range(from, 1)[0];
                let split_out = self.partial_out.range(from * self.dims, self.dims);
                // Other heads may store more positions than this one.
                if sum != Softmax::EMPTY {
                    (self.kernels.fold)(&mut state, out, sum, split_out);
                }
            }
        }
        self.finish(row.row, head, state, out);
    }

    /// Divides what a row and head have gathered by their sum and puts it out.
    fn finish(&self, row: u32, head: usize, sum: Softmax, gathered: &mut [f32]) {
        let head_dim = self.arena.layout().head_dim;
        let start = (row as usize * self.heads + head) * head_dim;
        // SAFETY: whole lanes; and a row and head are finished once, by one task.
        let out = unsafe {
            (self.kernels.finish)(gathered, sum.l, head_dim);
            self.out.range(start, head_dim)
        };
        out.copy_from_slice(&gathered[..head_dim]);
    }
}

#[cfg(test)]
mod tests;
