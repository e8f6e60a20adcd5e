//! A model that is run here: the block tables of its sequences, and the batches of each repetition.

use std::time::Instant;

use kvik_cache::{BLOCK_POSITIONS, BlockId, StateId, Token};
use kvik_model::batch::{Batch, Output, Row, Runner, SequenceKv, SequenceState};
use kvik_model::device_work::DeviceWork;

use super::work::KernelRow;
use super::{BATCH_ROWS, Test};

/// Measurements of a test's repetitions.
pub(super) struct Measured {
    /// Nanoseconds of each.
    pub(super) samples_ns: Vec<u64>,
    /// Bytes of keys and values copied by one repetition.
    pub(super) bytes_moved: u64,
    /// Nanoseconds of one repetition in which steps were prepared.
    pub(super) preparing_ns: u64,
    /// Work of all repetitions, and their steps.
    pub(super) work: (DeviceWork, usize),
}

/// A model and the block tables of the measured sequences.
pub(super) struct Bench<'r, R: ?Sized> {
    runner: &'r mut R,
    /// Block tables, one per sequence.
    tables: Vec<Vec<BlockId>>,
    /// The depth computed for the latest test: positions, and the blocks of each sequence that hold them.
    filled: (usize, Vec<Vec<BlockId>>),
    /// Whether the depth repeats the blocks of its first batch.
    pub(super) repeat_depth: bool,
    tokens: TokenStream,
}

