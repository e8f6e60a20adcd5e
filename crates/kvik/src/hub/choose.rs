//! Chooses the files of a repository that form a model.

use std::path::{Path, PathBuf};

use super::{HubError, HubSpec, RemoteFile};
use crate::settings::logging::say;

/// Quantisations in the order of preference: near lossless first, then common compromises.
const PREFERRED: [&str; 6] = ["q8_0", "q4_k_m", "q5_k_m", "q6_k", "q4_0", "q4_k_s"];

/// Files of a Hugging Face directory beside its weights.
const COMPANIONS: [&str; 6] = [
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "chat_template.jinja",
    "model.safetensors.index.json",
];

/// Files to download, and the model among them.
#[derive(Debug, PartialEq)]
pub(super) struct ModelFiles<'a> {
    pub(super) files: Vec<&'a RemoteFile>,
    /// A path in the repository, or `.` for the directory itself.
    pub(super) model: String,
}

impl ModelFiles<'_> {
    pub(super) fn path_in(&self, directory: &Path) -> PathBuf {
        if self.model == "." { directory.to_owned() } else { directory.join(&self.model) }
    }
}

/// The requested file, else the best GGUF file, else the safetensors.
pub(super) fn choose<'a>(spec: &HubSpec, files: &'a [RemoteFile]) -> Result<ModelFiles<'a>, HubError> {
    let one = |file: &'a RemoteFile| ModelFiles { files: vec![file], model: file.path.clone() };
    if let Some(wanted) = &spec.file {
        return files.iter().find(|file| file.path == *wanted).map(one).ok_or_else(|| HubError::NoSuchFile {
            repo: spec.to_string(),
            file: wanted.clone(),
            available: names(files),
        });
    }
    let ggufs: Vec<&RemoteFile> = files.iter().filter(|file| is_model(&file.path)).collect();
    if let Some(file) = best(&ggufs) {
        if ggufs.len() > 1 {
            say(&format!(
                "hf:{spec} has {} GGUF files; taking {} (to choose: -m hf:{spec}:FILE, one of {})",
                ggufs.len(),
                file.path,
                list(ggufs.iter().map(|file| file.path.as_str())),
            ));
        }
        return Ok(one(file));
    }
    directory(files).ok_or_else(|| HubError::NothingToRun { repo: spec.to_string(), available: names(files) })
}

/// Whether a GGUF file is a whole model: no image projector, no part of a split file.
fn is_model(path: &str) -> bool {
    let name = path.to_ascii_lowercase();
    let part = name
        .trim_end_matches(".gguf")
        .rsplit_once("-of-")
        .is_some_and(|(_, n)| n.bytes().all(|b| b.is_ascii_digit()));
    name.ends_with(".gguf") && !name.contains("mmproj") && !name.contains("imatrix") && !part
}

fn best<'a>(ggufs: &[&'a RemoteFile]) -> Option<&'a RemoteFile> {
    let rank = |file: &RemoteFile| {
        let name = file.path.to_ascii_lowercase();
        PREFERRED.iter().position(|quant| name.contains(quant)).unwrap_or(PREFERRED.len())
    };
    ggufs.iter().min_by_key(|file| (rank(file), &file.path)).copied()
}

fn directory(files: &[RemoteFile]) -> Option<ModelFiles<'_>> {
    let weights = |file: &&RemoteFile| !file.path.contains('/') && file.path.ends_with(".safetensors");
    let companion = |file: &&RemoteFile| COMPANIONS.contains(&file.path.as_str());
    if !files.iter().any(|file| weights(&file)) || !files.iter().any(|file| file.path == "config.json") {
        return None;
    }
    // Weights come last: they take long, and an error in the small files shows at once.
    let wanted = files.iter().filter(companion).chain(files.iter().filter(weights)).collect();
    Some(ModelFiles { files: wanted, model: ".".to_owned() })
}

fn names(files: &[RemoteFile]) -> String {
    let interesting = |name: &str| name.ends_with(".gguf") || name.ends_with(".safetensors");
    let names: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
    if names.iter().any(|name| interesting(name)) {
        list(names.iter().copied().filter(|name| interesting(name)))
    } else {
        list(names.iter().copied())
    }
}

/// At most a dozen names, for a message.
fn list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    match names.len() {
        0 => "no files".to_owned(),
        n if n > 12 => format!("{} and {} more", names[..12].join(", "), n - 12),
        _ => names.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(names: &[&str]) -> Vec<RemoteFile> {
        names.iter().map(|name| RemoteFile { path: (*name).to_owned(), size: None, lfs: None }).collect()
    }

    #[test]
    fn the_best_file_is_taken() {
        let check = |names: &[&str], expect: &str| {
            let files = files(names);
            assert_eq!(choose(&"o/r".parse().unwrap(), &files).unwrap().model, expect, "{names:?}");
        };
        check(&["README.md", "m-Q4_K_M.gguf", "m-Q8_0.gguf", "m-F16.gguf"], "m-Q8_0.gguf");
        check(&["m-Q2_K.gguf", "m-Q4_K_M.gguf"], "m-Q4_K_M.gguf");
        check(&["m-f16.gguf"], "m-f16.gguf");
        check(&["mmproj-q8_0.gguf", "m-Q2_K.gguf"], "m-Q2_K.gguf");
        check(&["m-Q8_0-00001-of-00002.gguf", "m-Q8_0-00002-of-00002.gguf", "m-Q6_K.gguf"], "m-Q6_K.gguf");
        check(&["config.json", "model.safetensors", "tokenizer.json", "README.md"], ".");
    }

    #[test]
    fn a_directory_takes_its_companion_files() {
        let files = files(&[
            "README.md",
            "model.safetensors",
            "config.json",
            "onnx/model.safetensors",
            "tokenizer.json",
        ]);
        let choice = choose(&"o/r".parse().unwrap(), &files).unwrap();
        let names: Vec<&str> = choice.files.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(names, ["config.json", "tokenizer.json", "model.safetensors"]);
    }

    #[test]
    fn a_repository_without_a_model_is_refused_with_the_list_of_files() {
        let check = |spec: &str, names: &[&str], words: &[&str]| {
            let error = choose(&spec.parse().unwrap(), &files(names)).unwrap_err().to_string();
            for word in words {
                assert!(error.contains(word), "{error} says {word}");
            }
        };
        check("o/r", &["pytorch_model.bin"], &["hf:o/r", "pytorch_model.bin"]);
        check("o/r", &[], &["no files"]);
        check("o/r:x.gguf", &["y.gguf", "README.md"], &["`x.gguf`", "y.gguf"]);
    }
}
