//! The decision which model is loaded next, and which makes room: a pure function, without clocks and models.
//!
//! Models that fit stay together. Two that do not fit take turns: a model that blocks awaited ones is closed after its
//! residence, a multiple of the cost of the change, or when it has not been used for a moment; running requests end
//! first. So when all models are in demand, changes take a bounded share of the time, and no request waits longer than
//! the residences of the models before its own.

use std::time::Duration;

/// Residence of a model while others are awaited, as a multiple of the time to load it and the next one: at worst a
/// fifth of the time is spent on changes.
const RESIDENCE: u32 = 4;
/// Divisor of the residence: an unused model makes room after this fraction of it.
const QUIET: u32 = 16;

/// The phase of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Phase {
    /// Not in memory.
    #[default]
    Cold,
    /// In memory, and accepts requests.
    Loaded,
    /// In memory, and accepts no more requests.
    Closing,
}

/// The state of a model that the decision depends on. Times are those of one clock.
#[derive(Debug, Clone, Default)]
pub(crate) struct Standing {
    pub(crate) phase: Phase,
    /// Bytes of its weights, keys and values.
    pub(crate) bytes: u64,
    /// Whether it cannot be loaded yet, because files of it are still to be downloaded.
    pub(crate) is_absent: bool,
    /// Requests that hold it.
    pub(crate) in_use: usize,
    /// Time since which a request waits for it.
    pub(crate) awaited: Option<Duration>,
    /// When it was loaded.
    pub(crate) loaded: Duration,
    /// When it was last used.
    pub(crate) used: Duration,
    /// Duration of loading it.
    pub(crate) load_time: Duration,
    /// Until when it stays unused; for ever with `None`.
    pub(crate) stays_until: Option<Duration>,
}

/// The next action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShelfTurn {
    /// Load this model: there is room for it.
    Load(usize),
    /// Stop this model from accepting requests.
    Close(usize),
    /// Unload this model: it is closed, and no request holds it.
    Unload(usize),
    /// Nothing to do until something changes or this time is reached.
    Wait(Option<Duration>),
}

/// The next action for models that share `budget` bytes.
pub(crate) fn next(models: &[Standing], budget: u64, now: Duration) -> ShelfTurn {
    let is_closing = |model: &Standing| model.phase == Phase::Closing;
    if let Some(unused) = models.iter().position(|model| is_closing(model) && model.in_use == 0) {
        return ShelfTurn::Unload(unused);
    }
    // An awaited model is about to be used.
    let expiry = |model: &Standing| model.stays_until.filter(|_| model.is_idle() && model.awaited.is_none());
    let expiries = models.iter().enumerate().filter_map(|(index, model)| Some((expiry(model)?, index)));
    let first = expiries.min();
    if let Some((_, expired)) = first.filter(|&(at, _)| at <= now) {
        return ShelfTurn::Close(expired);
    }
    let can_load = |model: &Standing| model.phase == Phase::Cold && !model.is_absent;
    let awaited = models.iter().enumerate().filter(|(_, model)| can_load(model));
    let awaited = awaited.filter_map(|(index, model)| Some((model.awaited?, index))).min();
    let Some((_, wanted)) = awaited else { return ShelfTurn::Wait(first.map(|(at, _)| at)) };
    let held: u64 = models.iter().filter(|model| model.phase != Phase::Cold).map(|model| model.bytes).sum();
    if held == 0 || held.saturating_add(models[wanted].bytes) <= budget {
        return ShelfTurn::Load(wanted);
    }
    // Only one model makes room at a time. A client that reads its last answer slowly delays only models that do not
    // fit in addition to it.
    if models.iter().any(is_closing) {
        return ShelfTurn::Wait(first.map(|(at, _)| at));
    }
    let makes_way = |model: &Standing| model.makes_way_at(&models[wanted]);
    let loaded = models.iter().enumerate().filter(|(_, model)| model.phase == Phase::Loaded);
    let victim = loaded.map(|(index, model)| (makes_way(model), model.used, index)).min();
    let (at, _, victim) = victim.expect("what holds memory is loaded");
    if at <= now {
        ShelfTurn::Close(victim)
    } else {
        ShelfTurn::Wait(Some(first.map_or(at, |(expiry, _)| expiry.min(at))))
    }
}

