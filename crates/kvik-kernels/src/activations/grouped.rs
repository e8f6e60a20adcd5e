//! Rows sorted into groups, each multiplied by a matrix of its own: tokens grouped by their experts.
//!
//! Each group has panels of its own and starts at a panel boundary, so there may be positions without a row
//! between groups.

use std::ops::Range;

use super::pairs::{pair_index, row_pairs};
use super::shorts::Shorts;
use super::{Activations, Panel, Quantised, Spans, TALL, WIDE, code_index, panels, room, widest_codes};
use crate::lines::{Lines, Number};
use crate::matrix::{CHUNK, Matrix};
use crate::threads::Disjoint;
use crate::{Isa, Pool};

/// Number of values below which waking other threads costs more than it saves.
const PARALLEL_MIN: usize = 64 * 1024;

/// Rows that are multiplied by the same matrix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// The index of that matrix.
    pub matrix: usize,
    /// Positions of the rows, contiguous.
    pub rows: Range<usize>,
}

/// The mapping from rows of a batch to positions. Reused from batch to batch.
#[derive(Debug, Default)]
pub struct Groups {
    /// Groups of the matrices in use, ascending.
    groups: Vec<Group>,
    /// The position of each choice, `[n, used]`.
    places: Vec<u32>,
    /// The row at each position; any row at positions without one.
    rows: Vec<u32>,
    /// Number of rows in the batch.
    batch: usize,
    /// Room of the widest panel of quantised values.
    widest: usize,
    /// Number of rows of each matrix, then the next position of its group, `[count]`.
    counts: Vec<u32>,
}

impl Groups {
    /// An empty set of groups; [`Groups::set`] fills it.
    pub fn new() -> Groups {
        Groups::default()
    }

    /// Sorts rows by `chosen`, `[n, used]`: for each row, its matrices out of `count`.
    ///
    /// # Panics
    /// If `chosen` is not whole rows of numbers below `count`.
    pub fn set(&mut self, chosen: &[u32], used: usize, count: usize) {
        self.set_for(Isa::current(), chosen, used, count);
    }

    pub(crate) fn set_for(&mut self, isa: Isa, chosen: &[u32], used: usize, count: usize) {
        assert!(used > 0 && chosen.len().is_multiple_of(used), "{} choices of {used} a row", chosen.len());
        self.batch = chosen.len() / used;
        self.counts.clear();
        self.counts.resize(count, 0);
        chosen.iter().for_each(|&matrix| self.counts[matrix as usize] += 1);
        let touched = self.counts.iter().filter(|&&rows| rows > 0).count();
        self.widest = widest_codes(isa, chosen.len() / touched.max(1));
        let room_of_group = if isa == Isa::Amx { TALL } else { WIDE };
        self.groups.clear();
        let mut next = 0;
        for (matrix, rows) in self.counts.iter_mut().enumerate().filter(|(_, rows)| **rows > 0) {
            let start = next;
            self.groups.push(Group { matrix, rows: start..start + *rows as usize });
            next += room(*rows as usize, room_of_group);
            *rows = start as u32;
        }
        self.rows.clear();
        self.rows.resize(next, 0);
        self.places.clear();
        for (choice, &matrix) in chosen.iter().enumerate() {
            let place = &mut self.counts[matrix as usize];
            self.rows[*place as usize] = (choice / used) as u32;
            self.places.push(*place);
            *place += 1;
        }
    }

    /// The groups, ascending by their matrices.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// Number of positions, including those without a row: the length of buffers of grouped rows.
    pub fn places(&self) -> usize {
        self.rows.len()
    }

    /// The position of choice number `choice` of those that were [set](Groups::set).
    pub fn place(&self, choice: usize) -> usize {
        self.places[choice] as usize
    }

    /// The row of the batch at position `place`.
    pub fn row(&self, place: usize) -> usize {
        self.rows[place] as usize
    }
}

impl Activations {
    /// Stores `x`, `[places, cols]`, whose rows are grouped, in the layouts that `users` need.
    ///
    /// # Panics
    /// Unless `x` has as many rows as `groups` has positions and every user as many columns as `x`.
    pub fn set_grouped(&mut self, pool: &Pool, x: &[f32], users: &[&Matrix], groups: &Groups) {
        self.set_grouped_for(Isa::current(), pool, x, users, groups);
    }

    pub(crate) fn set_grouped_for(
        &mut self,
        isa: Isa,
        pool: &Pool,
        x: &[f32],
        users: &[&Matrix],
        groups: &Groups,
    ) {
        let cols = users.first().map_or(1, |user| user.cols());
        assert!(users.iter().all(|user| user.cols() == cols), "every user has {cols} columns");
        assert_eq!(x.len(), groups.places() * cols, "x is [places, {cols}]");
        self.prepare(isa, [groups.places(), cols], groups.widest, users);
        self.fill(pool, x, Spans::Groups(&groups.groups));
    }

