//! Attention over paged keys and values in any storage format.
//!
//! A row's result depends on its query, its position count and what is stored for those positions,
//! to the bit: not on the other rows, the threads, or the bytes behind the last position.
//! [`kernel`] states the arithmetic, [`plan`] decides which rows share a read, this module runs the plan.

use crate::kv::q4::rotate;
use crate::kv::{BLOCK_POSITIONS, HEAD_DIM_MAX, KvArena, tile};
use crate::threads::Disjoint;
use crate::{Isa, Pool};
use kernel::{AttentionKernels, ScoreCall, Softmax, ValueCall};
use plan::{Member, Plan, PlanLimits, SplitRow, Unit, UnitKind};

pub(crate) mod kernel;
mod plan;

/// Positions that are worked on at a time. Part of the arithmetic: results change with it.
const SPLIT: usize = 256;
const SPLIT_BLOCKS: usize = SPLIT / BLOCK_POSITIONS;

/// Lines of a unit, unless a KV head has more query heads: enough to hide the reads of K and V,
/// few enough for their scores to stay in the second-level cache.
const UNIT_LINES: usize = 96;

/// Query heads that a task turns: a decode row's are not worth waking a thread for.
const ROTATED_HEADS: usize = 64;

/// The stored keys and values of one sequence.
#[derive(Debug, Clone, Copy)]
pub struct SeqKv<'a> {
    /// Block `i` holds positions `16 i .. 16 i + 16`.
    pub blocks: &'a [u32],
}

