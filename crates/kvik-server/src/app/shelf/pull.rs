//! Models that are pulled, copied and removed while the server runs: on disk first, then in its catalogue.

use std::sync::Arc;

use axum::http::StatusCode;
use kvik_shelf::{ModelName, ModelSource, Progress, Shelf as Names, ShelfError, Short};
use tokio::{sync::watch, task::JoinHandle};

use super::{Place, Shelf, named, unknown};
use crate::{
    app::{keys::Caller, server::Server},
    http::error::ApiError,
};

/// A running download; dropping it stops the download, and the next pull resumes it.
pub(crate) struct Pull {
    progress: watch::Receiver<Vec<PulledFile>>,
    end: JoinHandle<Result<(), ApiError>>,
}

/// The progress of a file's download.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct PulledFile {
    pub(crate) name: String,
    pub(crate) done: u64,
    /// The file's length, if the hub reports it.
    pub(crate) bytes: Option<u64>,
    /// Whether the file is complete, and its checksum is computed.
    pub(crate) is_checked: bool,
}

impl Pull {
    /// The progress of its files, when it has changed; `None` when the download has ended.
    pub(crate) async fn changed(&mut self) -> Option<Vec<PulledFile>> {
        self.progress.changed().await.ok()?;
        Some(self.progress.borrow_and_update().clone())
    }

    /// Waits for the end, after which the model is available.
    ///
    /// # Errors
    /// If it cannot be fetched or served.
    pub(crate) async fn ended(self) -> Result<(), ApiError> {
        let Pull { progress, end } = self;
        let ended = end.await.unwrap_or_else(|panic| Err(ApiError::panicked("the pull", &panic)));
        // Dropped only now: dropping the receiver aborts the download.
        drop(progress);
        ended
    }
}

impl Shelf {
    /// Starts pulling a model of the hub, which is named as it is asked for: by a short name, or after its source.
    ///
    /// # Errors
    /// If the source is not on the hub, or this server does not serve pulled models.
    pub(crate) fn pull(self: &Arc<Self>, source: &str) -> Result<Pull, ApiError> {
        let names = self.names()?;
        let (source, name) = on_hub(source)?;
        let (sender, progress) = watch::channel(Vec::new());
        let shelf = self.clone();
        let end = tokio::spawn(async move {
            let told = Told { sender, server: shelf.server.clone() };
            on_disk(move || names.pull(&source, &name, &told).map(drop)).await?;
            shelf.reload().await
        });
        Ok(Pull { progress, end })
    }

    /// Gives a pulled model a second name.
    ///
    /// # Errors
    /// If there is no such model, or the name is taken.
    pub(crate) async fn copy(
        self: &Arc<Self>,
        from: &str,
        to: &str,
        caller: &Caller,
    ) -> Result<(), ApiError> {
        let names = self.names()?;
        let (from, to): (String, ModelName) =
            (self.pulled(from, caller)?, plain(to).parse().map_err(of_shelf)?);
        self.change(move || names.copy(&from, &to).map(drop)).await
    }

    /// Removes a pulled model: its name, and its files if no other name uses them. Running requests end first.
    ///
    /// # Errors
    /// If there is no such model, or it was not pulled.
    pub(crate) async fn remove(self: &Arc<Self>, name: &str, caller: &Caller) -> Result<(), ApiError> {
        let (names, name) = (self.names()?, self.pulled(name, caller)?);
        self.change(move || names.remove(&name).map(drop)).await
    }

    /// Changes the models on disk, then the catalogue, also if the client has left in between.
    async fn change(
        self: &Arc<Self>,
        change: impl FnOnce() -> Result<(), ShelfError> + Send + 'static,
    ) -> Result<(), ApiError> {
        let shelf = self.clone();
        let changed = tokio::spawn(async move {
            on_disk(change).await?;
            shelf.reload().await
        });
        changed.await.unwrap_or_else(|panic| Err(ApiError::panicked("changing the models on disk", &panic)))
    }

    /// The models on disk.
    fn names(&self) -> Result<Names, ApiError> {
        let names = self.catalogue.as_ref().and_then(|catalogue| catalogue.pulled());
        names.ok_or_else(|| {
            ApiError::not_supported(
                "this server has the models that it was started with; `kvik serve --shelf` serves all that are pulled",
            )
        })
    }

