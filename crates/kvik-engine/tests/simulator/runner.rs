//! A fake model that is cheap enough for ten million steps, and the same model without blocks.
//!
//! A position stores a hash of all tokens up to it; the logits are a hash of the values at the end of every
//! block. So a wrong block, a missed copy, an early overwrite, torn bytes from the disk or a wrong reuse
//! changes the answer. [`Oracle`] is the same arithmetic over plain tokens.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kvik_cache::{BLOCK_POSITIONS, BlockId, Token};
use kvik_engine::api::{FinishReason, Request};
use kvik_engine::model::batch::{Batch, Runner};
use kvik_engine::model::observation::Watched;
use kvik_engine::sampler::{Sampler, Scratch};

use crate::fake::{EOS, VOCAB, mix};
use crate::time::Time;

/// Bytes of a block.
pub(crate) const BLOCK_BYTES: usize = 8 * BLOCK_POSITIONS;
/// A prompt with this token makes the model panic; no answer contains it.
pub(crate) const POISON: Token = 1;
/// Only private prompts begin with this token.
pub(crate) const SECRET: Token = 3;
/// Time to compute one row.
const ROW_TIME: Duration = Duration::from_micros(100);

/// The model over blocks.
pub(crate) struct SimRunner {
    /// By block and position; 0 if nothing is stored.
    arena: Vec<[u64; BLOCK_POSITIONS]>,
    logits: Vec<f32>,
    rows_max: usize,
    time: Time,
    /// Uses of each block in the batch's tables: by block, the number of the batch and the count.
    users: Vec<(u64, u32)>,
    batches: u64,
    /// Batches of a single sequence that panicked without poison.
    pub(crate) stumbled_alone: u32,
    /// Whether the next batch panics, once, whatever it contains.
    pub(crate) stumbles: Arc<AtomicBool>,
}

impl SimRunner {
    pub(crate) fn new(blocks: usize, rows_max: usize, time: Time) -> SimRunner {
        SimRunner {
            arena: vec![[0; BLOCK_POSITIONS]; blocks],
            logits: Vec::new(),
            rows_max,
            time,
            users: vec![(0, 0); blocks],
            batches: 0,
            stumbled_alone: 0,
            stumbles: Arc::default(),
        }
    }

    fn read(&self, table: &[BlockId], position: usize) -> u64 {
        let block = table[position / BLOCK_POSITIONS];
        let stored = self.arena[block.index()][position % BLOCK_POSITIONS];
        assert!(stored != 0, "position {position} is read from {block:?} before it is stored");
        stored
    }

    fn write(&mut self, table: &[BlockId], position: usize, token: Token) {
        let before = position.checked_sub(1).map_or(0, |before| self.read(table, before));
        let block = table[position / BLOCK_POSITIONS];
        self.arena[block.index()][position % BLOCK_POSITIONS] = chain(before, token);
    }

    fn push_logits(&mut self, table: &[BlockId], position: usize) {
        let ends = (BLOCK_POSITIONS - 1..position).step_by(BLOCK_POSITIONS);
        let seen = ends.chain([position]).fold(0, |seen, end| mix(seen ^ self.read(table, end)));
        push_logits(&mut self.logits, seen);
    }

    /// Checks the guarantees of `Batch`, and that no sequence writes to a block that another one reads.
    fn check(&mut self, batch: &Batch<'_>) {
        assert!(!batch.rows.is_empty() && batch.rows.len() <= self.rows_max, "{} rows", batch.rows.len());
        for pair in batch.rows.windows(2).filter(|pair| pair[0].sequence == pair[1].sequence) {
            assert_eq!(pair[0].cache_position + 1, pair[1].cache_position);
        }
        self.batches += 1;
        for block in batch.sequences.iter().flat_map(|sequence| sequence.blocks) {
            let user = &mut self.users[block.index()];
            *user = if user.0 == self.batches { (user.0, user.1 + 1) } else { (self.batches, 1) };
        }
        for row in batch.rows {
            let block = batch.blocks(row)[row.cache_position as usize / BLOCK_POSITIONS];
            assert_eq!(
                self.users[block.index()].1,
                1,
                "{block:?} is written and belongs to several sequences"
            );
        }
    }
}

impl Runner for SimRunner {
    fn vocab_len(&self) -> usize {
        VOCAB
    }

