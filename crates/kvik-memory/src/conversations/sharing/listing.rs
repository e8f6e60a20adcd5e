//! Listing of the conversations of all nodes: a head is read if the listing shows that it has changed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Sharing;
use super::reconcile::Standing;
use crate::conversations::fleet::listing::{Changes, Listing};
use crate::conversations::fleet::queue::Task;
use crate::conversations::fleet::record::{
    CHANGED, CONVERSATION, SharedConversation, SharedState, parsed, tenant_tag,
};
use crate::conversations::fleet::store::TOGETHER;
use crate::conversations::head::ConversationKey;
use crate::conversations::shelf::Shelf;
use crate::shared::SharedError;

/// Maximum age of a listing that is reused.
const LISTED: Duration = Duration::from_secs(3);
/// Maximum time for which one listing reads heads. The next one reads the rest.
const READING: Duration = Duration::from_secs(1);
/// Maximum time for which heads are read to hear of deletions.
const HEARING: Duration = Duration::from_secs(5);

impl Shelf {
    /// Applies what other nodes have done to conversations of which this node has a copy, or had one: above all it hears
    /// of deletions, of which no request has to ask. Removes what is left of names that have been free for long.
    pub(in crate::conversations) fn hear(&self) {
        let Some(sharing) = self.sharing_in_background() else { return };
        // Read before the lock is taken, on which requests wait.
        let Ok(of) = sharing.read_list() else { return };
        sharing.listing().note(of);
        let until = Instant::now() + HEARING;
        let tenants: BTreeSet<String> = self.heads().keys().map(|key| key.tenant.clone()).collect();
        for tenant in &tenants {
            let mut changed = sharing.changed(tenant, &sharing.listing());
            changed.retain(|(key, _)| self.heads().has_copy(key));
            sharing.read_heads(&changed, until);
        }
        sharing.sweep_names();
    }
}

impl Sharing<'_> {
    /// Reads the heads of a tenant's conversations that are newer than the local ones. If the store does not answer,
    /// the local ones remain.
    pub(in crate::conversations) fn list(&self, tenant: &str) {
        let until = Instant::now() + READING;
        self.read_heads(&self.unknown(tenant), until);
    }

    /// Reads and notes heads whose listed changes are these, until a point in time.
    fn read_heads(&self, unknown: &[(ConversationKey, Vec<u64>)], until: Instant) {
        for some in unknown.chunks(TOGETHER) {
            if Instant::now() > until {
                break;
            }
            let found = self.store.ask_together(some, |(key, _)| self.conversation(key));
            for ((key, changes), found) in some.iter().zip(found) {
                if let Ok(Some((_, there))) = found {
                    self.note_listed(key, changes, &there);
                }
            }
        }
    }

    /// Conversations that the newest listing has with other changes than the known one.
    fn unknown(&self, tenant: &str) -> Vec<(ConversationKey, Vec<u64>)> {
        let mut listing = self.listing();
        if listing.read.is_none_or(|read| read.elapsed() > LISTED) {
            match self.read_list() {
                Ok(of) => listing.note(of),
                Err(_) => listing.read = Some(Instant::now()),
            }
        }
        self.changed(tenant, &listing)
    }

    /// Conversations whose listed changes differ from the known one, and those whose deletion is to be forgotten.
    fn changed(&self, tenant: &str, listing: &Listing) -> Vec<(ConversationKey, Vec<u64>)> {
        let changes = listing.of.get(&tenant_tag(tenant)).into_iter().flatten();
        let (heads, now) = (self.shelf.heads(), Instant::now());
        let unknown = changes.filter_map(|(id, changes)| {
            let key = ConversationKey { tenant: tenant.to_owned(), id: id.clone() };
            let here = heads.known_stamp(&key);
            let gone = listing.gone.get(&key).filter(|_| here.is_none());
            let known = here.or(gone.map(|gone| gone.stamp));
            let is_known = known.is_some_and(|known| changes[..] == [known]);
            (!is_known || gone.is_some_and(|gone| gone.is_old(now))).then(|| (key, changes.clone()))
        });
        unknown.collect()
    }

    pub(super) fn listing(&self) -> MutexGuard<'_, Listing> {
        self.fleet.listing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read_list(&self) -> Result<BTreeMap<String, Changes>, SharedError> {
        let mut of: BTreeMap<String, Changes> = BTreeMap::new();
        for name in self.store.list(CONVERSATION)? {
            if let Some((tenant, id, None)) = parsed(&name) {
                of.entry(tenant.to_owned()).or_default().entry(id.to_owned()).or_default();
            }
        }
        for name in self.store.list(CHANGED)? {
            let Some((tenant, id, Some(stamp))) = parsed(&name) else { continue };
            let Some(changes) = of.get_mut(tenant).and_then(|of| of.get_mut(id)) else { continue };
            changes.extend(u64::from_str_radix(stamp, 16));
        }
        Ok(of)
    }

    fn note_listed(&self, key: &ConversationKey, changes: &[u64], there: &SharedConversation) {
        let stamp = there.stamp();
        let mut is_old = false;
        if let SharedState::Deleted { at, .. } = there.state {
            is_old = self.listing().note_gone(key, stamp, at).is_old(Instant::now());
        }
        if is_old {
            self.fleet.queue.task(Task::Purge { key: key.clone(), changes: changes.to_vec() });
        } else if changes != [stamp] {
            let others = changes.iter().copied().filter(|&other| other != stamp).collect();
            self.fleet.queue.task(Task::Corrected { key: key.clone(), stamp, others });
        }
        self.note_head(key, there);
    }

    /// Notes the state of a conversation in the store. Messages are read on demand.
    fn note_head(&self, key: &ConversationKey, there: &SharedConversation) {
        let Some(_comparing) = self.shelf.compare(key) else { return };
        match (self.standing(key, Some(there)), there.content()) {
            (Standing::Behind, Some(content)) => self.shelf.heads().note_elsewhere(key, &content.head),
            (Standing::Behind | Standing::Equal, content) => {
                let noted = match content {
                    Some(content) => self.note_equal(key, Some(content)),
                    None => self.shelf.drop_copy(key).map_err(Into::into),
                };
                if let Err(error) = noted {
                    tracing::warn!(
                        "what another node did to the conversation {} is not written here: {error}",
                        key.id
                    );
                }
            }
            (Standing::Ahead | Standing::Diverged, _) => self.fleet.queue.push(key),
        }
    }
}
