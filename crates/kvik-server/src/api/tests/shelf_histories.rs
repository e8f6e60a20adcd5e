//! Random histories of a shelf: clients send requests, wait, disconnect, do not read, set residence times,
//! load and unload models, and the catalogue changes. In every history, each request is answered in time,
//! memory stays within its bound, and all of it is released.
//!
//! `KVIK_SHELF_SEED=n` runs one history.

use std::{sync::Arc, time::Duration};

use axum::{body::Bytes, response::Response};
use kvik_testing::{effort, fuzz::Random};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::shelf::World;

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const CLIENTS: u64 = 6;
const ACTIONS: usize = 25;
/// Number of histories that run concurrently.
const AT_ONCE: u64 = 8;
/// Maximum time for an answer: a load takes 5 ms, a residence 40 ms, and there are four models.
const PATIENCE: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_request_is_answered_whatever_others_do() {
    let seed = std::env::var("KVIK_SHELF_SEED").ok().map(|seed| seed.parse::<u64>().unwrap());
    let seeds = seed.map_or(0..effort(AT_ONCE, 400), |seed| seed..seed + 1);
    let mut first = seeds.start;
    while first < seeds.end {
        let histories = first..seeds.end.min(first + AT_ONCE);
        first = histories.end;
        let live = |seed| (seed, tokio::spawn(history(seed)));
        for (seed, history) in histories.map(live).collect::<Vec<_>>() {
            history.await.unwrap_or_else(|panic| panic!("KVIK_SHELF_SEED={seed}: {panic}"));
        }
    }
}

async fn history(seed: u64) {
    let world = Arc::new(World::new(&NAMES));
    let client = |number| Client {
        world: world.clone(),
        random: Random::new(seed * CLIENTS + number + 1),
        unread: Vec::new(),
        uses: 0,
    };
    let clients: Vec<_> = (0..CLIENTS).map(|number| tokio::spawn(client(number).live())).collect();
    let (mut unread, mut uses) = (Vec::new(), 0);
    for client in clients {
        let client = client.await.unwrap();
        unread.extend(client.unread);
        uses += client.uses;
    }
    assert!(world.most_open() <= 2, "two models fit, and {} were in memory", world.most_open());
    let loads: usize = NAMES.iter().map(|name| world.loads(name)).sum();
    assert!(loads <= uses, "{loads} loads for {uses} requests: a model is loaded that nobody waits for");
    world.write(&NAMES.map(|name| (name, "last")));
    assert_eq!(world.reload().await.0, 200);
    for name in NAMES {
        let asked = timeout(PATIENCE, world.ask(json!({"model": name, "prompt": "Hello"}))).await;
        assert_eq!(asked.expect("it is answered in time").0, 200, "{name} at the end");
        world.send("POST", "/v1/shelf/unload", &json!({"model": name})).await;
        world.until(world.index_of(name).await, "unloaded").await;
    }
    assert_eq!(world.open(), 0, "those who never read keep nothing in memory");
    drop(unread);
}

struct Client {
    world: Arc<World>,
    random: Random,
    /// Answers that are never read.
    unread: Vec<Response>,
    /// Number of requests for which a model may have been loaded.
    uses: usize,
}

impl Client {
    async fn live(mut self) -> Client {
        for _ in 0..ACTIONS {
            self.act().await;
        }
        self
    }

    async fn act(&mut self) {
        let model = *self.random.pick(&NAMES);
        let named = json!({"model": model});
        match self.random.below(14) {
            0 => self.in_time("POST", "/v1/shelf/unload", &named).await,
            1 => self.used("POST", "/v1/shelf/load", &named).await,
            2 => self.change_models().await,
            3 => self.leave_early(model).await,
            4 => self.never_read(model).await,
            5 => tokio::time::sleep(Duration::from_millis(self.random.below(60) as u64)).await,
            6 => {
                let path = *self.random.pick(&["/v1/shelf", "/api/ps", "/v1/models", "/health"]);
                self.in_time("GET", path, &Value::Null).await;
            }
            _ => self.ask(model).await,
        }
    }

    /// Sends a request as Ollama's clients do, with a residence time for the model: it is answered by this model and by no
    /// other.
    async fn ask(&mut self, model: &str) {
        let times = [json!(null), json!(0), json!("1ms"), json!("20ms"), json!(-1), json!(u64::MAX)];
        let stays = self.random.pick(&times).clone();
        let body = json!({"model": model, "prompt": "Hello", "stream": false, "keep_alive": stays});
        self.uses += 1;
        let (status, answer) = self.answered("POST", "/api/generate", &body).await;
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        assert!(status == 404 || answer["model"] == model, "{body}: {answer}");
    }

    async fn leave_early(&mut self, model: &str) {
        let patience = Duration::from_millis(self.random.below(12) as u64);
        let asked = json!({"model": model, "prompt": "Hello"});
        self.uses += 1;
        let _ = timeout(patience, self.world.send("POST", "/v1/completions", &asked)).await;
    }

    async fn never_read(&mut self, model: &str) {
        self.uses += 1;
        let asked = json!({"model": model, "prompt": "Hello", "stream": true});
        let response = timeout(PATIENCE, self.world.send("POST", "/v1/completions", &asked)).await;
        self.unread.push(response.unwrap_or_else(|_| panic!("{model} does not answer in time")));
    }

    /// Removes some models, and loads others with other flags.
    async fn change_models(&mut self) {
        let flags = ["", "", "other"];
        let mut models: Vec<(&str, &str)> = Vec::new();
        for name in NAMES {
            let flag = *self.random.pick(&flags);
            if self.random.below(5) > 0 {
                models.push((name, flag));
            }
        }
        self.world.write(&models);
        self.in_time("POST", "/v1/shelf/reload", &Value::Null).await;
    }

    async fn used(&mut self, method: &str, path: &str, body: &Value) {
        self.uses += 1;
        self.in_time(method, path, body).await;
    }

    async fn in_time(&mut self, method: &str, path: &str, body: &Value) {
        self.answered(method, path, body).await;
    }

    /// Sends a request that must be answered: successfully, or because the model was removed from the shelf. Returns the
    /// status and the answer.
    async fn answered(&mut self, method: &str, path: &str, body: &Value) -> (u16, Bytes) {
        let answered = timeout(PATIENCE, self.world.send(method, path, body)).await;
        let response = answered.unwrap_or_else(|_| panic!("{method} {path} {body} is not answered"));
        let status = response.status().as_u16();
        assert!(matches!(status, 200 | 404), "{method} {path} {body}: {status}");
        (status, axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap())
    }
}
