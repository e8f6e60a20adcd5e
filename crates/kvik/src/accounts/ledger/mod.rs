//! The bill: what each tenant has had, by UTC day and model.
//!
//! ```text
//! a request ends -> enter -> pending, in memory -> write, every few seconds -> records
//!                                 `------------ lines: both together -----------'
//! ```
//!
//! A crash loses what was pending, and never what was written. Where there are no records, all
//! stays in memory. Days come from the wall clock: one that is set back adds to an earlier day.

mod day;
mod records;
mod totals;

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use kvik_engine::api::Report;

use super::prices::{Cost, Prices};

pub(crate) use day::Day;
pub(crate) use records::{LOCK_WAIT, Records, RecordsError, Table};
pub(crate) use totals::{LedgerRow, Totals};

/// Name of the table.
const TABLE: &str = "usage";
/// Prompts shorter than this tell more about overheads than about the speed of the model.
const MEASURED_TOKENS_MIN: usize = 16;

/// Tells the day.
pub(crate) type WallClock = fn() -> SystemTime;

/// The accounts of one server.
pub(crate) struct Ledger {
    model: String,
    wall: WallClock,
    /// Locked while sums move from `state` to the records, so that nobody sees them twice or not
    /// at all. The engine's thread takes only the lock of `state`, and never waits for a disk.
    records: Option<Mutex<Table<Totals>>>,
    state: Mutex<LedgerState>,
}

#[derive(Default)]
struct LedgerState {
    /// What the records do not know yet.
    pending: BTreeMap<LedgerRow, Totals>,
    speed: Speed,
}

/// How fast this server computes prompts, measured while it does.
#[derive(Debug, Default, Clone, Copy)]
struct Speed {
    tokens: u64,
    time: Duration,
}

/// Which lines are asked for.
#[derive(Debug, Clone, Default)]
pub(crate) struct Query {
    pub(crate) tenant: Option<String>,
    /// The first day.
    pub(crate) since: Option<Day>,
    /// The last day.
    pub(crate) until: Option<Day>,
}

/// What is asked for.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Bill {
    pub(crate) lines: BTreeMap<LedgerRow, Totals>,
    /// Lines with records that cannot be read; a sum of them lacks what these say.
    pub(crate) unreadable: Vec<String>,
}

impl Ledger {
    /// The ledger of a server that runs `model`; without records it forgets when it ends.
    pub(crate) fn new(model: &str, records: Option<&Records>, wall: WallClock) -> Ledger {
        let records = records.map(|records| Mutex::new(records.table(TABLE)));
        Ledger { model: model.to_owned(), wall, records, state: Mutex::default() }
    }

    /// Enters what a tenant's request has cost.
    pub(crate) fn enter(&self, tenant: &str, report: &Report, prices: Option<&Prices>) -> Totals {
        let cost = prices.map_or(Cost::default(), |prices| prices.cost(report));
        let (tenant, model) = (tenant.to_owned(), self.model.clone());
        let line = LedgerRow { day: Day::of((self.wall)()), tenant, model };
        let mut state = lock(&self.state);
        state.speed.measure(report);
        let totals = Totals::of(report, cost, state.speed.time_for(report.cached_tokens));
        *state.pending.entry(line).or_default() += &totals;
        totals
    }

    /// Writes what is pending into the records. What cannot be written stays pending.
    pub(crate) fn write(&self) -> Result<(), RecordsError> {
        let Some(records) = self.records.as_ref().map(lock) else { return Ok(()) };
        let pending = std::mem::take(&mut lock(&self.state).pending);
        if pending.is_empty() {
            return Ok(());
        }
        let by_key: BTreeMap<String, &Totals> =
            pending.iter().map(|(line, totals)| (line.to_string(), totals)).collect();
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
        for (line, totals) in unwritten {
            *state.pending.entry(line.clone()).or_default() += totals;
        }
    }

    /// The sums that `query` asks for, in the order of days, tenants and models.
    pub(crate) fn lines(&self, query: &Query) -> Result<Bill, RecordsError> {
        let records = self.records.as_ref().map(lock);
        let pending = lock(&self.state).pending.clone();
        let mut bill = records.map_or_else(|| Ok(Bill::default()), |records| stored(&records, query))?;
        for (line, totals) in pending.into_iter().filter(|(line, _)| query.asks_for(line)) {
            *bill.lines.entry(line).or_default() += &totals;
        }
        Ok(bill)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Sums are whole between any two statements: whoever panicked with the lock left them so.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The sums in the records of a server that does not run.
pub(crate) fn recorded(records: &Records, query: &Query) -> Result<Bill, RecordsError> {
    stored(&records.table(TABLE), query)
}

fn stored(records: &Table<Totals>, query: &Query) -> Result<Bill, RecordsError> {
    let from = query.since.map(|day| day.to_string()).unwrap_or_default();
    let mut bill = Bill::default();
    let found = records.all_from(&from)?;
    for (key, totals) in found.records {
        match key.parse::<LedgerRow>() {
            Ok(line) if query.asks_for(&line) => drop(bill.lines.insert(line, totals)),
            Ok(_) => {}
            Err(_) => bill.unreadable.extend(query.tenant.is_none().then_some(key)),
        }
    }
    let asked = |key: &String| key.parse().map_or(query.tenant.is_none(), |line| query.asks_for(&line));
    bill.unreadable.extend(found.unreadable.into_iter().filter(asked));
    Ok(bill)
}

impl Query {
    fn asks_for(&self, line: &LedgerRow) -> bool {
        self.tenant.as_ref().is_none_or(|tenant| *tenant == line.tenant)
            && self.since.is_none_or(|since| since <= line.day)
            && self.until.is_none_or(|until| line.day <= until)
    }
}

impl Speed {
    fn measure(&mut self, report: &Report) {
        if report.computed_tokens >= MEASURED_TOKENS_MIN && !report.prefill.is_zero() {
            self.tokens += report.computed_tokens as u64;
            self.time += report.prefill;
        }
    }

    /// How long `tokens` prompt tokens take; nothing until one prompt was measured.
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
