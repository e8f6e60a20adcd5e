//! A model at a server: which ones the server has, and what it says of one.

use std::{thread, time::Duration};

use anyhow::{Context, bail};
use axum::http::Method;
use kvik_model::load::{SamplingDefaults, SamplingSource, Sourced};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::ModelFacts;
use crate::command::{
    client::{AskError, Client},
    remote::escaped,
};
use kvik_serving::settings::{logging::say_dimmed, model::ModelArgs, size::ByteSize};

/// How long a server may take for its list of models, which it has in memory.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often a server that loads its model is asked again.
const LOOK: Duration = Duration::from_millis(100);

/// A server that answers with one of its models.
pub(super) struct RemoteModel {
    pub(super) url: String,
}

/// The models of a server.
#[derive(Debug, Deserialize)]
pub(crate) struct ServedShelf {
    object: String,
    /// Bytes that its models share; `None` where there is one.
    bytes: Option<u64>,
    pub(super) can_pull: bool,
    pub(super) models: Vec<ServedModel>,
}

/// A model of a server.
#[derive(Debug, Deserialize)]
pub(crate) struct ServedModel {
    pub(crate) name: String,
    aliases: Vec<String>,
    pub(super) source: String,
    status: String,
    bytes_used: Option<u64>,
}

impl ServedShelf {
    /// Reads the list of a server; waits while that loads its model.
    pub(super) fn read(client: &Client) -> Result<ServedShelf, AskError> {
        let mut is_quiet = true;
        loop {
            let read = client.read_within(PATIENCE, "/v1/shelf");
            match read {
                Err(error) if error.is_loading() => {
                    if std::mem::take(&mut is_quiet) {
                        say_dimmed("the server loads its model");
                    }
                    thread::sleep(LOOK);
                }
                read => return ServedShelf::of(client, read?),
            }
        }
    }

    fn of(client: &Client, list: Value) -> Result<ServedShelf, AskError> {
        ServedShelf::parse(list).ok_or_else(|| client.foreign())
    }

    /// The list in a server's answer; `None` if that is something else.
    pub(crate) fn parse(list: Value) -> Option<ServedShelf> {
        let shelf: ServedShelf = serde_json::from_value(list).ok()?;
        (shelf.object == "shelf").then_some(shelf)
    }

    /// The names of the models in memory, and of the others.
    pub(crate) fn standing(&self) -> (Vec<&str>, Vec<&str>) {
        let is_loaded = |model: &&ServedModel| model.status == "loaded";
        let names = |loaded: bool| {
            let models = self.models.iter().filter(move |model| is_loaded(model) == loaded);
            models.map(|model| model.name.as_str()).collect::<Vec<&str>>()
        };
        (names(true), names(false))
    }

    /// The only model of a server that has no other.
    pub(crate) fn only(&self) -> Option<&ServedModel> {
        self.models.first().filter(|_| self.bytes.is_none())
    }

    /// The model of this name.
    pub(crate) fn find(&self, name: &str) -> Option<&ServedModel> {
        self.models.iter().find(|model| model.is_called(name))
    }

    /// The names of all models, as a sentence lists them.
    pub(crate) fn names(&self) -> String {
        let names: Vec<&str> = self.models.iter().map(|model| model.name.as_str()).collect();
        if names.is_empty() { "no model".to_owned() } else { names.join(", ") }
    }
}

impl ServedModel {
    pub(super) fn is_called(&self, name: &str) -> bool {
        let is_alias = |alias: &String| alias.eq_ignore_ascii_case(name);
        self.name.eq_ignore_ascii_case(name) || self.aliases.iter().any(is_alias) || self.source == name
    }
}

impl RemoteModel {
    /// The model of this name, loaded.
    pub(super) fn model_named(&self, client: &Client, name: &str) -> anyhow::Result<ModelFacts> {
        let shelf = ServedShelf::read(client)?;
        let Some(model) = shelf.find(name) else {
            bail!(
                "{} has no model `{name}`; it has {}; `kvik chat --local {name}` loads one here",
                self.url,
                shelf.names()
            )
        };
        facts(client, &shelf, &model.name)
    }
}

