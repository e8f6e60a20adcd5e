//! Download, copy and removal of models, in Ollama's format.

use std::{sync::Arc, time::Duration};

use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::ErrorLine;
use crate::{
    api::request::parts::Part,
    app::{
        body::JsonBody,
        shelf::{Pull, PulledFile, Shelf},
        wire::{Frame, Wire},
    },
    described::JsonSchema,
    http::{answer::value, error::ApiError},
};

/// Interval between two lines of progress.
const PERIOD: Duration = Duration::from_millis(100);

/// The body of `/api/pull`.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "OllamaPull")]
pub(super) struct Fields {
    /// A short name, or `hf.co/OWNER/REPO` with `:Q4_K_M` or `:FILE` behind it.
    #[serde(default)]
    model: String,
    /// The same, as older clients write it.
    #[serde(default)]
    name: String,
    /// Whether each step is a line; it is, unless this says no.
    #[serde(default)]
    stream: Option<bool>,
}

/// The body of `/api/delete`.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "OllamaName")]
pub(super) struct NameFields {
    #[serde(default)]
    model: String,
    /// The same, as older clients write it.
    #[serde(default)]
    name: String,
}

/// The body of `/api/copy`.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "OllamaCopy")]
pub(super) struct CopyFields {
    source: String,
    destination: String,
}

impl Part for Fields {}
impl Part for NameFields {}
impl Part for CopyFields {}

/// One step of a pull.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[schemars(rename = "OllamaPulled")]
pub(super) struct Step {
    /// The last one is `success`.
    status: String,
    /// Of a file: its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    /// Its bytes, and those that are there.
    #[serde(skip_serializing_if = "Option::is_none")]
    total: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    completed: Option<u64>,
}

/// It is done.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OllamaDone", deny_unknown_fields)]
pub(super) struct Done {}

/// `POST /api/pull`
pub(super) async fn pull(State(shelf): State<Arc<Shelf>>, body: JsonBody) -> Result<Response, ApiError> {
    body.caller.as_admin()?;
    let Fields { model, name, stream } = shelf.server.read(body).await?;
    let pull = shelf.pull(given(&model, &name)?)?;
    if stream == Some(false) {
        pull.ended().await?;
        return Ok(Json(Step::of("success")).into_response());
    }
    let (frames, lines) = mpsc::channel(1);
    tokio::spawn(tell(pull, frames));
    Ok(Wire::Lines.respond(ReceiverStream::new(lines)))
}

/// `POST /api/copy`
pub(super) async fn copy(State(shelf): State<Arc<Shelf>>, body: JsonBody) -> Result<Json<Done>, ApiError> {
    let caller = body.caller.clone();
    caller.as_admin()?;
    let CopyFields { source, destination } = shelf.server.read(body).await?;
    shelf.copy(&source, &destination, &caller).await?;
    Ok(Json(Done {}))
}

/// `DELETE /api/delete`
pub(super) async fn delete(State(shelf): State<Arc<Shelf>>, body: JsonBody) -> Result<Json<Done>, ApiError> {
    let caller = body.caller.clone();
    caller.as_admin()?;
    let NameFields { model, name } = shelf.server.read(body).await?;
    shelf.remove(given(&model, &name)?, &caller).await?;
    Ok(Json(Done {}))
}

fn given<'a>(model: &'a str, name: &'a str) -> Result<&'a str, ApiError> {
    [model, name]
        .into_iter()
        .find(|name| !name.is_empty())
        .ok_or_else(|| ApiError::field("model", "`model` is missing"))
}

/// Reports each step of a pull to a client; the reports end when the client disconnects.
async fn tell(pull: Pull, frames: mpsc::Sender<Frame>) {
    if say(pull, &frames).await.is_none() {
        tracing::debug!("who asked for a pull has left; the next one goes on from there");
    }
}

/// Reports each step of a pull; returns none when the client has disconnected.
async fn say(mut pull: Pull, frames: &mpsc::Sender<Frame>) -> Option<()> {
    let send = async |step: Step| frames.send(Frame::Json(value(&step))).await.ok();
    send(Step::of("pulling manifest")).await?;
    loop {
        let files = tokio::select! {
            files = pull.changed() => files,
            () = frames.closed() => return None,
        };
        let Some(files) = files else { break };
        for file in files {
            send(Step::of_file(file)).await?;
        }
        tokio::time::sleep(PERIOD).await;
    }
    match pull.ended().await {
        Ok(()) => send(Step::of("success")).await,
        Err(error) => frames.send(Frame::Json(value(&ErrorLine::from(&error)))).await.ok(),
    }
}

impl Step {
    fn of(status: &str) -> Step {
        Step { status: status.to_owned(), ..Step::default() }
    }

    fn of_file(file: PulledFile) -> Step {
        let PulledFile { name, done, bytes, is_checked } = file;
        let status =
            if is_checked { "verifying sha256 digest".to_owned() } else { format!("pulling {name}") };
        Step { status, digest: Some(name), total: bytes, completed: Some(done) }
    }
}
