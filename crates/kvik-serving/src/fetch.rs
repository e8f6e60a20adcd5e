//! Finds models by path, by name or on the hub, and shows the progress of downloads.

use std::{
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use anyhow::{Context, bail};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use kvik_shelf::{Kind, Manifest, ModelName, ModelSource, Progress, Shelf};

use super::names::{self, Named};
use crate::settings::{logging::say, model::Meant, models_dir::ModelsDirArgs, size::ByteSize};

/// Says whether a download is to end.
pub type Cancelled<'a> = &'a (dyn Fn() -> bool + Sync);

/// The path of a model: a file, a name, or a source on the hub, which is downloaded if need be.
pub fn model<'a>(text: impl Into<Meant<'a>>, dir: &ModelsDirArgs) -> anyhow::Result<PathBuf> {
    Ok(locate(text.into(), Kind::Model, dir)?.path)
}

/// The path and name of an adapter; a file is named after its stem.
pub(super) fn adapter(file: &Path, dir: &ModelsDirArgs) -> anyhow::Result<Located> {
    let text = file.to_str().with_context(|| format!("the path {} is not UTF-8", file.display()))?;
    locate(text.into(), Kind::Adapter, dir)
}

/// The path of a model or an adapter; `None` if it is still to be downloaded.
pub fn without_download<'a>(
    text: impl Into<Meant<'a>>,
    kind: Kind,
    dir: &ModelsDirArgs,
) -> anyhow::Result<Option<PathBuf>> {
    let text = text.into();
    let is_here = text.path().is_some() || matches!(names::find(&dir.shelf()?, text, kind)?, Named::Here(_));
    Ok(if is_here { Some(locate(text, kind, dir)?.path) } else { None })
}

/// Downloads a model or an adapter unless it is on this machine.
pub fn download(
    text: Meant<'_>,
    kind: Kind,
    dir: &ModelsDirArgs,
    cancelled: Cancelled<'_>,
) -> anyhow::Result<()> {
    if text.path().is_some() {
        return Ok(());
    }
    let shelf = dir.shelf()?;
    if let Named::OnHub { source, name } = names::find(&shelf, text, kind)? {
        let bars = Bars { cancelled: Some(cancelled), ..Bars::default() };
        pull_with(&shelf, (&source, &name), &bars)?;
    }
    Ok(())
}

/// The name on the shelf of a model that is on this machine; `None` for a path.
pub fn name_of<'a>(text: impl Into<Meant<'a>>, dir: &ModelsDirArgs) -> Option<String> {
    let text = text.into();
    match names::find(&dir.shelf().ok()?, text, Kind::Model) {
        Ok(Named::Here(manifest)) if text.path().is_none() => Some(manifest.name.to_string()),
        _ => None,
    }
}

/// The name that an adapter will have, which may still be to be downloaded.
pub fn adapter_name(file: &Path) -> String {
    let source = file.to_str().filter(|_| !file.exists()).and_then(|text| text.parse::<ModelSource>().ok());
    match source {
        Some(ModelSource::Hub(spec)) => spec.to_string(),
        Some(ModelSource::Path(path)) => path.display().to_string(),
        None => stem(file),
    }
}

