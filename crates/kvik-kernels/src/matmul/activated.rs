//! The first half of a feed-forward layer in one round of the pool: gate, up and the activation, whose result is
//! stored in the layout of the next product's inputs.
//!
//! Outputs of hundreds of rows do not fit in a cache: written by products, read by the activation, written again
//! and read to be rounded, they would cross memory four times. A task computes a few columns of both products in
//! a buffer of its own, which stays in its cache, and writes only their final layout.

use std::cell::Cell;
use std::ops::Range;

use super::{Job, TASKS_PER_THREAD, dispatch, matmul_with, part_rows, part_start};
use crate::activations::{Activations, Filling, TALL};
use crate::lines::Lines;
use crate::matrix::{Matrix, TILE_ROWS};
use crate::outputs::Outputs;
use crate::{Activation, Isa, Pool};

/// Outputs of a product per task: those of two products stay in the second-level cache.
const ROOM: usize = 16 << 10;

thread_local! {
    /// Buffers for a piece of gate, and of up.
    static PIECES: Cell<[Lines<f32>; 2]> = Cell::default();
}

/// Both products of a feed-forward layer, and the activation between them.
#[derive(Debug, Clone, Copy)]
pub struct Activated<'a> {
    /// The activation function.
    pub activation: Activation,
    /// The gate of a gated activation.
    pub gate: Option<&'a Matrix>,
    /// `[d_ff, d_model]`, as the gate.
    pub up: &'a Matrix,
}

/// Multiplies the rows of `x` by `gate` and `up`, applies the activation and stores the result in `out` as inputs
/// of `users`: the same bits as [`matmul_many`](super::matmul_many), [`activate`](crate::activate) and
/// [`Activations::set`].
///
/// # Panics
/// Unless `x` was set for both matrices, both have the same shape, the activation has a gate exactly if it is
/// gated, and every user has as many columns as they have rows.
pub fn matmul_activated(
    pool: &Pool,
    layer: Activated<'_>,
    x: &Activations,
    out: &mut Activations,
    users: &[&Matrix],
) {
    matmul_activated_with([Isa::current(); 2], pool, layer, x, (out, users));
}

/// [`matmul_activated`] with a chosen family of kernels, one of `Isa::available()`, and the input layout of
/// another.
fn matmul_activated_with(
    [isa, form]: [Isa; 2],
    pool: &Pool,
    layer: Activated<'_>,
    x: &Activations,
    (out, users): (&mut Activations, &[&Matrix]),
) {
    debug_assert!(Isa::available().contains(&isa));
    assert_eq!(layer.gate.is_some(), layer.activation.is_gated(), "the gate of {:?}", layer.activation);
    for matrix in layer.matrices() {
        assert_eq!([matrix.rows(), matrix.cols()], [layer.up.rows(), x.cols()], "the shape of a matrix");
    }
    let out = out.room_for(form, [x.rows(), layer.up.rows()], users);
    let layer = Layer { isa, of: layer, x, out };
    match x.rows() {
        ..TALL => layer.run_few(pool),
        // SAFETY: `isa` is available.
        _ => unsafe { layer.run(pool) },
    }
}

impl<'a> Activated<'a> {
    fn matrices(&self) -> impl Iterator<Item = &'a Matrix> {
        self.gate.into_iter().chain([self.up])
    }
}

/// State shared by all tasks.
struct Layer<'a> {
    isa: Isa,
    of: Activated<'a>,
    x: &'a Activations,
    out: Filling<'a>,
}

