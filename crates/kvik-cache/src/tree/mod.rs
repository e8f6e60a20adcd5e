//! The prefix tree over token ids: nodes, the content of their blocks, and prompt matching.

mod dropped;
mod followers;
mod journal;
mod labels;
mod node;
mod places;
mod radix;
mod victims;
mod walk;

pub use followers::Followers;
pub(crate) use followers::{BlockText, FollowerIndex, Link};
pub(crate) use journal::Journal;
pub use journal::{Change, StoredBlocks};
pub(crate) use node::Node;
pub(crate) use places::{Place, PlaceId, Places};
pub(crate) use radix::Radix;
pub(crate) use victims::Victim;
pub(crate) use walk::{PartialMatch, Walk};
