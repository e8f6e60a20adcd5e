//! `kvik pull`: downloads a model and gives it a name.

use clap::Args;
use kvik_shelf::{ModelName, ModelSource};

use kvik_serving::{
    fetch,
    settings::{models_dir::ModelsDirArgs, size::ByteSize},
};

/// Fetches a model from the Hugging Face hub, or adds one that is on this machine, and gives it a name
#[derive(Debug, Args)]
#[command(
    after_help = "A download that was interrupted goes on where it was; its checksum is verified, and until then the
name does not exist. Pulling a name again fetches what is newer. A file or directory of this machine stays
where it is. All parts of a split model are fetched.

HF_TOKEN is the token for private and gated models, HF_ENDPOINT another hub; HTTPS_PROXY and NO_PROXY work.

Examples:
  kvik pull hf:Qwen/Qwen3-0.6B-GGUF --name qwen3       the best file, as -m qwen3
  kvik pull hf:Qwen/Qwen3-0.6B-GGUF:Q4_K_M             this quantisation
  kvik pull hf:Qwen/Qwen3-0.6B-GGUF:Q8_0@main          of a branch, tag or commit
  kvik pull hf:owner/repo:sub/model.gguf               this file
  kvik pull /data/model.gguf --name mine               a file that is there"
)]
pub(crate) struct PullArgs {
    // This is text of `--help`; rustdoc takes parts of it for links.
    #[allow(rustdoc::broken_intra_doc_links)]
    /// hf:owner/repo[:file|:QUANT][@revision], or a path
    #[arg(value_name = "SOURCE")]
    source: ModelSource,
    /// Name of the model [default: the source without hf:, or the file's name]
    #[arg(long, value_name = "NAME")]
    name: Option<ModelName>,
    #[command(flatten)]
    dir: ModelsDirArgs,
}

/// Runs the command.
pub(crate) fn run(args: &PullArgs) -> anyhow::Result<()> {
    let shelf = args.dir.shelf()?;
    let name = args.name.clone().map_or_else(|| args.source.default_name(), Ok)?;
    let manifest = fetch::pull(&shelf, &args.source, &name)?;
    println!("{name}  {}  {}", ByteSize(manifest.bytes()), shelf.path(&manifest)?.display());
    Ok(())
}
