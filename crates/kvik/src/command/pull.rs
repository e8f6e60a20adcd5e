//! `kvik pull`: downloads a model and gives it a name.

use clap::Args;
use kvik_shelf::{Kind, ModelName, ModelSource, Short};

use kvik_serving::{
    fetch,
    settings::{logging::say_dimmed, models_dir::ModelsDirArgs, size::ByteSize},
};

/// Fetches a model from the Hugging Face hub, or adds one that is on this machine, and gives it a name
#[derive(Debug, Args)]
#[command(
    after_help = "A download that was interrupted goes on where it was; its checksum is verified, and until then the
name does not exist. Pulling a name again fetches what is newer. A file or directory of this machine stays
where it is. All parts of a split model are fetched.

A short name (`kvik search` lists them) is a repository of the hub. Where neither a file nor a quantisation is
named, the best one is fetched that takes at most half of the memory that is free.

HF_TOKEN is the token for private and gated models, else the one that `hf auth login` has stored; HF_ENDPOINT is
another hub; HTTPS_PROXY and NO_PROXY work.

Examples:
  kvik pull qwen3:0.6b                                 by a short name, and named so
  kvik pull qwen3:0.6b-q4_k_m                          in this quantisation
  kvik pull hf:Qwen/Qwen3-0.6B-GGUF --name qwen3       the best file, as -m qwen3
  kvik pull hf:Qwen/Qwen3-0.6B-GGUF:Q4_K_M             this quantisation
  kvik pull hf:Qwen/Qwen3-0.6B-GGUF:Q8_0@main          of a branch, tag or commit
  kvik pull hf:owner/repo:sub/model.gguf               this file
  kvik pull https://huggingface.co/owner/repo          a page of the hub, of a repository or of a file
  kvik pull /data/model.gguf --name mine               a file that is there"
)]
pub(crate) struct PullArgs {
    // This is text of `--help`; rustdoc takes parts of it for links.
    #[allow(rustdoc::broken_intra_doc_links)]
    /// A short name as qwen3:0.6b, hf:owner/repo[:file|:QUANT][@revision], or a path
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
    let (source, name) = args.meant()?;
    let manifest = fetch::pull(&shelf, &source, &name)?;
    println!("{name}  {}  {}", ByteSize(manifest.bytes()), shelf.path(&manifest)?.display());
    if manifest.kind == Kind::Model {
        say_dimmed(&format!("`kvik run {name} PROMPT` asks it, `kvik chat {name}` talks with it"));
    }
    Ok(())
}

impl PullArgs {
    /// The source, a path before a short name; and the name of `--name`, else of the short name, else of the source.
    fn meant(&self) -> anyhow::Result<(ModelSource, ModelName)> {
        let short = match &self.source {
            ModelSource::Path(path) if !path.exists() => path.to_str().and_then(Short::of),
            _ => None,
        };
        let (source, short_name) = match short {
            Some(Short { name, source }) => (ModelSource::Hub(source), Some(name)),
            None => (self.source.clone(), None),
        };
        let name = match self.name.clone().or(short_name) {
            Some(name) => name,
            None => source.default_name()?,
        };
        Ok((source, name))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Flags {
        #[command(flatten)]
        pull: PullArgs,
    }

    #[test]
    fn a_source_is_a_path_or_a_short_name_or_of_the_hub() {
        let check = |words: &[&str], source: &str, name: &str| {
            let args = Flags::try_parse_from([&["kvik"], words].concat()).unwrap().pull;
            let (found, usual) = args.meant().unwrap();
            assert_eq!((found.to_string(), usual.as_str()), (source.to_owned(), name), "{words:?}");
        };
        check(&["qwen3:0.6b"], "hf:unsloth/Qwen3-0.6B-GGUF", "qwen3:0.6b");
        check(&["qwen3:0.6b-q8_0"], "hf:unsloth/Qwen3-0.6B-GGUF:Q8_0", "qwen3:0.6b-q8_0");
        check(&["hf:o/r:Q8_0"], "hf:o/r:Q8_0", "o/r:Q8_0");
        check(&["https://huggingface.co/o/r/blob/main/m.gguf"], "hf:o/r:m.gguf", "o/r:m.gguf");
        check(&["/nowhere/m.gguf"], "/nowhere/m.gguf", "m");
        check(&["not a name!", "--name", "mine"], "not a name!", "mine");
    }
}
