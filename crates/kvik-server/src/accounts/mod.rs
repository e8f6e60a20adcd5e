//! Tenants with their limits, prices, and the ledger of their usage.

pub mod ledger;
pub mod prices;
pub mod tenants;