impl Standing {
    fn is_idle(&self) -> bool {
        self.phase == Phase::Loaded && self.in_use == 0
    }

    /// Earliest time to close it in favour of an awaited model.
    fn makes_way_at(&self, wanted: &Standing) -> Duration {
        let residence = self.load_time.saturating_add(wanted.load_time).saturating_mul(RESIDENCE);
        let had_its_turn = self.loaded.saturating_add(residence);
        if self.is_idle() {
            had_its_turn.min(self.used.saturating_add(residence / QUIET))
        } else {
            had_its_turn
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    const LOAD: Duration = Duration::from_millis(500);

    fn secs(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    fn cold(bytes: u64, awaited: Option<f64>) -> Standing {
        Standing { bytes, awaited: awaited.map(secs), load_time: LOAD, ..Standing::default() }
    }

    fn loaded(bytes: u64, in_use: usize, at: f64, used: f64) -> Standing {
        let (loaded, used) = (secs(at), secs(used));
        Standing { phase: Phase::Loaded, in_use, loaded, used, ..cold(bytes, None) }
    }

    #[test]
    fn what_fits_is_loaded_and_the_longest_wait_first() {
        let models = [loaded(40, 3, 0.0, 9.0), cold(30, Some(8.0)), cold(30, Some(7.0)), cold(30, None)];
        assert_eq!(next(&models, 100, secs(9.0)), ShelfTurn::Load(2));
        assert_eq!(
            next(&[cold(500, Some(1.0))], 100, secs(9.0)),
            ShelfTurn::Load(0),
            "alone it has all there is"
        );
    }

    #[test]
    fn what_is_still_fetched_keeps_no_other_waiting() {
        let mut models = [cold(40, Some(7.0)), cold(30, Some(8.0))];
        models[0].is_absent = true;
        assert_eq!(next(&models, 100, secs(9.0)), ShelfTurn::Load(1));
        models[1].awaited = None;
        assert_eq!(next(&models, 100, secs(9.0)), ShelfTurn::Wait(None));
    }

    #[test]
    fn a_model_in_demand_has_its_residence_and_then_makes_way() {
        let models = |in_use, used| [loaded(60, in_use, 10.0, used), cold(60, Some(10.5))];
        // The residence is four times the second that loading both takes.
        assert_eq!(next(&models(2, 11.0), 100, secs(11.0)), ShelfTurn::Wait(Some(secs(14.0))));
        assert_eq!(next(&models(2, 14.0), 100, secs(14.0)), ShelfTurn::Close(0));
        assert_eq!(
            next(&models(0, 11.0), 100, secs(11.1)),
            ShelfTurn::Wait(Some(secs(11.25))),
            "it is quiet"
        );
        assert_eq!(next(&models(0, 11.0), 100, secs(11.25)), ShelfTurn::Close(0));
    }

    #[test]
    fn what_is_closed_ends_what_it_does_and_goes() {
        let mut closing = loaded(60, 1, 0.0, 5.0);
        closing.phase = Phase::Closing;
        let waits = cold(60, Some(1.0));
        assert_eq!(next(&[closing.clone(), waits.clone()], 100, secs(6.0)), ShelfTurn::Wait(None));
        let fits = cold(40, Some(2.0));
        assert_eq!(next(&[closing.clone(), cold(60, None), fits], 100, secs(6.0)), ShelfTurn::Load(2));
        closing.in_use = 0;
        assert_eq!(next(&[closing, waits], 100, secs(6.0)), ShelfTurn::Unload(0));
    }

    #[test]
    fn what_nobody_asks_for_goes_when_it_has_been_kept_long_enough() {
        let mut model = loaded(60, 0, 0.0, 5.0);
        model.stays_until = Some(secs(15.0));
        assert_eq!(next(&[model.clone()], 100, secs(14.0)), ShelfTurn::Wait(Some(secs(15.0))));
        assert_eq!(next(&[model.clone()], 100, secs(15.0)), ShelfTurn::Close(0));
        let awaited = Standing { awaited: Some(secs(15.0)), ..model.clone() };
        assert_eq!(next(&[awaited], 100, secs(15.0)), ShelfTurn::Wait(None), "somebody waits for it");
        model.in_use = 1;
        assert_eq!(next(&[model], 100, secs(99.0)), ShelfTurn::Wait(None), "it is in use");
    }

    /// A client that uses one model after another, a request at a time.
    struct Client {
        asks: VecDeque<usize>,
        /// The model it waits for.
        waits: Option<usize>,
        has: Option<(usize, Duration)>,
    }

    /// Serves all requests in steps of 10 ms; a request takes `takes`. Returns the number of loads.
    fn serve(models: &mut [Standing], clients: &mut [Client], takes: Duration) -> usize {
        let (step, mut now, mut loads) = (Duration::from_millis(10), Duration::ZERO, 0);
        let mut busy = None::<(ShelfTurn, Duration)>;
        while clients
            .iter()
            .any(|client| !client.asks.is_empty() || client.waits.is_some() || client.has.is_some())
        {
            for client in clients.iter_mut() {
                if let Some((model, until)) = client.has
                    && until <= now
                {
                    (client.has, models[model].used) = (None, now);
                    models[model].in_use -= 1;
                }
                if client.has.is_none() && client.waits.is_none() {
                    client.waits = client.asks.pop_front();
                }
                let Some(model) = client.waits else { continue };
                if models[model].phase == Phase::Loaded
                    && !matches!(busy, Some((ShelfTurn::Load(at), _)) if at == model)
                {
                    (client.waits, client.has) = (None, Some((model, now + takes)));
                    models[model].in_use += 1;
                } else {
                    models[model].awaited.get_or_insert(now);
                }
            }
            match busy {
                Some((turn, until)) if until <= now => {
                    if let ShelfTurn::Load(model) = turn {
                        models[model].loaded = now;
                        models[model].used = now;
                        models[model].awaited = None;
                    }
                    busy = None;
                }
                Some(_) => {}
                None => match next(models, 100, now) {
                    ShelfTurn::Load(model) => {
                        loads += 1;
                        models[model].phase = Phase::Loaded;
                        busy = Some((ShelfTurn::Load(model), now + LOAD));
                    }
                    ShelfTurn::Close(model) => models[model].phase = Phase::Closing,
                    ShelfTurn::Unload(model) => models[model].phase = Phase::Cold,
                    ShelfTurn::Wait(_) => {}
                },
            }
            let held: u64 =
                models.iter().filter(|model| model.phase != Phase::Cold).map(|model| model.bytes).sum();
            assert!(held <= 100, "{models:?}");
            now += step;
            assert!(now < secs(10_000.0), "nobody starves: {models:?}");
        }
        loads
    }

    /// Loads that are needed if requests are answered in the order of arrival and all are known in advance: evicts the
    /// model whose next use is furthest away (Belady, 1966).
    fn offline(asks: &[usize], fit: usize) -> usize {
        let (mut held, mut loads) = (Vec::new(), 0);
        for (at, &model) in asks.iter().enumerate() {
            if held.contains(&model) {
                continue;
            }
            let next = |held: &usize| asks[at..].iter().position(|ask| ask == held).unwrap_or(usize::MAX);
            if held.len() == fit {
                let last = (0..fit).max_by_key(|&index| next(&held[index])).unwrap();
                held.swap_remove(last);
            }
            held.push(model);
            loads += 1;
        }
        loads
    }

    /// Requests of eight clients to four models of which two fit, each client by turns.
    #[test]
    fn models_that_do_not_fit_together_do_not_thrash() {
        let mut models: Vec<Standing> = (0..4).map(|_| cold(50, None)).collect();
        let ask = |client: usize| (0..60).map(|at| (client + at * 7 / 3) % 4).collect();
        let mut clients: Vec<Client> =
            (0..8).map(|client| Client { asks: ask(client), waits: None, has: None }).collect();
        let takes = Duration::from_millis(100);
        let loads = serve(&mut models, &mut clients, takes);
        let in_order: Vec<usize> =
            (0..60).flat_map(|at| (0..8).map(move |client| (client + at * 7 / 3) % 4)).collect();
        let best = offline(&in_order, 2);
        println!("{loads} loads for 480 requests; who knows all of them and keeps their order needs {best}");
        assert!(loads < best, "{loads} loads, and {best} without any waiting");
    }
}