    /// Copies to every position its row of `from`, in the layouts that `users` need, so that no row is
    /// quantised twice.
    ///
    /// # Panics
    /// Unless `from` was set for `users` and has the rows of the batch.
    pub fn gather(&mut self, pool: &Pool, from: &Activations, users: &[&Matrix], groups: &Groups) {
        self.gather_for(Isa::current(), pool, from, users, groups);
    }

    pub(crate) fn gather_for(
        &mut self,
        isa: Isa,
        pool: &Pool,
        from: &Activations,
        users: &[&Matrix],
        groups: &Groups,
    ) {
        assert!(users.iter().all(|user| user.cols() == from.cols), "every user has {} columns", from.cols);
        assert_eq!(from.rows, groups.batch, "rows of the batch");
        self.prepare(isa, [groups.places(), from.cols], groups.widest, users);
        let cols = self.cols;
        let moves = |from_widest, to_widest| Moves { pool, groups, rows: from.rows, from_widest, to_widest };
        let single = |width: usize, row: usize, piece: usize| piece * width + row;
        if let Some(to) = &mut self.floats {
            moves(WIDE, WIDE).array(from.floats(), to, cols, 1, single);
        }
        if let Some(to) = &mut self.pairs {
            debug_assert_eq!(from.widest_pairs, self.widest_pairs);
            let pairs = row_pairs(cols, self.widest_pairs);
            moves(from.widest_pairs, self.widest_pairs).array(from.pairs(), to, pairs, 1, pair_index);
        }
        if let Some(to) = &mut self.shorts {
            let Shorts { pairs, scales } = from.shorts();
            moves(WIDE, WIDE).array(pairs, &mut to.pairs, cols / 2, 1, single);
            moves(WIDE, WIDE).array(scales, &mut to.scales, cols / CHUNK, 1, single);
        }
        for (to, block_len) in [(&mut self.per_32, 32), (&mut self.per_256, 256)] {
            if let Some(to) = to {
                moves(from.widest, self.widest).codes(from.quantised(block_len), to, cols, block_len);
            }
        }
    }
}

/// A move of rows from the panels of a batch to those of groups.
struct Moves<'a> {
    pool: &'a Pool,
    groups: &'a Groups,
    /// Number of rows in the batch.
    rows: usize,
    from_widest: usize,
    to_widest: usize,
}

impl Moves<'_> {
    fn codes(&self, from: &Quantised, to: &mut Quantised, cols: usize, block_len: usize) {
        let single = |width: usize, row: usize, piece: usize| piece * width + row;
        let chunk = |width: usize, row: usize, piece: usize| code_index(block_len, width, row, piece * CHUNK);
        self.array(&from.codes, &mut to.codes, cols / CHUNK, CHUNK, chunk);
        self.array(&from.scales, &mut to.scales, cols / block_len, 1, single);
        self.array(&from.sums, &mut to.sums, cols / CHUNK, 1, single);
        if block_len == 256 {
            self.array(&from.half_sums, &mut to.half_sums, cols / super::HALF, 1, single);
        }
    }

    /// Moves one array of a layout: a row has `pieces` of `len` elements, each at
    /// `index(panel width, row, piece)`.
    fn array<T: Number + Send + Sync>(
        &self,
        from: &[T],
        to: &mut Lines<T>,
        pieces: usize,
        len: usize,
        index: impl Fn(usize, usize, usize) -> usize + Sync,
    ) {
        let (groups, per_row) = (&self.groups.groups, pieces * len);
        to.resize(Spans::Groups(groups).room(self.to_widest) * per_row);
        let (values, to) = (to.len(), Disjoint::new(to));
        let move_group = |group: usize| {
            for panel in panels(groups[group].rows.clone(), self.to_widest) {
                // SAFETY: every panel has its own range, and each group is moved once.
                let to = unsafe { to.range(panel.start * per_row, panel.width * per_row) };
                for r in 0..panel.rows {
                    let (source, row) = self.source(panel.start + r);
                    let from = &from[source.start * per_row..][..source.width * per_row];
                    for piece in 0..pieces {
                        let to = &mut to[index(panel.width, r, piece)..][..len];
                        to.copy_from_slice(&from[index(source.width, row, piece)..][..len]);
                    }
                }
            }
        };
        match values < PARALLEL_MIN {
            true => (0..groups.len()).for_each(move_group),
            false => self.pool.run(groups.len(), &move_group),
        }
    }

    /// The panel of the batch that contains the row at `place`, and the row's index in it.
    fn source(&self, place: usize) -> (Panel, usize) {
        let row = self.groups.row(place);
        let start = row - row % self.from_widest;
        let panel = panels(start..self.rows, self.from_widest).next().expect("the row is one of the batch");
        (panel, row - start)
    }
}