fn stem(path: &Path) -> String {
    path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

/// A path, and the name under which it was found.
#[derive(Debug)]
pub(super) struct Located {
    pub(super) path: PathBuf,
    pub(super) name: String,
}

fn locate(text: Meant<'_>, kind: Kind, dir: &ModelsDirArgs) -> anyhow::Result<Located> {
    if let Some(path) = text.path() {
        return Ok(Located { path: path.to_owned(), name: stem(path) });
    }
    let shelf = dir.shelf()?;
    let manifest = match names::find(&shelf, text, kind)? {
        Named::Here(manifest) => *manifest,
        Named::OnHub { source, name } => pull(&shelf, &source, &name)?,
    };
    let text = text.text();
    match (kind, manifest.kind) {
        (Kind::Model, Kind::Adapter) => {
            bail!("`{text}` is a LoRA adapter, not a model; --lora takes it beside one")
        }
        (Kind::Adapter, Kind::Model) => bail!("`{text}` is a model, not a LoRA adapter; -m takes it"),
        _ => Ok(Located { path: shelf.path(&manifest)?, name: manifest.name.to_string() }),
    }
}

/// Pulls a model, with a progress bar for each of its files.
pub fn pull(shelf: &Shelf, source: &ModelSource, name: &ModelName) -> anyhow::Result<Manifest> {
    pull_with(shelf, (source, name), &Bars::default())
}

fn pull_with(
    shelf: &Shelf,
    (source, name): (&ModelSource, &ModelName),
    bars: &Bars<'_>,
) -> anyhow::Result<Manifest> {
    let pulled = shelf.pull(source, name, bars);
    bars.clear();
    Ok(pulled?)
}

/// Progress bars on standard error; if that is not a terminal, lines that say which files are fetched.
#[derive(Default)]
struct Bars<'a> {
    all: MultiProgress,
    files: Mutex<Vec<ProgressBar>>,
    /// Whether the download is to end; with `None` it goes on.
    cancelled: Option<Cancelled<'a>>,
}

impl Bars<'_> {
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

impl Progress for Bars<'_> {
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

    fn cancelled(&self) -> bool {
        self.cancelled.is_some_and(|cancelled| cancelled())
    }
}

#[cfg(test)]
mod tests {
    use kvik_text::files::gguf::write::GgufWriter;

    use super::*;

    #[test]
    fn names_of_models_and_of_adapters_are_told_apart() -> anyhow::Result<()> {
        let place = tempfile::tempdir()?;
        let dir = ModelsDirArgs { models_dir: Some(place.path().join("models")) };
        for (name, kind) in [("m", "model"), ("a", "adapter")] {
            let file = place.path().join(format!("file-{name}.gguf"));
            std::fs::write(&file, GgufWriter::new().text("general.type", kind).to_bytes())?;
            dir.shelf()?.add(&file, &name.parse()?)?;
        }
        assert!(model("m", &dir)?.ends_with("file-m.gguf"));
        let Located { path, name } = adapter("a".as_ref(), &dir)?;
        assert!(path.ends_with("file-a.gguf") && name == "a");
        assert_eq!(adapter(&path, &dir)?.name, "file-a");
        let file = model("m", &dir)?;
        // Tests run in the folder of this crate.
        dir.shelf()?.copy("m", &"src".parse()?)?;
        assert_eq!((model("src", &dir)?, name_of("src", &dir)), (PathBuf::from("src"), None));
        assert_eq!(model(Meant::Name("src"), &dir)?, file);
        assert_eq!(name_of(Meant::Name("src"), &dir).as_deref(), Some("src"));
        assert_eq!(name_of("m", &dir).as_deref(), Some("m"));
        assert_eq!([name_of("x", &dir), name_of(file.to_str().unwrap(), &dir)], [None, None]);
        let told = |name: &str| adapter_name(name.as_ref());
        assert_eq!(
            (adapter_name(&path), told("a"), told("hf:o/r:a.gguf")),
            ("file-a".into(), "a".into(), "o/r:a.gguf".into())
        );
        let check = |error: anyhow::Error, words: &[&str]| {
            words.iter().for_each(|word| assert!(error.to_string().contains(word), "{error} says {word}"));
        };
        check(model("a", &dir).unwrap_err(), &["`a`", "adapter", "--lora"]);
        check(adapter("m".as_ref(), &dir).unwrap_err(), &["`m`", "model", "-m"]);
        check(model("x", &dir).unwrap_err(), &["no model at x", "a, m", "-m takes"]);
        check(adapter("x".as_ref(), &dir).unwrap_err(), &["no adapter at x", "a, m", "--lora takes"]);
        check(model("../x", &dir).unwrap_err(), &["no model at ../x", "a, m"]);
        Ok(())
    }
}
