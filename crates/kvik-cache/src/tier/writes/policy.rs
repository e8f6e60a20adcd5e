//! The write policies and their names.

use std::str::FromStr;

/// Which computed blocks are written to the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WritePolicy {
    /// All blocks, as they are computed.
    #[default]
    All,
    /// Prefixes that a second request used, and pinned prompts.
    Reused,
    /// Prefixes of several conversations, prompts that were asked again and pinned prompts at once; ends of
    /// conversations before they leave RAM and when the process ends, if they are likely to go on.
    Auto,
}

impl WritePolicy {
    /// All policies.
    pub const ALL: [WritePolicy; 3] = [WritePolicy::All, WritePolicy::Reused, WritePolicy::Auto];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            WritePolicy::All => "all",
            WritePolicy::Reused => "reused",
            WritePolicy::Auto => "auto",
        }
    }
}

/// Error: no policy has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is none of all, reused and auto; name one of them")]
pub struct UnknownWritePolicy(pub String);

impl FromStr for WritePolicy {
    type Err = UnknownWritePolicy;

    fn from_str(name: &str) -> Result<WritePolicy, UnknownWritePolicy> {
        let named = WritePolicy::ALL.into_iter().find(|policy| policy.name() == name);
        named.ok_or_else(|| UnknownWritePolicy(name.to_owned()))
    }
}
