//! The model of a terminal, shown and exchanged by `/model`.

use anyhow::Context;
use kvik_shelf::Kind;

use super::{
    conversation::TerminalChat,
    kept::{FoundConversation, KeptConversations},
};
use kvik_serving::{fetch, settings::home};

/// Maximum models that `/model` lists.
const LISTED_MAX: usize = 50;

impl TerminalChat {
    /// Describes the model, and what of the conversation outlasts the program.
    pub(super) fn greet(&mut self) {
        self.describe_model();
        if self.engine.app.serving.model.embedded {
            self.screen.line("Try \"Who are you?\" or \"My dog is called Bolt.\"");
        }
        self.screen.line("/help lists the commands.");
        if let Err(why) = &self.engine.remembering.settings {
            self.screen.line(&format!("This conversation ends with the context: {why}."));
        }
        if let Err(why) = &self.lasting {
            self.screen.line(&format!("Conversations are kept until this program ends: {why}."));
        }
    }

    fn describe_model(&mut self) {
        let sampling = self.talk.sampling_of(&self.engine.app.serving.model.sampling);
        let model = &self.engine.app.serving.model;
        self.screen.line(&format!(
            "{} ({}), context {} tokens, cache {}",
            model.name,
            model.source.for_host(),
            model.context,
            self.engine.cache
        ));
        if self.talk.verbose {
            self.screen.line(&format!("sampling: {sampling}"));
        }
    }

    /// Shows the model, and those that `/model NAME` could take.
    pub(super) fn show_model(&mut self) -> anyhow::Result<()> {
        self.describe_model();
        let listing = self.model.models_dir.shelf()?.list()?;
        let models = listing.manifests.iter().filter(|manifest| manifest.kind == Kind::Model);
        for manifest in models.take(LISTED_MAX) {
            let mark = if self.model.named() == Some(manifest.name.as_str()) { "*" } else { " " };
            self.screen.line(&format!("{mark} {}", manifest.name));
        }
        self.screen.line("/model NAME goes on with another one, as -m names it");
        Ok(())
    }

    /// Goes on with another model; if it cannot be loaded, with the one before.
    pub(super) fn exchange_model(&mut self, name: &str) -> anyhow::Result<()> {
        let model = self.model.of(&home::text(name)?);
        if let Some(named) = model.named() {
            // What is not there, or takes long to fetch, is found out while the other one still answers.
            fetch::model(named, &model.models_dir)?;
        }
        let carried = self.unlasting()?;
        let remembers = self.engine.remembering.on;
        // Both at once may not fit, and there is one disk cache.
        self.engine.close();
        let opened = match self.setup.open(&model) {
            Ok(engine) => {
                (self.engine, self.model) = (engine, model);
                Ok(())
            }
            Err(error) => {
                self.engine =
                    self.setup.open(&self.model).context("nor can the model before be opened again")?;
                Err(error.context(format!("{} goes on", self.model.source())))
            }
        };
        self.engine.remembering.on = remembers && self.engine.remembering.settings.is_ok();
        self.carry(carried)?;
        self.describe_model();
        opened
    }

    /// The conversation, if it is in the memory of this program alone.
    fn unlasting(&self) -> anyhow::Result<Option<FoundConversation>> {
        match (&self.lasting, &self.id) {
            (Err(_), Some(id)) => KeptConversations(&self.engine.client).find(id).map(Some),
            _ => Ok(None),
        }
    }

    /// Begins the same conversation under another model.
    fn carry(&mut self, carried: Option<FoundConversation>) -> anyhow::Result<()> {
        self.memory = serde_json::Value::Null;
        if let Some(FoundConversation { name, messages, .. }) = carried {
            let name = name.unwrap_or_else(|| "conversation".to_owned());
            self.id = Some(KeptConversations(&self.engine.client).begin(&name, &messages)?);
        }
        Ok(())
    }
}
