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
//!
//! The bytes of a state are read at once, and they are many. So few states are written at a time; the others wait, and are
//! read when it is their turn, from the places that RAM still has.

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
/// Maximum number of states being written.
const WRITES_MAX: usize = 2;
/// Maximum number of states that wait; further ones are not stored on disk.
const WAITING_MAX: usize = 64;

/// The position after some tokens at which a state is taken.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StateBehind<'a> {
    pub(crate) namespace: NamespaceId,
    pub(crate) tokens: &'a [Token],
    pub(crate) lifetime: Lifetime,
    /// Whether the tokens belong to a pinned prompt, which is written beyond the budget of the day.
    pub(crate) is_pinned: bool,
}

/// The states on their way to the disk.
#[derive(Debug, Default)]
pub(super) struct StateWrites {
    /// Those being written.
    open: Vec<StateWrite>,
    /// Those that are written later, the oldest first.
    waiting: Vec<WaitingState>,
}

/// A state that is being written to disk.
#[derive(Debug)]
struct StateWrite {
    namespace: NamespaceId,
    roots: Roots,
    tokens: Vec<Token>,
    /// Its last piece, by which it is known.
    last: Identity,
    /// The block or piece that the next piece follows.
    before: Link,
    bytes: Vec<u8>,
    /// The index of the piece that is written next.
    next: usize,
    lifetime: Lifetime,
}

/// A state that is written when others are, or when the blocks that it follows are.
#[derive(Debug)]
pub(crate) struct WaitingState {
    namespace: NamespaceId,
    tokens: Vec<Token>,
    lifetime: Lifetime,
    is_pinned: bool,
    /// The block that its first piece follows; the root if there is none.
    end: Identity,
    /// Its last piece, by which it is known.
    last: Identity,
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

    /// Starts to write the state that `read` returns, or lets it wait. `read` is not called then, nor if the state is not to
    /// be written: the budget of the day is used up, its blocks will not be stored, or it is stored already, which
    /// counts as a use.
    pub(crate) fn spill_state(
        &mut self,
        behind: &StateBehind<'_>,
        read: impl FnOnce() -> Vec<u8>,
        namespaces: &NamespaceTable,
        now: Duration,
    ) {
        let (roots, whole) = (*namespaces.roots(behind.namespace), whole_blocks(behind.tokens));
        let end = roots.identity_after(whole);
        let pieces = self.piece_identities(&end, &behind.tokens[whole.len()..]);
        let Some(&last) = pieces.last() else { return };
        if pieces.iter().all(|piece| self.holds(piece, now)) {
            return self.note_use(&last, behind.lifetime, now);
        }
        if self.states.has(&last) || !self.has_budget_for(behind, now) {
            return;
        }
        let is_reachable = self.is_reachable(behind.tokens, &end, now);
        if is_reachable && !self.states.is_full() {
            self.states.open.push(StateWrite::new(behind, roots, (end, last), read()));
            self.write_states(now);
        } else if is_reachable || !self.has_buffer() {
            // Without a buffer, the blocks that it follows may wait as well.
            self.states.wait(behind, end, last);
        }
    }

    /// Removes the first waiting state that can be written now, and those whose blocks will not be stored.
    pub(crate) fn next_waiting_state(&mut self, now: Duration) -> Option<WaitingState> {
        let mut waiting = std::mem::take(&mut self.states.waiting);
        if waiting.is_empty() || !self.takes_states() {
            return None;
        }
        // While there is a buffer, no block waits for one.
        if self.has_buffer() {
            waiting.retain(|state| self.is_reachable(&state.tokens, &state.end, now));
        }
        let can_begin = |state: &WaitingState| self.is_reachable(&state.tokens, &state.end, now);
        let first = if self.states.is_full() { None } else { waiting.iter().position(can_begin) };
        let next = first.map(|index| waiting.remove(index));
        self.states.waiting = waiting;
        next
    }

    /// Whether the block `end`, which a state after these tokens follows, is stored.
    fn is_reachable(&self, tokens: &[Token], end: &Identity, now: Duration) -> bool {
        whole_blocks(tokens).is_empty() || self.holds(end, now)
    }

