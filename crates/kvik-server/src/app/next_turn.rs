//! The next turn of a chat, [computed](kvik_session::NextTurns) behind its answer.

use std::sync::Arc;

use kvik_cache::Token;
use kvik_engine::api::{Event, Request};
use kvik_memory::deletions::Owner;
use kvik_serving::{Serving, system::is_on_battery};
use kvik_session::{AheadMode, Chat, Turn, Upcoming};
use serde_json::Value;

use super::{server::Server, state::App};

/// A request whose chat may go on.
pub(crate) struct NextTurn {
    turn: Turn,
    /// The deletable objects that its prompt is computed for.
    owners: Vec<Owner>,
    serving: Arc<Serving>,
    server: Arc<Server>,
}

impl NextTurn {
    /// Notes requests that are about to be submitted; those of several prompts are no turn of a chat. A chat is given by
    /// its settings, and whether its client says that it goes on.
    pub(super) fn of(
        app: &App,
        requests: &[Request],
        (settings, is_expected): (Option<Chat>, bool),
        owners: Vec<Owner>,
    ) -> Option<NextTurn> {
        let [request] = requests else { return None };
        let turns = &app.serving.next_turns;
        let turns = if is_expected { turns.expected() } else { turns.clone() };
        let turn = Turn::arrived(&turns, request, settings);
        Some(NextTurn { turn, owners, serving: app.serving.clone(), server: app.server.clone() })
    }

    pub(super) fn note(&mut self, event: &Event) {
        self.turn.note(event);
    }

    /// Computes the turn behind `prompt`, the prompt of `messages`, and its `answer`. `thoughts_return` says whether clients
    /// of its dialect send thoughts back.
    pub(super) fn compute(
        self,
        (prompt, messages): (&[Token], Option<Value>),
        answer: Value,
        thoughts_return: bool,
    ) {
        let NextTurn { mut turn, owners, serving, server } = self;
        let Some(Value::Array(messages)) = messages else { return };
        let Some(upcoming) = turn.ended(prompt, messages, answer, thoughts_return) else { return };
        let readers = server.readers.clone();
        let work = move |_| {
            compute(&serving, &server, &owners, upcoming);
            Ok(())
        };
        // Nobody waits for it, and the next turn is answered either way.
        tokio::spawn(async move { readers.in_background(work).await });
    }
}

/// Submits the request that computes a turn, unless others wait or a battery is to be spared.
fn compute(serving: &Serving, server: &Server, owners: &[Owner], upcoming: Upcoming) {
    let spares_battery = serving.next_turns.mode() == AheadMode::Auto && is_on_battery();
    if spares_battery || serving.engine.stats().waiting > 0 {
        return;
    }
    let prepared = upcoming.prepare(&serving.texts, |request| serving.engine.as_generated(request));
    let Some((mut request, sink)) = prepared else { return };
    server.prompt_log.note_or_keep_nothing(owners, &mut request);
    if request.reuse
        && let Err(error) = serving.engine.submit(request, sink)
    {
        tracing::debug!("a turn is not computed ahead: {error}");
    }
}
