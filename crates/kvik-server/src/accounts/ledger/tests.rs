use std::sync::atomic::{AtomicU64, Ordering};

use kvik_cache::tier::{ByLevel, Level};

use super::*;

const DAY: u64 = 24 * 3600;

fn first_day() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(20_000 * DAY)
}

fn report(computed_tokens: usize, cached_tokens: usize, generated_tokens: usize) -> Report {
    Report {
        prompt_tokens: computed_tokens + cached_tokens,
        cached_tokens,
        computed_tokens,
        generated_tokens,
        loaded: ByLevel::of(Level::Disk, cached_tokens / 4),
        prompt_time: Duration::from_millis(computed_tokens as u64),
        ..Report::default()
    }
}

fn prices() -> Prices {
    toml::from_str("input = 2.5\ncached = 0.1\noutput = 5").unwrap()
}

fn sum(ledger: &Ledger) -> Totals {
    let mut sum = Totals::default();
    ledger.rows(&Query::default()).unwrap().rows.values().for_each(|totals| sum += totals);
    sum
}

#[test]
fn sums_are_the_same_pending_written_and_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let expect = |requests: u64| Totals {
        requests,
        prompt_tokens: 200 * requests,
        cached_tokens: 160 * requests,
        disk_tokens: 40 * requests,
        host_tokens: 0,
        remote_tokens: 0,
        computed_tokens: 40 * requests,
        generated_tokens: 10 * requests,
        cost: (0..requests).map(|_| prices().cost(&report(40, 160, 10))).sum(),
        // 1 ms per token was measured.
        saved_us: 160_000 * requests,
    };
    for round in 0..3 {
        let records = Records::open(dir.path(), Duration::ZERO).unwrap();
        let ledger = Ledger::new(Some(&records), first_day);
        for i in 1..=10 {
            ledger.enter(["acme", "owner/model"], &report(40, 160, 10), Some(&prices()));
            assert_eq!(sum(&ledger), expect(10 * round + i));
            if i % 4 == 0 {
                ledger.write().unwrap();
                assert_eq!(sum(&ledger), expect(10 * round + i));
            }
        }
        ledger.write().unwrap();
        ledger.write().unwrap();
        assert_eq!(
            recorded(&records, &Query::default()).unwrap().rows.into_values().next(),
            Some(expect(10 * round + 10))
        );
    }
}

#[test]
fn cached_tokens_are_told_by_their_tier() {
    let row = LedgerRow { day: Day::of(first_day()), tenant: "acme".to_owned(), model: "m".to_owned() };
    for level in Level::ALL {
        let report = Report { loaded: ByLevel::of(level, 30), ..report(40, 100, 0) };
        let mut totals = Totals::of(&report, Cost::default(), Duration::ZERO);
        let again = totals;
        totals += &again;
        let shown = serde_json::to_value(totals.shown(&row)).unwrap();
        let tiers = shown["cached_tokens"].as_object().unwrap();
        assert_eq!((tiers["ram"].as_u64(), tiers[level.name()].as_u64()), (Some(140), Some(60)));
        assert_eq!(tiers.values().filter_map(serde_json::Value::as_u64).sum::<u64>(), 200, "{tiers:?}");
    }
}

#[test]
fn a_prompt_that_was_never_looked_up_is_no_miss() {
    let ledger = Ledger::new(None, first_day);
    ledger.enter(["acme", "m"], &report(50, 150, 0), None);
    ledger.enter(["acme", "m"], &Report { prompt_tokens: 4000, ..Report::default() }, None);
    assert_eq!((sum(&ledger).prompt_tokens, sum(&ledger).hit_rate()), (4200, 0.75));
}

#[test]
fn a_crash_loses_only_unwritten_sums() {
    let dir = tempfile::tempdir().unwrap();
    let enter = |write: bool| {
        let ledger = Ledger::new(Some(&Records::open(dir.path(), Duration::ZERO).unwrap()), first_day);
        ledger.enter(["acme", "m"], &report(1, 0, 0), None);
        if write {
            ledger.write().unwrap();
        }
        sum(&ledger).requests
    };
    assert_eq!([enter(true), enter(false), enter(true), enter(false)], [1, 2, 2, 3]);
}

#[test]
fn a_ledger_without_records_counts_in_memory() {
    let ledger = Ledger::new(None, first_day);
    ledger.enter(["acme", "m"], &report(1, 2, 3), None);
    ledger.write().unwrap();
    assert_eq!((sum(&ledger).requests, sum(&ledger).cached_tokens), (1, 2));
}

#[test]
fn days_follow_the_clock_backwards_too() {
    static NOW: AtomicU64 = AtomicU64::new(0);
    let wall = || SystemTime::UNIX_EPOCH + Duration::from_secs(NOW.load(Ordering::Relaxed));
    let ledger = Ledger::new(None, wall);
    for day in [20_000, 20_001, 20_000, 0, 20_001] {
        NOW.store(day * DAY, Ordering::Relaxed);
        ledger.enter(["acme", "m"], &report(1, 0, 0), None);
    }
    let requests = |query: &Query| -> Vec<u64> {
        ledger.rows(query).unwrap().rows.values().map(|totals| totals.requests).collect()
    };
    assert_eq!(requests(&Query::default()), [1, 2, 2]);
    let day = |day: u64| Some(Day::of(SystemTime::UNIX_EPOCH + Duration::from_secs(day * DAY)));
    assert_eq!(requests(&Query { since: day(20_000), ..Query::default() }), [2, 2]);
    assert_eq!(requests(&Query { until: day(20_000), ..Query::default() }), [1, 2]);
}

