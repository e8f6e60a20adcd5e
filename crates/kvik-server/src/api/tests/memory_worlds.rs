//! Conversations of several tenants that grow, branch and are cut off by crashes, concurrently on one server.
//!
//! Every message contains a unique mark, and the model repeats in a summary the marks that it was shown. If a
//! prompt contains anything of another conversation, another tenant or an abandoned branch, its mark shows
//! that.

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use kvik_engine::api::{Event, FinishReason, Request, RequestError};
use kvik_memory::{
    memory::{MemoryConfig, make_summaries},
    records::Records,
};
use serde_json::{Value, json};

use super::{
    Server, config, json_of, say,
    tenants::{ask, keys},
};
use crate::app::AppConfig;
use kvik_serving::settings::model::ModelArgs;

const TENANTS: [&str; 2] = ["acme", "beta"];
const TURNS_OF_A_LIFE: usize = 40;
const LIVES: usize = 3;
/// Maximum number of marks in a summary, to keep it short.
const MARKS_OF_A_SUMMARY: usize = 4;
const CONTEXT: usize = 2048;

static TOKENIZER: LazyLock<Arc<kvik_text::tokenizer::Tokenizer>> =
    LazyLock::new(|| Arc::new(ModelArgs::embedded().load().unwrap().tokenizer));

/// Returns the marks in a text: `z`, digits, `z`.
fn marks(text: &str) -> BTreeSet<u64> {
    text.split('z').filter_map(|part| part.parse().ok()).collect()
}

/// Foreground prompts of the engine as text, and the length of the longest prompt.
#[derive(Default)]
struct Seen {
    prompts: Vec<String>,
    longest: usize,
}

/// The conversation of a client.
#[derive(Clone)]
struct Client {
    tenant: &'static str,
    messages: Vec<Value>,
}

/// All conversations, and the marks assigned so far.
struct World {
    draws: Draws,
    clients: Vec<Client>,
    next_mark: u64,
    seen: Arc<Mutex<Seen>>,
    /// Number of turns that read a summary.
    summarised: usize,
    quoted: usize,
}

impl World {
    fn new(seed: u64) -> World {
        let system = json!({"role": "system", "content": "You are a helpful assistant."});
        let client = |i: usize| Client { tenant: TENANTS[i % 2], messages: vec![system.clone()] };
        World {
            draws: Draws(seed),
            clients: (0..4).map(client).collect(),
            next_mark: 1,
            seen: Arc::default(),
            summarised: 0,
            quoted: 0,
        }
    }

    /// Creates a server that continues from the records of an earlier one, and creates summaries.
    fn server(&self, state: &std::path::Path) -> Server {
        let memory = MemoryConfig {
            on: true,
            recent_max: Some(160),
            summary_max: Some(40),
            trigger_discard: Some(60),
            quotes_max: Some(120),
            protect_first: false,
            ..MemoryConfig::default()
        };
        let records = Records::open(state, Duration::from_secs(10)).unwrap();
        let seen = self.seen.clone();
        let answer = move |request: &Request| Ok::<_, RequestError>(answer(request, &seen));
        let tenants = "[tenant.acme]\nKEY:acme;\n[tenant.beta]\nKEY:beta;\n";
        let server =
            Server::build(answer, keys(tenants), AppConfig { memory, records: Some(records), ..config() });
        tokio::spawn(make_summaries(server.app.clone()));
        server
    }

    /// Runs turns of random clients, until the process is lost.
    async fn live(&mut self, state: &std::path::Path) {
        let server = self.server(state);
        for _ in 0..TURNS_OF_A_LIFE {
            let client = self.draws.below(self.clients.len());
            if self.draws.below(12) == 0 {
                self.branch(client);
            }
            self.turn(&server, client).await;
            // Background work progresses by a random amount.
            for _ in 0..self.draws.below(12) {
                tokio::task::yield_now().await;
            }
        }
    }

    /// A client removes some of its messages, or another client of its tenant continues from there.
    fn branch(&mut self, client: usize) {
        let mut branch = self.clients[client].clone();
        let exchanges = (branch.messages.len() - 1) / 2;
        branch.messages.truncate(1 + 2 * self.draws.below(exchanges + 1));
        let other = if self.draws.below(2) == 0 { client } else { (client + 2) % self.clients.len() };
        self.clients[other] = branch;
    }

