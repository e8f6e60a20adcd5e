//! Chooses the files of a repository that form a model or an adapter.

use std::{cmp::Reverse, collections::HashMap};

use super::RemoteFile;
use crate::{HubSpec, Progress, ShelfError, split::SplitName};

/// Quantisations in order of preference: nearly lossless first, then common compromises.
const PREFERRED: [&str; 6] = ["q8_0", "q4_k_m", "q5_k_m", "q6_k", "q4_0", "q4_k_s"];

/// Quantisations that kvik does not open, beside all of the kind IQ but IQ4_NL.
const UNREADABLE: [&str; 7] = ["tq1_0", "tq2_0", "q1_0", "nvfp4", "q4_0_4_4", "q4_0_4_8", "q4_0_8_8"];

/// Files of a Hugging Face directory in addition to its weights.
const COMPANIONS: [&str; 9] = [
    "config.json",
    ADAPTER_CONFIG,
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "chat_template.jinja",
    "additional_chat_templates/tool_use.jinja",
    "1_Pooling/config.json",
    INDEX,
];

const ADAPTER_CONFIG: &str = "adapter_config.json";
const ADAPTER: &str = "adapter_model.safetensors";
/// Weights in one file, and the list of the files of others.
const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Files to download, and the path that is opened.
#[derive(Debug, PartialEq)]
pub(crate) struct ModelFiles<'a> {
    pub(crate) files: Vec<&'a RemoteFile>,
    /// A path in the repository, or `None` for its directory.
    pub(crate) model: Option<String>,
}

/// Chooses the requested file or quantisation, else the `former` file of the model, else the best GGUF file that fits
/// `memory_bytes`, else the safetensors.
pub(crate) fn choose<'a>(
    spec: &HubSpec,
    files: &'a [RemoteFile],
    (former, memory_bytes): (Option<&str>, Option<u64>),
    progress: &dyn Progress,
) -> Result<ModelFiles<'a>, ShelfError> {
    let repo = spec.repository();
    if let Some(wanted) = &spec.wanted {
        return with_parts(&repo, named(&repo, wanted, files)?, files);
    }
    let ggufs: Vec<&RemoteFile> = readable(files).collect();
    if let Some(file) = ggufs.iter().copied().find(|file| former == Some(file.path.as_str())) {
        return with_parts(&repo, file, files);
    }
    if let Some(file) = best(&ggufs, files, memory_bytes) {
        if ggufs.len() > 1 {
            progress.note(&format!(
                "hf:{repo} has {} GGUF models; taking {} (to choose: hf:{repo}:FILE or hf:{repo}:Q4_K_M, of {})",
                ggufs.len(),
                file.path,
                list(ggufs.iter().map(|file| file.path.as_str())),
            ));
        }
        return with_parts(&repo, file, files);
    }
    directory(files).ok_or_else(|| ShelfError::NothingToRun { repo, available: names(files) })
}

/// GGUF files that are models: no image projectors, and only the first part of a split model.
fn models(files: &[RemoteFile]) -> impl Iterator<Item = &RemoteFile> {
    files.iter().filter(|file| {
        let name = file.path.to_ascii_lowercase();
        let model = name.ends_with(".gguf") && !name.contains("mmproj") && !name.contains("imatrix");
        model && SplitName::of(&file.path).is_none_or(|split| split.number == 1)
    })
}

/// The models that kvik opens, as far as their names say.
fn readable(files: &[RemoteFile]) -> impl Iterator<Item = &RemoteFile> {
    models(files).filter(|file| is_readable(&file.path))
}

/// Whether kvik opens files of the quantisation in a name.
fn is_readable(path: &str) -> bool {
    let path = path.to_ascii_lowercase();
    path.split(['-', '.', '/']).all(|word| match word.as_bytes() {
        [b'i', b'q', b'1'..=b'9', b'_', ..] => word == "iq4_nl",
        _ => !UNREADABLE.contains(&word),
    })
}

/// The requested file, or the one of the requested quantisation.
fn named<'a>(repo: &str, wanted: &str, files: &'a [RemoteFile]) -> Result<&'a RemoteFile, ShelfError> {
    let repo = || repo.to_owned();
    let exact = files.iter().find(|file| file.path == *wanted);
    match exact.or_else(|| of_quantisation(files, wanted)) {
        Some(file) if is_readable(&file.path) => Ok(file),
        Some(file) => {
            let available = list(readable(files).map(|file| file.path.as_str()));
            Err(ShelfError::BadQuantisation { repo: repo(), file: file.path.clone(), available })
        }
        None => {
            let (wanted, available) = (wanted.to_owned(), names(files));
            Err(ShelfError::NoSuchFile { repo: repo(), wanted, available })
        }
    }
}

