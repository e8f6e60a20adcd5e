//! Texts that may name files of the server: shown to its operator, but not to tenants.

/// A text that may name files of the server. It is neither printed nor serialised by accident: each access states its
/// audience.
#[derive(Clone, PartialEq, Eq)]
pub struct HostText(String);

impl HostText {
    /// The text for the operator's log and terminal.
    pub fn for_host(&self) -> &str {
        &self.0
    }

    /// The text for the admin, or `instead` for a tenant.
    pub fn for_caller<'a>(&'a self, is_admin: bool, instead: &'a str) -> &'a str {
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
