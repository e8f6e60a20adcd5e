//! Passes of the prediction head over the sequences that it follows.

use kvik_cache::{SeqId, Token};
use kvik_kernels::{RopeTable, SeqKv};
use kvik_text::sampler::likeliest;

use super::{ModelRunner, Predicting};
use crate::batch::{Output, PredictionHead, Row, WantedTokens};
use crate::decoder::{Context, predict};
use crate::prediction::{Entering, SEQUENCES_MAX};

/// A sequence that is being continued.
struct Open {
    /// Its index among those wanted.
    index: usize,
    slot: usize,
    /// The position of its next row, and the number of positions stored before that.
    position: u32,
    stored: u32,
}

/// The rows of a pass, with their hidden states.
#[derive(Default)]
struct Pass {
    rows: Vec<Row>,
    /// `[rows, d_model]`
    states: Vec<f32>,
}

impl PredictionHead for ModelRunner {
    fn sequences_max(&self) -> usize {
        SEQUENCES_MAX
    }

    fn predict(&mut self, wanted: &[WantedTokens<'_>]) -> Vec<Vec<Token>> {
        let mut drafts = vec![Vec::new(); wanted.len()];
        let positions = self.ropes.iter().map(|table| RopeTable::positions(table));
        // A table is empty if no layer has its rotation.
        let room = positions.filter(|&positions| positions > 0).min().unwrap_or(0);
        let most =
            |wanted: &WantedTokens<'_>| wanted.most.min((room + 2).saturating_sub(wanted.tokens.len()));
        let (mut open, mut pass) = self.enter(wanted, most);
        while !open.is_empty() {
            let next = self.pass(&open, &pass);
            pass = Pass::default();
            let mut still = Vec::new();
            for (mut sequence, (token, state)) in open.into_iter().zip(next) {
                let draft: &mut Vec<Token> = &mut drafts[sequence.index];
                draft.push(token);
                if draft.len() < most(&wanted[sequence.index]) {
                    pass.rows.push(row(&sequence, still.len(), token, Output::Logits));
                    pass.states.extend(state);
                    (sequence.position, sequence.stored) = (sequence.position + 1, sequence.stored + 1);
                    still.push(sequence);
                }
            }
            open = still;
        }
        drafts
    }

    fn follow_only(&mut self, running: &dyn Fn(SeqId) -> bool) {
        if let Some(Predicting { slots, .. }) = &mut self.predicting {
            slots.follow_only(running);
        }
    }
}

/// The next row of a sequence that is number `number` of its pass.
fn row(sequence: &Open, number: usize, token: Token, output: Output) -> Row {
    Row {
        sequence: number as u32,
        token,
        position: sequence.position,
        cache_position: sequence.stored,
        output,
    }
}

impl ModelRunner {
    /// The logits of the last pass of the prediction head, `[sequences, vocab]`; empty if there was none.
    pub fn predicted_logits(&self) -> &[f32] {
        self.predicting.as_ref().map_or(&[], |predicting| &predicting.scratch.outputs)
    }

    /// The sequences that can be continued, by at most as many tokens as `most` says, and their first rows: of the
    /// positions whose states wait.
    fn enter(
        &mut self,
        wanted: &[WantedTokens<'_>],
        most: impl Fn(&WantedTokens<'_>) -> usize,
    ) -> (Vec<Open>, Pass) {
        let (mut open, mut pass) = (Vec::new(), Pass::default());
        let Some(Predicting { slots, .. }) = &mut self.predicting else { return (open, pass) };
        for (index, wanted) in wanted.iter().enumerate().filter(|(_, wanted)| most(wanted) > 0) {
            let Some(slot) = slots.prepare(wanted.id, wanted.tokens.len(), most(wanted)) else { continue };
            let Entering { stored, positions, states } = slots.entering(slot);
            let mut sequence = Open { index, slot, position: 0, stored: stored as u32 };
            for (count, &position) in (1..).zip(positions) {
                sequence.position = position;
                let output = Output::logits_if(count == positions.len());
                let token = wanted.tokens[position as usize + 1];
                pass.rows.push(row(&sequence, open.len(), token, output));
                sequence.stored += 1;
            }
            sequence.position += 1;
            pass.states.extend_from_slice(states);
            slots.entered(slot);
            open.push(sequence);
        }
        (open, pass)
    }

    /// Computes the rows of a pass: the likeliest token of each open sequence and the hidden state that it has.
    fn pass(&mut self, open: &[Open], pass: &Pass) -> Vec<(Token, Vec<f32>)> {
        let Some(Predicting { slots, scratch }) = &mut self.predicting else { return Vec::new() };
        let Some(prediction) = &self.model.weights.prediction else { return Vec::new() };
        let context = Context {
            model: &self.model,
            pool: &self.pool,
            ropes: &self.ropes,
            adapters: &self.adapters,
            pulse: &self.pulse,
        };
        let indices: Vec<usize> = open.iter().map(|sequence| sequence.slot).collect();
        let (arena, blocks) = slots.parts(&indices);
        let seqs: Vec<SeqKv<'_>> = blocks.into_iter().map(|blocks| SeqKv { blocks, tails: &[] }).collect();
        let states =
            predict(&context, prediction, (arena, &seqs), scratch, &pass.rows, &pass.states).to_vec();
        let config = self.model.config();
        let tokens = scratch.outputs.chunks_exact(config.vocab).map(|row| likeliest(row).unwrap_or(0));
        let states = states.chunks_exact(config.d_model).map(<[f32]>::to_vec);
        tokens.zip(states).collect()
    }
}
