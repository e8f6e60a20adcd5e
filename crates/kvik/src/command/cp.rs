//! `kvik cp`: gives a model a second name.

use clap::Args;
use kvik_shelf::ModelName;

use kvik_serving::settings::models_dir::ModelsDirArgs;

/// Gives a model a second name; its files are shared, and stay until the last name is removed
#[derive(Debug, Args)]
#[command(after_help = "Example:
  kvik cp Qwen/Qwen3-0.6B-GGUF qwen3")]
pub(crate) struct CpArgs {
    /// A name of `kvik list`
    from: String,
    /// The new name
    to: ModelName,
    #[command(flatten)]
    dir: ModelsDirArgs,
}

/// Runs the command.
pub(crate) fn run(args: &CpArgs) -> anyhow::Result<()> {
    args.dir.shelf()?.copy(&args.from, &args.to)?;
    println!("{} is also {}", args.from, args.to);
    Ok(())
}
