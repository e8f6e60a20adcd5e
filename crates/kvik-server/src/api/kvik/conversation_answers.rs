//! Answers of the conversation routes.

use std::collections::BTreeMap;

use kvik_memory::conversations::{ConversationHead, ConversationKey, FoundConversation};
use serde::Serialize;
use serde_json::Value;

use crate::{described::JsonSchema, http::answer::words};

words! {
    ConversationWord = "conversation";
    DeletedWord = "conversation.deleted";
    List = "list";
}

/// A conversation, without what was said in it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "{M}")]
pub(crate) struct ShownConversation<M = Count> {
    id: String,
    object: ConversationWord,
    name: Option<String>,
    /// Unix time, seconds.
    created: u64,
    /// The same, under OpenAI's name.
    created_at: u64,
    updated: u64,
    /// What the client keeps beside it.
    metadata: BTreeMap<String, String>,
    /// The model that was asked last, which answers turns that name none.
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    messages: M,
    bytes: u64,
}

/// A conversation with what was said in it.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ReadConversation {
    #[serde(flatten)]
    pub(super) conversation: ShownConversation<Said>,
    /// The new messages of a turn whose answer runs and can be followed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) answering: Option<Said>,
}

/// Number of messages of a conversation.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(crate) struct Count(usize);

/// Messages of a conversation, in OpenAI's format.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(crate) struct Said(pub(super) Vec<Value>);

/// Of a list.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ListedConversation {
    #[serde(flatten)]
    conversation: ShownConversation,
    /// Of a search: where the text was said last; null where the name alone has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    found: Option<Option<FoundText>>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct FoundText {
    /// Index of the message.
    message: usize,
    before: String,
    text: String,
    after: String,
}

/// Conversations, those that were changed last first.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Conversations")]
pub(crate) struct ListedConversations {
    pub(super) object: List,
    pub(super) data: Vec<ListedConversation>,
    pub(super) has_more: bool,
    /// Of a search: what `after` is to be for more of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) next: Option<Option<String>>,
}

/// A conversation that was deleted: nobody reads it any more.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct DeletedConversation {
    pub(super) id: String,
    pub(super) object: DeletedWord,
    /// Nothing of it is left, in memory or in a file.
    pub(super) deleted: bool,
    /// Something of it is left, and is deleted as soon as that can be done, also after a restart; asking again says
    /// whether it is.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) pending: bool,
}

/// A conversation as `POST /v1/conversations` takes it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ExportedConversation")]
pub(crate) struct Export {
    pub(super) name: Option<String>,
    pub(super) metadata: BTreeMap<String, String>,
    pub(super) messages: Said,
}

/// Describes a conversation with the number of its messages.
pub(super) fn head_of(key: &ConversationKey, head: &ConversationHead) -> ShownConversation {
    with_messages(key, head, Count(head.messages))
}

/// Describes a conversation with `messages` in the field of that name.
pub(super) fn with_messages<M>(
    key: &ConversationKey,
    head: &ConversationHead,
    messages: M,
) -> ShownConversation<M> {
    ShownConversation {
        id: key.id.clone(),
        object: ConversationWord,
        name: head.name.clone(),
        created: head.created,
        created_at: head.created,
        metadata: head.metadata.clone(),
        updated: head.updated,
        model: head.model.clone(),
        messages,
        bytes: head.bytes,
    }
}

/// Describes a conversation in a list.
pub(super) fn listed((key, head): &(ConversationKey, ConversationHead)) -> ListedConversation {
    ListedConversation { conversation: head_of(key, head), found: None }
}

/// Describes a conversation in search results, with the place of the match.
pub(super) fn found_in(FoundConversation { key, head, place }: FoundConversation) -> ListedConversation {
    let found = place.map(|place| FoundText {
        message: place.message,
        before: place.before,
        text: place.text,
        after: place.after,
    });
    ListedConversation { conversation: head_of(&key, &head), found: Some(found) }
}

#[cfg(test)]
impl JsonSchema for Count {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Conversation".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        usize::json_schema(generator)
    }
}

#[cfg(test)]
impl JsonSchema for Said {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ReadConversation".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        Vec::<serde_json::Map<String, Value>>::json_schema(generator)
    }
}
