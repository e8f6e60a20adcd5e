//! The messages before a chat's question: stored by the server, remembered beyond the context, or compacted.

use std::sync::Arc;

use kvik_engine::api::AdapterMix;
use kvik_memory::{
    conversations::ConversationTurn,
    memory::{Compaction, ComputeTerms, Purpose},
};
use kvik_session::Chat;
use kvik_text::template::check_question;
use serde_json::Value;

use crate::{
    api::request::{compaction::Compacting, generation::Options},
    app::{
        chat_text,
        conversations::check_values,
        kept_prefix::KeptPrefix,
        keys::Caller,
        memory::{CompactJob, History, RememberedTurn},
        report::token_scale::TokenScale,
        state::App,
    },
    http::error::ApiError,
};

type Result<T> = std::result::Result<T, ApiError>;

/// Prepends the stored conversation that the request continues, if any, and returns its turn.
pub(super) fn continued(
    app: &App,
    caller: &Caller,
    new: Chat,
    options: &Options,
) -> Result<(Chat, Option<ConversationTurn>)> {
    let Some(reference) = &options.conversation else { return Ok((new, None)) };
    if options.choices > 1 {
        let message =
            "`n` answers cannot all be the next message of `kvik.conversation`; leave one of them out";
        return Err(ApiError::field("n", message));
    }
    check_new(&new)?;
    let begun =
        ConversationTurn::begin(&app.server.conversations, &caller.tenant.name, reference, new.messages());
    let (mut turn, messages) = begun.map_err(|error| at_conversation(error.into()))?;
    turn.asks(&app.serving.model.name);
    check_values(&messages).map_err(at_conversation)?;
    Ok((new.with_messages(&messages, Purpose::Answer), Some(turn)))
}

/// Prepends the stored conversation that an unanswered request would continue, if any: it is read, and not taken.
pub(crate) fn previewed(app: &App, tenant: &str, new: Chat, conversation: Option<&str>) -> Result<Chat> {
    let Some(reference) = conversation else { return Ok(new) };
    check_new(&new)?;
    let read = ConversationTurn::preview(&app.server.conversations, tenant, reference, new.messages());
    let messages = read.map_err(|error| at_conversation(error.into()))?;
    check_values(&messages).map_err(at_conversation)?;
    Ok(new.with_messages(&messages, Purpose::Answer))
}

/// Refuses new messages of a stored conversation that only continue one.
fn check_new(new: &Chat) -> Result<()> {
    if !new.continues {
        return Ok(());
    }
    let message = "`continue_final_message`: what is said in `kvik.conversation` is not said anew; end with a message of the user or of a tool, or set it to false";
    Err(ApiError::field("continue_final_message", message))
}

fn at_conversation(error: ApiError) -> ApiError {
    error.at("kvik.conversation")
}

/// The compaction state and settings of a request.
#[derive(Default)]
pub(crate) struct Compacted {
    /// The compaction item that precedes the messages.
    pub(crate) before: Option<Compaction>,
    /// Set if the request asks for further compaction.
    pub(crate) compacting: Option<Compacting>,
}

impl Compacted {
    /// The same with the model's tokens in its threshold, which its client gives in its own scale.
    pub(super) fn counted(self, scale: TokenScale) -> Compacted {
        let counted =
            |Compacting { threshold }| Compacting { threshold: threshold.map(|told| scale.reaching(told)) };
        Compacted { compacting: self.compacting.map(counted), ..self }
    }
}

