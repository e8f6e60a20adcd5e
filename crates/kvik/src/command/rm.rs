//! `kvik rm`: removes names, and files with their last name.

use clap::Args;
use kvik_shelf::Removed;

use super::output::print;
use kvik_serving::settings::{models_dir::ModelsDirArgs, size::ByteSize};

/// Removes names, and the downloaded files that no other name uses
#[derive(Debug, Args)]
#[command(after_help = "Files that were added by their path stay where they are.

Examples:
  kvik rm qwen3
  kvik rm qwen3 notes
  kvik rm --leftovers        files of downloads that were given up, and others without a name")]
pub(crate) struct RmArgs {
    /// Names of `kvik list`
    #[arg(value_name = "NAME", required_unless_present = "leftovers")]
    names: Vec<String>,
    /// Remove the files of the directory that no name uses
    #[arg(long)]
    leftovers: bool,
    #[command(flatten)]
    dir: ModelsDirArgs,
}

/// Runs the command.
pub(crate) fn run(args: &RmArgs) -> anyhow::Result<()> {
    let shelf = args.dir.shelf()?;
    for name in &args.names {
        print(&format!("{name}: {}", words(&shelf.remove(name)?)))?;
    }
    if args.leftovers {
        print(&format!("leftovers: {}", words(&shelf.remove_leftovers()?)))?;
    }
    Ok(())
}

/// A description of the removal.
fn words(removed: &Removed) -> String {
    match (removed.is_partial, removed.files.len()) {
        (true, _) => {
            "files stay, because a manifest that cannot be read may use them; see kvik list".to_owned()
        }
        (false, 0) => "removed; no file is without a name".to_owned(),
        (false, 1) => format!("removed with its file, {}", ByteSize(removed.bytes)),
        (false, count) => format!("removed with {count} files, {}", ByteSize(removed.bytes)),
    }
}
