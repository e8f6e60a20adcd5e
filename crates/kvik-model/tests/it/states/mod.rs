//! States of recurrent layers as a test keeps them: one live slot for each sequence, and copies by what is in them.

use kvik_cache::{StateId, Token};
use kvik_model::batch::Runner;

/// Sequences that run at a time.
const LIVE: usize = 5;
/// Copies that are kept.
const SAVED: usize = 24;

/// Which slot is whose.
pub(crate) struct States {
    free: Vec<StateId>,
    saved: Vec<Saved>,
    next: usize,
}

/// A copy of a state.
struct Saved {
    /// What the sequence was computed with.
    mix: usize,
    /// The tokens that are in it.
    tokens: Vec<Token>,
    slot: StateId,
    bytes: Vec<u8>,
}

impl States {
    /// Slots that a runner needs.
    pub(crate) const SLOTS: usize = LIVE + SAVED;

    pub(crate) fn new() -> States {
        States { free: (0..LIVE as u32).map(StateId).collect(), saved: Vec::new(), next: 0 }
    }

    /// Tokens in the longest copy that begins `prompt`, of at most `most`.
    pub(crate) fn longest(&self, mix: usize, prompt: &[Token], most: usize) -> usize {
        let fits = |saved: &&Saved| {
            saved.mix == mix && saved.tokens.len() <= most && prompt.starts_with(&saved.tokens)
        };
        self.saved.iter().filter(fits).map(|saved| saved.tokens.len()).max().unwrap_or(0)
    }

    /// A live slot with the state behind `tokens`, of which there is a copy: from its slot, or from its bytes.
    pub(crate) fn start(
        &mut self,
        runner: &mut dyn Runner,
        mix: usize,
        tokens: &[Token],
        from_bytes: bool,
    ) -> StateId {
        let live = self.free.pop().unwrap();
        let copy = self.saved.iter().find(|saved| saved.mix == mix && saved.tokens == tokens);
        match copy.filter(|_| !tokens.is_empty() && runner.state_bytes() > 0) {
            None => runner.set_state(live, None),
            Some(saved) if from_bytes => runner.write_state_piece(live, 0, &saved.bytes),
            Some(saved) => runner.set_state(live, Some(saved.slot)),
        }
        live
    }

    /// The sequence of a live slot has ended.
    pub(crate) fn end(&mut self, runner: &mut dyn Runner, live: StateId) {
        runner.release_state(live);
        self.free.push(live);
    }

    /// A slot for a copy; the oldest one there is forgotten.
    pub(crate) fn room(&mut self) -> StateId {
        let slot = StateId((LIVE + self.next % SAVED) as u32);
        self.next += 1;
        self.saved.retain(|saved| saved.slot != slot);
        slot
    }

    /// A copy has been written.
    pub(crate) fn keep(&mut self, runner: &dyn Runner, mix: usize, tokens: &[Token], slot: StateId) {
        let mut bytes = vec![0; runner.state_bytes()];
        runner.read_state(slot, &mut bytes);
        self.saved.push(Saved { mix, tokens: tokens.to_vec(), slot, bytes });
    }
}
