//! Which backend answers a command: by its flags, the servers that run, and the models that they have.

use std::io::IsTerminal;

use anyhow::{anyhow, bail};
use axum::http::Method;
use clap::{Arg, ArgMatches, Args, Command, parser::ValueSource};
use kvik_shelf::Kind;

use super::{
    Backend,
    remote::{self, RemoteModel, ServedModel, ServedShelf},
};
use crate::command::{
    client::{AskError, Client},
    remote::{Candidate, ServerArgs},
};
use kvik_serving::{
    causes::with_causes,
    fetch,
    names::{self, Named},
    settings::{
        logging::say_dimmed,
        model::{EMBEDDED, Meant, ModelArgs},
    },
};

/// Headings of flags that say how a model is loaded.
const LOADING: [&str; 7] =
    ["Model", "Cache", "Cache of a fleet", "Adapters", "Capacity", "Machine", "Memory"];
/// Flags under these headings that a server can be asked for.
const ASKED: [&str; 3] = ["model", "models_dir", "memory"];
/// The flag under another heading that says where conversations of this process are.
const STATE: &str = "state_dir";

/// Where answers come from.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Server")]
pub(crate) struct BackendArgs {
    /// Load the model in this process, also where a running server has it
    #[arg(long)]
    local: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// The first flag on the command line that says how a model is loaded, or where its conversations are: a server has
/// decided that already. `command` is the one that `matches` are of.
pub(crate) fn loading_flag(command: &Command, matches: &ArgMatches) -> Option<String> {
    let is_loading = |arg: &&Arg| {
        let (id, heading) = (arg.get_id().as_str(), arg.get_help_heading().unwrap_or_default());
        id == STATE || LOADING.contains(&heading) && !ASKED.contains(&id)
    };
    let is_given = |arg: &&Arg| matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
    let mut given = command.get_arguments().filter(is_loading).filter(is_given);
    given.find_map(|arg| arg.get_long().map(str::to_owned))
}

/// A model as a command asks for it.
#[derive(Debug, Default)]
struct Wanted {
    /// As the command says it, else the default one of this machine; `None` if there is none.
    text: Option<String>,
    /// Whether the command says it.
    is_named: bool,
    /// Its name on this machine's shelf.
    name: Option<String>,
    /// Its file, or the word for the embedded one, as a server writes it down.
    file: Option<String>,
}

impl Wanted {
    /// The model of these flags, from which the default one has not been taken yet.
    fn of(model: &ModelArgs) -> Wanted {
        let mut whole = model.clone();
        whole.take_default();
        let (dir, named) = (&model.models_dir, whole.meant());
        let found = |text: Meant<'_>| names::find(&dir.shelf().ok()?, text, Kind::Model).ok();
        let name = named.and_then(found).map(|found| match found {
            Named::Here(manifest) => manifest.name.to_string(),
            Named::OnHub { name, .. } => name.to_string(),
        });
        let path =
            |text: Meant<'_>| fetch::without_download(text, Kind::Model, dir).ok()??.canonicalize().ok();
        let file = named.map(|text| path(text).and_then(|path| path.to_str().map(str::to_owned)));
        let file = file.unwrap_or_else(|| Some(EMBEDDED.to_owned()));
        Wanted { text: whole.model.clone(), is_named: model.model.is_some(), name, file }
    }

    /// The model of a server that this is; `recorded` is the file of its only model.
    fn find<'a>(&self, shelf: &'a ServedShelf, recorded: Option<&str>) -> Option<&'a ServedModel> {
        let Some(text) = &self.text else { return shelf.only() };
        let is_embedded = text == EMBEDDED;
        let is_it = |model: &&ServedModel| match is_embedded {
            true => model.source == ModelArgs::EMBEDDED_SOURCE,
            false => model.is_called(text) || self.name.as_deref().is_some_and(|name| model.is_called(name)),
        };
        let by_file = || shelf.only().filter(|_| self.file.is_some() && self.file.as_deref() == recorded);
        shelf.models.iter().find(is_it).or_else(by_file)
    }
}

impl BackendArgs {
    /// The server that answers with the model of these flags, from which the default one has not been taken yet; `None`
    /// if it is to be loaded here. `loading` is a flag of loading that the command line has.
    pub(crate) fn server(&self, model: &ModelArgs, loading: Option<&str>) -> anyhow::Result<Option<Backend>> {
        if self.local {
            return Ok(None);
        }
        if self.server.is_named() {
            return self.named(model, loading).map(Some);
        }
        let candidates = self.server.candidates();
        if candidates.is_empty() {
            return Ok(None);
        }
        if let Some(flag) = loading {
            tell(&format!("loaded here, for --{flag}"));
            return Ok(None);
        }
        let wanted = Wanted::of(model);
        for candidate in &candidates {
            if let Some(backend) = self.running(candidate, &wanted)? {
                return Ok(Some(backend));
            }
        }
        Ok(None)
    }

    /// The server that is named, which has to have the model.
    fn named(&self, model: &ModelArgs, loading: Option<&str>) -> anyhow::Result<Backend> {
        let url = self.server.url()?;
        if let Some(flag) = loading {
            bail!(
                "--{flag} is for a model that is loaded here, and {url} is a server that has loaded its own; leave it out, or \
                 add --local"
            );
        }
        let wanted = Wanted::of(model);
        let client = self.client(&url)?;
        let shelf = ServedShelf::read(&client).map_err(or_local)?;
        let recorded = self.server.candidates().into_iter().find_map(|candidate| candidate.model);
        let found = wanted.find_loading(&client, shelf, recorded.as_deref());
        let (shelf, name) = match found {
            (shelf, Some(name)) => (shelf, name),
            // The default model of this machine need not be there.
            (shelf, None) if !wanted.is_named => match shelf.only().map(|model| model.name.clone()) {
                Some(name) => (shelf, name),
                None => bail!("{url} has several models, name one with -m: {}", shelf.names()),
            },
            (shelf, None) => bail!(
                "{url} has no model `{}`; it has {}, and --local loads another one here",
                wanted.text.unwrap_or_default(),
                shelf.names()
            ),
        };
        open(client, &url, &shelf, &name)
    }