    async fn turn(&mut self, server: &Server, client: usize) {
        let mark = self.next_mark;
        self.next_mark += 1;
        let said = marks(&json!(self.clients[client].messages).to_string());
        let about = said.iter().nth(self.draws.below(said.len().max(1))).copied().unwrap_or(mark);
        let text = format!("The bus z{mark}z was late again, as I said of z{about}z.");
        let Client { tenant, messages } = &mut self.clients[client];
        messages.push(json!({"role": "user", "content": text}));
        let body = json!({"messages": messages, "max_tokens": 16});
        let (status, answer) = json_of(ask(server, tenant, "POST", "/v1/chat/completions", body).await).await;
        assert_eq!(status, 200, "{answer}");
        let own = marks(&json!(messages).to_string());
        messages.push(answer["choices"][0]["message"].clone());
        self.check(&answer["kvik"]["memory"], client, &own, &text);
    }

    /// Checks that the prompt contains only this conversation, with its newest message verbatim.
    fn check(&mut self, memory: &Value, client: usize, own: &BTreeSet<u64>, question: &str) {
        let seen = self.seen.lock().unwrap();
        let prompt = seen.prompts.last().unwrap();
        let foreign: Vec<u64> = marks(prompt).difference(own).copied().collect();
        assert!(
            foreign.is_empty(),
            "marks of others in the prompt of client {client}: {foreign:?}\n{prompt}"
        );
        assert!(prompt.contains(question), "{prompt}");
        assert!(seen.longest <= CONTEXT);
        let count = |name: &str| memory["messages"][name].as_u64().unwrap() as usize;
        let parts = ["prefix", "summarised", "let_go", "recent"].map(count);
        assert_eq!(parts.iter().sum::<usize>(), self.clients[client].messages.len() - 1, "{memory}");
        let recent = self.clients[client].messages.len() - 1 - parts[3];
        let verbatim = &self.clients[client].messages[recent..recent + parts[3] - 1];
        assert!(verbatim.iter().all(|message| prompt.contains(message["content"].as_str().unwrap())));
        self.summarised += usize::from(parts[1] > 0);
        self.quoted += usize::from(memory["quotes"] != json!([]));
    }
}

/// Scripted answers: a summary repeats the oldest and the newest marks it was shown; any other answer has none.
fn answer(request: &Request, seen: &Mutex<Seen>) -> Vec<Event> {
    let prompt = TOKENIZER.decode(&request.prompt);
    let mut seen = seen.lock().unwrap();
    seen.longest = seen.longest.max(request.prompt.len());
    if request.background.is_none() {
        seen.prompts.push(prompt);
        return say(request, "That is a pity.", FinishReason::Eos);
    }
    let marks = marks(&prompt);
    // The oldest are those of the earlier summary, which the next one may not forget.
    let half = MARKS_OF_A_SUMMARY / 2;
    let shown = marks.iter().take(half).chain(marks.iter().rev().take(half));
    let summary: String = shown.map(|mark| format!("z{mark}z ")).collect();
    say(request, if request.max_tokens == 0 { "" } else { &summary }, FinishReason::Eos)
}

/// Runs the lives of one world; each ends in the middle of its work.
fn run(seed: u64) -> World {
    let state = tempfile::tempdir().unwrap();
    let mut world = World::new(seed);
    for _ in 0..LIVES {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(world.live(state.path()));
        runtime.shutdown_timeout(Duration::from_secs(10));
    }
    world
}

#[test]
fn nothing_of_another_conversation_is_ever_read() {
    let seeds = std::env::var("WORLDS").map_or(4, |seeds| seeds.parse().unwrap());
    let worlds: Vec<World> = (0..seeds).map(run).collect();
    let sum = |count: fn(&World) -> usize| worlds.iter().map(count).sum::<usize>();
    let (summarised, quoted) = (sum(|world| world.summarised), sum(|world| world.quoted));
    println!("{seeds} worlds: {summarised} turns read a summary, {quoted} a quote");
    assert!(summarised > 10 && quoted > 0, "{summarised} turns read a summary, {quoted} a quote");
}

/// Seeded numbers.
struct Draws(u64);

impl Draws {
    /// A number below `bound`, which is not 0.
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        (kvik_testing::mix(self.0) % bound as u64) as usize
    }
}
