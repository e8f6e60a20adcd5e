//! `/v1/conversations`: conversations that the server stores, so that a client sends only new messages.
//!
//! `{id}` is an id or a name. Conversations of other tenants are not visible.

use std::sync::Arc;

use axum::{
    Extension, Json,
    extract::{Path, Query as Parameters, State},
    response::Response,
};
use kvik_memory::conversations::{
    ConversationError, ConversationHead, ConversationKey, Findings, Held, SEARCHED_MAX, Search,
};
use serde::Deserialize;
use serde_json::Value;

use super::{
    conversation_answers::{
        DeletedConversation, DeletedWord, Export, List, ListedConversations, ReadConversation, Said,
        ShownConversation, found_in, head_of, listed, with_messages,
    },
    markdown::markdown,
};
use crate::{
    api::{
        request::{
            messages::checked,
            metadata::metadata,
            number::Whole,
            parts::{FromBody, Part},
        },
        responses::items,
    },
    app::{
        body::JsonBody, conversations::check_values, kept_answer::KeptAnswer, keys::Caller, server::Server,
        shelf::Shelf,
    },
    described::JsonSchema,
    http::{
        answer::{value, written},
        body_memory::SMALL_BYTES,
        error::ApiError,
        json::Json as Any,
        readers::Reader,
    },
};

type Result<T> = std::result::Result<T, ApiError>;

/// Default and maximum number of listed conversations.
const LISTED: usize = 20;
const LISTED_MAX: usize = 1000;

/// How a new conversation begins.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct BeginFields {
    /// By which it is found beside its id; no other conversation of the tenant has it.
    name: Option<String>,
    /// What has been said in it already.
    #[schemars(schema_with = "crate::api::request::messages::schema")]
    #[serde(default)]
    messages: Option<Any>,
    /// The same as items of OpenAI's Conversations API.
    #[schemars(with = "Option<Vec<serde_json::Map<String, Value>>>")]
    items: Option<Any>,
    /// What the client keeps beside it: at most 16 names with texts.
    #[schemars(with = "Option<std::collections::BTreeMap<String, String>>")]
    metadata: Option<Any>,
    /// The conversation, by id or name, that it begins as.
    from: Option<String>,
    /// With `from`: so many of its messages; all where nothing is said.
    upto: Option<Whole<0, { i64::MAX }>>,
}

impl Part for BeginFields {}

/// What is to be another of a conversation: at least one of these.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct ChangeFields {
    /// Its new name.
    name: Option<String>,
    /// What the client keeps beside it from now on.
    #[schemars(with = "Option<std::collections::BTreeMap<String, String>>")]
    metadata: Option<Any>,
}

impl Part for ChangeFields {}

/// The requested page of the list.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Page {
    limit: Option<usize>,
    after: Option<String>,
    search: Option<String>,
}

/// The parameters of the list, as the OpenAPI document describes them.
pub(super) const PAGE_PARAMETERS: [(&str, &str); 3] = [
    ("limit", "Conversations at most; 20 where nothing is asked for"),
    ("after", "The id of the last one of the page before; of a search its `next`"),
    ("search", "Only those with this text in their name or in a message, in whatever case"),
];

/// The parameter of message removal.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TakenBack {
    from: usize,
}

/// The parameter of message removal, as the OpenAPI document describes it.
pub(super) const TAKEN_BACK_PARAMETERS: [(&str, &str); 1] =
    [("from", "The index of the first message that is taken back, with all behind it")];

/// The format of an export.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Exported {
    format: Option<String>,
}

/// The parameter of an export, as the OpenAPI document describes it.
pub(super) const EXPORT_PARAMETERS: [(&str, &str); 1] =
    [("format", "`json`, which `POST /v1/conversations` takes, or `markdown`")];

