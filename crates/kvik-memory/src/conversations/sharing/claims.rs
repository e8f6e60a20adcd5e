//! Names of conversations: one record each, so that no two nodes give one name to two conversations of a tenant.
//!
//! A name is taken if the conversation in its record has that name, or while a node that has claimed it is about to
//! write the conversation: the claim of a node that ends before lapses. The record of a free name stays for a week.

use std::time::{Duration, Instant};

use super::{ATTEMPTS, Result, Sharing};
use crate::clock::unix_millis;
use crate::conversations::error::ConversationError;
use crate::conversations::fleet::record::{NAME, NameClaim, name_name};
use crate::conversations::fleet::store::TOGETHER;
use crate::conversations::head::ConversationKey;
use crate::shared::SharedError;

/// Time for which the record of a free name stays. A claim that is written while the record is being removed would be
/// lost, and is most likely soon after the name was freed.
const FREE_FOR: Duration = Duration::from_secs(7 * 24 * 3600);
/// Pause between sweeps of the records of free names, and maximum records that one of them reads.
const SWEEPS: Duration = Duration::from_secs(3600);
const SWEPT_MAX: usize = 256;

/// Result of a claim.
pub(super) enum Claimed {
    /// The conversation has the name; the record has this version.
    Own(u64, NameClaim),
    Taken,
}

impl Sharing<'_> {
    /// The conversation that has a name according to the name's record; it may have been renamed since.
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

    /// Releases a name that a conversation had or had claimed.
    pub(super) fn release_name(
        &self,
        key: &ConversationKey,
        name: &str,
    ) -> std::result::Result<(), SharedError> {
        let Some((version, claim)) = self.name_claim(&key.tenant, name)? else { return Ok(()) };
        if claim.id != key.id {
            return Ok(());
        }
        // The record of a free name does not contain the name.
        let free = NameClaim { name: String::new(), id: String::new(), until: unix_millis() };
        match self.store.put(NAME, &name_name(&key.tenant, name), version, &free) {
            // Another conversation has claimed it.
            Err(SharedError::Conflict { .. }) => Ok(()),
            released => released.map(drop),
        }
    }

    /// Removes the records of names that have been free for long, once an hour and some at a time.
    pub(super) fn sweep_names(&self) {
        let Some(after) = self.next_sweep() else { return };
        let Ok(mut names) = self.store.list(NAME) else { return };
        names.retain(|name| *name > after);
        names.sort_unstable();
        let are_more = names.len() > SWEPT_MAX;
        names.truncate(SWEPT_MAX);
        for some in names.chunks(TOGETHER) {
            let found = self.store.ask_together(some, |name| self.store.get::<NameClaim>(NAME, name));
            for (name, found) in some.iter().zip(found) {
                if found.is_ok_and(|found| found.is_some_and(|(_, claim)| is_long_free(&claim))) {
                    // What is left is found by a later sweep.
                    let _ = self.store.delete(NAME, name.clone());
                }
            }
        }
        self.listing().swept_to = names.pop().filter(|_| are_more).unwrap_or_default();
    }

    /// The record after which a sweep that is due begins.
    fn next_sweep(&self) -> Option<String> {
        let (mut listing, now) = (self.listing(), Instant::now());
        if listing.swept.is_some_and(|swept| now.duration_since(swept) < SWEEPS) {
            return None;
        }
        listing.swept = Some(now);
        Some(std::mem::take(&mut listing.swept_to))
    }

    /// True if no other node can have taken over the claim yet, even if the clocks differ by up to half a lease.
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

    /// True if the conversation of a claim has the name, or may still get it.
    fn is_taken(
        &self,
        beside: &ConversationKey,
        claim: &NameClaim,
    ) -> std::result::Result<bool, SharedError> {
        if claim.id.is_empty() {
            return Ok(false);
        }
        let record = name_name(&beside.tenant, &claim.name);
        if self.fleet.is_right_of_other(&record, &claim.id, claim.until) {
            return Ok(true);
        }
        let key = ConversationKey { tenant: beside.tenant.clone(), id: claim.id.clone() };
        let found = self.conversation(&key)?;
        let head = found.as_ref().and_then(|(_, shared)| shared.content()).map(|content| &content.head);
        Ok(head.is_some_and(|head| head.name.as_deref() == Some(&claim.name)))
    }
}

/// True if a name has been free for so long that its record is removed.
fn is_long_free(claim: &NameClaim) -> bool {
    claim.id.is_empty() && claim.until.saturating_add(FREE_FOR.as_millis() as u64) < unix_millis()
}
