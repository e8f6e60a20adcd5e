//! What a text means as a model: a name of the shelf, a short name, a source on the hub, or none of them.

use std::path::Path;

use anyhow::anyhow;
use kvik_shelf::{
    HubSpec, Kind, Manifest, ModelName, ModelSource, Shelf, ShelfError, Short, ShortName, alike,
};

use crate::settings::{
    model::{EMBEDDED, Meant},
    models_dir::ModelsDirArgs,
};

/// A model or an adapter that a text names, and that is no path.
#[derive(Debug)]
pub enum Named {
    /// On this machine.
    Here(Box<Manifest>),
    /// On the hub; a pull gives it the name.
    OnHub {
        /// Its source.
        source: ModelSource,
        /// The name.
        name: ModelName,
    },
}

/// Finds what a text names, without the network: a name before a short name, and what was downloaded before the hub.
pub fn find<'a>(shelf: &Shelf, text: impl Into<Meant<'a>>, kind: Kind) -> anyhow::Result<Named> {
    let meant = text.into();
    let text = meant.text();
    // A name from an earlier version may look like a source.
    if let Meant::Name(name) = meant
        && let Ok(manifest) = shelf.find(name)
    {
        return Ok(Named::Here(Box::new(manifest)));
    }
    if let ModelSource::Hub(spec) = text.parse()? {
        let name = ModelSource::Hub(spec.clone()).default_name()?;
        return on_hub(shelf, spec, name);
    }
    match shelf.find(text) {
        Err(ShelfError::UnknownName { .. } | ShelfError::BadName { .. }) => {}
        found => return Ok(Named::Here(Box::new(found?))),
    }
    match Short::of(text).filter(|_| kind == Kind::Model) {
        Some(short) => of_short_name(shelf, text, short),
        None => Err(unknown(shelf, text, kind)),
    }
}

/// The model of a short name. A family alone of which the shelf has models fetches no other one.
fn of_short_name(shelf: &Shelf, text: &str, Short { name, source }: Short) -> anyhow::Result<Named> {
    if let Ok(manifest) = shelf.find(name.as_str()) {
        return Ok(Named::Here(Box::new(manifest)));
    }
    match on_hub(shelf, source, name)? {
        Named::OnHub { .. } if has_family(shelf, text) => Err(unknown(shelf, text, Kind::Model)),
        named => Ok(named),
    }
}

/// Whether a word is the name of a model or looks like one, so that it is no prompt.
pub fn looks_like_model(word: &str, dir: &ModelsDirArgs) -> bool {
    let is_word = !word.is_empty() && !word.contains(char::is_whitespace);
    let has_form = || match word.parse() {
        Ok(ModelSource::Path(_)) => {
            word.ends_with(".gguf") || word.contains([':', '/']) && word.parse::<ModelName>().is_ok()
        }
        // The beginning of a source of the hub, also where the rest is wrong.
        Ok(ModelSource::Hub(_)) | Err(_) => true,
    };
    let is_on_shelf = || dir.shelf().is_ok_and(|shelf| shelf.find(word).is_ok());
    Path::new(word).exists()
        || is_word && (word == EMBEDDED || has_form() || Short::of(word).is_some() || is_on_shelf())
}

/// The name of the shelf that a word resembles.
pub fn nearest(word: &str, dir: &ModelsDirArgs) -> Option<String> {
    let listing = dir.shelf().ok()?.list().ok()?;
    let names = listing.manifests.iter().map(|manifest| manifest.name.as_str());
    alike(word, names).first().map(|name| (*name).to_owned())
}

/// A source of the hub, which may have been downloaded, under any name.
fn on_hub(shelf: &Shelf, spec: HubSpec, name: ModelName) -> anyhow::Result<Named> {
    let here = shelf.find_source(&spec)?.filter(|found| shelf.path(found).is_ok());
    Ok(match here {
        Some(manifest) => Named::Here(Box::new(manifest)),
        None => Named::OnHub { source: ModelSource::Hub(spec), name },
    })
}

