//! The files of a model that was added by its path.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::{
    ShelfError, ShelfFile,
    kind::is_gguf,
    split::{SplitName, parts_of},
};

/// The absolute path of what is at `path`, which is really at `real`. A part of a split model keeps its own name, by which
/// the others are found: Hugging Face's own tools leave links to files that are named by their content. Where a link leads
/// to a part that has the others beside it, these are found as well.
pub(super) fn own_path(path: &Path, real: PathBuf) -> io::Result<PathBuf> {
    let path = std::path::absolute(path)?;
    let is_part = |path: &Path| path.to_str().and_then(SplitName::of).is_some();
    let is_whole = is_part(&real) && parts_of(&real).iter().all(|part| part.exists());
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) if is_part(&path) && !is_whole => Ok(fs::canonicalize(parent)?.join(name)),
        _ => Ok(real),
    }
}

/// The path to open for the model at an absolute path, and all its files with their sizes.
pub(super) fn at(path: &Path) -> Result<(PathBuf, Vec<ShelfFile>), ShelfError> {
    let not_a_model =
        |reason: &str| ShelfError::NotAModel { path: path.to_owned(), reason: reason.to_owned() };
    let text = path.to_str().ok_or_else(|| not_a_model("its path is not UTF-8"))?;
    if path.is_dir() {
        let has = |name: &str| path.join(name).is_file();
        if !has("config.json") && !has("adapter_config.json") {
            return Err(not_a_model(
                "the directory has no config.json; name a GGUF file or a model directory",
            ));
        }
        return Ok((path.to_owned(), of_directory(path)?));
    }
    if !is_gguf(path) {
        return Err(not_a_model("it is neither a GGUF file nor a directory"));
    }
    let Some(split) = SplitName::of(text).filter(|split| split.is_sensible()) else {
        return Ok((path.to_owned(), vec![file(path)?]));
    };
    let parts: Vec<PathBuf> = split.all().map(PathBuf::from).collect();
    let files = parts.iter().map(|part| file(part)).collect::<Result<Vec<_>, _>>()?;
    Ok((parts[0].clone(), files))
}

/// The files directly in a directory, except hidden ones.
fn of_directory(dir: &Path) -> Result<Vec<ShelfFile>, ShelfError> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).map_err(ShelfError::io(dir))? {
        let path = entry.map_err(ShelfError::io(dir))?.path();
        let is_hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
        if path.is_file() && !is_hidden {
            files.push(file(&path)?);
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

fn file(path: &Path) -> Result<ShelfFile, ShelfError> {
    let size = fs::metadata(path).map_err(ShelfError::io(path))?.len();
    let not_utf8 =
        || ShelfError::NotAModel { path: path.to_owned(), reason: "its path is not UTF-8".to_owned() };
    Ok(ShelfFile { path: path.to_str().ok_or_else(not_utf8)?.to_owned(), size, sha256: None })
}
