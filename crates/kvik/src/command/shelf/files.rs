//! The files of a model of the shelf: where they are, their sizes, and stamps that differ when one has been replaced. Their
//! contents are not read.

use std::{
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

use anyhow::Context;
use kvik_model::load::LoadedModel;
use kvik_shelf::{Kind, Manifest, ShelfFile, parts_of};

use crate::command::serve_args::ServeArgs;
use kvik_server::app::shelf::ModelFile;
use kvik_serving::{
    fetch::{self, Cancelled},
    names::{self, Named},
    settings::{
        lora::ScaledFile,
        model::{Meant, ModelArgs},
        models_dir::ModelsDirArgs,
    },
};

/// The files that a model's flags name.
pub(super) struct Files {
    /// Those of the model itself.
    pub(super) model: ModelFile,
    /// Bytes of the weights in memory, also of the draft model and the adapters; without those that are not here.
    pub(super) weight_bytes: u64,
    /// Whether some are still to be downloaded.
    pub(super) are_absent: bool,
    /// A word for each of them, which changes when it is replaced.
    pub(super) stamps: Vec<String>,
}

/// A model or an adapter that a flag names.
#[derive(Default)]
struct Part {
    /// Its path; empty if it is not here.
    path: PathBuf,
    file: ModelFile,
    weight_bytes: u64,
    /// Whether it is still to be downloaded.
    is_on_hub: bool,
}

impl Files {
    pub(super) fn of(args: &ServeArgs) -> Files {
        let model = Part::model(&args.model);
        let file = model.file.clone();
        let draft = args.draft().map(|draft| Part::model(&draft));
        let adapters = args.cache.lora.files().into_iter();
        let adapters = adapters.map(|ScaledFile { path, .. }| Part::adapter(&path, &args.model.models_dir));
        let parts: Vec<Part> = std::iter::once(model).chain(draft).chain(adapters).collect();
        let texts = [&args.model.chat_template, &args.model.kv.kv_map, &args.memory.memory_words];
        let texts = texts.into_iter().flatten().map(|path| stamp(path, &file_at(path).unwrap_or_default()));
        Files {
            model: file,
            weight_bytes: parts.iter().map(|part| part.weight_bytes).sum(),
            are_absent: parts.iter().any(|part| part.is_on_hub),
            stamps: parts.iter().map(|part| stamp(&part.path, &part.file)).chain(texts).collect(),
        }
    }
}

impl Part {
    /// A model, whose weights take what its file does, unless a flag converts them; then its headers say what they take.
    fn model(args: &ModelArgs) -> Part {
        let part = args.meant().map(|meant| Part::find(meant, Kind::Model, &args.models_dir));
        let part = part.unwrap_or_default();
        if args.weights.is_none() && !args.is_embedded() {
            return part;
        }
        let converted = headers(args).map(|loaded| args.conversion().bytes(&loaded.tensors));
        Part { weight_bytes: converted.unwrap_or(part.file.bytes), ..part }
    }

    fn adapter(path: &Path, dir: &ModelsDirArgs) -> Part {
        path.to_str().map_or_else(Part::default, |text| Part::find(text.into(), Kind::Adapter, dir))
    }

    fn find(meant: Meant<'_>, kind: Kind, dir: &ModelsDirArgs) -> Part {
        let here =
            |path: PathBuf, file: ModelFile| Part { path, weight_bytes: file.bytes, file, is_on_hub: false };
        if let Some(path) = meant.path() {
            return here(path.to_owned(), file_at(path).unwrap_or_default());
        }
        let Ok(shelf) = dir.shelf() else { return Part::default() };
        match names::find(&shelf, meant, kind) {
            Ok(Named::Here(manifest)) => {
                let path = shelf.path(&manifest);
                path.map_or_else(|_| Part::default(), |path| here(path, pulled_file(&manifest)))
            }
            Ok(Named::OnHub { .. }) => Part { is_on_hub: true, ..Part::default() },
            // Loading it says why not.
            Err(_) => Part::default(),
        }
    }
}

/// Downloads those files of a model that are still on the hub.
pub(super) fn fetch_all(args: &ServeArgs, cancelled: Cancelled<'_>) -> anyhow::Result<()> {
    let (dir, draft) = (&args.model.models_dir, args.draft());
    for model in std::iter::once(&args.model).chain(&draft) {
        if let Some(meant) = model.meant() {
            fetch::download(meant, Kind::Model, dir, cancelled)?;
        }
    }
    for ScaledFile { path, .. } in args.cache.lora.files() {
        if let Some(text) = path.to_str() {
            fetch::download(text.into(), Kind::Adapter, dir, cancelled)?;
        }
    }
    Ok(())
}

/// A model by its headers.
///
/// # Errors
/// If it is not on this machine, or cannot be read.
pub(super) fn headers(args: &ModelArgs) -> anyhow::Result<LoadedModel> {
    if let Some(meant) = args.meant() {
        let path = fetch::without_download(meant, Kind::Model, &args.models_dir)?;
        path.context("it is fetched when it is asked for first")?;
    }
    args.load()
}

fn stamp(path: &Path, file: &ModelFile) -> String {
    format!("file={} {}", path.display(), file.digest)
}

/// Facts about a file, with the other parts of a split model, or about the files in a folder.
fn file_at(path: &Path) -> Option<ModelFile> {
    if !path.metadata().ok()?.is_dir() {
        return Some(of_files(&parts_of(path)));
    }
    let mut paths: Vec<PathBuf> = path.read_dir().ok()?.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    Some(of_files(&paths))
}

/// Facts about the files among these paths. The digest covers their names, sizes and times, since their contents are not
/// read.
fn of_files(paths: &[PathBuf]) -> ModelFile {
    let mut hash = blake3::Hasher::new();
    let mut file = ModelFile::default();
    let found = paths.iter().filter_map(|path| Some((path, path.metadata().ok()?)));
    for (path, found) in found.filter(|(_, found)| found.is_file()) {
        let modified = found.modified().unwrap_or(UNIX_EPOCH);
        let modified = modified.duration_since(UNIX_EPOCH).unwrap_or_default();
        hash.update(path.as_os_str().as_encoded_bytes()).update(&found.len().to_le_bytes());
        hash.update(&modified.as_nanos().to_le_bytes());
        file.bytes += found.len();
        file.modified_s = file.modified_s.max(modified.as_secs());
    }
    ModelFile { digest: hash.finalize().to_hex().to_string(), ..file }
}

/// Facts about the files of a manifest. The digest of a single file is its SHA-256, as the hub reports it. Files that were
/// not downloaded belong to others, who may replace them.
fn pulled_file(manifest: &Manifest) -> ModelFile {
    let digest = match &manifest.files[..] {
        [ShelfFile { sha256: Some(sha256), .. }] => sha256.clone(),
        files if !manifest.is_downloaded() => {
            of_files(&files.iter().map(|file| PathBuf::from(&file.path)).collect::<Vec<_>>()).digest
        }
        files => {
            let mut hash = blake3::Hasher::new();
            for ShelfFile { path, size, sha256 } in files {
                hash.update(path.as_bytes()).update(&size.to_le_bytes());
                hash.update(sha256.as_deref().unwrap_or_default().as_bytes());
            }
            hash.finalize().to_hex().to_string()
        }
    };
    ModelFile { bytes: manifest.bytes(), modified_s: manifest.added_s, digest }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use clap::Parser;
    use kvik_testing::tiny_model;

    use super::*;

    #[derive(Debug, Parser)]
    struct Flags {
        #[command(flatten)]
        serve: ServeArgs,
    }

    /// The files of a model of these flags.
    fn files(flags: &[&str]) -> Files {
        Files::of(&Flags::try_parse_from([&["kvik"], flags].concat()).unwrap().serve)
    }

    #[test]
    fn a_file_is_known_without_reading_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.gguf");
        fs::write(&path, b"GGUF and more").unwrap();
        let file = file_at(&path).unwrap();
        assert_eq!((file.bytes, file.digest.len()), (13, 64));
        assert!(file.modified_s > 1_700_000_000, "{file:?}");
        assert_eq!(file_at(&path).unwrap(), file);
        fs::write(&path, b"GGUF and much more").unwrap();
        assert_ne!(file_at(&path).unwrap().digest, file.digest, "another file has another digest");
        let folder = file_at(dir.path()).unwrap();
        assert_eq!((folder.bytes, folder.digest.len()), (18, 64));
        assert_eq!(file_at(&dir.path().join("nothere")), None);
        for (number, text) in [(1, "GGUF"), (2, "GGUF and more")] {
            fs::write(dir.path().join(format!("s-0000{number}-of-00002.gguf")), text).unwrap();
        }
        assert_eq!(file_at(&dir.path().join("s-00001-of-00002.gguf")).unwrap().bytes, 17, "all parts count");
    }

    /// A model of the shelf was a folder of its name in the working directory, which in tests is that of this crate.
    #[test]
    fn a_named_model_has_the_size_and_time_of_its_files() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.gguf");
        fs::write(&path, b"GGUF and more").unwrap();
        let models_dir = ModelsDirArgs { models_dir: Some(dir.path().join("models")) };
        let manifest = models_dir.shelf().unwrap().add(&path, &"src".parse().unwrap()).unwrap();
        let mut args = ModelArgs::embedded();
        args.models_dir = models_dir;
        args.take_of_shelf("src".to_owned());
        let Part { path: found, file, .. } = Part::model(&args);
        assert!(found.ends_with("m.gguf"), "{found:?}");
        assert_eq!((file.bytes, file.modified_s, file.digest.len()), (13, manifest.added_s, 64));
    }

    /// A model stayed in memory though its file, or one that is read beside it, had been replaced.
    #[test]
    fn a_file_that_is_replaced_has_another_stamp() {
        let dir = tempfile::tempdir().unwrap();
        let [models, model, beside, map] =
            ["models", "m.gguf", "a.gguf", "map"].map(|name| dir.path().join(name).display().to_string());
        let models_dir = ModelsDirArgs { models_dir: Some(dir.path().join("models")) };
        for (path, name) in [(&model, "mine"), (&beside, "style")] {
            fs::write(path, b"GGUF").unwrap();
            models_dir.shelf().unwrap().add(path.as_ref(), &name.parse().unwrap()).unwrap();
        }
        for (flags, path) in [
            (["-m", &model], &model),
            (["-m", "mine"], &model),
            (["--draft", &model], &model),
            (["--lora", &beside], &beside),
            (["--lora", "style"], &beside),
            (["--chat-template", &map], &map),
            (["--kv-map", &map], &map),
            (["--memory-words", &map], &map),
        ] {
            let stamps = || files(&[&["--models-dir", &models][..], &flags].concat()).stamps;
            fs::write(path, b"GGUF").unwrap();
            let before = stamps();
            assert_eq!(stamps(), before, "{flags:?}");
            // As long as the one before.
            fs::write(path, b"GGUX").unwrap();
            fs::File::options().write(true).open(path).unwrap().set_modified(UNIX_EPOCH).unwrap();
            assert_ne!(stamps(), before, "{flags:?}");
        }
    }

    #[test]
    fn weights_are_counted_as_they_are_loaded() {
        let tiny = tiny_model();
        let (path, stored) = (tiny.to_str().unwrap(), tiny.metadata().unwrap().len());
        let bytes = |flags: &[&str]| files(flags).weight_bytes;
        assert_eq!(bytes(&["-m", path]), stored);
        assert!(bytes(&["-m", path, "--weights", "f32"]) > 3 * stored);
        assert_eq!(bytes(&["-m", path, "--draft", path]), 2 * stored);
        assert_eq!(bytes(&["-m", path, "--lora", path]), 2 * stored);
        assert!(bytes(&[]) > stored / 2, "the embedded one has no file");
        assert!(!files(&["-m", path]).are_absent);
        for flags in [&["-m", "hf:o/r"], &["--draft", "hf:o/r"], &["--lora", "hf:o/r:a.gguf"]] {
            let dir = tempfile::tempdir().unwrap();
            let models = dir.path().to_str().unwrap();
            assert!(files(&[&["--models-dir", models][..], flags].concat()).are_absent, "{flags:?}");
        }
        assert!(headers(&ModelArgs::embedded()).is_ok(), "it was said to be fetched first");
    }
}
