//! Local copies of shared conversations, replaced as other nodes change them. Each change is one transaction.

use std::collections::BTreeMap;

use serde_json::Value;

use super::fleet::Content;
use super::head::{ConversationHead, ConversationKey};
use super::record::Record;
use super::shelf::Shelf;
use crate::deletions::Deletion;
use crate::records::RecordsError;

type Result<T> = std::result::Result<T, RecordsError>;

/// Records to write (`Some`) or to remove (`None`).
type Changes = BTreeMap<String, Option<Record>>;

impl Shelf {
    /// Replaces the local copy by the version of the store, and records the deletion of data derived from messages that
    /// another node has taken back.
    pub(super) fn replace(&self, key: &ConversationKey, messages: &[Value], content: &Content) -> Result<()> {
        if let Some(deletions) = &self.deletions
            && let Some(left) = Deletion::of_replaced(&key.tenant, &self.readable(key)?, messages)
        {
            // After the replacement nothing leads to the data derived from these messages any more.
            deletions.begin(&key.owner().part(), left.of_part())?;
        }
        let mut changes = self.removal(key)?;
        changes.extend(said_records(key, messages, content.head.systems));
        changes.insert(key.head(), Some(Record::Head(content.head.clone())));
        changes.insert(key.shared(), Some(Record::Shared(content.clone())));
        self.change(changes)?;
        let mut heads = self.heads();
        heads.note_order(content.head.order);
        heads.elsewhere.remove(key);
        heads.all.insert(key.clone(), content.head.clone());
        heads.bases.insert(key.clone(), content.clone());
        Ok(())
    }

    /// Sets the base: the version in the store when both were equal; `None` if the store has none.
    pub(super) fn set_base(&self, key: &ConversationKey, content: Option<&Content>) -> Result<()> {
        self.change([(key.shared(), content.map(|content| Record::Shared(content.clone())))].into())?;
        let mut heads = self.heads();
        match content {
            Some(content) => drop(heads.bases.insert(key.clone(), content.clone())),
            None => drop(heads.bases.remove(key)),
        }
        Ok(())
    }

    /// Removes the messages and the head of a conversation. The record of the shared version stays until the store has
    /// the deletion.
    pub(super) fn remove_said(&self, key: &ConversationKey) -> Result<()> {
        let mut removal = self.removal(key)?;
        removal.remove(&key.shared());
        self.change(removal)?;
        self.heads().all.remove(key);
        Ok(())
    }

    /// Removes the local copy of a conversation that another node has deleted, and records the deletion of data derived
    /// from it here.
    pub(super) fn drop_copy(&self, key: &ConversationKey) -> Result<()> {
        let (name, had_copy) = {
            let heads = self.heads();
            (heads.all.get(key).and_then(|head| head.name.clone()), heads.has_copy(key))
        };
        // A copy without messages had some before, of which prompts may be noted.
        if let Some(deletions) = self.deletions.as_ref().filter(|_| had_copy) {
            let left = Deletion::of(&key.tenant, &self.readable(key)?, 0);
            deletions.begin(&key.owner(), left.named(name).removed())?;
        }
        self.change(self.removal(key)?)?;
        let mut heads = self.heads();
        heads.forget(key);
        Ok(())
    }

    /// Moves a local copy to another key and head, which the store does not have yet.
    pub(super) fn move_copy(
        &self,
        from: &ConversationKey,
        to: &ConversationKey,
        head: ConversationHead,
    ) -> Result<()> {
        let mut changes: Changes = [(from.head(), None), (from.shared(), None)].into();
        // A record that cannot be read stays where it is.
        for (text, record) in self.table.between(&from.systems(), &from.said_end())? {
            let place = text.strip_prefix(&from.systems()).unwrap_or_default();
            changes.insert(format!("{}{place}", to.systems()), Some(record));
            changes.insert(text, None);
        }
        changes.insert(to.head(), Some(Record::Head(head.clone())));
        self.change(changes)?;
        // Before anybody finds it, and may delete it.
        if let Some(forked) = &self.forked {
            forked(&from.owner(), &to.owner());
        }
        let mut heads = self.heads();
        heads.forget(from);
        heads.all.insert(to.clone(), head);
        Ok(())
    }

    /// Changes only the head of a conversation.
    pub(super) fn set_head(&self, key: &ConversationKey, head: ConversationHead) -> Result<()> {
        self.change([(key.head(), Some(Record::Head(head.clone())))].into())?;
        self.heads().all.insert(key.clone(), head);
        Ok(())
    }

    /// Changes that remove all records of a conversation, also those that cannot be read.
    fn removal(&self, key: &ConversationKey) -> Result<Changes> {
        let said = self.table.keys_between(&key.systems(), &key.said_end())?;
        Ok(said.into_iter().chain([key.head(), key.shared()]).map(|text| (text, None)).collect())
    }

    fn change(&self, changes: Changes) -> Result<()> {
        self.table.change_erasing(changes.keys().map(String::as_str), |text, before| match &changes[text] {
            Some(record) if before.as_ref() == Some(record) => before,
            record => record.clone(),
        })
    }
}

fn said_records(key: &ConversationKey, messages: &[Value], systems: usize) -> Changes {
    let (own, said) = messages.split_at(systems);
    let own = (!own.is_empty()).then(|| (key.systems(), Some(Record::Systems(own.to_vec()))));
    let said = said.iter().enumerate();
    let said = said.map(|(index, message)| (key.message(index), Some(Record::Message(message.clone()))));
    own.into_iter().chain(said).collect()
}
