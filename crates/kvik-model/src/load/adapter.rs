//! Reads the metadata of an adapter from a GGUF file. Its weights stay in the file until they are packed.

use std::path::Path;

use kvik_text::files::bytes::FileBytes;
use kvik_text::files::gguf::Gguf;
use kvik_text::files::{FileError, TensorSource};

use crate::LoadedAdapter;

use super::gguf::arch;
use super::{ConfigError, LoadError};

/// Maximum absolute value of alpha: beyond it a product could overflow.
const ALPHA_MAX: f64 = 1e6;

impl LoadedAdapter {
    /// Opens a GGUF file.
    pub fn open(path: &Path) -> Result<LoadedAdapter, LoadError> {
        LoadedAdapter::from_gguf(Gguf::open(path)?)
    }

    /// Reads a GGUF file that is already in memory.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<LoadedAdapter, LoadError> {
        LoadedAdapter::from_gguf(Gguf::from_bytes(FileBytes::Owned(bytes)).map_err(FileError::from)?)
    }

    fn from_gguf(file: Gguf) -> Result<LoadedAdapter, LoadError> {
        is(&file, "general.type", "adapter")?;
        is(&file, "adapter.type", "lora")?;
        if file.array_len("adapter.alora.invocation_tokens")?.is_some() {
            let key = "adapter.alora.invocation_tokens";
            return Err(
                ConfigError::new(key, "there", "an adapter that applies from the first token on").into()
            );
        }
        let text = |key: &str| file.text(key).map(|text| text.unwrap_or_default().to_owned());
        Ok(LoadedAdapter {
            name: file.text("general.name")?.map(str::to_owned),
            arch: arch(&file)?,
            alpha: alpha(&file)?,
            task_name: text("adapter.lora.task_name")?,
            prompt_prefix: text("adapter.lora.prompt_prefix")?,
            tensors: TensorSource::from_gguf(file),
        })
    }
}

/// Returns an error if `key` has another value in the file.
fn is(file: &Gguf, key: &str, expected: &str) -> Result<(), ConfigError> {
    match file.text(key)?.unwrap_or("nothing") {
        found if found == expected => Ok(()),
        found => Err(ConfigError::new(key, found, format!("{expected} in the file of an adapter"))),
    }
}

fn alpha(file: &Gguf) -> Result<f32, ConfigError> {
    const KEY: &str = "adapter.lora.alpha";
    let alpha = file.number(KEY)?.unwrap_or(0.0);
    match alpha.abs() <= ALPHA_MAX {
        true => Ok(alpha as f32),
        false => Err(ConfigError::new(KEY, alpha, format!("a number from {} to {ALPHA_MAX}", -ALPHA_MAX))),
    }
}