/// The model with this quantisation, one that kvik opens before others. The shortest name is preferred, since others have
/// a prefix before the quantisation.
fn of_quantisation<'a>(files: &'a [RemoteFile], quantisation: &str) -> Option<&'a RemoteFile> {
    let of_it = models(files).filter(|file| has_word(&file.path, quantisation));
    of_it.min_by_key(|file| (!is_readable(&file.path), file.path.len(), &file.path))
}

/// Returns whether a path contains this word, case-insensitively, delimited by `-`, `.`, `/` or its ends.
fn has_word(path: &str, word: &str) -> bool {
    let (path, word) = (path.to_ascii_lowercase(), word.to_ascii_lowercase());
    let is_edge = |c: Option<char>| c.is_none_or(|c| "-./".contains(c));
    path.match_indices(&word).any(|(at, _)| {
        is_edge(path[..at].chars().next_back()) && is_edge(path[at + word.len()..].chars().next())
    })
}

/// The first preferred quantisation that fits, else the largest file that fits, else the smallest. What has no size
/// fits.
fn best<'a>(
    models: &[&'a RemoteFile],
    files: &[RemoteFile],
    memory_bytes: Option<u64>,
) -> Option<&'a RemoteFile> {
    let sizes = files.iter().map(|file| (file.path.as_str(), file.size())).collect();
    let size = |file: &RemoteFile| size_with_parts(&file.path, &sizes);
    let fits =
        |file: &&&'a RemoteFile| memory_bytes.zip(size(file)).is_none_or(|(memory, size)| size <= memory);
    let rank = |file: &RemoteFile| {
        let name = file.path.to_ascii_lowercase();
        PREFERRED.iter().position(|quant| name.contains(quant))
    };
    let preferred = models.iter().filter(fits).filter_map(|file| Some((rank(file)?, &file.path, *file)));
    let preferred = preferred.min_by_key(|(rank, path, _)| (*rank, *path)).map(|(.., file)| file);
    let by_size = |file: &&&'a RemoteFile| (size(file), Reverse(&file.path));
    preferred
        .or_else(|| models.iter().filter(fits).max_by_key(by_size).copied())
        .or_else(|| models.iter().min_by_key(by_size).copied())
}

/// The size of a file together with the other parts of its model, if the hub states all of them.
fn size_with_parts(path: &str, sizes: &HashMap<&str, Option<u64>>) -> Option<u64> {
    let size = |path: &str| *sizes.get(path)?;
    match SplitName::of(path).filter(|split| split.is_sensible()) {
        Some(split) => split.all().try_fold(0u64, |sum, part| sum.checked_add(size(&part)?)),
        None => size(path),
    }
}

/// A file together with the other parts of its model, if it is split.
fn with_parts<'a>(
    repo: &str,
    file: &'a RemoteFile,
    files: &'a [RemoteFile],
) -> Result<ModelFiles<'a>, ShelfError> {
    let Some(split) = SplitName::of(&file.path).filter(|split| split.is_sensible()) else {
        return Ok(ModelFiles { files: vec![file], model: Some(file.path.clone()) });
    };
    let part = |name: String| {
        files.iter().find(|file| file.path == name).ok_or_else(|| ShelfError::MissingPart {
            repo: repo.to_owned(),
            file: file.path.clone(),
            missing: name,
        })
    };
    let parts = split.all().map(part).collect::<Result<Vec<_>, _>>()?;
    let model = Some(parts[0].path.clone());
    Ok(ModelFiles { files: parts, model })
}

fn directory(files: &[RemoteFile]) -> Option<ModelFiles<'_>> {
    let companion = |file: &&RemoteFile| COMPANIONS.contains(&file.path.as_str());
    let has_config = files.iter().any(|file| matches!(&*file.path, "config.json" | ADAPTER_CONFIG));
    let weights = weights(files);
    if weights.is_empty() || !has_config {
        return None;
    }
    // Weights come last: they take long, and an error in the small files is found at once.
    Some(ModelFiles { files: files.iter().filter(companion).chain(weights).collect(), model: None })
}