#[test]
fn a_query_selects_a_tenant() {
    let ledger = Ledger::new(None, first_day);
    for tenant in ["acme", "beta", "acme"] {
        ledger.enter([tenant, "m"], &report(1, 0, 0), None);
    }
    let of = |tenant: &str| {
        let lines = ledger.rows(&Query { tenant: Some(tenant.to_owned()), ..Query::default() }).unwrap().rows;
        lines.into_iter().map(|(line, totals)| (line.tenant, totals.requests)).collect::<Vec<_>>()
    };
    assert_eq!(of("acme"), [("acme".to_owned(), 2)]);
    assert_eq!(of("gamma"), []);
}

#[test]
fn rows_of_records_are_selected_as_those_in_memory() {
    static NOW: AtomicU64 = AtomicU64::new(0);
    let wall = || SystemTime::UNIX_EPOCH + Duration::from_secs(NOW.load(Ordering::Relaxed) * DAY);
    let dir = tempfile::tempdir().unwrap();
    let records = Records::open(dir.path(), Duration::ZERO).unwrap();
    let (written, pending) = (Ledger::new(Some(&records), wall), Ledger::new(None, wall));
    for (day, tenant) in (20_000..20_004).flat_map(|day| [(day, "acme"), (day, "beta"), (day, "~")]) {
        NOW.store(day, Ordering::Relaxed);
        for ledger in [&written, &pending] {
            ledger.enter([tenant, "owner/model"], &report(1, 0, 0), None);
        }
    }
    written.write().unwrap();
    let day = |day: u64| Day::of(SystemTime::UNIX_EPOCH + Duration::from_secs(day * DAY));
    let days: Vec<_> = [None].into_iter().chain((19_999..20_005).map(|at| Some(day(at)))).collect();
    for tenant in [None, Some("acme"), Some("~"), Some("gamma")] {
        for (since, until) in days.iter().flat_map(|since| days.iter().map(|until| (*since, *until))) {
            let query = Query { tenant: tenant.map(str::to_owned), since, until };
            assert_eq!(written.rows(&query).unwrap(), pending.rows(&query).unwrap(), "{query:?}");
        }
    }
}

#[test]
fn short_prompts_do_not_count_as_measurements() {
    let mut speed = Speed::default();
    assert_eq!(speed.time_for(100), Duration::ZERO);
    let measured = |computed_tokens, seconds| Report {
        computed_tokens,
        prompt_time: Duration::from_secs(seconds),
        ..Report::default()
    };
    speed.measure(&measured(1, 9));
    speed.measure(&measured(500, 1));
    assert_eq!(speed.time_for(100), Duration::from_millis(200));
}

/// Prompts that are computed together wait for each other, which is none of the time that a cached one saves.
#[test]
fn what_is_saved_does_not_grow_with_the_prompts_that_are_computed_together() {
    let saved = |prompts: u32| {
        let ledger = Ledger::new(None, first_day);
        for _ in 0..prompts {
            let together = Report { prefill: Duration::from_secs(2) * prompts, ..report(2000, 0, 0) };
            ledger.enter(["acme", "m"], &together, None);
        }
        ledger.enter(["acme", "m"], &report(0, 1000, 0), None).saved_us
    };
    assert_eq!([saved(1), saved(4)], [1_000_000; 2]);
}

#[test]
fn rows_read_back() {
    for model in ["m", "owner/model", "a/b/c"] {
        let line =
            LedgerRow { day: Day::of(first_day()), tenant: "acme".to_owned(), model: model.to_owned() };
        assert_eq!(line.to_string().parse(), Ok(line));
    }
    assert!("2024-10-04/acme".parse::<LedgerRow>().is_err());
}

/// An unreadable record, damaged or from another version, is not overwritten, and the bill lists it.
#[test]
fn an_unreadable_record_is_kept_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let records = Records::open(dir.path(), Duration::ZERO).unwrap();
    let line = "2024-10-04/acme/m";
    records.table::<String>(TABLE).change([line], |_, _| Some("from another time".to_owned())).unwrap();
    let ledger = Ledger::new(Some(&records), first_day);
    let of = |tenant: Option<&str>| {
        let bill = ledger.rows(&Query { tenant: tenant.map(str::to_owned), ..Query::default() }).unwrap();
        (bill.rows.into_values().map(|totals| totals.requests).sum::<u64>(), bill.unreadable)
    };
    let unreadable = || vec![line.to_owned()];
    assert_eq!(of(None), (0, unreadable()));
    for requests in 1..3 {
        ledger.enter(["acme", "m"], &report(1, 0, 0), None);
        ledger.write().unwrap();
        assert_eq!(of(None), (requests, unreadable()), "beside newer usage");
    }
    assert_eq!(of(Some("acme")).1, unreadable());
    assert_eq!(of(Some("beta")).1, Vec::<String>::new(), "other tenants do not see it");
}