/// `POST /v1/conversations`
pub(crate) async fn begin(
    State(shelf): State<Arc<Shelf>>,
    body: JsonBody,
) -> Result<Json<ShownConversation>> {
    let (server, caller, mut large) = (&shelf.server, body.caller.clone(), body.is_large());
    let fields = server.read_by(body, |_, body| BeginFields::from_body(body)).await?;
    if let Some(from) = &fields.from {
        // If the source does not exist, reading it below reports that.
        large |= find(server, &caller, from).await.is_ok_and(|(_, head)| head.bytes > SMALL_BYTES);
    }
    let reader = Reader { tenant: caller.tenant.id, large };
    let beginning = server.clone();
    let begin = move |_| {
        let (tenant, conversations) = (&caller.tenant.name, &beginning.conversations);
        let (model, messages) = fields.messages(&beginning, tenant)?;
        let metadata = fields.metadata.as_ref().map(metadata).transpose()?;
        let mut held = conversations.begin(tenant, fields.name.as_deref()).map_err(at_name)?;
        held.make_room(&messages)?;
        held.describe(metadata.unwrap_or_default())?;
        held.asks(model);
        held.append(&messages)?;
        Ok(Json(head_of(held.key(), held.head())))
    };
    server.readers.in_turn_behind_models(reader, begin).await
}

impl BeginFields {
    /// Returns the model and the messages with which the conversation begins.
    fn messages(&self, server: &Server, tenant: &str) -> Result<(Option<String>, Vec<Value>)> {
        if let Some(items) = &self.items {
            if self.messages.is_some() || self.from.is_some() {
                let message = "`items` beside `messages` or `from`: a conversation begins with one of them";
                return Err(ApiError::field("items", message));
            }
            let messages = items::told("items", &items.0, &server.responses, tenant)?;
            check_values(&messages)?;
            return Ok((None, messages));
        }
        match (&self.messages, &self.from, &self.upto) {
            (Some(_), Some(_), _) => Err(ApiError::field(
                "from",
                "`from` beside `messages`: a conversation begins with either of them",
            )),
            (_, None, Some(_)) => Err(ApiError::field(
                "upto",
                "`upto` counts the messages of another conversation; say which in `from`",
            )),
            (None, None, None) => Ok((None, Vec::new())),
            (Some(Any(Value::Array(messages))), None, None) if messages.is_empty() => Ok((None, Vec::new())),
            (Some(Any(messages)), None, None) => match checked(messages.clone())? {
                Value::Array(messages) => Ok((None, messages)),
                _ => Ok((None, Vec::new())),
            },
            (None, Some(from), upto) => {
                let read = server.conversations.read(tenant, from);
                let read = read.map_err(|error| ApiError::from(error).at("from"));
                let (_, head, mut messages) = read?;
                let upto = upto.map_or(messages.len(), |upto| upto.get() as usize);
                if upto > messages.len() {
                    let (asked, messages) = (upto, messages.len());
                    return Err(ConversationError::BeyondItsEnd { field: "upto", asked, messages }.into());
                }
                messages.truncate(upto);
                Ok((head.model, messages))
            }
        }
    }
}

/// `GET /v1/conversations`: most recently changed first.
pub(crate) async fn list(
    State(shelf): State<Arc<Shelf>>,
    Extension(caller): Extension<Caller>,
    Parameters(page): Parameters<Page>,
) -> Result<Response> {
    let limit = page.limit.unwrap_or(LISTED).clamp(1, LISTED_MAX);
    if let Some(text) = page.search {
        return search(&shelf.server, caller, &text, page.after, limit).await;
    }
    let tenant = caller.tenant.name.clone();
    // Before the turn, which is not for waiting until other nodes answer.
    shelf.server.ask_conversations(move |conversations| conversations.refresh(&tenant)).await?;
    let (reader, listing) = (Reader { tenant: caller.tenant.id, large: false }, shelf.server.clone());
    let list = move |_| {
        let page = listing.conversations.page(&caller.tenant.name, page.after.as_deref(), limit);
        let (data, has_more) = page?;
        let data = data.iter().map(listed).collect();
        answer_listed(&listing, &caller, &ListedConversations { object: List, data, has_more, next: None })
    };
    shelf.server.readers.in_turn(reader, list).await
}

/// Answers with a list, whose metadata may make it long.
fn answer_listed(server: &Server, caller: &Caller, listed: &ListedConversations) -> Result<Response> {
    server.answer_with(caller.tenant.id, KeptAnswer::Written(written(listed)))
}

