//! Texts that may name files of the server: whoever runs it reads them, its tenants do not.

/// Such a text. It is neither printed nor serialised by accident: who wants it says for whom.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct HostText(String);

impl HostText {
    /// For the log and the terminal of whoever runs the server.
    pub(crate) fn for_host(&self) -> &str {
        &self.0
    }

    /// The text for the admin, and for a tenant what stands for it.
    pub(crate) fn for_caller<'a>(&'a self, is_admin: bool, instead: &'a str) -> &'a str {
        if is_admin { &self.0 } else { instead }
    }
}

impl<T: Into<String>> From<T> for HostText {
    fn from(text: T) -> HostText {
        HostText(text.into())
    }
}

impl std::fmt::Debug for HostText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HostText(..)")
    }
}
