//! The flags of KV formats.

use std::{fs::File, io::Read, path::Path, path::PathBuf, str::FromStr};

use anyhow::{Context, bail, ensure};
use clap::{
    Args,
    builder::{PossibleValuesParser, TypedValueParser},
};
use kvik_kernels::{KvFormat, KvFormats};
use kvik_model::KvMap;

/// Maximum bytes of a map file: runs of a thousand layers with comments are far smaller.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The formats of keys and values in the cache.
#[derive(Debug, Clone, Default, Args)]
pub struct KvArgs {
    /// Format of keys and values in the cache: f32, f16, bf16, q8, q6, q5, q4 or q3; keys/values, as q8/q4; by layer,
    /// as 0-3:f16,4-27:q8/q4; or auto:5.0, the best within 5 bits a number, chosen by what `kvik eval
    /// --sensitivity` measured for this model [default: f16]
    #[arg(long, value_name = "FORMAT")]
    kv: Option<KvChoice>,
    /// File with the formats by layer: a run such as 0-3:f16 a line, and # before comments
    #[arg(long, value_name = "FILE")]
    pub kv_map: Option<PathBuf>,
    /// Format of keys [default: that of --kv]
    #[arg(long, value_name = "FORMAT", value_parser = kv_format())]
    kv_k: Option<KvFormat>,
    /// Format of values [default: that of --kv]
    #[arg(long, value_name = "FORMAT", value_parser = kv_format())]
    kv_v: Option<KvFormat>,
}

/// The value of `--kv`.
#[derive(Debug, Clone, PartialEq)]
pub enum KvChoice {
    /// The formats themselves.
    Map(KvMap),
    /// The best formats within an average of this many bits a number.
    Auto(f64),
}

impl FromStr for KvChoice {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<KvChoice> {
        let bits = match text.split_once(':') {
            Some(("auto", bits)) => bits,
            None if text == "auto" => "",
            _ => return Ok(KvChoice::Map(text.parse()?)),
        };
        match bits.parse() {
            Ok(bits) if (1.0..=64.0).contains(&bits) => Ok(KvChoice::Auto(bits)),
            _ => bail!("auto needs the bits a number may take on average, from 1 to 64, as auto:5.0"),
        }
    }
}

/// Parser of a KV format; its help lists all of them.
fn kv_format() -> impl TypedValueParser<Value = KvFormat> {
    PossibleValuesParser::new(KvFormat::ALL.map(KvFormat::name))
        .map(|name| name.parse().expect("the possible values are names of formats"))
}

impl KvArgs {
    /// The choice of formats by the flags.
    pub fn choice(&self) -> anyhow::Result<KvChoice> {
        let choice = match (&self.kv, &self.kv_map) {
            (Some(_), Some(_)) => bail!(
                "--kv and --kv-map are both set, by flags, environment or configuration file; remove one of them"
            ),
            (Some(choice), None) => choice.clone(),
            (None, Some(path)) => {
                KvChoice::Map(read(path).with_context(|| format!("--kv-map {}", path.display()))?)
            }
            (None, None) => KvChoice::Map(KvFormat::F16.into()),
        };
        if self.kv_k.is_none() && self.kv_v.is_none() {
            return Ok(choice);
        }
        let same = match &choice {
            KvChoice::Map(map) => map.same(),
            KvChoice::Auto(_) => None,
        };
        let Some(KvFormats { k, v }) = same else {
            bail!("--kv-k and --kv-v say one format for all layers; with formats by layer, remove them");
        };
        Ok(KvChoice::Map(KvFormats { k: self.kv_k.unwrap_or(k), v: self.kv_v.unwrap_or(v) }.into()))
    }

    /// The flag that names the formats, for errors.
    pub fn flag(&self) -> &'static str {
        if self.kv_map.is_some() { "--kv-map" } else { "--kv" }
    }
}

fn read(path: &Path) -> anyhow::Result<KvMap> {
    let mut text = String::new();
    let file = File::open(path).context("the file cannot be read")?;
    let mut bounded = file.take(FILE_BYTES_MAX + 1);
    bounded.read_to_string(&mut text).context("the file cannot be read; it must be text in UTF-8")?;
    ensure!(text.len() as u64 <= FILE_BYTES_MAX, "the file is too long; a map has at most 1 MiB");
    Ok(KvMap::from_lines(&text)?)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        kv: KvArgs,
    }

    fn map(flags: &[&str]) -> Result<String, String> {
        let args = [&["kvik"], flags].concat();
        let flags = Flags::try_parse_from(args).map_err(|error| error.to_string())?;
        let choice = flags.kv.choice().map_err(|error| format!("{error:#}"))?;
        Ok(match choice {
            KvChoice::Map(map) => map.to_string(),
            KvChoice::Auto(bits) => format!("{bits} bits"),
        })
    }

    #[test]
    fn formats_are_read_from_every_flag() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("map");
        fs::write(&path, "# the first layers\n0-1: f16\n2-5: q8/q4 # the rest\n").unwrap();
        let check = |flags: &[&str], expect: &str| assert_eq!(map(flags).as_deref(), Ok(expect), "{flags:?}");
        check(&[], "f16");
        check(&["--kv", "q8"], "q8");
        check(&["--kv", "q8/q4"], "q8/q4");
        check(&["--kv", "0-3:f16,4:q4"], "0-3:f16,4:q4");
        check(&["--kv-map", path.to_str().unwrap()], "0-1:f16,2-5:q8/q4");
        check(&["--kv", "q8", "--kv-v", "q4"], "q8/q4");
        check(&["--kv-k", "q8"], "q8/f16");
        check(&["--kv", "auto:5.0"], "5 bits");
    }

    #[test]
    fn errors_name_the_flag_and_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("map");
        fs::write(&path, "0-1: f16\n3: q8\n").unwrap();
        let check = |flags: &[&str], words: &[&str]| {
            let error = map(flags).unwrap_err();
            for word in words {
                assert!(error.contains(word), "{error} says {word}");
            }
        };
        let file = path.to_str().unwrap();
        check(&["--kv", "q7"], &["--kv", "q7", "f16"]);
        check(&["--kv", "0-3:f16,2:q8"], &["--kv", "layer 2"]);
        check(&["--kv-map", file], &["--kv-map", file, "layer 2 is missing"]);
        check(&["--kv-map", "/nowhere/map"], &["--kv-map", "/nowhere/map"]);
        check(&["--kv-map", "/dev/zero"], &["--kv-map", "1 MiB"]);
        check(&["--kv", "q8", "--kv-map", file], &["--kv and --kv-map", "remove"]);
        check(&["--kv", "0-3:f16,4:q8", "--kv-k", "q4"], &["--kv-k", "remove"]);
        check(&["--kv", "auto:5", "--kv-v", "q4"], &["--kv-v", "remove"]);
        for auto in ["auto", "auto:", "auto:0", "auto:-1", "auto:inf", "auto:nan", "auto:65", "auto:q8"] {
            check(&["--kv", auto], &["--kv", "auto:5.0"]);
        }
    }
}
