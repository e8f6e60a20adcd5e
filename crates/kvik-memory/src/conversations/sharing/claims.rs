//! Names of conversations: one record each, so that no two nodes give one name to two conversations of a tenant.
//!
//! A name is taken where the conversation of its record is called so, or while somebody who has claimed it is about to
//! write that: whoever ends before leaves a claim that lapses.

use super::{ATTEMPTS, Result, Sharing};
use crate::clock::unix_millis;
use crate::conversations::error::ConversationError;
use crate::conversations::fleet::record::{NAME, NameClaim, name_name};
use crate::conversations::head::ConversationKey;
use crate::shared::SharedError;

/// What became of a claim.
pub(super) enum Claimed {
    /// The name is the conversation's; the record has this version.
    Own(u64, NameClaim),
    Taken,
}

impl Sharing<'_> {
    /// The conversation that has a name, as far as its record says; it may be called otherwise by now.
    pub(super) fn owner(&self, tenant: &str, name: &str) -> Result<Option<ConversationKey>> {
        let found = self.name_claim(tenant, name);
        let found = found.map_err(|_| ConversationError::Elsewhere(name.to_owned()))?;
        let claim = found.map(|(_, claim)| claim).filter(|claim| !claim.id.is_empty());
        Ok(claim.map(|claim| ConversationKey { tenant: tenant.to_owned(), id: claim.id }))
    }

    /// Claims a name for a conversation.
    pub(super) fn claim(
        &self,
        key: &ConversationKey,
        name: &str,
    ) -> std::result::Result<Claimed, SharedError> {
        for _ in 0..ATTEMPTS {
            let found = self.name_claim(&key.tenant, name)?;
            let version = found.as_ref().map_or(0, |(version, _)| *version);
            if let Some((_, other)) = found.filter(|(_, claim)| claim.id != key.id)
                && self.is_taken(key, &other)?
            {
                return Ok(Claimed::Taken);
            }
            let claim = NameClaim { name: name.to_owned(), id: key.id.clone(), until: self.lease_end() };
            match self.store.put(NAME, &name_name(&key.tenant, name), version, &claim) {
                Ok(version) => return Ok(Claimed::Own(version, claim)),
                Err(SharedError::Conflict { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Claimed::Taken)
    }

    /// Gives up a name that a conversation had or was to have.
    pub(super) fn release_name(
        &self,
        key: &ConversationKey,
        name: &str,
    ) -> std::result::Result<(), SharedError> {
        let Some((version, claim)) = self.name_claim(&key.tenant, name)? else { return Ok(()) };
        if claim.id != key.id {
            return Ok(());
        }
        // Nor does the store know the name any more.
        let free = NameClaim { name: String::new(), id: String::new(), until: 0 };
        match self.store.put(NAME, &name_name(&key.tenant, name), version, &free) {
            // Somebody else has it by now.
            Err(SharedError::Conflict { .. }) => Ok(()),
            released => released.map(drop),
        }
    }

    /// Whether nobody can have taken over a claim yet, also where clocks differ.
    pub(super) fn is_sure(&self, claim: &NameClaim) -> bool {
        claim.until > unix_millis() + self.fleet.lease.as_millis() as u64 / 2
    }

    fn name_claim(
        &self,
        tenant: &str,
        name: &str,
    ) -> std::result::Result<Option<(u64, NameClaim)>, SharedError> {
        let found = self.store.get::<NameClaim>(NAME, &name_name(tenant, name))?;
        Ok(found.filter(|(_, claim)| claim.name == name || claim.id.is_empty()))
    }

    /// Whether another conversation has what it has claimed, or may still take it.
    fn is_taken(
        &self,
        beside: &ConversationKey,
        claim: &NameClaim,
    ) -> std::result::Result<bool, SharedError> {
        if claim.id.is_empty() || claim.until > unix_millis() {
            return Ok(!claim.id.is_empty());
        }
        let key = ConversationKey { tenant: beside.tenant.clone(), id: claim.id.clone() };
        let found = self.conversation(&key)?;
        let head = found.as_ref().and_then(|(_, shared)| shared.content()).map(|content| &content.head);
        Ok(head.is_some_and(|head| head.name.as_deref() == Some(&claim.name)))
    }
}
