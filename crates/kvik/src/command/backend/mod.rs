//! Where the answers of a command come from: a model that is loaded here, or a server of kvik that has it.
//!
//! ```text
//! run, chat -> Backend -> Client -> the routes of `kvik serve`: in this process, or at a server
//! ```
//!
//! Commands are ordinary clients of the routes. They know of a backend what they show, and which model they name.

mod local;
mod remote;
mod select;

use std::{sync::Arc, time::Duration};

use kvik_memory::context::MemorySettings;
use kvik_model::load::SamplingDefaults;
use serde_json::{Value, json};

use super::client::Client;
use kvik_serving::settings::{model::ModelArgs, size::ByteSize};

#[cfg(test)]
pub(crate) use local::remembering;
use local::{LocalModel, Opened};
pub(crate) use local::{Places, Setup};
use remote::RemoteModel;
pub(crate) use remote::ServedShelf;
pub(crate) use select::{BackendArgs, loading_flag};

/// A model that answers, and a client of the routes over it.
pub(crate) struct Backend {
    pub(crate) client: Client,
    pub(crate) model: ModelFacts,
    pub(crate) remembering: Remembering,
    place: Place,
}

enum Place {
    Here(Box<LocalModel>),
    AtServer(RemoteModel),
}

/// A model, as a terminal shows it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ModelFacts {
    pub(crate) name: String,
    pub(crate) source: String,
    /// Tokens of prompt and answer together.
    pub(crate) context: usize,
    pub(crate) is_embedded: bool,
    /// The sampling of requests that set none.
    pub(crate) sampling: SamplingDefaults,
    /// How long loading it here took.
    pub(crate) loaded_in: Option<Duration>,
}

/// Settings of memory beyond the context.
pub(crate) struct Remembering {
    pub(crate) on: bool,
    /// The bounds of its segments, or why memory is unavailable; `None` if they are those of a server.
    pub(crate) settings: Result<Option<MemorySettings>, String>,
}

impl Backend {
    /// Loads a model in this process. With `for_chats` it must be one that answers them.
    pub(crate) fn local(setup: Setup, model: &ModelArgs, for_chats: bool) -> anyhow::Result<Backend> {
        local::open(&Arc::new(setup), model, for_chats).map(Backend::of_local)
    }

    fn of_local((local, client, model, remembering): Opened) -> Backend {
        Backend { client, model, remembering, place: Place::Here(Box::new(local)) }
    }

    fn of_server(client: Client, remote: RemoteModel, model: ModelFacts) -> Backend {
        // The server decides whether it can, and says so in its answer.
        let remembering = Remembering { on: true, settings: Ok(None) };
        Backend { client, model, remembering, place: Place::AtServer(remote) }
    }

    /// Whether a server answers.
    pub(crate) fn is_remote(&self) -> bool {
        matches!(self.place, Place::AtServer(_))
    }

    /// The memory that the model takes now, as far as it is told: its weights, and the keys and values that are there.
    pub(crate) fn memory_used(&self) -> Option<ByteSize> {
        match &self.place {
            Place::Here(local) => Some(ByteSize(local.app.bytes_used())),
            Place::AtServer(_) => remote::memory_used(&self.client, &self.model.name),
        }
    }

    /// The fields with which every body begins: the model, where there may be several.
    pub(crate) fn fields(&self) -> Value {
        match &self.place {
            Place::Here(_) => json!({}),
            Place::AtServer(_) => json!({"model": self.model.name}),
        }
    }

    /// The query by which a route without a body finds the model.
    pub(crate) fn query(&self) -> String {
        match &self.place {
            Place::Here(_) => String::new(),
            Place::AtServer(_) => remote::query(&self.model.name),
        }
    }

    /// Ends running work; of a model that is loaded here, also the memory that it takes.
    pub(crate) fn close(&self) {
        if let Place::Here(local) = &self.place {
            local.close();
        }
    }

    /// Names of models that can be gone on with, and whether each is the present one.
    pub(crate) fn others(&self) -> anyhow::Result<Vec<(String, bool)>> {
        match &self.place {
            Place::Here(local) => local.others(),
            Place::AtServer(_) => Ok(remote::names(&self.client, &self.model.name)?),
        }
    }

    /// Goes on with another model at the same place. `Ok(Err)` is why the present one goes on instead.
    pub(crate) fn exchange(&mut self, name: &str) -> anyhow::Result<anyhow::Result<()>> {
        let remembers = self.remembering.on;
        let outcome = match &self.place {
            Place::Here(local) => {
                let (opened, outcome) = local.exchange(name)?;
                *self = Backend::of_local(opened);
                outcome
            }
            Place::AtServer(server) => {
                self.model = server.model_named(&self.client, name)?;
                Ok(())
            }
        };
        self.remembering.on = remembers && self.remembering.settings.is_ok();
        Ok(outcome)
    }

    /// The state behind the routes of a model that is loaded here.
    #[cfg(test)]
    pub(crate) fn app(&self) -> &kvik_server::app::App {
        match &self.place {
            Place::Here(local) => &local.app,
            Place::AtServer(_) => panic!("a server has it"),
        }
    }
}

impl Remembering {
    /// The field `kvik.memory` of a turn; `None` leaves it to the server.
    pub(crate) fn field(&self) -> Option<bool> {
        match self.settings {
            Ok(None) if self.on => None,
            _ => Some(self.on),
        }
    }
}
