//! `kvik default`: shows or chooses the model of commands that name none.

use anyhow::Context;
use clap::Args;
use kvik_shelf::{DefaultModel, Kind, ModelName, Shelf};

use kvik_serving::{
    names::{self, Named},
    settings::models_dir::ModelsDirArgs,
};

/// Shows or chooses the model that answers where a command names none
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kvik default                  which one it is, and why
  kvik default qwen3:0.6b       chooses one of `kvik list`
  kvik default --last           the one that was pulled last, as before a choice

It is kept with the models. --model of config.toml and KVIK_MODEL come before it; -m embedded asks the demonstration
that is within kvik.")]
pub(crate) struct DefaultArgs {
    /// A name of `kvik list`
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Take the model that was pulled last
    #[arg(long, conflicts_with = "name")]
    last: bool,
    // `kvik serve` has this setting too, so that its variable and its key of config.toml are read here.
    #[arg(long, value_name = "MODEL", hide = true)]
    model: Option<String>,
    #[command(flatten)]
    dir: ModelsDirArgs,
}

/// Runs the command.
pub(crate) fn run(args: &DefaultArgs) -> anyhow::Result<()> {
    let shelf = args.dir.shelf()?;
    if args.last {
        shelf.set_default(None)?;
    }
    if let Some(name) = &args.name {
        shelf.set_default(Some(&name_of(&shelf, name)?))?;
    }
    println!("{}", described(shelf.default_model()?.as_ref(), args.model.as_deref()));
    Ok(())
}

/// The name of a shelf's model, which may be written as a short name or a source is.
fn name_of(shelf: &Shelf, text: &str) -> anyhow::Result<ModelName> {
    match names::find(shelf, text, Kind::Model)? {
        Named::Here(manifest) => Ok(manifest.name),
        Named::OnHub { .. } => {
            let found = shelf.find(text).with_context(|| format!("`kvik pull {text}` fetches it first"));
            Ok(found?.name)
        }
    }
}

/// The default model, and why it is that one; `set` is the value of a variable or of config.toml.
fn described(default: Option<&DefaultModel>, set: Option<&str>) -> String {
    let own = match default {
        Some(DefaultModel { manifest, is_chosen: true }) => format!("{}  (chosen)", manifest.name),
        Some(DefaultModel { manifest, is_chosen: false }) => {
            format!("{}  (pulled last; kvik default NAME chooses one)", manifest.name)
        }
        None => "embedded  (a demonstration; kvik pull qwen3:0.6b fetches a model)".to_owned(),
    };
    match set {
        Some(set) => format!("{set}  (KVIK_MODEL or model in config.toml; without it: {own})"),
        None => own,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_told_with_its_reason() {
        let place = tempfile::tempdir().unwrap();
        let dir = ModelsDirArgs { models_dir: Some(place.path().join("models")) };
        let shelf = dir.shelf().unwrap();
        let told = |set: Option<&str>| described(shelf.default_model().unwrap().as_ref(), set);
        assert!(told(None).starts_with("embedded  (a demonstration"));
        let file = place.path().join("m.gguf");
        std::fs::write(&file, b"GGUF").unwrap();
        shelf.add(&file, &"qwen3:0.6b".parse().unwrap()).unwrap();
        assert!(told(None).starts_with("qwen3:0.6b  (pulled last"));
        shelf.set_default(Some(&name_of(&shelf, "Qwen3:0.6B").unwrap())).unwrap();
        assert_eq!(told(None), "qwen3:0.6b  (chosen)");
        assert_eq!(
            told(Some("x")),
            "x  (KVIK_MODEL or model in config.toml; without it: qwen3:0.6b  (chosen))"
        );
        let error = format!("{:#}", name_of(&shelf, "qwen3:1.7b").unwrap_err());
        assert!(error.contains("kvik pull qwen3:1.7b") && error.contains("qwen3:0.6b"), "{error}");
        assert!(name_of(&shelf, "x").is_err());
    }
}