    fn has_budget_for(&self, behind: &StateBehind<'_>, now: Duration) -> bool {
        let now_s = self.shown_s(self.wall_s(now));
        behind.is_pinned || self.write_policy.has_budget(&self.store.wear(), now_s)
    }

    fn has_buffer(&mut self) -> bool {
        self.take_buffer().is_some()
    }

    /// The identities of the pieces of the state that follows a block and `rest`.
    fn piece_identities(&self, end: &Identity, rest: &[Token]) -> Vec<Identity> {
        let mut at = *end;
        let next = |index| {
            at = at.child(&piece_tokens(index, rest));
            at
        };
        (0..self.pieces()).map(next).collect()
    }

    /// Number of pieces of a state.
    fn pieces(&self) -> usize {
        self.auxiliary.state_bytes.div_ceil(self.store.payload_bytes().max(1))
    }

    /// Continues to write states while there are buffers.
    pub(crate) fn write_states(&mut self, now: Duration) {
        let mut states = std::mem::take(&mut self.states.open);
        states.retain_mut(|state| self.write_pieces(state, now));
        self.states.open = states;
    }

    /// Writes pieces of a state; returns whether some are left.
    fn write_pieces(&mut self, state: &mut StateWrite, now: Duration) -> bool {
        let payload = self.store.payload_bytes();
        while let Some(left) = state.bytes.get(state.next * payload..).filter(|left| !left.is_empty()) {
            let Some(mut buffer) = self.take_buffer() else { return true };
            let tokens = piece_tokens(state.next, state.rest());
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

impl StateWrites {
    /// Number of states.
    pub(super) fn count(&self) -> usize {
        self.open.len() + self.waiting.len()
    }

    /// The namespaces of those being written.
    pub(super) fn namespaces(&self) -> impl Iterator<Item = NamespaceId> {
        self.open.iter().map(|state| state.namespace)
    }

    /// Gives up the states whose namespace and tokens are unwanted.
    pub(super) fn forget(&mut self, is_unwanted: impl Fn(NamespaceId, &[Token]) -> bool) {
        self.open.retain(|state| !is_unwanted(state.namespace, &state.tokens));
        self.waiting.retain(|state| !is_unwanted(state.namespace, &state.tokens));
    }

    /// Whether the state with this last piece is one of them.
    fn has(&self, last: &Identity) -> bool {
        let mut known = self.open.iter().map(|state| &state.last);
        known.any(|known| known == last) || self.waiting.iter().any(|state| state.last == *last)
    }

    /// Whether as many are being written as may be.
    fn is_full(&self) -> bool {
        self.open.len() >= WRITES_MAX
    }

    /// Lets a state wait, unless too many do.
    fn wait(&mut self, behind: &StateBehind<'_>, end: Identity, last: Identity) {
        let StateBehind { namespace, tokens, lifetime, is_pinned } = *behind;
        if self.waiting.len() < WAITING_MAX {
            let tokens = tokens.to_vec();
            self.waiting.push(WaitingState { namespace, tokens, lifetime, is_pinned, end, last });
        }
    }
}

impl WaitingState {
    /// The position at which it is taken.
    pub(crate) fn behind(&self) -> StateBehind<'_> {
        let WaitingState { namespace, ref tokens, lifetime, is_pinned, .. } = *self;
        StateBehind { namespace, tokens, lifetime, is_pinned }
    }
}

impl StateWrite {
    /// The state with these bytes, whose pieces follow the block `end` and whose last piece is `last`.
    fn new(
        behind: &StateBehind<'_>,
        roots: Roots,
        (end, last): (Identity, Identity),
        bytes: Vec<u8>,
    ) -> StateWrite {
        let StateBehind { namespace, tokens, lifetime, .. } = *behind;
        let blocks = whole_blocks(tokens).chunks(BLOCK_POSITIONS);
        let content = blocks.fold(roots.content, |content, block| content.child(block));
        let before = Link { identity: end, content };
        let tokens = tokens.to_vec();
        StateWrite { namespace, roots, tokens, last, before, bytes, next: 0, lifetime }
    }

    /// The tokens of the partial block that the first piece follows.
    fn rest(&self) -> &[Token] {
        &self.tokens[whole_blocks(&self.tokens).len()..]
    }

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
