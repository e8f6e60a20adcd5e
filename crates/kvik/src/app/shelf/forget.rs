//! What models remember of conversations is forgotten by all of them, in memory or not.

use std::{sync::Arc, thread, time::Duration};

use kvik_memory::memory::NotDeleted;
use serde_json::Value;

use super::{Entry, Shelf};
use crate::{app::App, http::readers::aside};

/// Between two looks at a model that is being loaded.
const PAUSE: Duration = Duration::from_millis(5);

impl Shelf {
    /// Forgets what is remembered of a tenant's messages from this index on, by every model. Takes its time: it waits for
    /// the disk, and for a model that is being loaded.
    ///
    /// # Errors
    /// If something of it may still be on the disk.
    pub(crate) fn forget(&self, tenant: &str, messages: &[Value], from: usize) -> Result<(), NotDeleted> {
        let count = self.places().len();
        (0..count).try_for_each(|index| self.forget_at(index, tenant, messages, from))
    }

    fn forget_at(
        &self,
        index: usize,
        tenant: &str,
        messages: &[Value],
        from: usize,
    ) -> Result<(), NotDeleted> {
        loop {
            let (entry, app, loads) = self.settled(index);
            match (app, &entry.loader) {
                (Some(app), _) => app.memory.forget_from(tenant, messages, from)?,
                (None, Some(loader)) => loader.forget(tenant, messages, from)?,
                (None, None) => {}
            }
            // One that was loaded meanwhile may have read what was there before.
            if self.settled(index).2 == loads {
                return Ok(());
            }
        }
    }

    /// A model that is not being loaded: in memory or not, and how often it was loaded.
    fn settled(&self, index: usize) -> (Arc<Entry>, Option<Arc<App>>, u64) {
        loop {
            {
                let places = self.places();
                let place = &places[index];
                if !place.is_loading {
                    let app = place.open.as_ref().map(|open| open.app.clone());
                    return (place.entry.clone(), app, place.loads);
                }
            }
            aside(|| thread::sleep(PAUSE));
        }
    }
}