impl Layer<'_> {
    /// Computes few rows, which stay in a cache: products are split finer than into blocks of columns, and the
    /// rest is not worth a round of the pool.
    fn run_few(&self, pool: &Pool) {
        let (n, up) = (self.x.rows(), self.of.up);
        let mut pieces = PIECES.take();
        pieces.iter_mut().for_each(|piece| piece.resize(n * up.rows()));
        let [first, second] = &mut pieces;
        match self.of.gate {
            None => matmul_with(self.isa, pool, &mut [(up, first)], self.x),
            Some(gate) => matmul_with(self.isa, pool, &mut [(gate, first), (up, second)], self.x),
        }
        let activated = self.activate(&mut pieces);
        // SAFETY: no other thread uses the layouts.
        unsafe { self.out.put(0..n, 0..up.rows(), activated) };
        PIECES.set(pieces);
    }

    /// Computes all columns, in tasks of some rows and some blocks of columns.
    ///
    /// # Safety
    /// The machine has the instructions.
    unsafe fn run(&self, pool: &Pool) {
        let (n, cols, block) = (self.x.rows(), self.of.up.rows(), self.out.block());
        let (blocks, tasks) = (cols.div_ceil(block), pool.threads() * TASKS_PER_THREAD);
        // With few blocks, rows are split as well, so that all threads have tasks.
        let share = n.div_ceil(tasks.div_ceil(blocks)).next_multiple_of(TALL);
        let part_rows = part_rows(n, self.x.cols()).min(share);
        let row_parts = n.div_ceil(part_rows);
        let block_parts = tasks.div_ceil(row_parts).min(blocks);
        let bound = |part| cols.min(part_start(blocks, part, block_parts) * block);
        pool.run(block_parts * row_parts, &|task| {
            let (part, row) = (task / row_parts, task % row_parts * part_rows);
            let (rows, columns) = (row..n.min(row + part_rows), bound(part)..bound(part + 1));
            let next = bound(block_parts.min((task + pool.threads()) / row_parts));
            // SAFETY: tasks differ in their rows or their columns; the rest is the caller's promise.
            unsafe { self.run_task(rows, columns, next) };
        });
    }

    /// Computes some columns for some rows, piece by piece; the thread will probably continue with column `next`.
    ///
    /// # Safety
    /// The machine has the instructions, and no other thread writes these rows of these columns.
    unsafe fn run_task(&self, rows: Range<usize>, columns: Range<usize>, next: usize) {
        let block = self.out.block();
        let piece_rows = rows.len().min(ROOM / block);
        let piece_cols = (ROOM / piece_rows / block).max(1) * block;
        let mut pieces = PIECES.take();
        for column in columns.clone().step_by(piece_cols) {
            let part = column..columns.end.min(column + piece_cols);
            let next = if part.end < columns.end { part.end } else { next };
            for row in rows.clone().step_by(piece_rows) {
                let rows = row..rows.end.min(row + piece_rows);
                // SAFETY: as the caller promises.
                unsafe { self.run_piece(rows, part.clone(), next, &mut pieces) };
            }
        }
        PIECES.set(pieces);
    }

    /// Computes some columns for some rows in the buffers `pieces`.
    ///
    /// # Safety
    /// As [`Layer::run_task`].
    unsafe fn run_piece(
        &self,
        rows: Range<usize>,
        columns: Range<usize>,
        next: usize,
        pieces: &mut [Lines<f32>; 2],
    ) {
        let (part, up) = ((&rows, &columns), self.of.up);
        let [first, second] = pieces;
        // SAFETY: as the caller promises.
        unsafe {
            match self.of.gate {
                None => self.multiply(up, part, tile_at(up, next), first),
                Some(gate) => {
                    self.multiply(gate, part, tile_at(up, columns.start), first);
                    self.multiply(up, part, tile_at(gate, next), second);
                }
            }
        }
        let activated = self.activate(pieces);
        // SAFETY: as the caller promises.
        unsafe { self.out.put(rows, columns, activated) };
    }

    /// Applies the activation to both products, in place of the first.
    fn activate<'a>(&self, [first, second]: &'a mut [Lines<f32>; 2]) -> &'a [f32] {
        let up: &[f32] = if self.of.gate.is_some() { second } else { &[] };
        self.of.activation.apply(first, up);
        first
    }

    /// The products of `rows` with some rows of `weights`, `[rows][columns]`, written to `room`.
    ///
    /// # Safety
    /// The machine has the instructions.
    unsafe fn multiply(
        &self,
        weights: &Matrix,
        (rows, columns): (&Range<usize>, &Range<usize>),
        after: *const u8,
        room: &mut Lines<f32>,
    ) {
        room.resize(rows.len() * columns.len());
        let out = Outputs::piece(room.as_mut_ptr(), columns.len(), [rows.start, columns.start]);
        let kernel = dispatch::kernel(self.isa, weights.weight_type());
        let tiles = columns.start / TILE_ROWS..columns.end.div_ceil(TILE_ROWS);
        // SAFETY: the kernel is that of the type, and there is room for these outputs; the rest is the caller's promise.
        unsafe { kernel(&Job { weights, out }, tiles, after, self.x, rows.clone()) };
    }
}

