//! `POST /v1/cache/explain`: what a chat or a completion would find in the cache, without running it.

use std::sync::Arc;

use axum::{Json, extract::State};
use kvik_engine::api::Request;
use serde_json::{Value, json};

use crate::{
    accounts::tenants::Tenant,
    api::openai::{chat, completions},
    app::{
        body::JsonBody,
        report::{
            cache::Asked,
            closing::{Origin, one_or_all},
        },
        state::{App, Prepared},
    },
    http::{error::ApiError, fields::Fields},
};

type Result<T> = std::result::Result<T, ApiError>;

/// Answers with the object `kvik` that the answer to the same body would carry now.
pub(crate) async fn route(State(app): State<Arc<App>>, body: JsonBody) -> Result<Json<Value>> {
    let tenant = body.caller.tenant.clone();
    app.read(body, move |app, fields| explain(app, &tenant, fields)).await
}

fn explain(app: &App, tenant: &Tenant, fields: Fields) -> Result<Json<Value>> {
    let (mut requests, origin) = match fields.has("messages") {
        true => parts(chat::read(app, fields)?),
        false => parts(completions::read(app, fields)?),
    };
    requests.iter_mut().for_each(|request| tenant.sign(request));
    let asked = origin.asked(app, &requests);
    let cache = |(asked, request): (&Asked, Request)| {
        let probe = app.serving.engine.explain(request)?;
        Ok(asked.cache_report(probe.into()))
    };
    let caches = asked.iter().zip(requests).map(cache).collect::<Result<_>>()?;
    Ok(Json(json!({"kvik": {"cache": one_or_all(caches)}})))
}

/// What does not depend on how the answer would be worded.
fn parts<A>(prepared: Prepared<A>) -> (Vec<Request>, Origin) {
    (prepared.requests, prepared.origin)
}
