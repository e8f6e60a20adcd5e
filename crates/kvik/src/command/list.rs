//! `kvik list`: lists the named models.

use clap::Args;
use kvik_shelf::{Manifest, Shelf};
use serde_json::{Value, json};

use kvik_server::clock::unix_seconds;
use kvik_serving::settings::{logging::say, models_dir::ModelsDirArgs, size::ByteSize};

/// Lists the models and adapters that have a name
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kvik list                  names, sizes and sources
  kvik list --json           the same for programs
  kvik serve -m NAME         serves one of them")]
pub(crate) struct ListArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    dir: ModelsDirArgs,
}

/// Runs the command.
pub(crate) fn run(args: &ListArgs) -> anyhow::Result<()> {
    let shelf = args.dir.shelf()?;
    let listing = shelf.list()?;
    if args.json {
        let models: Vec<Value> = listing.manifests.iter().map(|manifest| card(&shelf, manifest)).collect();
        println!("{}", serde_json::to_string_pretty(&json!({"models": models}))?);
    } else if listing.manifests.is_empty() {
        println!("no models yet; kvik pull hf:owner/repo fetches one");
    } else {
        print!("{}", table(&shelf, &listing.manifests, unix_seconds()));
    }
    listing.unreadable.iter().for_each(|error| say(&format!("warning: {error}")));
    Ok(())
}

/// A manifest as JSON.
pub(super) fn card(shelf: &Shelf, manifest: &Manifest) -> Value {
    let path = shelf.path(manifest);
    json!({
        "name": manifest.name,
        "kind": manifest.kind,
        "bytes": manifest.bytes(),
        "source": manifest.source.to_string(),
        "revision": manifest.revision,
        "added": manifest.added_s,
        "path": path.as_ref().ok(),
        "problem": path.err().map(|error| error.to_string()),
        "files": manifest.files,
    })
}

fn table(shelf: &Shelf, manifests: &[Manifest], now_s: u64) -> String {
    let width = manifests.iter().map(|manifest| manifest.name.as_str().len()).max().unwrap_or(0).max(4);
    let mut out = format!("{:width$}  {:7}  {:>10}  {:>14}  source\n", "name", "kind", "size", "added");
    for manifest in manifests {
        let (name, size) = (manifest.name.as_str(), ByteSize(manifest.bytes()).to_string());
        let (kind, added) = (manifest.kind.name(), ago(now_s.saturating_sub(manifest.added_s)));
        let lacking = if shelf.path(manifest).is_err() { "  (a file is missing)" } else { "" };
        out += &format!("{name:width$}  {kind:7}  {size:>10}  {added:>14}  {}{lacking}\n", manifest.source);
    }
    out
}

/// The age of an event `seconds` ago, in words.
pub(super) fn ago(seconds: u64) -> String {
    let units = [("day", 86_400), ("hour", 3_600), ("minute", 60)];
    match units.into_iter().find(|(_, unit)| seconds >= *unit) {
        None => "just now".to_owned(),
        Some((name, unit)) if seconds / unit == 1 => format!("1 {name} ago"),
        Some((name, unit)) => format!("{} {name}s ago", seconds / unit),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_words() {
        for (seconds, expect) in [
            (0, "just now"),
            (59, "just now"),
            (60, "1 minute ago"),
            (7_199, "1 hour ago"),
            (7_200, "2 hours ago"),
            (400 * 86_400, "400 days ago"),
        ] {
            assert_eq!(ago(seconds), expect);
        }
    }

    #[test]
    fn a_table_says_what_is_missing() -> anyhow::Result<()> {
        let dir = tempfile::tempdir()?;
        let shelf = Shelf::open(&dir.path().join("models"));
        let file = dir.path().join("m.gguf");
        std::fs::write(&file, b"GGUF")?;
        shelf.add(&file, &"a-long-name".parse()?)?;
        let manifests = shelf.list()?.manifests;
        let text = table(&shelf, &manifests, manifests[0].added_s + 120);
        assert!(text.contains("a-long-name  model           4 B   2 minutes ago  /"), "{text}");
        assert!(!text.contains("missing"), "{text}");
        std::fs::remove_file(&file)?;
        assert!(table(&shelf, &manifests, 0).contains("missing"));
        let card = card(&shelf, &manifests[0]);
        assert_eq!(card["path"], Value::Null);
        assert!(card["problem"].as_str().is_some_and(|problem| problem.contains("m.gguf")), "{card}");
        Ok(())
    }
}
