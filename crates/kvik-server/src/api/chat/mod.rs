//! A chat turn in any dialect: from the parsed body to the engine's request, and the reply in the answer.

mod arguments;
mod history;
mod item;
mod reply;

pub(crate) use self::{
    arguments::{arguments_object, arguments_text},
    history::{Compacted, may_settle, previewed, to_compact},
    item::{CompactionItem, CompactionWord},
    reply::{Assistant, AssistantMessage, Function, Reply, ToolCall},
};

use kvik_memory::{memory::Purpose, settle::Learning};
use kvik_session::Chat;
use kvik_text::template::drop_unseen;

use self::history::{continued, remembered};
use super::{
    reading::Reading,
    request::{conversation::ChatRequest, generation::Options},
};
use crate::{
    app::{
        generation::Answer,
        keys::Caller,
        lora,
        memory::RememberedTurn,
        report::{comparison::Comparable, trailer::Origin},
        requests::Prepared,
        running_answers::ResumableTurn,
        settled,
        state::App,
        wire::Wire,
    },
    http::{error::ApiError, json::Body},
};

/// A chat turn as parsed by a dialect.
pub(crate) struct ChatTurn {
    pub(crate) chat: Chat,
    pub(crate) options: Options,
    /// Number of likeliest alternatives for which log-probabilities are returned, in addition to the
    /// generated token's.
    pub(crate) logprobs: Option<usize>,
    pub(crate) compacted: Compacted,
    /// Id of the answer, with which later answers can be compared.
    pub(crate) id: String,
    /// Id of the earlier answer to compare this one with.
    pub(crate) compared_with: Option<String>,
    pub(crate) stream: bool,
}

/// The inputs for formatting the answer to a turn.
pub(crate) struct Worded {
    /// How the text of each choice is parsed.
    pub(crate) reading: Reading,
    /// The compaction item, for clients that asked for it.
    pub(crate) item: Option<CompactionItem>,
    /// Id of the stored conversation that the answer belongs to.
    pub(crate) conversation: Option<String>,
    /// True if the engine returns log-probabilities.
    pub(crate) logprobs: bool,
    pub(crate) choices: u32,
}

impl ChatTurn {
    /// Prepares the turn for the engine, with the answer that `word` creates.
    pub(crate) fn prepare<A: Answer>(
        self,
        app: &App,
        caller: &Caller,
        body: &Body,
        word: impl FnOnce(Worded) -> A,
    ) -> Result<Prepared<A>, ApiError> {
        let ChatTurn { chat, options, logprobs, compacted, id, compared_with, stream } = self;
        let compacted = compacted.counted(app.token_scale(body));
        let (choices, kept_prefix) = (options.choices, options.kept_prefix.clone());
        let next_turn = options.next_turn;
        check_resume::<A>(&options, stream)?;
        let new = options.resume.then(|| chat.messages().to_vec());
        let (chat, kept) = continued(app, caller, chat, &options)?;
        let question = kept.as_ref().zip(new);
        let question = question.map(|(turn, messages)| ResumableTurn {
            key: turn.key().clone(),
            messages,
            messages_after: turn.messages(),
        });
        let owner = kept.as_ref().map(|turn| turn.key().owner());
        let caller = &owner.map_or_else(|| caller.clone(), |owner| caller.on_behalf_of(owner));
        let adapters = lora::adapters(body, &app.serving.lora)?;
        let (mut chat, mut memory) = remembered(app, caller, chat, (&options, adapters), &compacted)?;
        let settled = match kept.is_none() && memory.is_none() && !options.stays_as_sent() {
            true => {
                // Nothing is learned from a request that is to leave nothing behind.
                let learning = if options.reuse { Learning::On } else { Learning::Off };
                settled::settle((app, &caller.tenant.name), &mut chat, options.settle, learning)
            }
            // The server knows how a conversation that it keeps begins, and a pin or a kept prompt is found by its text.
            false => Vec::new(),
        };
        // A conversation that is summarised behind its answer is computed ahead with its summary.
        let goes_on = memory.as_ref().is_none_or(|turn| !turn.has_work()) && next_turn != Some(false);
        let goes_on = goes_on.then(|| chat.with_messages(&[], Purpose::Answer));
        let chat = ChatRequest::new(app, chat, options, logprobs, body)?;
        if let Some(turn) = memory.as_mut().filter(|_| choices == 1) {
            let reading = chat.reading.clone();
            turn.reads_answer(Box::new(move |text| Reply::whole(&reading, text).message()));
        }
        let compaction = memory.as_mut().and_then(RememberedTurn::take_compaction);
        let item = compaction.and_then(|compaction| app.seal.item(&caller.tenant.name, &compaction));
        let item = item.as_ref().map(CompactionItem::of);
        let conversation = kept.as_ref().map(|turn| turn.key().id.clone());
        let (mut messages, reading, logprobs) = (chat.messages, chat.reading, logprobs.is_some());
        // They are in memory for as long as the answer is.
        drop_unseen(&mut messages);
        let answer = word(Worded { reading, item, conversation, logprobs, choices });
        let origin = Origin {
            messages: Some(messages),
            comparable: Some(Comparable { id, parts: chat.parts, with: compared_with }),
            settled,
            schema_notes: chat.schema_notes,
            kept_prefix,
            memory,
            conversation: kept,
            question,
            goes_on,
            is_expected: next_turn == Some(true),
            ..Origin::default()
        };
        Ok(Prepared { requests: vec![chat.request], origin, answer, stream })
    }
}

/// Refuses the resumption of an answer that is no stream of plain events.
fn check_resume<A: Answer>(options: &Options, stream: bool) -> Result<(), ApiError> {
    if !options.resume || stream && matches!(A::WIRE, Wire::Data { .. }) {
        return Ok(());
    }
    let message =
        "`kvik.resume` is for streamed answers of /v1/chat/completions; leave it out, or send `stream`";
    Err(ApiError::field("kvik.resume", message))
}