/// The weights of a directory. Some makers add the same ones under other names, such as `consolidated.safetensors`,
/// which double the download and are never opened. Nobody knows what an index lists before it is there, so all files
/// that are named like a part stay.
fn weights(files: &[RemoteFile]) -> Vec<&RemoteFile> {
    let is_weights = |file: &&RemoteFile| !file.path.contains('/') && file.path.ends_with(".safetensors");
    let has = |name: &str| files.iter().any(|file| file.path == name);
    let has_parts = files.iter().filter(is_weights).any(|file| is_part(&file.path));
    let is_opened = |file: &&RemoteFile| match file.path.as_str() {
        ADAPTER => has(ADAPTER_CONFIG),
        SINGLE => !(has(INDEX) && has_parts),
        name if has(INDEX) => name.starts_with("model"),
        _ => !has(SINGLE),
    };
    let opened: Vec<&RemoteFile> = files.iter().filter(is_weights).filter(is_opened).collect();
    if opened.is_empty() { files.iter().filter(is_weights).collect() } else { opened }
}

/// Whether a file has a part of the weights: `model-00001-of-00002.safetensors`, in any number of digits.
fn is_part(name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let numbers = name.strip_suffix(".safetensors").and_then(|stem| stem.rsplit_once("-of-"));
    numbers.is_some_and(|(rest, count)| {
        let number = rest.rsplit(['-', '_']).next().unwrap_or_default();
        name.starts_with("model") && is_number(number) && is_number(count)
    })
}