    fn copy_partial(&mut self, from: BlockId, to: BlockId, positions: usize) {
        assert!((1..=BLOCK_POSITIONS).contains(&positions) && from != to);
        let source = self.arena[from.index()];
        assert!(source[..positions].iter().all(|&stored| stored != 0), "copied before it is stored");
        let target = &mut self.arena[to.index()];
        *target = [0; BLOCK_POSITIONS];
        target[..positions].copy_from_slice(&source[..positions]);
    }

    fn read_block(&self, block: BlockId, bytes: &mut [u8]) {
        for (bytes, stored) in bytes.chunks_exact_mut(8).zip(self.arena[block.index()]) {
            bytes.copy_from_slice(&stored.to_le_bytes());
        }
    }

    fn write_block(&mut self, block: BlockId, bytes: &[u8]) {
        assert_eq!(bytes.len(), BLOCK_BYTES);
        for (bytes, stored) in bytes.chunks_exact(8).zip(&mut self.arena[block.index()]) {
            *stored = u64::from_le_bytes(bytes.try_into().unwrap());
        }
    }

    fn forward(&mut self, batch: &Batch<'_>, _: &mut [Watched<'_>]) -> &[f32] {
        self.check(batch);
        self.time.advance(ROW_TIME * batch.rows.len() as u32);
        // Half of the batch is computed before the panic, as can happen.
        let poisoned = batch.rows.iter().any(|row| row.token == POISON);
        let stumbles = self.stumbles.swap(false, Ordering::Relaxed);
        self.stumbled_alone += u32::from(stumbles && !poisoned && batch.sequences.len() == 1);
        let broken = poisoned || stumbles;
        let rows = if broken { &batch.rows[..batch.rows.len() / 2] } else { batch.rows };
        for row in rows {
            self.write(batch.blocks(row), row.cache_position as usize, row.token);
        }
        if broken {
            std::panic::panic_any(Broken);
        }
        self.logits.clear();
        for row in batch.rows.iter().filter(|row| row.logits) {
            self.push_logits(batch.blocks(row), row.cache_position as usize);
        }
        &self.logits
    }
}

/// The payload of the model's panics, which distinguishes them from those of a failing test.
pub(crate) struct Broken;

/// The same model over plain tokens.
#[derive(Clone, Copy, Default)]
struct Oracle {
    chain: u64,
    /// Hash of the blocks before the last one.
    folded: u64,
    positions: usize,
}

impl Oracle {
    fn push(&mut self, token: Token) {
        if self.positions > 0 && self.positions.is_multiple_of(BLOCK_POSITIONS) {
            self.folded = mix(self.folded ^ self.chain);
        }
        self.chain = chain(self.chain, token);
        self.positions += 1;
    }

    fn logits(&self, into: &mut Vec<f32>) {
        into.clear();
        push_logits(into, mix(self.folded ^ self.chain));
    }
}

/// The answer of each choice of a request with `tokens_max` and enough blocks: tokens without the end token,
/// and the finish reason.
pub(crate) fn answers(request: &Request, tokens_max: usize) -> Vec<(Vec<Token>, FinishReason)> {
    let mut oracle = Oracle::default();
    request.prompt.iter().for_each(|&token| oracle.push(token));
    (0..request.choices).map(|choice| answer(request, choice, tokens_max, oracle)).collect()
}

fn answer(
    request: &Request,
    choice: u32,
    tokens_max: usize,
    mut oracle: Oracle,
) -> (Vec<Token>, FinishReason) {
    let mut sampler = Sampler::new(&request.sampling, choice, &request.prompt);
    let (mut answer, mut logits, mut scratch) = (Vec::new(), Vec::new(), Scratch::default());
    while answer.len() < tokens_max {
        oracle.logits(&mut logits);
        let token = sampler.sample(&logits, None, &mut scratch).unwrap();
        sampler.accept(token);
        if token == EOS && !request.ignore_eos {
            return (answer, FinishReason::Eos);
        }
        answer.push(token);
        oracle.push(token);
    }
    (answer, FinishReason::Length)
}

fn chain(before: u64, token: Token) -> u64 {
    mix(before ^ (u64::from(token) + 1)) | 1
}

fn push_logits(logits: &mut Vec<f32>, seen: u64) {
    logits.extend((0..VOCAB as u64).map(|token| match token as Token {
        POISON => f32::NEG_INFINITY,
        // The end token is possible everywhere and likely nowhere.
        EOS => (mix(seen) % 1000) as f32 / 100.0 - 2.0,
        _ => (mix(seen ^ (token << 32)) % 1000) as f32 / 100.0,
    }));
}
