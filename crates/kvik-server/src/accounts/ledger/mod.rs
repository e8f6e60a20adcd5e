//! The ledger: usage and cost of each tenant, by UTC day and model.
//!
//! ```text
//! a request ends -> enter -> pending, in memory -> write, every few seconds -> records
//!                                 `------------ rows: both together -----------'
//! ```
//!
//! A crash loses the pending sums, never the written ones. Without records, all sums stay in memory.
//! Days come from the wall clock: a clock that is set back adds to an earlier day.

mod day;
#[cfg(test)]
pub(crate) mod hanging;
mod totals;

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use kvik_engine::api::Report;
use kvik_memory::records::{FileTurns, Records, RecordsError, Table};

use super::prices::{Cost, Prices};

pub use day::Day;
pub(crate) use totals::{LedgerRow, Totals, UsageRow};

/// Name of the table.
const TABLE: &str = "usage";
/// The measured speed ignores shorter prompts, whose time is mostly overhead.
const MEASURED_TOKENS_MIN: usize = 16;

/// A wall clock, which determines the day.
pub(crate) type WallClock = fn() -> SystemTime;

/// The accounts of one server.
pub struct Ledger {
    wall: WallClock,
    records: Option<Table<Totals>>,
    /// Held while sums move from `state` to the records, and by readers of both, which would otherwise see some sums
    /// twice or not at all. The engine's thread takes only the lock of `state`, and never waits for a disk.
    moving: FileTurns,
    state: Mutex<LedgerState>,
}

#[derive(Default)]
struct LedgerState {
    /// Sums not yet written to the records.
    pending: BTreeMap<LedgerRow, Totals>,
    /// Measured speed of each model.
    speeds: BTreeMap<String, Speed>,
}

/// The measured prefill speed of a model on this server.
#[derive(Debug, Default, Clone, Copy)]
struct Speed {
    tokens: u64,
    time: Duration,
}

/// Selects rows of the ledger.
#[derive(Debug, Clone, Default)]
pub struct Query {
    /// Name of one tenant; all with `None`.
    pub tenant: Option<String>,
    /// The first day.
    pub since: Option<Day>,
    /// The last day.
    pub until: Option<Day>,
}

/// The rows that a query selects, with their sums.
#[derive(Debug, Default, PartialEq)]
pub struct Bill {
    pub(crate) rows: BTreeMap<LedgerRow, Totals>,
    /// Keys of records that cannot be read; `rows` lacks their usage.
    pub(crate) unreadable: Vec<String>,
}

impl Ledger {
    /// Creates a ledger. Without records, its sums end with the process.
    pub fn new(records: Option<&Records>, wall: WallClock) -> Ledger {
        let records = records.map(|records| records.table(TABLE));
        let (moving, state) = (FileTurns::new(1), Mutex::default());
        Ledger { wall, records, moving, state }
    }

    /// Adds a tenant's request to a model to its row; returns the request's own totals.
    pub(crate) fn enter(
        &self,
        [tenant, model]: [&str; 2],
        report: &Report,
        prices: Option<&Prices>,
    ) -> Totals {
        let cost = prices.map_or(Cost::default(), |prices| prices.cost(report));
        let [tenant, model] = [tenant, model].map(str::to_owned);
        let mut state = lock(&self.state);
        let speed = state.speeds.entry(model.clone()).or_default();
        speed.measure(report);
        let totals = Totals::of(report, cost, speed.time_for(report.cached_tokens));
        let row = LedgerRow { day: Day::of((self.wall)()), tenant, model };
        *state.pending.entry(row).or_default() += &totals;
        totals
    }

    /// Writes the pending sums into the records; on an error they stay pending.
    pub(crate) fn write(&self) -> Result<(), RecordsError> {
        let Some(records) = &self.records else { return Ok(()) };
        let _moving = self.moving.enter()?;
        let pending = std::mem::take(&mut lock(&self.state).pending);
        if pending.is_empty() {
            return Ok(());
        }
        let by_key: BTreeMap<String, &Totals> =
            pending.iter().map(|(row, totals)| (row.to_string(), totals)).collect();
        let written = records.change(by_key.keys().map(String::as_str), |key, before| {
            let mut sum: Totals = before.unwrap_or_default();
            sum += by_key[key];
            Some(sum)
        });
        if written.is_err() {
            self.put_back(&pending);
        }
        written
    }

    fn put_back(&self, unwritten: &BTreeMap<LedgerRow, Totals>) {
        let mut state = lock(&self.state);
        for (row, totals) in unwritten {
            *state.pending.entry(row.clone()).or_default() += totals;
        }
    }

    /// The sums selected by `query`, in the order of days, tenants and models.
    pub(crate) fn rows(&self, query: &Query) -> Result<Bill, RecordsError> {
        let _moving = self.records.as_ref().map(|_| self.moving.enter()).transpose()?;
        let pending = lock(&self.state).pending.clone();
        let records = self.records.as_ref();
        let mut bill = records.map_or_else(|| Ok(Bill::default()), |records| stored(records, query))?;
        for (row, totals) in pending.into_iter().filter(|(row, _)| query.selects(row)) {
            *bill.rows.entry(row).or_default() += &totals;
        }
        Ok(bill)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each statement leaves the sums consistent, so a panic under the lock does no harm.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The sums in the records of a server that is not running.
pub fn recorded(records: &Records, query: &Query) -> Result<Bill, RecordsError> {
    stored(&records.table(TABLE), query)
}

fn stored(records: &Table<Totals>, query: &Query) -> Result<Bill, RecordsError> {
    let from = query.since.map(|day| day.to_string()).unwrap_or_default();
    // Behind all keys of the last day, in which a slash follows it.
    let until = query.until.map(|day| format!("{day}0"));
    let is_asked = |key: &str| key.parse().map_or(query.tenant.is_none(), |row| query.selects(&row));
    let found = records.selected((from.as_str(), until.as_deref()), is_asked)?;
    let mut bill = Bill { rows: BTreeMap::new(), unreadable: found.unreadable };
    for (key, totals) in found.records {
        match key.parse::<LedgerRow>() {
            Ok(row) => drop(bill.rows.insert(row, totals)),
            Err(_) => bill.unreadable.push(key),
        }
    }
    Ok(bill)
}

impl Query {
    fn selects(&self, row: &LedgerRow) -> bool {
        self.tenant.as_ref().is_none_or(|tenant| *tenant == row.tenant)
            && self.since.is_none_or(|since| since <= row.day)
            && self.until.is_none_or(|until| row.day <= until)
    }
}

impl Speed {
    fn measure(&mut self, report: &Report) {
        if report.computed_tokens >= MEASURED_TOKENS_MIN && !report.prompt_time.is_zero() {
            self.tokens += report.computed_tokens as u64;
            self.time += report.prompt_time;
        }
    }

    /// Prefill time of `tokens` prompt tokens; zero until a prompt was measured.
    fn time_for(&self, tokens: usize) -> Duration {
        if self.tokens == 0 {
            return Duration::ZERO;
        }
        let seconds = self.time.as_secs_f64() * tokens as f64 / self.tokens as f64;
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests;
