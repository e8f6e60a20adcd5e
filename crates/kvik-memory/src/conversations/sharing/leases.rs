//! Leases on conversations: one node at a time changes a conversation, for as long as it renews its lease.
//!
//! A lease keeps other nodes from beginning a change that could not be written. Writes are safe without it: each
//! follows the version that was read.

use std::sync::{Arc, Mutex};

use super::claims::Claimed;
use super::{ATTEMPTS, Result, Sharing};
use crate::clock::unix_millis;
use crate::conversations::error::ConversationError;
use crate::conversations::fleet::hold::{Hold, lock};
use crate::conversations::fleet::record::{
    CONVERSATION, Lease, NAME, NameClaim, SharedConversation, conversation_name, name_name,
};
use crate::conversations::head::ConversationKey;
use crate::shared::SharedError;

impl Sharing<'_> {
    /// Reads the newest version of a conversation that is held locally, and leases it against changes by other nodes.
    /// If the store does not answer, the local copy is changed, and written once the store answers.
    ///
    /// # Errors
    /// [`ConversationError::Busy`] if another node changes the conversation, and others if it cannot be read.
    pub(in crate::conversations) fn lease(&self, key: &ConversationKey, reference: &str) -> Result<()> {
        for _ in 0..ATTEMPTS {
            let Ok(found) = self.conversation(key) else { return self.go_on_alone(key) };
            let Some((version, there)) = found else { return self.reconcile(key, None) };
            if self.is_leased_elsewhere(key, &there) {
                return Err(ConversationError::Busy(reference.to_owned()));
            }
            self.reconcile(key, Some(&there))?;
            if there.content().is_none() {
                return Ok(());
            }
            match self.put_lease(key, version, there) {
                Ok(lease) => {
                    let hold = Hold { lease: Some(lease), ..Hold::default() };
                    self.fleet.holds().insert(key.clone(), Arc::new(Mutex::new(hold)));
                    return Ok(());
                }
                Err(SharedError::Conflict { .. }) => {}
                Err(_) => return Ok(()),
            }
        }
        Err(ConversationError::Busy(reference.to_owned()))
    }

    /// True if another node has the lease of a conversation, and lives.
    pub(super) fn is_leased_elsewhere(&self, key: &ConversationKey, there: &SharedConversation) -> bool {
        there.lease_of_other(self.fleet.holder).is_some_and(|lease| {
            let holder = format!("{:016x}", lease.holder);
            self.fleet.is_right_of_other(&conversation_name(key), &holder, lease.until)
        })
    }

    /// Claims a name for a conversation that is held locally.
    ///
    /// # Errors
    /// If another conversation has the name. If the store does not answer, the conflict is found at the write.
    pub(in crate::conversations) fn claim_held(&self, key: &ConversationKey, name: &str) -> Result<()> {
        match self.claim(key, name) {
            Ok(Claimed::Own(version, claim)) => {
                let hold = self.fleet.holds().entry(key.clone()).or_default().clone();
                lock(&hold).claim = Some((version, claim));
                Ok(())
            }
            Ok(Claimed::Taken) => Err(ConversationError::NameTaken(name.to_owned())),
            Err(_) => Ok(()),
        }
    }

    /// Renews all leases and claims. No writer has to wait for the store meanwhile: it can write a conversation without
    /// its lease.
    pub(super) fn renew(&self) {
        for (key, hold) in self.held() {
            let (lease, claim) = {
                let mut hold = lock(&hold);
                (hold.lease.take(), hold.claim.take())
            };
            // The write of the conversation detects a lease that another node has taken meanwhile.
            let lease = lease.map(|(version, there)| {
                self.put_lease(&key, version, there.clone()).unwrap_or((version, there))
            });
            let claim = claim.map(|claim| self.renewed(&key, claim));
            {
                let mut hold = lock(&hold);
                (hold.lease, hold.claim) = (lease, claim);
            }
            if !self.fleet.holds().get(&key).is_some_and(|held| Arc::ptr_eq(held, &hold)) {
                // The hold has ended meanwhile. If this release fails too, the lease lapses.
                let _ = self.release(&key, &hold);
            }
        }
    }

    fn renewed(&self, key: &ConversationKey, (version, claim): (u64, NameClaim)) -> (u64, NameClaim) {
        let renewed = NameClaim { until: self.lease_end(), ..claim.clone() };
        match self.store.put(NAME, &name_name(&key.tenant, &claim.name), version, &renewed) {
            Ok(version) => (version, renewed),
            Err(_) => (version, claim),
        }
    }

    /// Releases what this node still holds, because it ends. A turn that is written after all needs no lease.
    pub(super) fn release_all(&self) {
        for (key, hold) in self.held() {
            if let Err(error) = self.release(&key, &hold) {
                tracing::debug!("the lease of the conversation {} is left to lapse: {error}", key.id);
            }
        }
    }

    fn held(&self) -> Vec<(ConversationKey, Arc<Mutex<Hold>>)> {
        self.fleet.holds().iter().map(|(key, hold)| (key.clone(), hold.clone())).collect()
    }

    /// Releases the lease and the claim of a hold that was not written.
    pub(super) fn release(
        &self,
        key: &ConversationKey,
        hold: &Mutex<Hold>,
    ) -> std::result::Result<(), SharedError> {
        let (lease, claim) = {
            let mut hold = lock(hold);
            if hold.is_written {
                return Ok(());
            }
            (hold.lease.take(), hold.claim.take())
        };
        if let Some((version, there)) = lease {
            let free = SharedConversation { lease: None, ..there };
            // A conflict: another node has taken the conversation after the lease had lapsed.
            conflict_is_fine(self.store.put(CONVERSATION, &conversation_name(key), version, &free))?;
        }
        claim.map_or(Ok(()), |(_, claim)| self.release_name(key, &claim.name))
    }

    /// End of a lease or claim that begins now, in Unix milliseconds.
    pub(super) fn lease_end(&self) -> u64 {
        unix_millis() + self.fleet.lease.as_millis() as u64
    }

    fn put_lease(
        &self,
        key: &ConversationKey,
        version: u64,
        there: SharedConversation,
    ) -> std::result::Result<(u64, SharedConversation), SharedError> {
        let lease = Lease { holder: self.fleet.holder, until: self.lease_end() };
        let leased = SharedConversation { lease: Some(lease), ..there };
        Ok((self.store.put(CONVERSATION, &conversation_name(key), version, &leased)?, leased))
    }
}

fn conflict_is_fine(put: std::result::Result<u64, SharedError>) -> std::result::Result<(), SharedError> {
    match put {
        Err(SharedError::Conflict { .. }) => Ok(()),
        put => put.map(drop),
    }
}