/// `GET /v1/conversations?search=`: conversations that contain a text, as far as one request searches.
async fn search(
    server: &Arc<Server>,
    caller: Caller,
    text: &str,
    after: Option<String>,
    limit: usize,
) -> Result<Response> {
    let bad =
        || ApiError::field("search", format!("a text that is looked for has 1 to {SEARCHED_MAX} bytes"));
    let search = Search::new(text, after, limit).ok_or_else(bad)?;
    // A search reads as much as a large body.
    let reader = Reader { tenant: caller.tenant.id, large: true };
    let searched = server.clone();
    server
        .readers
        .in_turn_behind_models(reader, move |client| {
            let Findings { found, next } =
                searched.conversations.search(&caller.tenant.name, &search, || client.check())?;
            let data = found.into_iter().map(found_in).collect();
            let (has_more, next) = (next.is_some(), Some(next));
            answer_listed(&searched, &caller, &ListedConversations { object: List, data, has_more, next })
        })
        .await
}

/// `GET /v1/conversations/{id}`: the conversation with its messages instead of their number.
pub(crate) async fn get(
    State(shelf): State<Arc<Shelf>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Response> {
    let question = question_in(&shelf.server, &caller, &id).await;
    answer(&shelf.server, caller, &id, move |key, head, messages| {
        let unanswered = question.filter(|(_, after)| messages.len() < *after);
        let conversation = with_messages(key, head, Said(messages));
        let answering = unanswered.map(|(question, _)| Said(question.to_vec()));
        Ok(KeptAnswer::Json(value(&ReadConversation { conversation, answering })))
    })
    .await
}

/// The question of a conversation that is being answered, and the number of its messages once it is. It is looked up
/// before the messages are read: whoever reads them finds the one or the other.
async fn question_in(server: &Server, caller: &Caller, id: &str) -> Option<(Arc<[Value]>, usize)> {
    if server.running_answers.is_empty() {
        return None;
    }
    let (key, _) = find(server, caller, id).await.ok()?;
    server.running_answers.question(&key)
}

/// Answers with a conversation of a caller, in the format of `word`.
pub(super) async fn answer(
    server: &Arc<Server>,
    caller: Caller,
    id: &str,
    word: impl FnOnce(&ConversationKey, &ConversationHead, Vec<Value>) -> Result<KeptAnswer> + Send + 'static,
) -> Result<Response> {
    let (key, head) = find(server, &caller, id).await?;
    server
        .answer_kept(&caller, head.bytes, move |server| {
            let (key, head, messages) = server.conversations.read(&key.tenant, &key.id)?;
            word(&key, &head, messages)
        })
        .await
}

/// `POST /v1/conversations/{id}`
pub(crate) async fn change(
    State(shelf): State<Arc<Shelf>>,
    Path(id): Path<String>,
    body: JsonBody,
) -> Result<Json<ShownConversation>> {
    let tenant = body.caller.tenant.name.clone();
    shelf
        .server
        .read_by(body, move |server, body| {
            let ChangeFields { name, metadata: pairs } = ChangeFields::from_body(body)?;
            if name.is_none() && pairs.is_none() {
                return Err(ApiError::field("name", "`name` is missing; send that or `metadata`"));
            }
            let pairs = pairs.as_ref().map(metadata).transpose()?;
            let mut held = server.conversations.hold(&tenant, &id)?;
            pairs.into_iter().try_for_each(|pairs| held.describe(pairs))?;
            match name {
                Some(name) => held.rename(&name).map_err(at_name)?,
                None => held.append(&[])?,
            }
            Ok(Json(head_of(held.key(), held.head())))
        })
        .await
}

/// `DELETE /v1/conversations/{id}`: deletes a conversation, its summaries, and what was computed for it.
pub(crate) async fn delete(
    State(shelf): State<Arc<Shelf>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<DeletedConversation>> {
    let before = shelf.server.deletions.find(&caller.tenant.name, &id);
    let is_id = before.as_ref().is_some_and(|before| before.id == id);
    let running = shelf.server.running_answers.clone();
    let delete = move |held: Held| {
        let key = held.key().clone();
        held.delete()?;
        running.forget(&key);
        Ok(key.owner())
    };
    let owner = match (held(&shelf.server, caller, id, delete).await, before) {
        // An earlier request deleted it, and the deletion is not complete yet. Its name may be another one's by now.
        (Err(error), Some(before)) if is_id || error.code() == "conversation_not_found" => before,
        (deleted, _) => deleted?,
    };
    let pending = shelf.is_pending(owner.clone()).await;
    Ok(Json(DeletedConversation { id: owner.id, object: DeletedWord, deleted: !pending, pending }))
}

/// `DELETE /v1/conversations/{id}/messages?from=N`: deletes messages and the summaries of them.
pub(crate) async fn take_back(
    State(shelf): State<Arc<Shelf>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Parameters(TakenBack { from }): Parameters<TakenBack>,
) -> Result<Json<ShownConversation>> {
    taken_back(&shelf, caller, id, move |_| Ok(from)).await
}

/// Deletes the messages from the index on that `first` returns, and the summaries of them.
pub(super) async fn taken_back(
    shelf: &Arc<Shelf>,
    caller: Caller,
    id: String,
    first: impl FnOnce(&Held) -> Result<usize> + Send + 'static,
) -> Result<Json<ShownConversation>> {
    let running = shelf.server.running_answers.clone();
    let shown = held(&shelf.server, caller, id, move |mut held| {
        let from = first(&held)?;
        held.take_back(from)?;
        running.forget(held.key());
        Ok(head_of(held.key(), held.head()))
    })
    .await?;
    // Summaries that cannot be deleted now are deleted after the answer; nothing refers to them any more.
    let remembering = shelf.clone();
    let _ = tokio::task::spawn_blocking(move || remembering.delete_all()).await;
    Ok(Json(shown))
}

/// `GET /v1/conversations/{id}/export`
pub(crate) async fn export(
    State(shelf): State<Arc<Shelf>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Parameters(Exported { format }): Parameters<Exported>,
) -> Result<Response> {
    let as_markdown = match format.as_deref() {
        None | Some("json") => false,
        Some("markdown") => true,
        Some(_) => return Err(ApiError::field("format", "`format` is `json` or `markdown`")),
    };
    answer(&shelf.server, caller, &id, move |key, head, messages| {
        let name = head.name.as_ref();
        if as_markdown {
            let text = markdown(name.unwrap_or(&key.id), &messages);
            return Ok(KeptAnswer::Text("text/markdown; charset=utf-8", text));
        }
        let (name, metadata) = (name.cloned(), head.metadata.clone());
        Ok(KeptAnswer::Json(value(&Export { name, metadata, messages: Said(messages) })))
    })
    .await
}

/// Changes a conversation of a caller in the tenant's turn, because the change may read all of its messages.
async fn held<T: Send + 'static>(
    server: &Arc<Server>,
    caller: Caller,
    id: String,
    change: impl FnOnce(Held) -> Result<T> + Send + 'static,
) -> Result<T> {
    let (_, head) = find(server, &caller, &id).await?;
    let reader = Reader { tenant: caller.tenant.id, large: head.bytes > SMALL_BYTES };
    let holding = server.clone();
    let change = move |_| change(holding.conversations.hold(&caller.tenant.name, &id)?);
    server.readers.in_turn_behind_models(reader, change).await
}

/// Finds a conversation of a caller by its name or id.
pub(super) async fn find(
    server: &Server,
    caller: &Caller,
    id: &str,
) -> Result<(ConversationKey, ConversationHead)> {
    let (tenant, id) = (caller.tenant.name.clone(), id.to_owned());
    Ok(server.ask_conversations(move |conversations| conversations.find(&tenant, &id)).await??)
}

/// Attributes an error about a name to the field `name`.
fn at_name(error: ConversationError) -> ApiError {
    let is_names = matches!(error, ConversationError::BadName | ConversationError::NameTaken(_));
    let error = ApiError::from(error);
    if is_names { error.at("name") } else { error }
}
