//! HTTP over open models: the routes of every dialect, keys and tenants, and the page for browsers.
//!
//! | module | subject |
//! | --- | --- |
//! | `http` | connections and bodies, bounded, slow or hostile |
//! | `api` | the routes: a folder a dialect |
//! | `app` | a running server without the words of its dialects |
//! | `accounts` | tenants, prices, the ledger |
//! | `page` | the page for browsers |

#![forbid(unsafe_code)]

pub mod accounts;
pub mod api;
pub mod app;
pub mod clock;
mod described;
pub mod http;
mod page;