impl<'r, R: Runner + ?Sized> Bench<'r, R> {
    pub(super) fn new(runner: &'r mut R) -> Bench<'r, R> {
        let tokens = TokenStream { state: 1, vocab: runner.vocab_len() as u64 };
        Bench { runner, tables: Vec::new(), filled: (0, Vec::new()), repeat_depth: false, tokens }
    }

    /// Measures repetitions of a test, after an uncounted one to warm up.
    pub(super) fn measure(&mut self, test: Test, repetitions: u64) -> Measured {
        self.tables = block_tables(test);
        self.fill(test);
        self.once(test);
        let (moved, preparing, work) =
            (self.runner.bytes_moved(), self.runner.preparing(), self.runner.work());
        let samples_ns = (0..repetitions).map(|_| self.once(test)).collect();
        Measured {
            samples_ns,
            bytes_moved: (self.runner.bytes_moved() - moved) / repetitions,
            preparing_ns: (self.runner.preparing() - preparing).as_nanos() as u64 / repetitions,
            work: (self.runner.work().since(&work), test.steps() * repetitions as usize),
        }
    }

    /// The kernels of one repetition, each timed by itself; none if the device has no clock.
    pub(super) fn kernels(&mut self, test: Test) -> Vec<KernelRow> {
        if !self.runner.time_kernels(true) {
            return Vec::new();
        }
        self.once(test);
        let kernels = self.runner.kernel_times().into_iter().map(KernelRow::from).collect();
        self.runner.time_kernels(false);
        kernels
    }

    /// Computes the depth unless it is present: filling 4,096 positions takes longer than the measurement.
    fn fill(&mut self, test: Test) {
        let blocks = test.depth.div_ceil(BLOCK_POSITIONS);
        let depth = (test.depth, self.tables.iter().map(|table| table[..blocks].to_vec()).collect());
        // A test writes only behind its depth, so the next test can reuse the depth.
        if self.filled != depth {
            self.compute_depth(test);
            self.filled = depth;
        }
    }

    /// Computes the depth once and copies it into the blocks that a sequence does not share: speed does not depend on
    /// their contents.
    fn compute_depth(&mut self, test: Test) {
        self.set_states(None);
        self.prefill(if self.repeat_depth { test.depth.min(BATCH_ROWS) } else { test.depth }, 0, false);
        if self.repeat_depth {
            self.repeat_blocks(test.depth);
        }
        if self.runner.state_bytes() > 0 {
            self.runner.set_state(self.depth_state(), Some(StateId(0)));
        }
        for table in &self.tables[1..] {
            for (block, (&from, &to)) in self.tables[0].iter().zip(table).enumerate() {
                let positions = test.depth.saturating_sub(block * BLOCK_POSITIONS).min(BLOCK_POSITIONS);
                if from != to && positions > 0 {
                    self.runner.copy_partial(from, to, positions);
                }
            }
        }
    }

    /// Copies the blocks of the first batch repeatedly to fill a depth.
    fn repeat_blocks(&mut self, depth: usize) {
        let blocks = &self.tables[0][..depth.div_ceil(BLOCK_POSITIONS)];
        let behind = blocks.iter().skip(BATCH_ROWS / BLOCK_POSITIONS);
        for (&from, &to) in blocks.iter().cycle().zip(behind) {
            self.runner.copy_partial(from, to, BLOCK_POSITIONS);
        }
    }

    fn once(&mut self, test: Test) -> u64 {
        self.set_states((test.depth > 0).then(|| self.depth_state()));
        let start = Instant::now();
        self.prefill(test.prompt, test.depth, true);
        for position in test.depth..test.depth + test.generate {
            self.decode(position);
        }
        start.elapsed().as_nanos() as u64
    }

    /// Prefills `count` positions of the first sequence from `start`; `logits` requests those of the last row.
    fn prefill(&mut self, count: usize, start: usize, logits: bool) {
        let end = start + count;
        for chunk in (start..end).step_by(BATCH_ROWS) {
            let rows: Vec<Row> = (chunk..end.min(chunk + BATCH_ROWS))
                .map(|position| self.tokens.row(0, position, logits && position + 1 == end))
                .collect();
            self.forward(&rows);
        }
    }

    /// Decodes one token of every sequence.
    fn decode(&mut self, position: usize) {
        let rows: Vec<Row> =
            (0..self.tables.len()).map(|sequence| self.tokens.row(sequence as u32, position, true)).collect();
        self.forward(&rows);
    }

    /// The slot for the state at the end of the depth: behind those of all sequences.
    fn depth_state(&self) -> StateId {
        StateId(self.tables.len() as u32)
    }

    /// Sets every sequence to a state, or to its initial one.
    fn set_states(&mut self, from: Option<StateId>) {
        if self.runner.state_bytes() > 0 {
            (0..self.tables.len() as u32).for_each(|slot| self.runner.set_state(StateId(slot), from));
        }
    }

    fn forward(&mut self, rows: &[Row]) {
        let has_states = self.runner.state_bytes() > 0;
        let sequence = |(slot, blocks)| {
            let state = SequenceState { live: StateId(slot), saves: &[], tentative: None };
            SequenceKv { state: has_states.then_some(state), ..SequenceKv::in_blocks(blocks) }
        };
        let sequences: Vec<SequenceKv<'_>> =
            (0..).zip(self.tables.iter().map(Vec::as_slice)).map(sequence).collect();
        std::hint::black_box(self.runner.forward(&Batch { rows, sequences: &sequences }, &mut []));
    }
}

/// Blocks that the tables of a test need together.
pub(super) fn blocks_needed(test: &Test) -> usize {
    block_tables(*test).iter().flatten().map(|block| block.0 as usize + 1).max().unwrap_or(0)
}

/// Block tables that share the whole blocks of the depth, unless `own_prompts` is set, and own the rest.
fn block_tables(test: Test) -> Vec<Vec<BlockId>> {
    let all = test.positions().div_ceil(BLOCK_POSITIONS);
    // A partly filled block at the end of the depth cannot be shared: each sequence writes into its own.
    let shared = if test.own_prompts { 0 } else { test.depth / BLOCK_POSITIONS };
    let own = all - shared;
    let table = |sequence: usize| {
        let first_own = shared + sequence * own;
        (0..shared).chain(first_own..first_own + own).map(|block| BlockId(block as u32)).collect()
    };
    (0..test.sequences).map(table).collect()
}

/// A stream of pseudo-random tokens; with the same state every run has the same input.
pub(super) struct TokenStream {
    pub(super) state: u64,
    pub(super) vocab: u64,
}

impl TokenStream {
    pub(super) fn token(&mut self) -> Token {
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.state >> 33) % self.vocab) as Token
    }

    fn row(&mut self, sequence: u32, position: usize, logits: bool) -> Row {
        let (token, position) = (self.token(), position as u32);
        Row { sequence, token, position, cache_position: position, output: Output::logits_if(logits) }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use kvik_model::observation::Watched;

    use super::*;

    const SHARED: Test = Test { prompt: 0, generate: 0, depth: 0, sequences: 1, own_prompts: false };
    const OWN: Test = Test { own_prompts: true, ..SHARED };

    /// Number of distinct blocks in the tables of a test.
    fn distinct(tables: &[Vec<BlockId>]) -> usize {
        tables.iter().flatten().collect::<BTreeSet<_>>().len()
    }

    #[test]
    fn sequences_share_the_depth_and_nothing_else() {
        let test = Test { generate: 10, depth: 40, sequences: 3, ..SHARED };
        let tables = block_tables(test);
        assert!(tables.iter().all(|table| table.len() == 4 && table[..2] == tables[0][..2]));
        assert_eq!(distinct(&tables), 2 + 3 * 2);
        assert_eq!(blocks_needed(&test), 8);
    }

    #[test]
    fn sequences_with_own_prompts_share_nothing() {
        let test = Test { generate: 10, depth: 40, sequences: 3, ..OWN };
        let tables = block_tables(test);
        assert!(tables.iter().all(|table| table.len() == 4));
        assert_eq!(distinct(&tables), 3 * 4);
        assert_eq!(blocks_needed(&test), 12);
    }

    /// Records the stored tokens, and checks every batch against the contract of [`Batch`].
    #[derive(Default)]
    struct Recorder {
        /// The token stored at each position of each block.
        stored: BTreeMap<(BlockId, usize), Token>,
        /// Rows computed without logits, which are those of the depth.
        filled: usize,
    }

    fn place(table: &[BlockId], position: usize) -> (BlockId, usize) {
        (table[position / BLOCK_POSITIONS], position % BLOCK_POSITIONS)
    }

    impl Runner for Recorder {
        fn vocab_len(&self) -> usize {
            1 << 30 // so that no two tokens of a test are the same
        }

        fn copy_partial(&mut self, from: BlockId, to: BlockId, positions: usize) {
            for offset in 0..positions {
                self.stored.insert((to, offset), self.stored[&(from, offset)]);
            }
        }

        fn read_block(&self, _: BlockId, _: &mut [u8]) {}

        fn write_block(&mut self, _: BlockId, _: &[u8]) {}

        fn forward(&mut self, batch: &Batch<'_>, _: &mut [Watched<'_>]) -> &[f32] {
            let places = |row: &Row| place(batch.blocks(row), row.cache_position as usize);
            let written: BTreeSet<_> = batch.rows.iter().map(places).collect();
            assert_eq!(written.len(), batch.rows.len(), "two rows write to one position");
            self.stored.extend(batch.rows.iter().map(|row| (places(row), row.token)));
            for row in batch.rows {
                let table = batch.blocks(row);
                let hole =
                    (0..row.cache_position as usize).find(|&at| !self.stored.contains_key(&place(table, at)));
                assert_eq!(hole, None, "{row:?} reads a position that was never computed");
            }
            self.filled += batch.rows.iter().filter(|row| row.output == Output::None).count();
            &[]
        }
    }

    /// The depth's tokens of each sequence after a measurement, and the number of rows computed for them.
    fn depths(test: Test) -> (Vec<Vec<Token>>, usize) {
        let mut recorder = Recorder::default();
        let mut bench = Bench::new(&mut recorder);
        assert_eq!(bench.measure(test, 2).samples_ns.len(), 2);
        let stored = &bench.runner.stored;
        let depth = |table: &Vec<BlockId>| (0..test.depth).map(|at| stored[&place(table, at)]).collect();
        (bench.tables.iter().map(depth).collect(), bench.runner.filled)
    }

    #[test]
    fn a_shared_depth_is_computed_once_and_read_by_all() {
        for depth in [0, 5, 32, 40, 1000] {
            let (prompts, filled) = depths(Test { generate: 20, depth, sequences: 3, ..SHARED });
            assert!(prompts.iter().all(|prompt| *prompt == prompts[0]), "depth {depth}");
            assert_eq!(filled, depth);
        }
    }

    #[test]
    fn own_prompts_are_copies_in_blocks_of_their_own() {
        for depth in [5, 32, 40, 1000] {
            let test = Test { generate: 20, depth, sequences: 3, ..OWN };
            let (prompts, filled) = depths(test);
            assert!(prompts.iter().all(|prompt| *prompt == prompts[0]), "depth {depth}");
            assert_eq!(filled, depth);
            let mut blocks = block_tables(test);
            blocks.iter_mut().for_each(|table| table.truncate(depth.div_ceil(BLOCK_POSITIONS)));
            assert_eq!(distinct(&blocks), 3 * depth.div_ceil(BLOCK_POSITIONS));
        }
    }

    #[test]
    fn a_depth_is_computed_again_only_when_it_differs() {
        let mut recorder = Recorder::default();
        let mut bench = Bench::new(&mut recorder);
        let mut filled = |test| {
            let before = bench.runner.filled;
            bench.measure(Test { generate: 20, ..test }, 1);
            bench.runner.filled - before
        };
        let at = |depth| Test { depth, ..SHARED };
        let three_at = |depth| Test { sequences: 3, ..at(depth) };
        assert_eq!([filled(at(40)), filled(at(40))], [40, 0]);
        // The same number of blocks, but another number of positions.
        assert_eq!(filled(at(41)), 41);
        // A test without a depth overwrites the previous depth.
        assert_eq!([filled(at(0)), filled(at(41))], [0, 41]);
        // Different blocks.
        assert_eq!([filled(three_at(41)), filled(three_at(41))], [41, 0]);
        assert_eq!(filled(Test { own_prompts: true, ..three_at(41) }), 41);
    }

    #[test]
    fn a_repeated_depth_is_its_first_batch_again_and_again() {
        let mut recorder = Recorder::default();
        let mut bench = Bench::new(&mut recorder);
        bench.repeat_depth = true;
        for (depth, computed) in [(40, 40), (512, 512), (513, 512), (1500, 512)] {
            let before = bench.runner.filled;
            let test = Test { generate: 20, depth, sequences: 2, ..OWN };
            bench.measure(test, 1);
            assert_eq!(bench.runner.filled - before, computed, "{depth}");
            for table in &bench.tables {
                let stored = |at: usize| bench.runner.stored[&place(table, at)];
                assert!((BATCH_ROWS..depth).all(|at| stored(at) == stored(at - BATCH_ROWS)), "{depth}");
            }
        }
    }
}
