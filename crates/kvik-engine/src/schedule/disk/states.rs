//! States of recurrent layers on disk: in pieces of the size of a block, each a child of the previous one.
//!
//! ```text
//! blocks   [b0] ── [b1] ── [b2 b2']                 the tokens of a prompt
//!                    └─ [-5 t t t t t] ── [-0 1] ── [-0 2]    the state five tokens behind b1, in three pieces
//! ```
//!
//! A piece is a block whose first token is outside every vocabulary, so the tier stores, evicts, expires and recovers
//! states like any block, and no prompt finds them by accident. The first token encodes how many tokens a state is past
//! the last whole block, so that no piece is a prefix of another.

use std::time::Duration;

use kvik_cache::tier::{BlockTokens, Placement, Record, SlotId, Use};
use kvik_cache::{BLOCK_POSITIONS, Identity, Lifetime, NamespaceId, Token, whole_blocks};

use super::Disk;
use super::spill::{Link, ttl_s};
use crate::schedule::namespaces::{NamespaceTable, Roots, content_key};

/// The first token of a piece that follows a whole block or another piece.
const PIECE: Token = Token::MAX;
/// No vocabulary has a token at or above this one.
const RESERVED: Token = PIECE - BLOCK_POSITIONS as Token;
/// Maximum number of states being written; further ones are not stored on disk.
const WRITES_MAX: usize = 2;

/// The position after some tokens at which a state is taken.
pub(crate) struct StateBehind<'a> {
    pub(crate) namespace: NamespaceId,
    pub(crate) tokens: &'a [Token],
    pub(crate) lifetime: Lifetime,
}

/// A state that is being written to disk.
pub(super) struct StateWrite {
    pub(super) namespace: NamespaceId,
    roots: Roots,
    /// The block or piece that the next piece follows.
    before: Link,
    bytes: Vec<u8>,
    /// The index of the piece that is written next.
    next: usize,
    /// The tokens of the partial block that the first piece follows.
    rest: Vec<Token>,
    lifetime: Lifetime,
}

/// A state that is stored.
#[derive(Debug, Clone)]
pub(super) struct StoredState {
    /// Number of tokens, of those that were looked for, that it has seen.
    pub(super) tokens: usize,
    pub(super) pieces: Vec<SlotId>,
}

/// The token sequence that stands for a piece.
fn piece_tokens(index: usize, rest: &[Token]) -> Vec<Token> {
    match index {
        0 => [&[PIECE - rest.len() as Token], rest].concat(),
        _ => vec![PIECE, index as Token],
    }
}

/// Whether these tokens stand for a piece of a state and not for a prompt.
pub(super) fn is_piece(tokens: &[Token]) -> bool {
    tokens.first().is_some_and(|&token| token >= RESERVED)
}

/// The tokens of the partial block that the first piece of a state follows; `None` for the other pieces.
pub(super) fn tokens_of_piece(tokens: &[Token]) -> Option<&[Token]> {
    let (&first, rest) = tokens.split_first()?;
    (first == PIECE - rest.len() as Token).then_some(rest)
}

/// Truncates the tokens before the first that belongs to a piece.
pub(super) fn before_pieces(tokens: &mut Vec<Token>) {
    let end = tokens.iter().position(|&token| token >= RESERVED).unwrap_or(tokens.len());
    tokens.truncate(end);
}

impl Disk {
    /// Whether states are spilled.
    pub(crate) fn takes_states(&self) -> bool {
        !self.is_absent() && self.writes()
    }

    /// Starts to write the state that `read` returns. Does not call `read` if too many are being written, the blocks that it
    /// follows are not stored, or the state is stored already: then its time to live begins anew.
    pub(crate) fn spill_state(
        &mut self,
        behind: &StateBehind<'_>,
        read: impl FnOnce() -> Vec<u8>,
        namespaces: &NamespaceTable,
        now: Duration,
    ) {
        let (roots, whole) = (*namespaces.roots(behind.namespace), whole_blocks(behind.tokens));
        let rest = behind.tokens[whole.len()..].to_vec();
        let identity = roots.identity_after(whole);
        let content =
            whole.chunks(BLOCK_POSITIONS).fold(roots.content, |content, block| content.child(block));
        let first = identity.child(&piece_tokens(0, &rest));
        if self.holds(&first, now) {
            return self.keep_state(&identity, &rest, behind.lifetime, now);
        }
        let is_reachable = whole.is_empty() || self.holds(&identity, now);
        if !is_reachable || self.states.len() >= WRITES_MAX {
            return;
        }
        let before = Link { identity, content };
        let (namespace, lifetime, bytes) = (behind.namespace, behind.lifetime, read());
        self.states.push(StateWrite { namespace, roots, before, bytes, next: 0, rest, lifetime });
        self.write_states(now);
    }

    /// Restarts the time to live of a stored state, which follows a block and `rest`, and of the blocks before it.
    fn keep_state(&mut self, end: &Identity, rest: &[Token], lifetime: Lifetime, now: Duration) {
        let last = (0..self.pieces()).fold(*end, |at, index| at.child(&piece_tokens(index, rest)));
        let news = self.tier.keep_path(&last, ttl_s(lifetime.ttl), self.wall_s(now));
        self.note_uses(news);
    }