    /// A running server, if it answers and has the model.
    fn running(&self, candidate: &Candidate, wanted: &Wanted) -> anyhow::Result<Option<Backend>> {
        let Candidate { url, model } = candidate;
        let client = self.client(url)?;
        let shelf = match ServedShelf::read(&client) {
            Err(error @ AskError::Key { .. }) => return Err(or_local(error)),
            // Something else listens there, or it ends.
            Err(_) => return Ok(None),
            Ok(shelf) => shelf,
        };
        match wanted.find_loading(&client, shelf, model.as_deref()) {
            (shelf, Some(name)) => open(client, url, &shelf, &name).map(Some),
            (shelf, None) => {
                tell(&format!("loaded here: the kvik at {url} has {}", shelf.names()));
                Ok(None)
            }
        }
    }

    fn client(&self, url: &str) -> anyhow::Result<Client> {
        Client::of_server(url, self.server.key_for(url))
    }
}

impl Wanted {
    /// The server's name for this model. A model that was pulled since the server looked is looked for again.
    fn find_loading(
        &self,
        client: &Client,
        shelf: ServedShelf,
        recorded: Option<&str>,
    ) -> (ServedShelf, Option<String>) {
        let found = |shelf: &ServedShelf| self.find(shelf, recorded).map(|model| model.name.clone());
        if let Some(name) = found(&shelf) {
            return (shelf, Some(name));
        }
        let is_here = self.name.is_some() && self.file.is_some();
        // A tenant may not ask for it, and goes without.
        if shelf.can_pull
            && is_here
            && client.call(Method::POST, "/v1/shelf/reload", None).is_ok()
            && let Ok(again) = ServedShelf::read(client)
        {
            let name = found(&again);
            return (again, name);
        }
        (shelf, None)
    }
}

/// The backend of a server's model, with a line that says so.
fn open(client: Client, url: &str, shelf: &ServedShelf, name: &str) -> anyhow::Result<Backend> {
    tell(&format!("{name} answers, of the kvik at {url}; --local loads it here"));
    let facts = remote::facts(&client, shelf, name)?;
    Ok(Backend::of_server(client, RemoteModel { url: url.to_owned() }, facts))
}

/// The error of a server, with the way that needs none.
fn or_local(error: AskError) -> anyhow::Error {
    anyhow!("{}; --local loads the model here", with_causes(&error.into()))
}

/// Says where answers come from, to a person.
fn tell(text: &str) {
    if std::io::stderr().is_terminal() {
        say_dimmed(text);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn shelf(bytes: Option<u64>, models: &[(&str, &str)]) -> ServedShelf {
        let model = |(name, source): &(&str, &str)| json!({"name": name, "aliases": [], "source": source, "status": "loaded"});
        let models: Vec<Value> = models.iter().map(model).collect();
        let shelf = json!({"object": "shelf", "bytes": bytes, "can_pull": false, "models": models});
        serde_json::from_value(shelf).unwrap()
    }

    fn wanted(text: Option<&str>, name: Option<&str>, file: Option<&str>) -> Wanted {
        let [text, name, file] = [text, name, file].map(|part| part.map(str::to_owned));
        Wanted { is_named: text.is_some(), text, name, file }
    }

    #[test]
    fn a_model_is_found_by_its_names_and_by_its_file() {
        let one = shelf(None, &[("tiny", "m.gguf")]);
        let several = shelf(Some(1), &[("tiny", "/m/tiny.gguf"), ("qwen3:0.6b", "qwen3:0.6b")]);
        let check = |wanted: Wanted, shelf: &ServedShelf, recorded, expect: Option<&str>| {
            let found = wanted.find(shelf, recorded).map(|model| model.name.as_str());
            assert_eq!(found, expect, "{wanted:?}");
        };
        check(wanted(None, None, None), &one, None, Some("tiny"));
        check(wanted(None, None, None), &several, None, None);
        check(wanted(Some("Tiny"), None, None), &one, None, Some("tiny"));
        check(wanted(Some("qwen3"), Some("qwen3:0.6b"), None), &several, None, Some("qwen3:0.6b"));
        check(wanted(Some("other"), Some("other"), Some("/m/other.gguf")), &one, Some("/m/tiny.gguf"), None);
        check(
            wanted(Some("../tiny.gguf"), None, Some("/m/tiny.gguf")),
            &one,
            Some("/m/tiny.gguf"),
            Some("tiny"),
        );
        check(wanted(Some("../tiny.gguf"), None, Some("/m/tiny.gguf")), &several, None, None);
        let embedded = shelf(None, &[("kvik-tiny", ModelArgs::EMBEDDED_SOURCE)]);
        check(wanted(Some(EMBEDDED), None, Some(EMBEDDED)), &embedded, None, Some("kvik-tiny"));
        check(wanted(Some(EMBEDDED), None, Some(EMBEDDED)), &one, Some("/m/tiny.gguf"), None);
        // A tenant is not told the source.
        let hidden = shelf(None, &[("kvik-tiny", "kvik-tiny")]);
        check(wanted(Some(EMBEDDED), None, Some(EMBEDDED)), &hidden, Some(EMBEDDED), Some("kvik-tiny"));
    }
}
