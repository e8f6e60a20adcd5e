//! `POST /v1/messages/count_tokens`

use std::sync::Arc;

use axum::{Json, extract::State};
use serde_json::{Value, json};

use super::body::{ManageFields, TellFields};
use crate::{
    api::request::parts::{FromBody, refuse_unknown},
    app::{body::JsonBody, state::App},
    http::error::ApiError,
};

/// Those of a message that decide its prompt.
pub(super) type Fields = (TellFields, ManageFields);

/// Counts the tokens of the prompt that the same conversation would have.
pub(super) async fn route(State(app): State<Arc<App>>, body: JsonBody) -> Result<Json<Value>, ApiError> {
    let tenant = body.caller.tenant.name.clone();
    let tokens = app
        .read(body, move |app, body| {
            let (tell, _) = Fields::from_body(body)?;
            refuse_unknown::<Fields>(body)?;
            app.accept_model(&tell.model)?;
            let (conversation, ..) = tell.told(&|item| app.memory.open(&tenant, item))?;
            Ok(app.serving.encode_rendered(&conversation.render(&app.serving)?).len())
        })
        .await?;
    Ok(Json(json!({"input_tokens": tokens})))
}