/// One row of queries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttnRow {
    /// The sequence it belongs to.
    pub seq: u32,
    /// It attends to positions `0..len` of that sequence.
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
    /// `[n, heads, head_dim]` where keys are stored rotated.
    rotated_q: Vec<f32>,
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
    /// Makes room for units of `lines` lines of `dims` dimensions.
    fn grow(&mut self, lines: usize, dims: usize) {
        let larger = |len: usize, needed: usize| len.max(needed);
        self.scores.resize(larger(self.scores.len(), lines * SPLIT), 0.0);
        self.split_out.resize(larger(self.split_out.len(), lines * dims), 0.0);
        self.out.resize(larger(self.out.len(), lines * dims), 0.0);
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
/// or to positions that its sequence's blocks do not hold.
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

    let AttnScratch { plan, workspaces, partial_out, partial_sums, rotated_q } = scratch;
    workspaces.resize_with(pool.threads().max(workspaces.len()), Workspace::default);
    workspaces.iter_mut().for_each(|workspace| workspace.grow(unit_rows_max * group, dims));
    partial_out.resize(partial_out.len().max(plan.partials * heads * dims), 0.0);
    partial_sums.resize(partial_sums.len().max(plan.partials * heads), Softmax::EMPTY);
    rotated_q.clear();
    if tile::is_rotated(layout.k) {
        rotated_q.extend_from_slice(q);
        rotate_heads(pool, rotated_q, layout.head_dim);
    }
    let q = if rotated_q.is_empty() { q } else { rotated_q };
    let call = Call {
        kernels: kernels(isa, arena),
        arena,
        layer,
        q,
        heads,
        group,
        dims,
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

/// Turns every head vector as keys of a rotated format are turned.
fn rotate_heads(pool: &Pool, q: &mut [f32], head_dim: usize) {
    pool.run_chunks(q, ROTATED_HEADS * head_dim, |_, heads| {
        heads.chunks_exact_mut(head_dim).for_each(rotate)
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
    for &AttnRow { seq, len } in rows {
        let held = seqs[seq as usize].blocks.len() * BLOCK_POSITIONS;
        assert!((1..=held).contains(&(len as usize)), "{len} positions of {held} in sequence {seq}");
    }
}

fn kernels(isa: Isa, arena: &KvArena) -> AttentionKernels {
    let (k, v) = (arena.layout().k, arena.layout().v);
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Bf16 => crate::x86::attention_avx512::kernels(k, v),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::AvxVnni => crate::x86::attention_avx2::kernels(k, v),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon | Isa::NeonDot => crate::arm::attention_neon::kernels(k, v),
        _ => crate::scalar::attention::kernels(k, v),
    }
}

/// The operands of a call and where its results go.
struct Call<'a> {
    kernels: AttentionKernels,
    arena: &'a KvArena,
    layer: usize,
    q: &'a [f32],
    heads: usize,
    /// Query heads per KV head.
    group: usize,
    dims: usize,
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
            let heads = (first_head..first_head + self.group).map(|head| self.row_head(member.row, head));
            work.q.extend(heads.map(|start| self.q[start..].as_ptr()));
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
        let longest = members.iter().map(|member| self.rows[member.row as usize].len).max();
        work.sums[..lines].fill(Softmax::EMPTY);
        work.out[..lines * dims].fill(0.0);
        for split in 0..(longest.unwrap_or(0) as usize).div_ceil(SPLIT) {
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

    /// One split for the queries in `work.q`: leaves `split_out` and `split_sums`.
    fn run_split(&self, seq: u32, split: usize, members: &[Member], kv_head: usize, work: &mut Workspace) {
        work.counts.clear();
        for member in members {
            let len = self.rows[member.row as usize].len as usize;
            let count = len.saturating_sub(split * SPLIT).min(SPLIT) as u32;
            work.counts.extend(std::iter::repeat_n(count, self.group));
        }
        let most = work.counts.iter().max().copied().unwrap_or(0) as usize;
        let blocks =
            &self.seqs[seq as usize].blocks[split * SPLIT_BLOCKS..][..most.div_ceil(BLOCK_POSITIONS)];
        work.tiles.clear();
        work.tiles.extend(blocks.iter().map(|&block| self.arena.key_tile(block, self.layer, kv_head)));
        work.value_tiles.clear();
        work.value_tiles
            .extend(blocks.iter().map(|&block| self.arena.value_tile(block, self.layer, kv_head)));
        let Workspace { q, counts, tiles, value_tiles, scores, .. } = &mut *work;
        let head_dim = self.arena.layout().head_dim;
        let scores = ScoreCall { q, counts, tiles, value_tiles, head_dim, scores: scores.as_mut_ptr() };
        // SAFETY: the workspace has room for the lines, the queries are `[head_dim]`, the tiles those of the
        // arena's format, and each count lies within them.
        unsafe { (self.kernels.scores)(&scores) };

        for (line, &count) in work.counts.iter().enumerate().filter(|&(_, &count)| count > 0) {
            let scores = &mut work.scores[line * SPLIT..][..SPLIT];
            // SAFETY: a row of SPLIT, written up to the block that holds the last position.
            let sum = unsafe { (self.kernels.softmax)(scores.as_mut_ptr(), count as usize, self.scale) };
            work.split_sums[line] = sum;
        }

        let Workspace { counts, value_tiles: tiles, scores, split_out, .. } = work;
        let (p, out) = (scores.as_mut_ptr(), split_out.as_mut_ptr());
        let values = ValueCall { p, counts, tiles, dims: self.dims, out };
        // SAFETY: as for the scores.
        unsafe { (self.kernels.values)(&values) };
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
                (self.kernels.fold)(&mut state, out, sum, split_out);
            }
        }
        self.finish(row.row, head, state, out);
    }

    /// Divides what a row and head have gathered by their sum and puts it out.
    fn finish(&self, row: u32, head: usize, sum: Softmax, gathered: &mut [f32]) {
        let head_dim = self.arena.layout().head_dim;
        // SAFETY: whole lanes; and a row and head are finished once, by one task.
        let out = unsafe {
            (self.kernels.divide)(gathered, sum.l);
            self.out.range(self.row_head(row, head), head_dim)
        };
        if tile::is_rotated(self.arena.layout().v) {
            rotate(&mut gathered[..head_dim]);
        }
        out.copy_from_slice(&gathered[..head_dim]);
    }

    /// Where a row's head starts in `q` and `out`.
    fn row_head(&self, row: u32, head: usize) -> usize {
        (row as usize * self.heads + head) * self.arena.layout().head_dim
    }
}

#[cfg(test)]
mod tests;
