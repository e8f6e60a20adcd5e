//! Whose requests these are, what they may take, and what they cost.

pub(crate) mod ledger;
pub(crate) mod prices;
pub(crate) mod tenants;
