//! The flags of adapters.

use std::{path::PathBuf, str::FromStr};

use clap::{Args, builder::FalseyValueParser};

use super::home;

/// The largest absolute scale of an adapter.
pub const SCALE_MAX: f32 = 1000.0;

/// Which adapters are loaded beside the model, and which apply where a request does not say.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Adapters")]
pub struct LoraArgs {
    /// A LoRA adapter in GGUF or a name of `kvik list`, applied to every request that names no other; may be given several times
    #[arg(long, value_name = "FILE")]
    pub lora: Vec<PathBuf>,
    /// The same with a scale; their numbers follow those of --lora
    #[arg(long, value_name = "FILE=SCALE")]
    pub lora_scaled: Vec<ScaledFile>,
    /// Apply adapters only to requests that ask for them
    #[arg(long, value_parser = FalseyValueParser::new())]
    pub lora_init_without_apply: bool,
}

/// A file with a scale, as `FILE=SCALE` or `FILE:SCALE`.
#[derive(Debug, Clone, PartialEq)]
pub struct ScaledFile {
    /// Path or name of the adapter.
    pub path: PathBuf,
    /// Strength with which it applies.
    pub scale: f32,
}

impl LoraArgs {
    /// The files in the order of their numbers.
    pub fn files(&self) -> Vec<ScaledFile> {
        let plain = self.lora.iter().map(|path| ScaledFile { path: path.clone(), scale: 1.0 });
        plain.chain(self.lora_scaled.iter().cloned()).collect()
    }
}

impl FromStr for ScaledFile {
    type Err = String;

    fn from_str(text: &str) -> Result<ScaledFile, String> {
        let (path, scale) = text.rsplit_once(['=', ':']).ok_or("write FILE=SCALE, as style.gguf=0.5")?;
        let number: Option<f32> = scale.parse().ok();
        match number.filter(|scale| scale.abs() <= SCALE_MAX) {
            Some(scale) if !path.is_empty() => Ok(ScaledFile { path: home::path(path.into()), scale }),
            _ => Err(format!(
                "`{scale}` is no scale; write FILE=SCALE with a number from -{SCALE_MAX} to {SCALE_MAX}"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_a_scale_behind_it() {
        let check = |text: &str, expect: Option<(&str, f32)>| {
            let read = text.parse::<ScaledFile>().ok();
            assert_eq!(read, expect.map(|(path, scale)| ScaledFile { path: path.into(), scale }), "{text}");
        };
        check("a.gguf=0.5", Some(("a.gguf", 0.5)));
        check("a.gguf:-2", Some(("a.gguf", -2.0)));
        check("dir=1/a.gguf=0", Some(("dir=1/a.gguf", 0.0)));
        for text in ["a.gguf", "a.gguf=", "a.gguf=x", "a.gguf=nan", "a.gguf=inf", "a.gguf=1e9", "=1", ""] {
            check(text, None);
        }
    }
}
