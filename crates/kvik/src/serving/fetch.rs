//! Finds models by path, by name or on the hub, and shows how far a download is.

use std::{
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use anyhow::bail;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use kvik_shelf::{HubSpec, Kind, Manifest, ModelName, ModelSource, Progress, Shelf, ShelfError};

use crate::settings::{logging::say, models_dir::ModelsDirArgs, size::ByteSize};

/// The path of a model: of a file, of a name, or of a source of the hub, which is downloaded first if need be.
pub(super) fn locate(model: &str, dir: &ModelsDirArgs) -> anyhow::Result<PathBuf> {
    let path = Path::new(model);
    if path.exists() {
        return Ok(path.to_owned());
    }
    let shelf = dir.shelf()?;
    let manifest = match model.parse()? {
        ModelSource::Hub(spec) => of_hub(&shelf, spec)?,
        ModelSource::Path(_) => named(&shelf, model)?,
    };
    if manifest.kind == Kind::Adapter {
        bail!("`{model}` is a LoRA adapter, not a model; --lora takes it beside one");
    }
    Ok(shelf.path(&manifest)?)
}

/// What a name stands for.
fn named(shelf: &Shelf, name: &str) -> anyhow::Result<Manifest> {
    match shelf.find(name) {
        Err(ShelfError::UnknownName { .. } | ShelfError::BadName { .. }) => bail!(
            "there is no model at {name}, and none of this name: {}; -m takes a GGUF file, a Hugging Face directory, \
             a name, or hf:owner/repo[:file]",
            shelf.names_told()
        ),
        found => Ok(found?),
    }
}

/// A model of the hub: without network, if it was downloaded before.
fn of_hub(shelf: &Shelf, spec: HubSpec) -> anyhow::Result<Manifest> {
    if let Some(found) = shelf.find_source(&spec)?.filter(|found| shelf.path(found).is_ok()) {
        return Ok(found);
    }
    let source = ModelSource::Hub(spec);
    pull(shelf, &source, &source.default_name()?)
}

/// Pulls a model, with a bar for each of its files.
pub(crate) fn pull(shelf: &Shelf, source: &ModelSource, name: &ModelName) -> anyhow::Result<Manifest> {
    let bars = Bars::default();
    let pulled = shelf.pull(source, name, &bars);
    bars.clear();
    Ok(pulled?)
}

/// Bars on standard error; where that is no terminal, lines that say what is fetched.
#[derive(Default)]
struct Bars {
    all: MultiProgress,
    files: Mutex<Vec<ProgressBar>>,
}

impl Bars {
    fn files(&self) -> MutexGuard<'_, Vec<ProgressBar>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn clear(&self) {
        self.files().iter().for_each(ProgressBar::finish_and_clear);
    }

    fn with(&self, file: usize, show: impl FnOnce(&ProgressBar)) {
        if let Some(bar) = self.files().get(file) {
            show(bar);
        }
    }
}

impl Progress for Bars {
    fn begin(&self, files: &[(String, Option<u64>)]) {
        let style = "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
        let style = ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar());
        self.clear();
        *self.files() = Vec::new();
        for (name, size) in files {
            if self.all.is_hidden() {
                say(&format!(
                    "{name}  {}",
                    size.map_or("of unknown size".to_owned(), |size| ByteSize(size).to_string())
                ));
            }
            let bar = size.map_or_else(ProgressBar::no_length, ProgressBar::new);
            let bar = self.all.add(bar.with_style(style.clone()).with_message(name.clone()));
            self.files().push(bar);
        }
    }

    fn bytes(&self, file: usize, done: u64, total: Option<u64>) {
        self.with(file, |bar| {
            if let Some(total) = total {
                bar.set_length(total);
            }
            bar.set_position(done);
        });
    }

    fn checking(&self, file: usize) {
        self.with(file, |bar| bar.set_message(format!("{}, checking", bar.message())));
    }

    fn waiting(&self, _: usize, holder: &str) {
        self.all.suspend(|| say(&format!("waiting for {holder}, which downloads the same file")));
    }

    fn note(&self, text: &str) {
        self.all.suspend(|| say(&format!("note: {text}")));
    }
}
