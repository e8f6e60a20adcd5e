//! Tenants with their limits, prices, and the ledger of their usage.

pub(crate) mod ledger;
pub(crate) mod prices;
pub(crate) mod tenants;