/// Start of the tile with row `row`; past the last tile, that of the last.
fn tile_at(weights: &Matrix, row: usize) -> *const u8 {
    weights.tile((row / TILE_ROWS).min(weights.tiles() - 1)).as_ptr()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;
    use crate::testing::{Random, isas, random_blocks};
    use crate::{WeightType, activate};

    /// A layer and some rows.
    #[derive(Debug, Clone)]
    struct Case {
        /// Types of gate, up and down.
        types: [WeightType; 3],
        activation: Activation,
        d_ff: usize,
        n: usize,
        threads: usize,
        seed: u64,
    }

    fn cases() -> impl Strategy<Value = Case> {
        let ty = || select(WeightType::ALL.to_vec());
        let activation = select(vec![Activation::SwiGlu, Activation::SwiGluOai, Activation::Gelu]);
        let rows = prop_oneof![4 => 1..20usize, 3 => 20..140usize, 1 => 510..530usize];
        ((ty(), ty(), ty()), activation, 1..100usize, rows, 1..4usize, any::<u64>()).prop_map(
            |((gate, up, down), activation, width, n, threads, seed)| {
                let d_ff = width.next_multiple_of(down.block_len());
                Case { types: [gate, up, down], activation, d_ff, n, threads, seed }
            },
        )
    }

    const D_MODEL: usize = 256;

    impl Case {
        fn matrix(&self, index: usize, rows: usize, cols: usize) -> Matrix {
            let raw = random_blocks(self.types[index], rows * cols, self.seed ^ index as u64);
            Matrix::pack(self.types[index], rows, cols, &raw, &Pool::new(1)).unwrap()
        }

        /// Outputs of the kernels of `isa` on inputs in the layout of `form`: fused, and in separate steps.
        fn outputs(&self, isa: Isa, form: Isa) -> [Vec<f32>; 2] {
            let pool = Pool::new(self.threads);
            let (gate, up) = (self.matrix(0, self.d_ff, D_MODEL), self.matrix(1, self.d_ff, D_MODEL));
            let down = self.matrix(2, 16, self.d_ff);
            let gate = self.activation.is_gated().then_some(&gate);
            let mut random = Random(self.seed);
            let values: Vec<f32> = (0..self.n * D_MODEL).map(|_| random.float()).collect();
            let mut x = Activations::new();
            x.set_for(form, &pool, &values, D_MODEL, &[gate.unwrap_or(&up), &up]);

            // Reused buffers.
            let mut hidden = [Activations::new(), Activations::new()];
            hidden.iter_mut().for_each(|hidden| {
                hidden.set_for(form, &pool, &vec![1.0; 3 * self.d_ff], self.d_ff, &[&down])
            });
            let layer = Activated { activation: self.activation, gate, up: &up };
            matmul_activated_with([isa, form], &pool, layer, &x, (&mut hidden[0], &[&down]));

            let mut projected = [vec![0.0; self.n * self.d_ff], vec![0.0; self.n * self.d_ff]];
            let [first, second] = &mut projected;
            matmul_with(isa, &pool, &mut [(gate.unwrap_or(&up), &mut *first), (&up, &mut *second)], &x);
            activate(&pool, self.activation, first, if gate.is_some() { second } else { &[] });
            hidden[1].set_for(form, &pool, first, self.d_ff, &[&down]);
            hidden.map(|hidden| {
                let mut out = vec![f32::NAN; self.n * down.rows()];
                matmul_with(isa, &pool, &mut [(&down, &mut out)], &hidden);
                out
            })
        }
    }

    fn check(isa: Isa, form: Isa, case: &Case) {
        let bits = |out: &Vec<f32>| out.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        let [together, apart] = case.outputs(isa, form);
        assert_eq!(bits(&together), bits(&apart), "{isa:?} in the form of {form:?}");
    }

    proptest! {
        #![proptest_config(crate::testing::cases(40))]
        #[test]
        fn what_is_made_together_has_the_bits_of_what_is_made_apart(case in cases()) {
            isas().into_iter().for_each(|isa| check(isa, isa, &case));
            // Panels for matrix units, which this machine need not have.
            check(Isa::Scalar, Isa::Amx, &Case { n: case.n % 50, ..case });
        }
    }
}
