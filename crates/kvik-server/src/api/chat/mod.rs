//! A chat turn in any dialect: from the parsed body to the engine's request, and the reply in the answer.

mod arguments;
mod history;
mod item;
mod reply;

pub(crate) use self::{
    arguments::{arguments_object, arguments_text},
    history::{Compacted, to_compact},
    item::{CompactionItem, CompactionWord},
    reply::{Assistant, AssistantMessage, Function, Reply, ToolCall},
};

use kvik_session::Chat;

use self::history::{continued, remembered};
use super::{
    reading::Reading,
    request::{conversation::ChatRequest, generation::Options},
};
use crate::{
    app::{
        generation::Answer,
        keys::Caller,
        memory::RememberedTurn,
        report::{comparison::Comparable, trailer::Origin},
        requests::Prepared,
        state::App,
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
        let (choices, kept_prefix) = (options.choices, options.kept_prefix.clone());
        let (chat, kept) = continued(app, caller, chat, &options)?;
        let owner = kept.as_ref().map(|turn| turn.key().owner());
        let caller = &owner.map_or_else(|| caller.clone(), |owner| caller.on_behalf_of(owner));
        let (chat, mut memory) = remembered(app, caller, chat, &options, &compacted)?;
        let chat = ChatRequest::new(app, chat, options, logprobs, body)?;
        if let Some(turn) = memory.as_mut().filter(|_| choices == 1) {
            let reading = chat.reading.clone();
            turn.reads_answer(Box::new(move |text| Reply::whole(&reading, text).message()));
        }
        let compaction = memory.as_mut().and_then(RememberedTurn::take_compaction);
        let item = compaction.and_then(|compaction| app.seal.item(&caller.tenant.name, &compaction));
        let item = item.as_ref().map(CompactionItem::of);
        let answer = word(Worded { reading: chat.reading, item, logprobs: logprobs.is_some(), choices });
        let origin = Origin {
            messages: Some(chat.messages),
            comparable: Some(Comparable { id, parts: chat.parts, with: compared_with }),
            schema_notes: chat.schema_notes,
            kept_prefix,
            memory,
            conversation: kept,
            ..Origin::default()
        };
        Ok(Prepared { requests: vec![chat.request], origin, answer, stream })
    }
}
