//! What is remembered of a conversation, for whoever looks at it.

use super::Memory;

impl Memory {
    /// Whether the server's bounds fit its context, so that conversations can be remembered.
    pub(crate) fn is_possible(&self) -> bool {
        self.settings.is_ok()
    }
}