/// Whether a text is a family alone of which the shelf has models: one of them is meant, not another one of the hub.
fn has_family(shelf: &Shelf, text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    let text = text.strip_suffix(":latest").unwrap_or(&text);
    let is_of_family = |manifest: &Manifest| {
        let family = manifest.name.as_str().split_once(':').map(|(family, _)| family);
        family.is_some_and(|family| family.eq_ignore_ascii_case(text))
    };
    shelf.list().is_ok_and(|listing| listing.manifests.iter().any(is_of_family))
}

/// Whether a text may be a repository of the hub to which `hf:` is missing, and no path of a file.
fn is_repository(text: &str) -> bool {
    let is_path = !text.contains(':') && [".gguf", ".safetensors"].iter().any(|end| text.ends_with(end));
    text.parse::<HubSpec>().is_ok() && !is_path
}

/// The error for a text that names nothing, with the names that it resembles.
fn unknown(shelf: &Shelf, text: &str, kind: Kind) -> anyhow::Error {
    let takes = match kind {
        Kind::Model => {
            "-m takes a GGUF file, a Hugging Face directory, a name, a short name of `kvik search`, or hf:owner/repo[:file]"
        }
        Kind::Adapter => "--lora takes a GGUF file, a name, or hf:owner/repo[:file]",
    };
    let short = match kind {
        Kind::Model => {
            let others = ShortName::all().iter().map(|row| row.name).filter(|name| shelf.find(name).is_err());
            alike(text, others)
        }
        Kind::Adapter => Vec::new(),
    };
    let on_hub = match short.first() {
        _ if is_repository(text) => format!("; the model of the Hugging Face hub is written hf:{text}"),
        Some(name) => format!("; the hub has `{}`: kvik pull {name}", short.join("`, `")),
        None => String::new(),
    };
    anyhow!(
        "there is no {} at {text}, and none of this name: {}{on_hub}; {takes}",
        kind.name(),
        shelf.names_told(text)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A shelf with models of these names.
    fn shelf_of(names: &[&str]) -> (ModelsDirArgs, tempfile::TempDir) {
        let place = tempfile::tempdir().unwrap();
        let dir = ModelsDirArgs { models_dir: Some(place.path().join("models")) };
        for name in names {
            let file = place.path().join("m.gguf");
            std::fs::write(&file, b"GGUF and more").unwrap();
            dir.shelf().unwrap().add(&file, &name.parse().unwrap()).unwrap();
        }
        (dir, place)
    }

    #[test]
    fn what_is_said_to_be_a_name_is_one() {
        let (dir, _place) = shelf_of(&["src"]);
        let shelf = dir.shelf().unwrap();
        // The manifest of an earlier version, whose name looks like a source.
        let names = dir.directory().unwrap().join("names");
        let text = std::fs::read_to_string(names.join("src.json")).unwrap();
        std::fs::write(names.join("hf.co%2Fo%2Fr.json"), text.replace("\"src\"", "\"hf.co/o/r\"")).unwrap();
        let is_here = |meant: Meant<'_>| matches!(find(&shelf, meant, Kind::Model), Ok(Named::Here(_)));
        assert!(is_here(Meant::Name("hf.co/o/r")) && !is_here(Meant::Said("hf.co/o/r")));
        assert!(is_here(Meant::Name("src")) && !is_here(Meant::Name("nothere")));
    }

    #[test]
    fn names_come_before_short_names_and_these_before_the_hub() {
        let (dir, _place) = shelf_of(&["smollm2:135m", "mine"]);
        let shelf = dir.shelf().unwrap();
        let check = |text: &str, expect: Result<&str, &str>| {
            let found = match find(&shelf, text, Kind::Model).unwrap() {
                Named::Here(manifest) => (manifest.name.to_string(), true),
                Named::OnHub { source, name } => (format!("{name} of {source}"), false),
            };
            let (Ok(text) | Err(text)) = expect;
            assert_eq!(found, (text.to_owned(), expect.is_ok()));
        };
        check("mine", Ok("mine"));
        check("smollm2:135m", Ok("smollm2:135m"));
        check("SmolLM2:135M", Ok("smollm2:135m"));
        check("qwen3:0.6b", Err("qwen3:0.6b of hf:unsloth/Qwen3-0.6B-GGUF"));
        check("qwen3", Err("qwen3:4b of hf:unsloth/Qwen3-4B-GGUF"));
        check("hf:o/r:Q4_0", Err("o/r:Q4_0 of hf:o/r:Q4_0"));
    }

    /// A pull of `qwen3` names the model `qwen3:4b`, and the second `-m qwen3` was an error.
    #[test]
    fn a_family_alone_is_its_first_row_where_that_is_here() {
        let (dir, _place) = shelf_of(&["qwen3:4b", "qwen3:0.6b", "smollm2:135m"]);
        let shelf = dir.shelf().unwrap();
        for text in ["qwen3", "Qwen3", "qwen3:latest", "qwen3:4b"] {
            let found = find(&shelf, text, Kind::Model).unwrap();
            assert!(
                matches!(&found, Named::Here(here) if here.name.as_str() == "qwen3:4b"),
                "{text}: {found:?}"
            );
        }
        for text in ["smollm2", "SmolLM2:latest"] {
            let error = find(&shelf, text, Kind::Model).unwrap_err().to_string();
            assert!(error.contains(&format!("no model at {text}")), "{error}");
        }
    }

    #[test]
    fn an_unknown_name_is_told_with_those_that_it_resembles() {
        let (dir, _place) = shelf_of(&["smollm2:135m", "mine"]);
        let shelf = dir.shelf().unwrap();
        let check = |text: &str, kind: Kind, words: &[&str]| {
            let error = find(&shelf, text, kind).unwrap_err().to_string();
            words.iter().for_each(|word| assert!(error.contains(word), "{error} says {word}"));
        };
        // The family alone is not another model of it, which would be fetched.
        check("smollm2", Kind::Model, &["no model at smollm2", "did you mean `smollm2:135m`?", "-m takes"]);
        check("mime", Kind::Model, &["did you mean `mine`?"]);
        check("qwen3:0.7b", Kind::Model, &["the hub has `", "kvik pull qwen3:"]);
        check("qwen3:0.6b", Kind::Adapter, &["no adapter at qwen3:0.6b", "--lora takes"]);
        for repository in ["Owner/Repo-GGUF", "Owner/Repo-GGUF:Q4_K_M", "Owner/Repo:m.gguf@main"] {
            let hint = format!("Hugging Face hub is written hf:{repository};");
            check(repository, Kind::Model, &[hint.as_str()]);
            check(repository, Kind::Adapter, &[hint.as_str()]);
        }
        for path in ["models/tiny.gguf", "../Owner/Repo", "a/b/c"] {
            let error = find(&shelf, path, Kind::Model).unwrap_err().to_string();
            assert!(!error.contains("hub is written hf:"), "{error}");
        }
    }

    #[test]
    fn prompts_are_told_from_names() {
        let (dir, place) = shelf_of(&["smol"]);
        let file = place.path().join("with space.gguf");
        std::fs::write(&file, b"GGUF").unwrap();
        let names = [
            "smol",
            "qwen3",
            "qwen3:9b",
            "a/b",
            "gone.gguf",
            "hf:o/r",
            "hf:o",
            "hf.co/o/r",
            "embedded",
            file.to_str().unwrap(),
        ];
        for name in names {
            assert!(looks_like_model(name, &dir), "{name}");
        }
        let long = "word ".repeat(10_000);
        for prompt in [
            "",
            "Hello",
            "smoll",
            "Why?",
            "Explain m.gguf",
            "Note: a/b",
            "Hello:",
            "http://a.b/c",
            "ä/ö",
            &long,
        ] {
            assert!(!looks_like_model(prompt, &dir), "{prompt}");
        }
        assert_eq!(nearest("smoll", &dir).as_deref(), Some("smol"));
        assert_eq!(nearest("Hello", &dir), None);
    }
}
