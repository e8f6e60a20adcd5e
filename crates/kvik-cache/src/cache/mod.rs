//! The cache: commands in; blocks, copies and refusals out. Each file holds the commands of one subject.

mod check;
mod derived;
mod followers;
mod forget;
mod inspect;
mod life;
mod marks;
#[cfg(test)]
mod model_test;
#[cfg(test)]
mod naive;
mod namespaces;
mod outline;
mod pinning;
mod places;
mod space;
mod telling;
mod tenants;

pub use check::Violation;
pub use forget::ForgottenBlocks;
pub use inspect::{PrefixInfo, PrefixOrder, PrefixScan};
pub use life::{Cache, CacheConfig, CacheError};
pub use outline::{NodeInfo, Outline, OutlineNode, OutlineScan};