    /// Number of pieces of a state.
    fn pieces(&self) -> usize {
        self.auxiliary.state_bytes.div_ceil(self.store.payload_bytes().max(1))
    }

    /// Continues to write states while there are buffers.
    pub(crate) fn write_states(&mut self, now: Duration) {
        let mut states = std::mem::take(&mut self.states);
        states.retain_mut(|state| self.write_pieces(state, now));
        self.states = states;
    }

    /// Writes pieces of a state; returns whether some are left.
    fn write_pieces(&mut self, state: &mut StateWrite, now: Duration) -> bool {
        let payload = self.store.payload_bytes();
        while let Some(left) = state.bytes.get(state.next * payload..).filter(|left| !left.is_empty()) {
            let Some(mut buffer) = self.take_buffer() else { return true };
            let tokens = piece_tokens(state.next, &state.rest);
            let link = state.before.child(&tokens);
            let record = state.record(link, &tokens, self.wall_s(now));
            match record.map(|record| self.tier.place(record, &state.roots.identity, self.wall_s(now))) {
                Some(Placement::Write(slot)) => {
                    let piece = buffer.len().min(left.len());
                    buffer[..piece].copy_from_slice(&left[..piece]);
                    buffer[piece..].fill(0);
                    self.store.write(slot, self.tier.record(slot), buffer);
                    self.writing += 1;
                }
                Some(Placement::Held(_)) => {}
                Some(Placement::Unreachable | Placement::Full) | None => return false,
            }
            (state.before, state.next) = (link, state.next + 1);
        }
        false
    }

    /// The longest stored state of a prefix of `tokens` that covers more than `known` of them and from which a sequence
    /// `can_go_on`.
    pub(super) fn find_state(
        &self,
        roots: &Roots,
        tokens: &[Token],
        known: usize,
        now: Duration,
        can_go_on: impl Fn(usize) -> bool,
    ) -> Option<StoredState> {
        let whole = whole_blocks(tokens);
        let mut ends = vec![roots.identity];
        ends.extend(roots.identity.blocks(whole));
        for (blocks, end) in ends.iter().enumerate().rev() {
            let start = blocks * BLOCK_POSITIONS;
            let longest = (tokens.len() - start).min(BLOCK_POSITIONS - 1);
            for rest in (0..=longest).rev().filter(|rest| start + rest > known && can_go_on(start + rest)) {
                let pieces = self.find_pieces(end, &tokens[start..start + rest], now);
                if let Some(pieces) = pieces {
                    return Some(StoredState { tokens: start + rest, pieces });
                }
            }
            if start + longest <= known {
                return None;
            }
        }
        None
    }

    /// All pieces of the state that follows a block and `rest`, if they are stored.
    fn find_pieces(&self, end: &Identity, rest: &[Token], now: Duration) -> Option<Vec<SlotId>> {
        let (mut at, mut slots) = (*end, Vec::new());
        for index in 0..self.pieces() {
            let tokens = piece_tokens(index, rest);
            let next = at.child(&tokens);
            if !self.holds(&next, now) {
                return None;
            }
            let found = self.tier.find(&at, &tokens, self.wall_s(now));
            let &slot = found.slots.first().filter(|_| found.tokens == tokens.len())?;
            slots.push(slot);
            at = next;
        }
        Some(slots)
    }
}

impl StateWrite {
    fn record(&self, link: Link, tokens: &[Token], now_s: u64) -> Option<Record> {
        let expires_s = ttl_s(self.lifetime.ttl).map_or(0, |ttl_s| now_s.saturating_add(ttl_s));
        Some(Record {
            identity: link.identity,
            parent: self.before.identity,
            owner: self.roots.owner,
            content_key: content_key(&link.content),
            tokens: BlockTokens::new(tokens)?,
            pinned: false,
            lacks_part: false,
            use_: Use { at_s: now_s, expires_s, ..Use::default() },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_piece_begins_with_all_of_another() {
        let tokens: Vec<Token> = (1..16).collect();
        let mut pieces: Vec<Vec<Token>> = (0..16).map(|rest| piece_tokens(0, &tokens[..rest])).collect();
        pieces.extend((1..40).map(|index| piece_tokens(index, &[])));
        for (index, piece) in pieces.iter().enumerate() {
            assert!(piece.len() <= BLOCK_POSITIONS && piece[0] >= RESERVED);
            let others = pieces.iter().enumerate().filter(|&(other, _)| other != index);
            // A first piece follows a block and the others a piece, so only pieces of the same kind can collide.
            let meets = |other: usize| (index < 16) == (other < 16);
            assert!(others.filter(|&(other, _)| meets(other)).all(|(_, other)| !other.starts_with(piece)));
        }
        let mut sampled = vec![5, 6, PIECE, 7];
        before_pieces(&mut sampled);
        assert_eq!(sampled, [5, 6]);
    }
}