/// Returns the conversation that the model reads, and the turn if the conversation is remembered beyond the
/// context. `adapters` are those that it is answered with.
pub(super) fn remembered(
    app: &App,
    caller: &Caller,
    chat: Chat,
    (options, adapters): (&Options, Option<AdapterMix>),
    compacted: &Compacted,
) -> Result<(Chat, Option<RememberedTurn>)> {
    let is_compacted = compacted.before.is_some() || compacted.compacting.is_some();
    let other = is_compacted.then(|| not_beside_compaction(&chat, options)).flatten();
    if let Some(other) = other {
        let message = format!("a conversation is not compacted beside {other}; leave one of them out");
        return Err(ApiError::field("context_management", message));
    }
    let reads_part = matches!(options.kept_prefix, Some(KeptPrefix::Named(_)));
    if reads_part && options.memory == Some(true) {
        let message = "`kvik.kept_prefix` names a prompt with which every turn begins, and a summary changes how it begins; leave out either this or `kvik.memory`";
        return Err(ApiError::field("kvik.kept_prefix", message));
    }
    if chat.continues || !(is_compacted || is_remembered(app, options)) {
        return Ok((chat, None));
    }
    // Quotes are added to the text of the question, and what is left of the messages no longer has their indexes.
    check_question(chat.messages()).map_err(|error| chat_text::refused(error.into()))?;
    let (settings, messages) = chat.apart();
    let settings = Arc::new(settings);
    let history = History {
        compacting: compacted.compacting.map(|compacting| compacting.threshold),
        terms: ComputeTerms { lifetime: options.lifetime, adapters },
        ..history(app, caller, (settings.clone(), messages), compacted.before.as_ref(), Some(options))
    };
    let turn = app.memory.turn(history)?;
    Ok((settings.with_messages(&turn.messages, Purpose::Answer), Some(turn)))
}

/// True if the request, or else the server, has a conversation remembered beyond the context.
fn is_remembered(app: &App, options: &Options) -> bool {
    let kept = options.conversation.is_some() && app.memory.is_possible();
    let reads_part = matches!(options.kept_prefix, Some(KeptPrefix::Named(_)));
    let remembers = (app.memory.on || kept) && options.reuse && !reads_part;
    options.memory.unwrap_or(remembers)
}

/// True if what changes in the prompt of a chat that is not compacted may be moved. The server knows how a conversation begins
/// that it keeps or remembers, and what is pinned or begins with a kept prompt is found by its own text.
pub(crate) fn may_settle(app: &App, chat: &Chat, options: &Options) -> bool {
    let is_remembered = !chat.continues && is_remembered(app, options);
    options.conversation.is_none() && !is_remembered && !options.stays_as_sent()
}

/// Returns the job that compacts a whole conversation.
pub(crate) fn to_compact(
    app: &App,
    caller: &Caller,
    chat: Chat,
    before: Option<&Compaction>,
) -> Result<CompactJob> {
    let (settings, messages) = chat.apart();
    app.memory.to_compact(history(app, caller, (Arc::new(settings), messages), before, None))
}

/// Bundles a conversation with its renderer. The renderer holds only the settings, so that the messages are
/// stored once.
fn history<'a>(
    app: &App,
    caller: &'a Caller,
    (settings, messages): (Arc<Chat>, Vec<Value>),
    before: Option<&'a Compaction>,
    options: Option<&Options>,
) -> History<'a> {
    let context = app.serving.model.context;
    let wanted = options.map_or(0, |options| options.max_tokens(context / 8, context));
    let serving = app.serving.clone();
    let render = Arc::new(move |messages: &[Value], purpose| {
        chat_text::tokens(&serving, &settings.with_messages(messages, purpose))
    });
    let (room, terms) = (wanted.min(context / 4), ComputeTerms::default());
    History { caller, messages, before, compacting: None, room, render, terms }
}

/// What of a request does not go with compaction.
fn not_beside_compaction(chat: &Chat, options: &Options) -> Option<&'static str> {
    match () {
        () if options.memory == Some(false) => Some("`kvik.memory` false"),
        () if !options.reuse => Some("a private cache"),
        () if matches!(options.kept_prefix, Some(KeptPrefix::Named(_))) => {
            Some("`kvik.kept_prefix`, with which every turn begins")
        }
        () if options.conversation.is_some() => {
            Some("`kvik.conversation`, which the server keeps as a whole")
        }
        () if chat.continues => Some("a last message that is continued"),
        () => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threshold_is_in_the_scale_of_its_client() {
        let counted = |threshold: Option<usize>, scale: TokenScale| {
            let compacted = Compacted { before: None, compacting: Some(Compacting { threshold }) };
            compacted.counted(scale).compacting
        };
        let scale = TokenScale::of(200_000, 2_048);
        assert_eq!(counted(Some(160_000), scale), Some(Compacting { threshold: Some(1_639) }));
        assert_eq!(
            counted(Some(160_000), TokenScale::default()),
            Some(Compacting { threshold: Some(160_000) })
        );
        assert_eq!(counted(None, scale), Some(Compacting { threshold: None }));
        assert!(Compacted::default().counted(scale).compacting.is_none());
    }
}
