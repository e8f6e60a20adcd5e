//! The LoRA adapters of a model: their names, and the default mix.

use super::HostText;
use std::{
    collections::HashMap,
    path::Path,
    sync::{PoisonError, RwLock},
};

use anyhow::{Context, bail};
use kvik_engine::api::{AdapterId, AdapterMix, AdapterUse};
use kvik_kernels::Pool;
use kvik_memory::hex;
use kvik_model::load::LoadedAdapter;
use kvik_model::{ADAPTERS_MAX, Adapter, Adapters, Model};
use serde::{Deserialize, Serialize};

use super::fetch::{self, Located};
use crate::settings::{
    lora::{LoraArgs, ScaledFile},
    models_dir::ModelsDirArgs,
};

/// The adapters of a server.
#[derive(Default)]
pub struct LoraAdapters {
    /// Descriptions, by number.
    cards: Vec<LoraCard>,
    adapters: Adapters,
    /// The default scale of each adapter; 0 where it does not apply.
    usual: RwLock<Vec<f32>>,
}

/// Description of an adapter.
#[derive(Debug, Clone, PartialEq)]
pub struct LoraCard {
    /// Its name on the shelf, or the stem of its file's, by which requests name it.
    pub name: String,
    /// Path of its file.
    pub path: HostText,
    /// The scale in a request that names the adapter as its model.
    pub scale: f32,
    /// A description of the task that it was trained for.
    pub task_name: String,
    /// Text with which its prompts begin.
    pub prompt_prefix: String,
    /// Digest of its weights.
    pub digest: [u8; 32],
}

/// The record of an adapter with its scale.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WrittenUse {
    /// Digest of its weights, in hexadecimal.
    digest: String,
    scale: f32,
}

impl LoraAdapters {
    /// Loads the adapters of the flags for a model.
    pub fn open(
        args: &LoraArgs,
        dir: &ModelsDirArgs,
        model: &Model,
        pool: &Pool,
    ) -> anyhow::Result<LoraAdapters> {
        let files = args.files();
        if files.len() > ADAPTERS_MAX {
            bail!("--lora: {} adapters are too many; the limit is {ADAPTERS_MAX}", files.len());
        }
        let (mut cards, mut adapters): (Vec<LoraCard>, Vec<Adapter>) = (Vec::new(), Vec::new());
        for ScaledFile { path, scale } in files {
            let Located { path, name } = fetch::adapter(&path, dir)?;
            let file = LoadedAdapter::open(&path);
            let file = file.with_context(|| format!("the adapter {} cannot be read", path.display()))?;
            let adapter = Adapter::load(&file, model, pool);
            let adapter =
                adapter.with_context(|| format!("the adapter {} cannot be used", path.display()))?;
            let card = LoraCard::new(name, &path, scale, file, adapter.digest());
            if let Some(other) = cards.iter().find(|other| other.name == card.name) {
                let (path, name) = (card.path.for_host(), &card.name);
                bail!(
                    "the adapters {} and {path} are both called `{name}`; give one another name",
                    other.path.for_host()
                );
            }
            tracing::info!(
                "adapter {} `{}` of {}: {} matrices, {} KiB, scale {scale}",
                cards.len(),
                card.name,
                card.path.for_host(),
                adapter.matrices(),
                adapter.bytes() >> 10
            );
            cards.push(card);
            adapters.push(adapter);
        }
        let applies = !args.lora_init_without_apply;
        let usual = cards.iter().map(|card| if applies { card.scale } else { 0.0 }).collect();
        Ok(LoraAdapters { cards, adapters: Adapters::new(adapters), usual: RwLock::new(usual) })
    }

    /// The adapters, as the engine uses them.
    pub fn adapters(&self) -> Adapters {
        self.adapters.clone()
    }

    /// Descriptions of the adapters, by number.
    pub fn cards(&self) -> &[LoraCard] {
        &self.cards
    }

    /// The names of adapters by the digests of the mixes that apply them alone, at the scale of requests that name
    /// them.
    pub fn names(&self) -> HashMap<[u8; 32], String> {
        let mixes = self.cards.iter().zip(0..).filter_map(|(card, number)| {
            let alone = AdapterUse { adapter: AdapterId(number), scale: card.scale };
            Some((AdapterMix::new([(alone, card.digest)])?.digest(), card.name.clone()))
        });
        mixes.collect()
    }

    /// The number of the adapter with this name.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.cards.iter().position(|card| card.name == name)
    }

    /// The default scales, by number.
    pub fn usual_scales(&self) -> Vec<f32> {
        // The scales are consistent after any panic.
        self.usual.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets the default scales; running requests are unaffected.
    pub fn set_usual(&self, scales: Vec<f32>) {
        *self.usual.write().unwrap_or_else(PoisonError::into_inner) = scales;
    }

    /// The default mix.
    pub fn usual(&self) -> Option<AdapterMix> {
        if self.cards.is_empty() { None } else { self.mix(&self.usual_scales()) }
    }

    /// The mix for requests that name this adapter as their model.
    pub fn alone(&self, number: usize) -> Option<AdapterMix> {
        let scale = |(index, card): (usize, &LoraCard)| if index == number { card.scale } else { 0.0 };
        self.mix(&self.cards.iter().enumerate().map(scale).collect::<Vec<f32>>())
    }

    /// The record of a mix, by digest and scale, so that it is independent of the adapters' numbers.
    pub fn written(&self, mix: Option<&AdapterMix>) -> Vec<WrittenUse> {
        let uses = mix.map_or(&[][..], AdapterMix::uses).iter();
        let written = uses.filter_map(|used| {
            let card = self.cards.get(used.adapter.0 as usize)?;
            Some(WrittenUse { digest: hex::written(card.digest), scale: used.scale })
        });
        written.collect()
    }

    /// The mix of a record. An adapter that is no longer loaded gets an invalid number: the mix still identifies cached
    /// blocks, but cannot be computed.
    pub fn read(&self, written: &[WrittenUse]) -> Option<AdapterMix> {
        AdapterMix::new(written.iter().filter_map(|WrittenUse { digest, scale }| {
            let number = self.cards.iter().position(|card| hex::written(card.digest) == *digest);
            let adapter = AdapterId(number.map_or(u32::MAX, |number| number as u32));
            Some((AdapterUse { adapter, scale: *scale }, hex::read(digest)?))
        }))
    }

    /// The adapters with these scales, by number.
    pub fn mix(&self, scales: &[f32]) -> Option<AdapterMix> {
        let uses = (0..).zip(scales);
        self.adapters.mix(uses.map(|(id, &scale)| AdapterUse { adapter: AdapterId(id), scale }))
    }
}

impl LoraCard {
    fn new(name: String, path: &Path, scale: f32, file: LoadedAdapter, digest: [u8; 32]) -> LoraCard {
        let LoadedAdapter { task_name, prompt_prefix, .. } = file;
        LoraCard { name, path: path.display().to_string().into(), scale, task_name, prompt_prefix, digest }
    }
}
