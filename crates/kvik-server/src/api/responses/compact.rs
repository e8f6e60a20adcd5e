//! `POST /v1/responses/compact`: compacts a conversation immediately and returns the item.

use std::sync::Arc;

use axum::{Json, extract::State};
use kvik_memory::{deletions::Owner, random::random};
use serde::Serialize;

use super::{
    body::{KeepFields, TellFields, unkept},
    output::ResponseUsage,
};
use crate::{
    api::{
        chat::{CompactionItem, to_compact},
        request::{cache::CacheFields, parts::FromBody},
    },
    app::{body::JsonBody, report::usage::cost, state::App},
    clock::unix_seconds,
    described::JsonSchema,
    http::{answer::words, error::ApiError},
};

words! {
    Compaction = "response.compaction";
}

/// What stands for all that was said.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct CompactedResponse {
    id: String,
    object: Compaction,
    created_at: u64,
    output: [CompactionItem; 1],
    usage: ResponseUsage,
}

/// The fields of a response that decide its prompt.
pub(super) type Fields = (TellFields, KeepFields, CacheFields);

/// Summarises the conversation and answers with the compaction item.
pub(super) async fn route(
    State(app): State<Arc<App>>,
    body: JsonBody,
) -> Result<Json<CompactedResponse>, ApiError> {
    let caller = body.caller.clone();
    let (job, caller, scale) = app
        .read(body, move |app, body| {
            let (tell, keep, cache) = Fields::from_body(body)?;
            app.accept_model(&tell.model)?;
            let kept = cache.keep()?;
            if !kept.reuse {
                let message = "a conversation is not compacted beside a private cache; leave one of them out";
                return Err(ApiError::field("kvik.cache", message));
            }
            keep.check_unkept()?;
            if kept.conversation.is_some() {
                return Err(unkept("kvik.conversation"));
            }
            let said = tell.said(app, &caller.tenant.name, body)?;
            // What is computed from a stored answer is deleted with it.
            let owner = tell.previous_response_id.as_ref().map(|id| Owner::new(&caller.tenant.name, id));
            let caller = owner.map_or_else(|| caller.clone(), |owner| caller.on_behalf_of(owner));
            let job = to_compact(app, &caller, said.chat, said.before.as_ref())?;
            Ok((job, caller, app.token_scale(body)))
        })
        .await?;
    let (compaction, report) = app.memory.compact(&app, &caller, job).await?;
    let item = app.seal.item(&caller.tenant.name, &compaction);
    let item = item.ok_or_else(|| ApiError::internal("the system gives no random numbers"))?;
    let cost = app.prices(&caller).map(|prices| cost(&report, &prices));
    Ok(Json(CompactedResponse {
        id: format!("resp_{:016x}{:016x}", random(), random()),
        object: Compaction,
        created_at: unix_seconds(),
        output: [CompactionItem::of(&item)],
        usage: ResponseUsage::of(&report, 0, scale, cost),
    }))
}
