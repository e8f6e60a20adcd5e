//! Which retention a request gets: its own, the server's default, or the best one that was measured.

use kvik_cache::retain::Retention;

use crate::settings::retain::RetainChoice;

/// What the server knows of retention.
#[derive(Debug, Default)]
pub(crate) struct Retaining {
    /// For requests that say nothing.
    default: Option<Retention>,
}

/// Why a choice is refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(crate) enum RetainRefusal {
    /// The best policy is asked for, and nothing is known of any.
    #[error(
        "policy: `auto` takes the best policy that was measured, and none was measured for this model; run `kvik eval` with the same -m and --kv first, or name a policy"
    )]
    NothingMeasured,
}

impl RetainRefusal {
    /// The field that is at fault.
    pub(crate) fn field(&self) -> &'static str {
        match self {
            RetainRefusal::NothingMeasured => "policy",
        }
    }
}

impl Retaining {
    /// The retention of a request that asks for this; `None` keeps everything.
    ///
    /// # Errors
    /// If what is asked for is not to be had.
    pub(crate) fn choose(&self, asked: Option<RetainChoice>) -> Result<Option<Retention>, RetainRefusal> {
        match asked {
            None => Ok(self.default),
            Some(RetainChoice::Everything) => Ok(None),
            Some(RetainChoice::Chosen(retention)) => Ok(Some(retention)),
            Some(RetainChoice::Auto { .. }) => Err(RetainRefusal::NothingMeasured),
        }
    }
}