/// The names of a repository's possible model files, else of all files, for a message.
pub(crate) fn names(files: &[RemoteFile]) -> String {
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
#[allow(clippy::unwrap_used)] // a test may fail where it stands
mod tests {
    use super::*;
    use crate::{ModelSource, Quiet};

    fn files(names: &[&str]) -> Vec<RemoteFile> {
        names.iter().map(|name| RemoteFile { path: (*name).to_owned(), size: None, lfs: None }).collect()
    }

    fn chosen(spec: &str, names: &[&str]) -> Result<(Option<String>, Vec<String>), String> {
        let ModelSource::Hub(spec) = format!("hf:{spec}").parse().unwrap() else { panic!("{spec}") };
        let files = files(names);
        let chosen = choose(&spec, &files, (None, None), &Quiet).map_err(|error| error.to_string());
        let ModelFiles { files, model } = chosen?;
        Ok((model, files.iter().map(|file| file.path.clone()).collect()))
    }

    #[test]
    fn the_best_file_is_taken() {
        let check = |names: &[&str], expect: Option<&str>| {
            assert_eq!(chosen("o/r", names).unwrap().0.as_deref(), expect, "{names:?}");
        };
        check(&["README.md", "m-Q4_K_M.gguf", "m-Q8_0.gguf", "m-F16.gguf"], Some("m-Q8_0.gguf"));
        check(&["m-Q2_K.gguf", "m-Q4_K_M.gguf"], Some("m-Q4_K_M.gguf"));
        check(&["m-f16.gguf"], Some("m-f16.gguf"));
        check(&["mmproj-q8_0.gguf", "m-Q2_K.gguf"], Some("m-Q2_K.gguf"));
        check(&["config.json", "model.safetensors", "tokenizer.json", "README.md"], None);
        check(&["adapter_config.json", "adapter_model.safetensors"], None);
    }

    #[test]
    fn the_best_file_is_one_that_fits_the_memory() {
        let sizes = [
            ("m-Q8_0.gguf", 80),
            ("m-Q4_K_M.gguf", 48),
            ("m-IQ4_XS.gguf", 44),
            ("m-Q3_K_L.gguf", 43),
            ("m-Q2_K.gguf", 30),
            ("m-UD-IQ1_S.gguf", 10),
            ("BF16/m-BF16-00001-of-00002.gguf", 80),
            ("BF16/m-BF16-00002-of-00002.gguf", 80),
        ];
        let file =
            |(path, size): (&str, u64)| RemoteFile { path: path.to_owned(), size: Some(size), lfs: None };
        let files = sizes.map(file);
        let check = |spec: &str, former: Option<&str>, memory_bytes: u64, expect: &str| {
            let ModelSource::Hub(spec) = spec.parse().unwrap() else { panic!("{spec}") };
            let chosen = choose(&spec, &files, (former, Some(memory_bytes)), &Quiet).unwrap();
            assert_eq!(chosen.model.as_deref(), Some(expect), "{spec} in {memory_bytes}, {former:?} before");
        };
        check("hf:o/r", None, 1000, "m-Q8_0.gguf");
        check("hf:o/r", None, 79, "m-Q4_K_M.gguf");
        check("hf:o/r", None, 45, "m-Q3_K_L.gguf");
        check("hf:o/r", None, 20, "m-Q2_K.gguf");
        check("hf:o/r", None, 1, "m-Q2_K.gguf");
        check("hf:o/r:Q8_0", None, 1, "m-Q8_0.gguf");
        check("hf:o/r", Some("m-Q8_0.gguf"), 1, "m-Q8_0.gguf");
        check("hf:o/r", Some("m-UD-IQ1_S.gguf"), 79, "m-Q4_K_M.gguf");
        check("hf:o/r", Some("m-F16.gguf"), 79, "m-Q4_K_M.gguf");
        check("hf:o/r:Q2_K", Some("m-Q8_0.gguf"), 79, "m-Q2_K.gguf");
    }

    /// The largest that fits was one that no load could open.
    #[test]
    fn quantisations_that_kvik_does_not_open_are_not_taken() {
        for quant in ["IQ4_XS", "iq3_xxs", "UD-IQ1_S", "i1-IQ2_M", "TQ1_0", "Q4_0_4_4", "Q4_0_8_8", "NVFP4"] {
            let one = format!("m-{quant}.gguf");
            let [folder, part] =
                ["00001", "00002"].map(|part| format!("{quant}/m-{quant}-{part}-of-00002.gguf"));
            for names in [&[one.as_str()][..], &[folder.as_str(), part.as_str()]] {
                assert!(chosen("o/r", names).unwrap_err().contains("neither a GGUF file nor"), "{quant}");
                let all = [names, &["m-IQ4_NL.gguf", "m-Q2_K.gguf"]].concat();
                assert_eq!(chosen("o/r", &all).unwrap().1, ["m-IQ4_NL.gguf"], "{quant}");
                for wanted in [quant, names[0]] {
                    let error = chosen(&format!("o/r:{wanted}"), &all).unwrap_err();
                    assert!(
                        error.contains(names[0]) && error.contains("opens m-IQ4_NL.gguf, m-Q2_K"),
                        "{error}"
                    );
                }
            }
        }
        assert_eq!(
            chosen("o/r:UD", &["m-UD-IQ1_S.gguf", "m-UD-Q4_K_XL.gguf"]).unwrap().1,
            ["m-UD-Q4_K_XL.gguf"]
        );
        for name in
            ["iq-test-Q8_0.gguf", "m-iq4_nl.gguf", "m-Q4_0.gguf", "m-MXFP4_MOE.gguf", "m-UD-Q2_K_XL.gguf"]
        {
            assert_eq!(chosen("o/r", &[name]).unwrap().1, [name]);
        }
    }

    #[test]
    fn the_size_of_a_split_model_is_that_of_all_its_parts() {
        let [one, two] = ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"];
        let size =
            |parts: &[(&'static str, Option<u64>)]| size_with_parts(one, &parts.iter().copied().collect());
        assert_eq!(size(&[(one, Some(80)), (two, Some(70))]), Some(150));
        assert_eq!(size(&[(one, Some(80)), (two, None)]), None);
        assert_eq!(size(&[(one, Some(80))]), None, "a part is missing");
        assert_eq!(size(&[(one, Some(u64::MAX)), (two, Some(1))]), None, "no sum overflows");
    }

    #[test]
    fn a_quantisation_is_a_word_of_the_name() {
        let names = [
            "m-Q4_K.gguf",
            "m-Q4_K_M.gguf",
            "m-UD-Q4_K_M.gguf",
            "IQ4_K_M.gguf",
            "BF16/m-BF16-00001-of-00002.gguf",
            "BF16/m-BF16-00002-of-00002.gguf",
            "mmproj-Q2_K.gguf",
        ];
        let check = |wanted: &str, expect: Option<&str>| {
            let model = chosen(&format!("o/r:{wanted}"), &names).ok().and_then(|(model, _)| model);
            assert_eq!(model.as_deref(), expect, "{wanted}");
        };
        check("Q4_K_M", Some("m-Q4_K_M.gguf"));
        check("q4_k", Some("m-Q4_K.gguf"));
        check("UD-Q4_K_M", Some("m-UD-Q4_K_M.gguf"));
        check("BF16", Some("BF16/m-BF16-00001-of-00002.gguf"));
        check("m-Q4_K.gguf", Some("m-Q4_K.gguf"));
        check("mmproj-Q2_K.gguf", Some("mmproj-Q2_K.gguf"));
        check("Q2_K", None);
        check("4_K", None);
    }

    #[test]
    fn all_parts_of_a_split_model_are_taken() {
        let [one, two] = ["m-Q8_0-00001-of-00002.gguf", "m-Q8_0-00002-of-00002.gguf"];
        let check = |spec: &str| {
            let (model, files) = chosen(spec, &[two, "m-Q2_K.gguf", one]).unwrap();
            assert_eq!(
                (model.as_deref(), files),
                (Some(one), vec![one.to_owned(), two.to_owned()]),
                "{spec}"
            );
        };
        check("o/r");
        check("o/r:Q8_0");
        check(&format!("o/r:{two}"));
        let error = chosen("o/r", &[one, "m-Q2_K.gguf"]).unwrap_err();
        assert!(error.contains("hf:o/r") && error.contains(two), "{error}");
        let hostile = "m-00001-of-99999.gguf";
        assert_eq!(chosen("o/r", &[hostile]).unwrap().1, [hostile], "nobody looks for 99999 parts");
    }

    #[test]
    fn a_directory_takes_its_companion_files() {
        let names = [
            "1_Pooling/config.json",
            "2_Dense/config.json",
            "README.md",
            "additional_chat_templates/tool_use.jinja",
            "model.safetensors",
            "config.json",
            "onnx/model.safetensors",
            "tokenizer.json",
        ];
        let (_, files) = chosen("o/r", &names).unwrap();
        let [pooling, _, _, template, weights, config, _, tokenizer] = names;
        assert_eq!(files, [pooling, template, config, tokenizer, weights]);
    }

    #[test]
    fn weights_that_are_not_opened_are_not_taken() {
        let check = |names: &[&str], left_out: &[&str]| {
            let all = [names, left_out, &["config.json"]].concat();
            let (_, files) = chosen("o/r", &all).unwrap();
            let weights: Vec<&str> =
                files.iter().map(String::as_str).filter(|name| name.ends_with(".safetensors")).collect();
            let expect: Vec<&str> =
                names.iter().copied().filter(|name| name.ends_with(".safetensors")).collect();
            assert_eq!(weights, expect);
        };
        let parts = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
        check(&[SINGLE], &["consolidated.safetensors", "adapter_model.safetensors"]);
        check(&[SINGLE, INDEX], &["consolidated.safetensors"]);
        check(&[INDEX, parts[0], parts[1]], &[SINGLE, "consolidated-00001-of-00001.safetensors"]);
        // Names that other makers give to parts, and to layers beside them.
        check(
            &[INDEX, "model_00001-of-00002.safetensors", "model_mtp.safetensors"],
            &[SINGLE, "x.safetensors"],
        );
        check(&[INDEX, "model.safetensors-00001-of-00001.safetensors"], &[SINGLE, ADAPTER]);
        check(&[INDEX, "model-00001-of-000163.safetensors"], &["consolidated.safetensors"]);
        check(&[INDEX, "pytorch_model-00001-of-00001.safetensors"], &[]);
        check(&["weights.safetensors"], &[]);
        check(&[ADAPTER_CONFIG, ADAPTER, SINGLE], &[]);
    }

    #[test]
    fn a_repository_without_a_model_is_refused_with_the_list_of_files() {
        let check = |spec: &str, names: &[&str], words: &[&str]| {
            let error = chosen(spec, names).unwrap_err();
            for word in words {
                assert!(error.contains(word), "{error} says {word}");
            }
        };
        check("o/r", &["pytorch_model.bin"], &["hf:o/r", "pytorch_model.bin"]);
        check("o/r", &[], &["no files"]);
        check("o/r:x.gguf", &["y.gguf", "README.md"], &["`x.gguf`", "y.gguf"]);
        check("o/r:Q9", &["y.gguf", "README.md"], &["`Q9`", "y.gguf"]);
    }
}
