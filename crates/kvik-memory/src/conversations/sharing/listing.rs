//! Listing of the conversations of all nodes: a head is read if the listing shows that it has changed.

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use super::Sharing;
use super::reconcile::Standing;
use crate::conversations::fleet::listing::Changes;
use crate::conversations::fleet::queue::Task;
use crate::conversations::fleet::record::{
    CHANGED, CONVERSATION, SharedConversation, SharedState, parsed, tenant_tag,
};
use crate::conversations::fleet::store::TOGETHER;
use crate::conversations::head::ConversationKey;
use crate::shared::SharedError;

/// Maximum age of a listing that is reused.
const LISTED: Duration = Duration::from_secs(3);
/// Maximum time for which one listing reads heads. The next one reads the rest.
const READING: Duration = Duration::from_secs(1);

impl Sharing<'_> {
    /// Reads the heads of a tenant's conversations that are newer than the local ones. If the store does not answer,
    /// the local ones remain.
    pub(in crate::conversations) fn list(&self, tenant: &str) {
        let begun = Instant::now();
        let unknown = self.unknown(tenant);
        for some in unknown.chunks(TOGETHER) {
            if begun.elapsed() > READING {
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

    /// Conversations whose listed changes differ from the known one, and those whose deletion is to be forgotten.
    fn unknown(&self, tenant: &str) -> Vec<(ConversationKey, Vec<u64>)> {
        let mut listing = self.fleet.listing.lock().unwrap_or_else(PoisonError::into_inner);
        if listing.read.is_none_or(|read| read.elapsed() > LISTED) {
            if let Ok(of) = self.read_list() {
                listing.of = of;
            }
            listing.read = Some(Instant::now());
        }
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
            let mut listing = self.fleet.listing.lock().unwrap_or_else(PoisonError::into_inner);
            is_old = listing.note_gone(key, stamp, at).is_old(Instant::now());
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
