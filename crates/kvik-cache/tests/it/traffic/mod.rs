//! Traffic of several kinds, generated from a seed: what a policy that was fitted to one trace fails on.
//!
//! Used by the tests and by the example `evict`. Every id names a prefix, as in a recorded trace. Sessions run at the same time and wait between their requests,
//! so what is recent, what is popular and what will be used next differ from kind to kind.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use kvik_cache::replay::TraceRequest;
use serde::Deserialize;

/// Makes the requests of one kind of traffic, of about so many blocks in all, from a seed.
pub(crate) type Generator = fn(seed: u64, blocks: usize) -> Vec<TraceRequest>;

/// All kinds, by name.
pub(crate) const KINDS: [(&str, Generator); 9] = [
    ("agents", agents),
    ("chats", chats),
    ("documents", documents),
    ("loops", loops),
    ("scans", scans),
    ("window", window),
    ("bursts", bursts),
    ("phases", phases),
    ("mixture", mixture),
];

/// The requests of a recorded trace in Mooncake's format, one JSON object with `hash_ids` a line.
pub(crate) fn recorded(text: &str) -> Vec<TraceRequest> {
    #[derive(Deserialize)]
    struct Line {
        hash_ids: TraceRequest,
    }
    let line = |line| serde_json::from_str::<Line>(line).expect("a line of a trace").hash_ids;
    text.lines().map(line).collect()
}

/// A trace, and others made of it: its halves, its thirds in another order, the sessions of every other
/// conversation, and two of three slices of time.
pub(crate) fn variants(whole: Vec<TraceRequest>) -> Vec<(&'static str, Vec<TraceRequest>)> {
    let third = whole.len() / 3;
    let (first, second) = whole.split_at(whole.len() / 2);
    // The first block is shared, the second names the conversation.
    let is_in = |request: &&TraceRequest| mix(request.get(1).copied().unwrap_or_default()).is_multiple_of(2);
    let slices = whole.chunks(1000).enumerate().filter(|(slice, _)| slice % 3 != 1);
    let made = vec![
        ("first half", first.to_vec()),
        ("second half", second.to_vec()),
        ("rotated", [&whole[third..], &whole[..third]].concat()),
        ("thinned", whole.iter().filter(is_in).cloned().collect()),
        ("slices", slices.flat_map(|(_, slice)| slice).cloned().collect()),
    ];
    std::iter::once(("recorded", whole)).chain(made).collect()
}

/// Agents with tools: few long system prompts, many short steps, sub-agents that fork and end, pauses of a user.
pub(crate) fn agents(seed: u64, blocks: usize) -> Vec<TraceRequest> {
    let mut sessions = Sessions::new(seed);
    sessions.run(blocks, |random, now| {
        let mut path = Path::of(1, zipf(random, 6), 30);
        path.grow(random.id(), 4 + random.below(12));
        let mut uses = Vec::new();
        let mut at = now;
        for _ in 0..3 + random.below(40) {
            uses.push((at, path.request()));
            if random.below(8) == 0 {
                let mut fork = path.clone();
                for _ in 0..1 + random.below(5) {
                    fork.grow(random.id(), 1 + random.below(4));
                    at += random.pause(3.0);
                    uses.push((at, fork.request()));
                }
            }
            path.grow(random.id(), 1 + random.below(4));
            at += if random.below(10) == 0 { random.pause(240.0) } else { random.pause(5.0) };
        }
        (random.pause(4.0), uses)
    })
}

/// Chats: a short system prompt, think time with a long tail, most end early, some are taken up much later.
pub(crate) fn chats(seed: u64, blocks: usize) -> Vec<TraceRequest> {
    let mut sessions = Sessions::new(seed);
    sessions.run(blocks, |random, now| {
        let mut path = Path::of(2, zipf(random, 3), 1);
        let longest = 1 + random.below(60);
        path.grow(random.id(), 2 + random.below(longest));
        let (mut uses, mut at) = (Vec::new(), now);
        loop {
            uses.push((at, path.request()));
            if random.below(5) < 2 {
                break;
            }
            path.grow(random.id(), 1 + random.below(6));
            at += if random.below(20) == 0 { random.pause(1800.0) } else { random.pause(60.0) };
        }
        (random.pause(1.0), uses)
    })
}

/// Questions about documents, some of which are much more popular; the instructions come first.
pub(crate) fn documents(seed: u64, blocks: usize) -> Vec<TraceRequest> {
    let mut random = Random(seed);
    until(blocks, |_| {
        let mut path = Path::of(3, 0, 2);
        let document = zipf(&mut random, 3_000);
        path.grow(document, 8 + document * 7 % 40);
        path.grow(random.id(), 1 + random.below(3));
        path.request()
    })
}

/// Evaluations that go through their prompts again and again, in the same order.
pub(crate) fn loops(seed: u64, blocks: usize) -> Vec<TraceRequest> {
    let mut random = Random(seed);
    let around = [40, 150, 600, 2_000].map(|count| count + random.below(count / 2));
    until(blocks, |turn| {
        let tests = around[(turn / 2_000 % 4) as usize];
        let mut path = Path::of(4, tests, 3);
        path.grow(turn % tests, 12);
        path.request()
    })
}

/// Popular documents among those that are read once.
pub(crate) fn scans(seed: u64, blocks: usize) -> Vec<TraceRequest> {
    let mut random = Random(seed);
    until(blocks, |turn| {
        let scan = turn / 50 % 3 > 0;
        let document = if scan { random.id() } else { zipf(&mut random, 800) };
        Path::of(5, document, 20).request()
    })
}

