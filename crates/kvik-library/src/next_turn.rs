//! The next turn of a chat, [computed](kvik_session::NextTurns) behind its answer.

use kvik_cache::Token;
use kvik_engine::api::{Event, Request};
use kvik_session::{Chat, NextTurns, Turn, Upcoming};
use serde_json::Value;

/// A request whose chat may go on.
pub(crate) struct NextTurn {
    turn: Turn,
    prompt: Vec<Token>,
    messages: Vec<Value>,
    begin: Begin,
}

/// Computes a turn, on another thread.
pub(crate) type Begin = Box<dyn FnOnce(Upcoming) + Send>;

impl NextTurn {
    /// Notes the request for the answer to `messages`, which is about to be submitted. `settings` are those of its chat,
    /// without messages; `None` if nothing is computed behind it.
    pub(crate) fn of(
        turns: &NextTurns,
        request: &Request,
        (settings, messages): (Option<Chat>, Vec<Value>),
        begin: Begin,
    ) -> NextTurn {
        let turn = Turn::arrived(turns, request, settings);
        NextTurn { turn, prompt: request.prompt.clone(), messages, begin }
    }

    pub(crate) fn note(&mut self, event: &Event) {
        self.turn.note(event);
    }

    /// Computes it behind an answer, which programs send back without its thoughts.
    pub(crate) fn compute(self, answer: Value) {
        let NextTurn { mut turn, prompt, messages, begin } = self;
        if let Some(upcoming) = turn.ended(&prompt, messages, answer, false) {
            begin(upcoming);
        }
    }
}
