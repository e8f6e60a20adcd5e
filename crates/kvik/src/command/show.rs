//! `kvik show`: describes a named model.

use anyhow::Context;
use clap::Args;
use kvik_shelf::Kind;

use super::list::{ago, card};
use kvik_server::clock::unix_seconds;
use kvik_serving::{
    fetch,
    settings::{models_dir::ModelsDirArgs, size::ByteSize},
};

/// Shows what a name stands for: source, commit, files with their checksums
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kvik show qwen3
  kvik show qwen3 --json
  kvik show qwen3:0.6b --path    for programs that open the file themselves
  kvik inspect -m qwen3      its layers, tokenizer and template")]
pub(crate) struct ShowArgs {
    /// A name of `kvik list`; with --path everything that -m takes
    name: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print only the path of the model
    #[arg(long, conflicts_with = "json")]
    path: bool,
    #[command(flatten)]
    dir: ModelsDirArgs,
}

/// Runs the command.
pub(crate) fn run(args: &ShowArgs) -> anyhow::Result<()> {
    if args.path {
        return print_path(args);
    }
    let shelf = args.dir.shelf()?;
    let manifest = shelf.find(&args.name)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&card(&shelf, &manifest))?);
        return Ok(());
    }
    let path = shelf.path(&manifest);
    let facts = [
        ("name", manifest.name.to_string()),
        ("kind", manifest.kind.name().to_owned()),
        ("source", manifest.source.to_string()),
        ("commit", manifest.revision.clone().unwrap_or("unknown".to_owned())),
        ("added", ago(unix_seconds().saturating_sub(manifest.added_s))),
        ("size", ByteSize(manifest.bytes()).to_string()),
        ("path", path.as_ref().map_or("none".to_owned(), |path| path.display().to_string())),
    ];
    facts.iter().for_each(|(name, value)| println!("{name:8} {value}"));
    println!("\n{:>10}  {:64}  file", "size", "sha256");
    for file in &manifest.files {
        let (size, sha256) = (ByteSize(file.size).to_string(), file.sha256.as_deref().unwrap_or("unknown"));
        println!("{size:>10}  {sha256:64}  {}", file.path);
    }
    // The error of a missing file is reported last.
    path.map(drop).map_err(Into::into)
}

/// Prints the path of a model that is on this machine. The package for Python reads it, and the remedy of the error.
fn print_path(args: &ShowArgs) -> anyhow::Result<()> {
    let name = &args.name;
    let path = fetch::without_download(name.as_str(), Kind::Model, &args.dir)?;
    let path =
        path.with_context(|| format!("{name} is not on this machine; `kvik pull {name}` fetches it"))?;
    println!("{}", path.display());
    Ok(())
}