/// Documents that are read for some time, and then no more: what is recent is popular.
pub(crate) fn window(seed: u64, blocks: usize) -> Vec<TraceRequest> {
    let mut random = Random(seed);
    until(blocks, |turn| {
        let mut path = Path::of(6, turn / 20 + zipf(&mut random, 60), 20);
        path.grow(random.below(4), 3);
        path.request()
    })
}

/// Chats, and now and then a document that everybody asks about for some minutes.
pub(crate) fn bursts(seed: u64, blocks: usize) -> Vec<TraceRequest> {
    let mut random = Random(seed ^ 0xb);
    let chats = chats(seed, blocks * 2 / 3);
    let news = chats.iter().enumerate().flat_map(|(turn, chat)| {
        let hot = turn / 400 % 3 == 1 && random.below(2) == 0;
        let mut path = Path::of(7, turn as u64 / 400 + random.below(3), 25);
        path.grow(random.id(), 2);
        [Some(chat.clone()), hot.then(|| path.request())]
    });
    news.flatten().collect()
}

/// One kind after another.
pub(crate) fn phases(seed: u64, blocks: usize) -> Vec<TraceRequest> {
    let kinds: [Generator; 5] = [window, chats, loops, agents, window];
    let parts = kinds.iter().zip(seed..).flat_map(|(kind, seed)| kind(seed, blocks / 5));
    parts.collect()
}

/// Several kinds at once.
pub(crate) fn mixture(seed: u64, blocks: usize) -> Vec<TraceRequest> {
    let mut random = Random(seed);
    let kinds: [Generator; 4] = [chats, documents, agents, scans];
    let mut parts = kinds.map(|kind| kind(seed, blocks / 4).into_iter());
    let mut left: Vec<usize> = parts.iter().map(ExactSizeIterator::len).collect();
    let mut requests = Vec::new();
    while left.iter().any(|&left| left > 0) {
        let mut place = random.below(left.iter().sum::<usize>() as u64) as usize;
        let part = left.iter().position(|&left| {
            place < left || {
                place -= left;
                false
            }
        });
        let part = part.expect("the place is below the sum");
        left[part] -= 1;
        requests.extend(parts[part].next());
    }
    requests
}

/// Requests until they have so many blocks.
fn until(blocks: usize, mut request: impl FnMut(u64) -> TraceRequest) -> Vec<TraceRequest> {
    let (mut requests, mut left) = (Vec::new(), blocks);
    while left > 0 {
        requests.push(request(requests.len() as u64));
        left = left.saturating_sub(requests[requests.len() - 1].len());
    }
    requests
}

/// The prefixes of a prompt, each with the id that names it.
#[derive(Clone)]
struct Path(Vec<u64>);

impl Path {
    /// The first blocks of a prompt: `what` of some kind.
    fn of(kind: u64, what: u64, blocks: u64) -> Path {
        let mut path = Path(vec![]);
        path.grow(kind << 56 | what, blocks);
        path
    }

    /// Adds blocks that differ from others after the same prefix by `what` they are.
    fn grow(&mut self, what: u64, blocks: u64) {
        for block in 0..blocks {
            let before = self.0.last().copied().unwrap_or_default();
            self.0.push(mix(before ^ mix(what ^ (block << 48))));
        }
    }

    fn request(&self) -> TraceRequest {
        self.0.clone()
    }
}

/// Sessions that run at the same time.
struct Sessions {
    random: Random,
}

impl Sessions {
    fn new(seed: u64) -> Sessions {
        Sessions { random: Random(seed) }
    }

    /// Starts sessions until all requests have so many blocks; `session` returns the seconds until the next one
    /// starts, and its requests with their times.
    fn run(
        &mut self,
        blocks: usize,
        session: impl Fn(&mut Random, f64) -> (f64, Vec<(f64, TraceRequest)>),
    ) -> Vec<TraceRequest> {
        let mut waiting: BinaryHeap<Reverse<(u64, TraceRequest)>> = BinaryHeap::new();
        let (mut requests, mut left, mut start) = (Vec::new(), blocks, 0.0);
        while left > 0 {
            let (wait, uses) = session(&mut self.random, start);
            let timed = uses.into_iter().map(|(at, request)| Reverse(((at * 1e3) as u64, request)));
            waiting.extend(timed);
            start += wait;
            while left > 0 && waiting.peek().is_some_and(|next| next.0.0 <= (start * 1e3) as u64) {
                let Some(Reverse((_, request))) = waiting.pop() else { break };
                left = left.saturating_sub(request.len());
                requests.push(request);
            }
        }
        requests
    }
}

/// A number below `end`, the lower the likelier: about as one over it.
pub(crate) fn zipf(random: &mut Random, end: u64) -> u64 {
    ((end as f64 + 1.0).powf(random.uniform()) as u64 - 1).min(end - 1)
}

/// SplitMix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// A number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.id() % end
    }

    /// A number that no other block has.
    fn id(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    fn uniform(&mut self) -> f64 {
        self.below(1 << 20) as f64 / (1 << 20) as f64
    }

    /// Seconds around `median`, with a long tail: half of them within a factor of two.
    fn pause(&mut self, median: f64) -> f64 {
        let normal = (0..4).map(|_| self.uniform()).sum::<f64>() - 2.0;
        median * (normal * 1.8).exp()
    }
}

fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
