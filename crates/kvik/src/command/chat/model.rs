//! The model of a terminal, shown and exchanged by `/model`.

use super::{
    conversation::TerminalChat,
    kept::{FoundConversation, KeptConversations},
};
use kvik_server::clock::spoken;
use kvik_serving::titled;

/// Maximum models that `/model` lists.
const LISTED_MAX: usize = 50;

impl TerminalChat {
    /// Describes the model, and what of the conversation outlasts the program.
    pub(super) fn greet(&mut self) {
        self.describe_model();
        if self.backend.model.is_embedded {
            self.screen.line("Try \"Who are you?\" or \"My dog is called Bolt.\"");
        }
        self.screen.line("/help lists the commands.");
        if let Err(why) = &self.backend.remembering.settings {
            self.screen.line(&format!("This conversation ends with the context: {why}."));
        }
        if let Err(why) = &self.lasting {
            self.screen.line(&format!("Conversations are kept until this program ends: {why}."));
        }
    }

    pub(super) fn describe_model(&mut self) {
        let model = &self.backend.model;
        let used = self.backend.memory_used().map(|bytes| format!(", {bytes} in memory"));
        let loaded = model.loaded_in.map(|took| format!(", loaded in {}", spoken(took)));
        let measured: String = used.into_iter().chain(loaded).collect();
        let title = titled(&model.name, &model.source);
        self.screen.line(&format!("{title}, context {} tokens{measured}", model.context));
        if self.talk.verbose {
            self.screen.line(&format!("sampling: {}", self.talk.sampling_of(&model.sampling)));
        }
    }

    /// Shows the model, and those that `/model NAME` could take.
    pub(super) fn show_model(&mut self) -> anyhow::Result<()> {
        self.describe_model();
        for (name, is_present) in self.backend.others()?.into_iter().take(LISTED_MAX) {
            let mark = if is_present { "*" } else { " " };
            self.screen.line(&format!("{mark} {name}"));
        }
        let names = if self.backend.is_remote() { "a name of the server" } else { "as -m names it" };
        self.screen.line(&format!("/model NAME goes on with another one, {names}"));
        Ok(())
    }

    /// Goes on with another model; if it cannot be loaded, with the one before.
    pub(super) fn exchange_model(&mut self, name: &str) -> anyhow::Result<()> {
        let carried = self.unlasting()?;
        let opened = self.backend.exchange(name)?;
        self.carry(carried)?;
        self.describe_model();
        opened
    }

    /// The conversation, if it is in the memory of this program alone.
    fn unlasting(&self) -> anyhow::Result<Option<FoundConversation>> {
        match (&self.lasting, &self.id) {
            (Err(_), Some(id)) => KeptConversations(&self.backend).find(id).map(Some),
            _ => Ok(None),
        }
    }

    /// Begins the same conversation under another model.
    fn carry(&mut self, carried: Option<FoundConversation>) -> anyhow::Result<()> {
        self.memory = serde_json::Value::Null;
        if let Some(FoundConversation { name, messages, .. }) = carried {
            let name = name.unwrap_or_else(|| "conversation".to_owned());
            self.id = Some(KeptConversations(&self.backend).begin(&name, &messages)?);
        }
        Ok(())
    }
}