/// Facts about a model of a server's list, which is loaded for it.
pub(super) fn facts(client: &Client, shelf: &ServedShelf, name: &str) -> anyhow::Result<ModelFacts> {
    let loaded;
    let shelf = match shelf.find(name) {
        Some(model) if shelf.only().is_none() && model.status != "loaded" => {
            let list = client.call(Method::POST, "/v1/shelf/load", Some(&json!({"model": name})))?;
            loaded = ServedShelf::of(client, list)?;
            &loaded
        }
        _ => shelf,
    };
    let model = shelf.find(name).with_context(|| format!("the server no longer has the model {name}"))?;
    let props = client.call(Method::GET, &format!("/props{}", query(name)), None)?;
    let context = props["default_generation_settings"]["n_ctx"].as_u64().unwrap_or(0);
    Ok(ModelFacts {
        name: model.name.clone(),
        source: model.source.clone(),
        context: usize::try_from(context).unwrap_or(usize::MAX),
        is_embedded: model.source == ModelArgs::EMBEDDED_SOURCE,
        sampling: sampling_of(&props["sampling_defaults"]),
        // When the server loaded it is no matter of this terminal.
        loaded_in: None,
    })
}

/// The names of a server's models, and whether each is `present`.
pub(super) fn names(client: &Client, present: &str) -> Result<Vec<(String, bool)>, AskError> {
    let models = ServedShelf::read(client)?.models.into_iter();
    Ok(models.map(|model| (model.name == present, model.name)).map(|(is, name)| (name, is)).collect())
}

/// The memory that a model of the server takes now; `None` where the server does not say, which is no error.
pub(super) fn memory_used(client: &Client, name: &str) -> Option<ByteSize> {
    let shelf = ServedShelf::read(client).ok()?;
    shelf.find(name)?.bytes_used.map(ByteSize)
}

/// The query that names a model.
pub(super) fn query(name: &str) -> String {
    format!("?model={}", escaped(name))
}

/// The sampling that a server tells.
fn sampling_of(told: &Value) -> SamplingDefaults {
    let mut defaults = SamplingDefaults::KVIK;
    take(&mut defaults.temperature, &told["temperature"]);
    take(&mut defaults.top_k, &told["top_k"]);
    take(&mut defaults.top_p, &told["top_p"]);
    take(&mut defaults.min_p, &told["min_p"]);
    take(&mut defaults.repetition_penalty, &told["repetition_penalty"]);
    take(&mut defaults.presence_penalty, &told["presence_penalty"]);
    take(&mut defaults.frequency_penalty, &told["frequency_penalty"]);
    take(&mut defaults.penalty_last_n, &told["repeat_last_n"]);
    defaults
}

/// Replaces a setting by the one that a server tells, if it is readable.
fn take<T: DeserializeOwned>(setting: &mut Sourced<T>, told: &Value) {
    if let Ok(value) = serde_json::from_value(told["value"].clone()) {
        let source = told["source"].as_str().unwrap_or_default();
        *setting = Sourced { value, source: SamplingSource::named(source, told["family"].as_str()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sampling_of_a_server_is_told_with_its_sources() {
        let told = json!({
            "temperature": {"value": 0.0, "source": "family", "family": "kvik-tiny"},
            "top_k": {"value": 7, "source": "flag"},
            "top_p": {"value": 0.5, "source": "file"},
            "min_p": {"value": "much", "source": "file"},
            "repeat_last_n": {"value": -1, "source": "kvik"},
        });
        assert_eq!(
            sampling_of(&told).to_string(),
            "temperature 0 (family kvik-tiny), top_k 7 (flag), top_p 0.5 (file), min_p 0.05 (kvik)"
        );
        assert_eq!(sampling_of(&told).penalty_last_n.value, -1);
        assert_eq!(sampling_of(&Value::Null), SamplingDefaults::KVIK);
    }

    #[test]
    fn a_model_has_several_names() {
        let list = json!({"object": "shelf", "bytes": 5, "can_pull": true, "models": [
            {"name": "a:1b", "aliases": ["small"], "source": "/m/a.gguf", "status": "loaded", "bytes_used": 9},
            {"name": "b", "aliases": [], "source": "b", "status": "unloaded", "bytes_used": null},
        ]});
        let shelf: ServedShelf = serde_json::from_value(list).unwrap();
        for (name, expect) in [
            ("a:1b", Some("a:1b")),
            ("A:1B", Some("a:1b")),
            ("small", Some("a:1b")),
            ("/m/a.gguf", Some("a:1b")),
        ] {
            assert_eq!(shelf.find(name).map(|model| model.name.as_str()), expect, "{name}");
        }
        assert!(shelf.find("a").is_none() && shelf.only().is_none());
        assert_eq!(["a:1b", "b"].map(|name| shelf.find(name).unwrap().bytes_used), [Some(9), None]);
        assert_eq!(shelf.names(), "a:1b, b");
        assert_eq!(shelf.standing(), (vec!["a:1b"], vec!["b"]));
        assert!(ServedShelf::parse(json!({"object": "list"})).is_none());
    }
}