    /// The name on disk of a model of this server. Only its own name means it: what answers to an alias, to an adapter or
    /// to no name at all may be another model than the one to be removed.
    fn pulled(&self, name: &str, caller: &Caller) -> Result<String, ApiError> {
        let places = self.places();
        let ways = [Place::has_name, Place::is_named, Place::is_meant_by];
        let index = named(&places, (name, caller), &ways).ok_or_else(|| unknown(&places, (name, caller)))?;
        let entry = &places[index].entry;
        if entry.is_pulled {
            return Ok(entry.name.clone());
        }
        let message = format!(
            "the model `{}` stands in config.toml: change that, and POST /v1/shelf/reload",
            entry.name
        );
        Err(ApiError::new(StatusCode::CONFLICT, Some("not_pulled"), message).at("model").for_good())
    }

    /// Whether models can be pulled and removed.
    pub(crate) fn can_pull(&self) -> bool {
        self.names().is_ok()
    }

    /// Maximum bytes of a pulled model whose file is left open; `None` if that is unknown or nothing can be pulled.
    pub(crate) fn pulled_bytes_max(&self) -> Option<u64> {
        self.names().ok()?.memory_bytes()
    }

    /// Number of models.
    pub(crate) fn count(&self) -> usize {
        self.places().iter().filter(|place| !place.is_gone).count()
    }
}

/// The source that a text means on the hub, and the name of its model.
fn on_hub(text: &str) -> Result<(ModelSource, ModelName), ApiError> {
    if let Some(Short { name, source }) = Short::of(text) {
        return Ok((ModelSource::Hub(source), name));
    }
    let source: ModelSource = text.parse().map_err(of_shelf)?;
    if let ModelSource::Path(path) = source {
        let message = format!(
            "`{}` is no model of the Hugging Face hub: kvik pulls short names (`kvik search` lists them), hf.co/OWNER/REPO, hf.co/OWNER/REPO:Q4_K_M and addresses of pages of huggingface.co",
            path.display()
        );
        return Err(ApiError::bad_request(message).at("model"));
    }
    let name = source.default_name().map_err(of_shelf)?;
    Ok((source, name))
}

/// The name without the tag `latest`, which Ollama's clients append.
fn plain(name: &str) -> &str {
    name.strip_suffix(":latest").unwrap_or(name)
}

/// Runs work that waits for disk or network on a blocking thread.
async fn on_disk(work: impl FnOnce() -> Result<(), ShelfError> + Send + 'static) -> Result<(), ApiError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(of_shelf),
        Err(panic) => Err(ApiError::panicked("changing the models on disk", &panic)),
    }
}

fn of_shelf(error: ShelfError) -> ApiError {
    let (status, code) = match &error {
        ShelfError::BadSource { .. } | ShelfError::BadName { .. } => (StatusCode::BAD_REQUEST, None),
        ShelfError::UnknownName { .. } => (StatusCode::NOT_FOUND, Some("model_not_found")),
        ShelfError::NameTaken { .. } => (StatusCode::CONFLICT, Some("name_taken")),
        _ => (StatusCode::BAD_GATEWAY, Some("pull_failed")),
    };
    let refused = ApiError::new(status, code, error.to_string()).at("model");
    if status == StatusCode::CONFLICT { refused.for_good() } else { refused }
}

/// Reports the progress of a download.
struct Told {
    sender: watch::Sender<Vec<PulledFile>>,
    server: Arc<Server>,
}

impl Told {
    fn with(&self, file: usize, change: impl FnOnce(&mut PulledFile)) {
        self.sender.send_modify(|files| {
            if let Some(file) = files.get_mut(file) {
                change(file);
            }
        });
    }
}

impl Progress for Told {
    fn begin(&self, files: &[(String, Option<u64>)]) {
        let begun = |(name, bytes): &(String, Option<u64>)| PulledFile {
            name: name.clone(),
            bytes: *bytes,
            ..PulledFile::default()
        };
        self.sender.send_replace(files.iter().map(begun).collect());
    }

    fn bytes(&self, file: usize, done: u64, total: Option<u64>) {
        self.with(file, |file| (file.done, file.bytes) = (done, total.or(file.bytes)));
    }

    fn checking(&self, file: usize) {
        self.with(file, |file| file.is_checked = true);
    }

    fn note(&self, text: &str) {
        tracing::info!("{text}");
    }

    fn cancelled(&self) -> bool {
        self.sender.is_closed() || self.server.is_stopping()
    }
}
