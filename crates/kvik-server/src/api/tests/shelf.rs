//! Several models on one server: dispatch, residence time, and models that fail to load.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::Context;
use axum::{Router, body::Body, http::Request as HttpRequest, response::Response};
use kvik_engine::api::{Event, FinishReason};
use kvik_model::load::LoadError;
use kvik_testing::{Web, WebRepository, mix, tiny_model};
use kvik_text::files::gguf::GgufError;
use serde_json::{Value, json};
use tower::ServiceExt;

use super::{Scripted, config, json_of, say, serving};
use crate::{
    accounts::ledger::Ledger,
    api::{of_model, over},
    app::{
        App, AppConfig,
        keys::Keys,
        server::Server,
        shelf::{Catalogue, Described, Entry, LoadModel, ModelFile, OpenModel, Shelf},
    },
};
use kvik_serving::fetch::Cancelled;

/// State of the model loader that a test observes.
#[derive(Default)]
pub(super) struct Seen {
    /// Number of loads per model.
    loads: Mutex<BTreeMap<String, usize>>,
    /// Models in memory, now and at most.
    open: AtomicUsize,
    most: AtomicUsize,
    /// True if loading fails by the file.
    pub(super) breaks: AtomicBool,
    /// True if loading fails for lack of memory.
    lacks_memory: AtomicBool,
    /// True if answers do not end.
    goes_on: AtomicBool,
    /// True if loading does not end.
    pub(super) stalls: AtomicBool,
    /// True if the hub does not answer.
    pub(super) hub_stalls: AtomicBool,
    /// Whether models with the flag [`ON_HUB`] were fetched.
    is_fetched: AtomicBool,
    /// The server's clock, which stands still except that each load takes [`LOAD`].
    now: Mutex<Duration>,
}

/// The configuration of a server by the clock of its loader.
fn timed(seen: &Arc<Seen>) -> AppConfig {
    let seen = seen.clone();
    AppConfig { clock: Arc::new(move || *seen.now.lock().unwrap()), ..config() }
}

/// A model that answers with its name, and takes a moment to load. A number among its flags is its bytes.
#[derive(Clone)]
struct Double {
    name: String,
    flag: String,
    server: Arc<Server>,
    seen: Arc<Seen>,
}

const LOAD: Duration = Duration::from_millis(5);
/// The flag of a model whose file is on the hub.
pub(super) const ON_HUB: &str = "on hub";

impl LoadModel for Double {
    fn fetch(&self, cancelled: Cancelled<'_>) -> anyhow::Result<Entry> {
        while self.seen.hub_stalls.load(Ordering::Relaxed) {
            anyhow::ensure!(!cancelled(), "cancelled");
            std::thread::sleep(LOAD);
        }
        anyhow::ensure!(!self.seen.breaks.load(Ordering::Relaxed), "the hub does not have it");
        self.seen.is_fetched.store(true, Ordering::Relaxed);
        Ok(self.clone().entry())
    }

    fn load(&self) -> anyhow::Result<OpenModel> {
        std::thread::sleep(LOAD);
        while self.seen.stalls.load(Ordering::Relaxed) {
            std::thread::sleep(LOAD);
        }
        if self.seen.breaks.load(Ordering::Relaxed) {
            return Err(LoadError::from(GgufError::BigEndian)).context("its file is broken");
        }
        anyhow::ensure!(!self.seen.lacks_memory.load(Ordering::Relaxed), "there is no memory for it");
        *self.seen.loads.lock().unwrap().entry(self.name.clone()).or_default() += 1;
        *self.seen.now.lock().unwrap() += LOAD;
        let open = 1 + self.seen.open.fetch_add(1, Ordering::Relaxed);
        self.seen.most.fetch_max(open, Ordering::Relaxed);
        let said: &'static str = self.name.clone().leak();
        let seen = self.seen.clone();
        let engine = Scripted::new(move |request| {
            let mut events = say(request, said, FinishReason::Eos);
            if seen.goes_on.load(Ordering::Relaxed) {
                events.retain(|event| !matches!(event, Event::Done(_)));
            }
            Ok(events)
        });
        let serving = serving(&self.name, Arc::new(engine), None);
        let app = App::of(self.server.clone(), serving, timed(&self.seen));
        let seen = self.seen.clone();
        let close = Box::new(move || {
            seen.open.fetch_sub(1, Ordering::Relaxed);
        });
        Ok(OpenModel { routes: of_model(app.clone()), app, bytes: self.bytes(), handle: None, close })
    }

    fn cache_disk(&self) -> Option<std::path::PathBuf> {
        None
    }

    fn describe(&self) -> anyhow::Result<Described> {
        let family = "llama".to_owned();
        let (own_name, sampling) = (self.name.clone(), Default::default());
        Ok(Described {
            own_name,
            family,
            context: 64,
            vocabulary: 7,
            template: None,
            sampling,
            told_windows: Vec::new(),
        })
    }
}

impl Double {
    fn bytes(&self) -> u64 {
        self.flag.parse().unwrap_or(40)
    }

    fn entry(self) -> Entry {
        let name = self.name.clone();
        let is_absent = self.flag == ON_HUB && !self.seen.is_fetched.load(Ordering::Relaxed);
        Entry {
            aliases: vec![format!("{name}-alias")],
            adapters: vec![format!("{name}-style")],
            source: format!("/secret/{name}.gguf").into(),
            bytes: if is_absent { 0 } else { self.bytes() },
            file: ModelFile { bytes: 30, modified_s: 1_795_429_999, digest: name.repeat(64) },
            is_absent,
            keep_alive: None,
            tenants: None,
            is_pulled: false,
            flags: vec![self.flag.clone(), is_absent.to_string()],
            loader: Some(Arc::new(self)),
            name,
        }
    }
}

/// The configured models: names and flags; none if the configuration is unreadable.
type Written = Arc<Mutex<Option<Vec<(String, String)>>>>;

/// A catalogue of models of 40 bytes.
struct Doubles {
    written: Written,
    /// The models on disk, if these are served instead.
    pulled: Option<kvik_shelf::Shelf>,
    server: Arc<Server>,
    seen: Arc<Seen>,
}

impl Catalogue for Doubles {
    fn read(&self) -> anyhow::Result<Vec<Entry>> {
        if let Some(pulled) = &self.pulled {
            let manifests = pulled.list()?.manifests.into_iter();
            let entry = |name: String| Entry { is_pulled: true, ..self.entry(name, String::new()) };
            return Ok(manifests.map(|manifest| entry(manifest.name.to_string())).collect());
        }
        let written = self.written.lock().unwrap().clone().context("line 3 is wrong")?;
        Ok(written.into_iter().map(|(name, flag)| self.entry(name, flag)).collect())
    }

    fn pulled(&self) -> Option<kvik_shelf::Shelf> {
        self.pulled.clone()
    }
}

impl Doubles {
    fn entry(&self, name: String, flag: String) -> Entry {
        Double { name, flag, server: self.server.clone(), seen: self.seen.clone() }.entry()
    }
}

/// A server of models of 40 bytes, two of which fit in memory.
pub(super) struct World {
    router: Router,
    pub(super) server: Arc<Server>,
    pub(super) seen: Arc<Seen>,
    written: Written,
}

impl World {
    pub(super) fn new(names: &[&str]) -> World {
        World::with(names, None)
    }

    /// Creates a server that requires one of these keys.
    pub(super) fn keyed(names: &[&str], keys: Keys) -> World {
        World::serve(names, None, keys)
    }

    /// Creates a server of the models on disk, with a hub that has the repositories `o/r` and that of `llama3.2`.
    pub(super) fn with_hub(dir: &Path) -> World {
        let model: Arc<[u8]> = std::fs::read(tiny_model()).unwrap().into();
        let repository = |name| {
            let files = vec![("tiny-Q8_0.gguf", model.clone(), None)];
            WebRepository { name, commit: "0123456789abcdef0123456789abcdef01234567", files }
        };
        let repositories = ["o/r", "bartowski/Llama-3.2-3B-Instruct-GGUF"].map(repository);
        let web = Web::serve(move |request| {
            let asked = repositories.iter().find(|repository| request.path.contains(repository.name));
            asked.unwrap_or(&repositories[0]).answer(request)
        });
        let hub = kvik_shelf::Hub::new(&web.url, None);
        World::with(&[], Some(kvik_shelf::Shelf::open(dir).with_hub(hub)))
    }

    fn with(names: &[&str], pulled: Option<kvik_shelf::Shelf>) -> World {
        World::serve(names, pulled, Keys::new([]))
    }

    fn serve(names: &[&str], pulled: Option<kvik_shelf::Shelf>, keys: Keys) -> World {
        let ledger = Arc::new(Ledger::new(None, || std::time::SystemTime::UNIX_EPOCH));
        let (seen, written) = (Arc::new(Seen::default()), Written::default());
        let server = Server::new(keys, ledger, &timed(&seen));
        let (own, server_of, seen_of) = (server.clone(), server.clone(), seen.clone());
        let world =
            |router| World { router, server: own.clone(), seen: seen.clone(), written: written.clone() };
        let catalogue = Doubles { written: written.clone(), pulled, server: server_of, seen: seen_of };
        world(Router::new()).write(&names.iter().map(|name| (*name, "")).collect::<Vec<_>>());
        let shelf = Shelf::new(server, catalogue.read().unwrap(), 100, Box::new(catalogue));
        tokio::spawn(shelf.clone().keep());
        world(over(shelf))
    }

    /// Configures these models with their flags.
    pub(super) fn write(&self, models: &[(&str, &str)]) {
        let owned = |(name, flag): &(&str, &str)| ((*name).to_owned(), (*flag).to_owned());
        *self.written.lock().unwrap() = Some(models.iter().map(owned).collect());
    }

    pub(super) async fn reload(&self) -> (u16, Value) {
        let (status, answer) = json_of(self.send("POST", "/v1/shelf/reload", &Value::Null).await).await;
        (status.as_u16(), answer)
    }

    pub(super) fn loads(&self, name: &str) -> usize {
        self.seen.loads.lock().unwrap().get(name).copied().unwrap_or(0)
    }

    pub(super) async fn send(&self, method: &str, path: &str, body: &Value) -> Response {
        self.send_as("", method, path, body).await
    }

    pub(super) async fn send_as(&self, key: &str, method: &str, path: &str, body: &Value) -> Response {
        let request = HttpRequest::builder().method(method).uri(path);
        let request = request.header("authorization", format!("Bearer {key}"));
        let request = request.header("content-type", "application/json");
        let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string()) };
        self.router.clone().oneshot(request.body(body).unwrap()).await.unwrap()
    }

    pub(super) async fn ask(&self, body: Value) -> (u16, Value) {
        let (status, answer) = json_of(self.send("POST", "/v1/completions", &body).await).await;
        (status.as_u16(), answer)
    }

    pub(super) async fn get(&self, path: &str) -> Value {
        json_of(self.send("GET", path, &Value::Null).await).await.1
    }

    /// Waits until a model has this status.
    pub(super) async fn until(&self, index: usize, status: &str) {
        for _ in 0..1000 {
            if self.statuses().await[index] == status {
                return;
            }
            tokio::time::sleep(LOAD).await;
        }
        panic!("it never is {status}: {:?}", self.statuses().await);
    }

    /// Returns the index of a model in the list.
    pub(super) async fn index_of(&self, name: &str) -> usize {
        let shelf = self.get("/v1/shelf").await;
        let models = shelf["models"].as_array().unwrap();
        models.iter().position(|model| model["name"] == name).unwrap()
    }

    /// Returns the number of models in memory.
    pub(super) fn open(&self) -> usize {
        self.seen.open.load(Ordering::Relaxed)
    }

    /// Returns the largest number of models that were in memory at once.
    pub(super) fn most_open(&self) -> usize {
        self.seen.most.load(Ordering::Relaxed)
    }

    async fn statuses(&self) -> Vec<String> {
        let shelf = self.get("/v1/shelf").await;
        let models = shelf["models"].as_array().unwrap().iter();
        models.map(|model| model["status"].as_str().unwrap().to_owned()).collect()
    }
}

/// An engine counts its own tokens, and begins again when its model is loaded again.
#[tokio::test]
async fn totals_are_those_of_all_models() {
    let world = World::with(&["a", "long"], None);
    for name in ["a", "long", "a"] {
        assert_eq!(world.ask(body(name)).await.0, 200);
    }
    let stats = world.get("/v1/stats").await;
    assert_eq!((&stats["scope"], &stats["tokens"]["generated"]), (&json!("server"), &json!(1 + 4 + 1)));
}

/// Ollama's clients identify a model by size, time and digest: these are its file's, before and after it is
/// loaded.
#[tokio::test]
async fn ollamas_list_says_of_a_model_what_its_file_is() {
    let world = World::with(&["a", "b"], None);
    let before = world.get("/api/tags").await;
    for (model, name) in before["models"].as_array().unwrap().iter().zip(["a", "b"]) {
        let expect = (json!(name), json!(30), json!("2026-11-23T10:33:19.000000Z"), json!(name.repeat(64)));
        let [name, size, modified, digest] =
            ["name", "size", "modified_at", "digest"].map(|field| model[field].clone());
        assert_eq!((name, size, modified, digest), expect);
    }
    assert_eq!(world.ask(body("a")).await.0, 200);
    let after = world.get("/api/tags").await;
    for field in ["size", "modified_at", "digest"] {
        assert_eq!(after["models"][0][field], before["models"][0][field], "{field}");
    }
    let shown = json_of(world.send("POST", "/api/show", &json!({"model": "b"})).await).await.1;
    assert_eq!(shown["modified_at"], before["models"][1]["modified_at"]);
}

#[tokio::test]
async fn how_long_a_request_waited_for_its_model_is_said() {
    let world = World::new(&["a"]);
    let messages = json!([{"role": "user", "content": "Hello."}]);
    for expect in [LOAD.as_nanos() as u64, 0] {
        let asked = json!({"model": "a", "messages": messages, "stream": false});
        let (_, answer) = json_of(world.send("POST", "/api/chat", &asked).await).await;
        assert_eq!(answer["load_duration"], expect, "{answer}");
    }
}

/// Used memory and reserved memory are reported separately.
#[tokio::test]
async fn memory_that_is_used_is_not_what_is_reserved() {
    let world = World::with(&["a"], None);
    let model = world.get("/v1/shelf").await["models"][0].clone();
    assert_eq!((&model["bytes"], &model["bytes_used"]), (&json!(40), &Value::Null));
    assert_eq!(world.ask(body("a")).await.0, 200);
    let model = world.get("/v1/shelf").await["models"][0].clone();
    let held = |part: &str| model["held"][part].as_u64().unwrap();
    assert_eq!(model["bytes"], 40);
    assert_eq!(model["bytes_used"], held("weights") + held("kv_used"));
    // What `ollama ps` shows is memory, too.
    assert_eq!(world.get("/api/ps").await["models"][0]["size"], model["bytes_used"]);
}

/// A model stays in memory while an answer goes on that nobody reads.
#[tokio::test]
async fn a_model_stays_while_an_answer_goes_on_without_its_client() {
    let world = World::new(&["a"]);
    world.seen.goes_on.store(true, Ordering::Relaxed);
    world.send("POST", "/v1/conversations", &json!({"name": "trip"})).await;
    let asked = json!({
        "messages": [{"role": "user", "content": "Hello."}],
        "stream": true,
        "kvik": {"conversation": "trip", "resume": true},
    });
    let response = world.send("POST", "/v1/chat/completions", &asked).await;
    assert_eq!(response.status(), 200);
    drop(response);
    world.send("POST", "/v1/shelf/unload", &json!({"model": "a"})).await;
    let model = world.get("/v1/shelf").await["models"][0].clone();
    assert_eq!((&model["in_use"], &model["status"]), (&json!(1), &json!("unloading")));
    let stopped = json_of(world.send("DELETE", "/v1/conversations/trip/answer", &Value::Null).await).await.1;
    assert_eq!(stopped["stopped"], true);
    world.until(0, "unloaded").await;
}

fn body(model: &str) -> Value {
    json!({"model": model, "prompt": "Hello"})
}

#[tokio::test]
async fn the_model_that_is_named_answers() {
    let world = World::new(&["a", "b", "c"]);
    assert_eq!(world.statuses().await, ["unloaded"; 3], "the server itself says so");
    for (name, who) in [
        ("b", "b"),
        ("a-alias", "a"),
        ("a:latest", "a"),
        ("", "a"),
        ("kvik", "a"),
        ("b-alias", "b"),
        ("b-style", "b"),
        ("", "b"),
    ] {
        let (status, answer) = world.ask(body(name)).await;
        assert_eq!(
            (status, &answer["choices"][0]["text"], &answer["model"]),
            (200, &json!(who), &json!(who))
        );
    }
    let (status, answer) = world.ask(json!({"prompt": "Hello"})).await;
    assert_eq!((status, &answer["model"]), (200, &json!("b")), "the one that was used last");
    let (status, answer) = world.ask(body("d")).await;
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(status == 404 && message.contains("`d`") && message.contains("a, b, c"), "{message}");
    let shown = json_of(world.send("POST", "/api/show", &json!({"model": "c"})).await).await.1;
    assert_eq!(shown["model_info"]["general.basename"], "c", "{shown}");
    assert_eq!(world.get("/v1/models/c").await["status"]["value"], "unloaded", "a question loads nothing");
    let tags = world.get("/api/tags").await;
    assert_eq!(tags["models"].as_array().unwrap().len(), 3);
    assert_eq!(world.get("/api/ps").await["models"].as_array().unwrap().len(), 2);
    assert_eq!(
        world.ask(body("c-style")).await.1["model"],
        "c",
        "an adapter of a model that is not in memory"
    );
}

/// `m:latest` was answered by `m`, and `kvik` by the model that was used last.
#[tokio::test]
async fn a_name_comes_before_what_else_it_may_mean() {
    let names = ["a", "b", "kvik", "a:latest"];
    let world = World::new(&names);
    for name in names {
        assert_eq!(world.ask(body(name)).await.1["model"], name);
    }
}

/// The model of a question about its cache stands in the query, beside what else is asked.
#[tokio::test]
async fn a_model_is_named_beside_other_parameters() {
    let world = World::new(&["a", "b"]);
    let message = async |method: &str, path: &str| {
        let (_, answer) = json_of(world.send(method, path, &Value::Null).await).await;
        answer["error"]["message"].as_str().unwrap().to_owned()
    };
    world.ask(body("a")).await;
    for (method, path) in [
        ("GET", "/v1/cache?limit=1&model=a"),
        ("GET", "/v1/cache/tree?nodes=1&model=a"),
        ("DELETE", "/v1/cache/pins?model=a"),
        ("DELETE", "/v1/cache?model=a"),
    ] {
        let said = message(method, path).await;
        assert!(said.contains("this server has no cache"), "{path} reaches its route: {said}");
    }
    assert!(message("GET", "/v1/cache?limit=1&model=b").await.contains("`b` is not in memory"));
    let unknown = message("GET", "/v1/cache?limit=1&mode=a").await;
    assert!(unknown.contains("`mode`"), "what means nothing is refused: {unknown}");
    assert_eq!(world.loads("b"), 0, "a question loads nothing");
}

/// A field that is wrong, or means nothing here, does not hide the name of the model.
#[tokio::test]
async fn a_keep_alive_never_changes_the_model() {
    let world = World::new(&["a", "b"]);
    let send = async |path: &str, more: Value| {
        let body = super::with(json!({"model": "b", "prompt": "x", "stream": false}), more);
        let (status, answer) = json_of(world.send("POST", path, &body).await).await;
        (status.as_u16(), answer)
    };
    for stays in [json!("1h30m"), json!("100ms"), json!("-1s"), json!(300.0), json!(null)] {
        let (status, answer) = send("/api/generate", json!({"keep_alive": stays, "name": 7})).await;
        assert_eq!((status, &answer["model"]), (200, &json!("b")), "{stays}");
    }
    for path in ["/api/generate", "/api/chat", "/api/embed", "/api/embeddings"] {
        for stays in [json!("soon"), json!(""), json!(true), json!({"m": 5})] {
            let (status, answer) = send(path, json!({"keep_alive": stays})).await;
            let text = answer["error"].as_str().unwrap();
            assert!(status == 400 && text.contains("`keep_alive`"), "{path} {stays}: {status} {text}");
        }
    }
    let (status, answer) = send("/v1/completions?model=b&keep_alive=soon", json!({"model": null})).await;
    assert_eq!((status, &answer["model"]), (200, &json!("b")), "in a query");
    assert_eq!(world.loads("a"), 0, "nobody has named it");
}

/// Ollama's clients load and unload a model with a request that asks for nothing.
#[tokio::test]
async fn a_request_for_nothing_loads_and_unloads() {
    let world = World::new(&["a", "b"]);
    for path in ["/api/generate", "/api/chat", "/api/embed", "/api/embeddings"] {
        for (stays, status) in [(json!("5m0s"), "loaded"), (json!(0), "unloaded"), (json!("0s"), "unloaded")]
        {
            let response = world.send("POST", path, &json!({"model": "b", "keep_alive": stays})).await;
            assert_eq!(response.status().as_u16(), 200, "{path}");
            world.until(1, status).await;
        }
    }
    assert_eq!(world.loads("a"), 0, "nobody has named it");
}

/// As `ollama stop` does.
#[tokio::test]
async fn what_only_unloads_a_model_does_not_load_it() {
    let world = World::new(&["a", "b"]);
    let stop = async |path: &str, model: &str| {
        let body = json!({"model": model, "prompt": "", "messages": [], "keep_alive": 0});
        let (status, answer) = json_of(world.send("POST", path, &body).await).await;
        (status.as_u16(), answer)
    };
    for (path, field, expect) in [
        ("/api/generate", "done_reason", json!("unload")),
        ("/api/chat", "done_reason", json!("unload")),
        ("/api/embed", "embeddings", json!([])),
        ("/api/embeddings", "embedding", json!([])),
    ] {
        let (status, answer) = stop(path, "b-alias").await;
        assert_eq!((status, &answer[field], world.loads("b")), (200, &expect, 0), "{path} {answer}");
        assert_eq!(stop(path, "c").await.0, 404, "{path}");
    }
    assert_eq!(stop("/api/chat", "b-alias").await.1["model"], "b");
    assert_eq!(world.ask(body("b")).await.0, 200);
    assert_eq!(stop("/api/generate", "b").await.1["done_reason"], "unload");
    world.until(1, "unloaded").await;
}

/// What a request continues decides the model of one that names none.
#[tokio::test]
async fn what_is_continued_is_answered_by_its_own_model() {
    let world = World::new(&["a", "b"]);
    let send = async |path: &str, more: Value| {
        let fields = match path {
            "/v1/messages" => json!({"max_tokens": 9, "messages": [{"role": "user", "content": "Hello."}]}),
            _ => json!({"input": "Hello."}),
        };
        let (status, answer) = json_of(world.send("POST", path, &super::with(fields, more)).await).await;
        assert_eq!(status, 200, "{path}: {answer}");
        answer
    };
    let (responses, messages) = ("/v1/responses", "/v1/messages");
    let stored = send(responses, json!({"model": "b"})).await;
    let talk = send(responses, json!({"model": "b", "conversation": "talk"})).await;
    let thread = send(messages, json!({"model": "b", "thread": {"type": "create"}})).await;
    let thread = json!({"type": "continue", "previous_message_id": thread["id"]});
    for (path, more) in [
        (responses, json!({"previous_response_id": stored["id"]})),
        (responses, json!({"conversation": "talk"})),
        (responses, json!({"conversation": {"id": talk["conversation"]["id"]}})),
        (messages, json!({"kvik": {"conversation": "talk"}})),
        (messages, json!({"thread": thread})),
    ] {
        assert_eq!(world.ask(body("a")).await.0, 200);
        assert_eq!(send(path, more.clone()).await["model"], "b", "{path} {more}");
    }
}

/// Malformed bodies, and bodies of the wrong type, get the answers of their route.
#[tokio::test]
async fn what_is_wrong_with_a_body_is_said_by_its_route() {
    let world = World::new(&["a", "b"]);
    let send = async |text: &'static str, kind: &str| {
        let request =
            HttpRequest::post("/v1/completions").header("content-type", kind).body(Body::from(text));
        world.router.clone().oneshot(request.unwrap()).await.unwrap().status().as_u16()
    };
    assert_eq!(send("{\"model\": \"b\", ", "application/json").await, 400);
    assert_eq!(send("[1]", "application/json").await, 400);
    assert_eq!(send("{\"model\": 7, \"prompt\": \"x\"}", "application/json").await, 400);
    assert_eq!(send("model=b", "text/plain").await, 400);
    let wrong = world.send("DELETE", "/v1/completions", &Value::Null).await;
    assert_eq!(wrong.status().as_u16(), 405);
    assert_eq!(world.send("GET", "/v1/nothing", &Value::Null).await.status().as_u16(), 404);
}

/// The content length is that of the dialect's error body.
#[tokio::test]
async fn errors_in_the_words_of_a_dialect_have_their_length() {
    let world = World::new(&["a", "b"]);
    for path in ["/v1/messages", "/api/chat", "/v1/responses", "/v1/completions"] {
        let response = world.send("POST", path, &json!([1])).await;
        let told = response.headers().get("content-length").map(|length| length.to_str().unwrap().to_owned());
        let bytes = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
        assert_eq!(told, Some(bytes.len().to_string()), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_clients_of_four_models_of_which_two_fit() {
    const NAMES: [&str; 4] = ["a", "b", "c", "d"];
    let world = Arc::new(World::new(&NAMES));
    let client = |client: usize| {
        let world = world.clone();
        async move {
            for at in 0..40 {
                let name = NAMES[(client + at * at) % 4];
                let (status, answer) = world.ask(body(name)).await;
                assert_eq!((status, &answer["choices"][0]["text"]), (200, &json!(name)));
            }
        }
    };
    let clients: Vec<_> = (0..8).map(|number| tokio::spawn(client(number))).collect();
    for client in clients {
        client.await.unwrap();
    }
    let loads: usize = world.seen.loads.lock().unwrap().values().sum();
    assert!(world.seen.most.load(Ordering::Relaxed) <= 2, "two fit");
    assert!(loads < 160, "{loads} loads of 320 requests: they thrash");
}

#[tokio::test]
async fn a_model_that_cannot_be_loaded_says_why_and_is_tried_again() {
    let world = World::new(&["a", "b"]);
    world.ask(body("a")).await;
    world.seen.breaks.store(true, Ordering::Relaxed);
    let (status, answer) = world.ask(body("b")).await;
    let error = &answer["error"];
    assert_eq!((status, &error["code"]), (503, &json!("model_load_failed")));
    let again = world.send("POST", "/v1/completions", &body("b")).await;
    assert_eq!(again.headers()["x-should-retry"], "false", "the file stays broken");
    assert!(!again.headers().contains_key("retry-after"));
    assert!(error["message"].as_str().unwrap().contains("its file is broken"), "{error}");
    assert_eq!(world.ask(body("a")).await.0, 200, "the others go on");
    let listed = world.get("/v1/models/b").await;
    assert!(listed["status"]["failed"].as_str().unwrap().starts_with("its file is broken"), "{listed}");
    world.seen.breaks.store(false, Ordering::Relaxed);
    world.seen.lacks_memory.store(true, Ordering::Relaxed);
    let again = world.send("POST", "/v1/completions", &body("b")).await;
    assert_eq!(again.headers()["retry-after"], "1", "there may be memory the next time");
    assert!(!again.headers().contains_key("x-should-retry"));
    world.seen.lacks_memory.store(false, Ordering::Relaxed);
    assert_eq!(world.ask(body("b")).await.0, 200);
}

#[tokio::test]
async fn a_model_stays_until_its_answer_is_computed() {
    let world = World::new(&["a", "b", "c"]);
    let asked = json!({"model": "a", "prompt": "x", "stream": true});
    let unread = world.send("POST", "/v1/completions", &asked).await;
    assert_eq!(unread.status().as_u16(), 200);
    world.seen.goes_on.store(true, Ordering::Relaxed);
    let endless = world.send("POST", "/v1/completions", &asked).await;
    world.seen.goes_on.store(false, Ordering::Relaxed);
    let unload = world.send("POST", "/v1/shelf/unload", &json!({"model": "a"})).await;
    assert_eq!(unload.status().as_u16(), 200);
    tokio::time::sleep(10 * LOAD).await;
    assert_eq!(world.statuses().await[0], "unloading", "an answer has not ended");
    drop(endless);
    world.until(0, "unloaded").await;
    let text = axum::body::to_bytes(unread.into_body(), usize::MAX).await.unwrap();
    assert!(String::from_utf8_lossy(&text).contains("[DONE]"), "all of it is there for a slow reader");
    assert_eq!(world.seen.open.load(Ordering::Relaxed), 0);
    let loaded = world.send("POST", "/models/load", &json!({"model": "c"})).await;
    assert_eq!((loaded.status().as_u16(), world.statuses().await[2].as_str()), (200, "loaded"));
    world
        .send(
            "POST",
            "/api/generate",
            &json!({"model": "c", "prompt": "x", "stream": false, "keep_alive": 0}),
        )
        .await;
    // Ollama's clients unload a model this way.
    world.until(2, "unloaded").await;
}

/// Requests about the server are answered without a model, even if there is none.
#[tokio::test]
async fn a_server_without_models_answers_what_it_can() {
    let world = World::new(&[]);
    for path in [
        "/health",
        "/ready",
        "/v1/models",
        "/api/tags",
        "/api/ps",
        "/api/version",
        "/v1/shelf",
        "/get_load",
        "/openapi.json",
        "/",
    ] {
        let response = world.send("GET", path, &Value::Null).await;
        assert_eq!(response.status().as_u16(), 200, "{path}");
    }
    let (status, answer) = world.ask(body("a")).await;
    assert!(status == 404 && answer["error"]["message"].as_str().unwrap().contains("kvik pull"), "{answer}");
    for path in ["/v1/cache", "/model_info", "/server_info"] {
        assert_eq!(world.get(path).await["error"]["code"], "model_not_found", "{path}");
    }
    world.write(&[("a", "")]);
    assert_eq!((world.reload().await.0, world.ask(body("a")).await.0), (200, 200));
}

#[tokio::test]
async fn models_come_change_and_go_while_the_server_runs() {
    let world = World::new(&["a", "b", "c"]);
    for name in ["a", "b"] {
        world.ask(body(name)).await;
    }
    // Two answers are left unread: one of a model that is removed, and one of a model that stays.
    let stream = async |name: &str| {
        world.send("POST", "/v1/completions", &json!({"model": name, "prompt": "x", "stream": true})).await
    };
    let (of_a, of_b) = (stream("a").await, stream("b").await);
    world.write(&[("b", ""), ("c", ""), ("d", "")]);
    let (status, shelf) = world.reload().await;
    let names: Vec<&Value> = shelf["models"].as_array().unwrap().iter().map(|model| &model["name"]).collect();
    assert_eq!((status, names), (200, vec![&json!("b"), &json!("c"), &json!("d")]));
    assert_eq!(world.ask(body("a")).await.0, 404, "it is gone");
    for (answer, name) in [(of_a, "a"), (of_b, "b")] {
        let text = axum::body::to_bytes(answer.into_body(), usize::MAX).await.unwrap();
        assert!(String::from_utf8_lossy(&text).contains("[DONE]"), "what {name} has begun it ends");
    }
    assert_eq!(world.ask(body("d")).await.0, 200, "it is new");
    assert_eq!(world.ask(body("b")).await.0, 200);
    assert_eq!(world.loads("b"), 1, "what has not changed stays in memory");
    world.write(&[("b", "--context=1"), ("c", ""), ("d", ""), ("a", "")]);
    world.reload().await;
    assert_eq!((world.ask(body("b")).await.0, world.loads("b")), (200, 2), "it has other flags");
    assert_eq!((world.ask(body("a")).await.0, world.loads("a")), (200, 2), "it came back");
    assert!(world.seen.most.load(Ordering::Relaxed) <= 2);
}

#[tokio::test]
async fn a_catalogue_that_is_wrong_changes_nothing() {
    let world = World::new(&["a", "b"]);
    world.ask(body("a")).await;
    *world.written.lock().unwrap() = None;
    let (status, answer) = world.reload().await;
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(status == 422 && message.contains("line 3 is wrong") && message.contains("stay"), "{message}");
    assert_eq!(world.statuses().await, ["loaded", "unloaded"]);
    assert_eq!((world.ask(body("b")).await.0, world.loads("a")), (200, 1));
}

/// Models are added and removed at random while clients send requests: requests for a present model are
/// answered by it, others are refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reloads_under_load() {
    const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
    let world = Arc::new(World::new(&NAMES));
    let client = |client: usize| {
        let world = world.clone();
        async move {
            for at in 0..60 {
                let name = NAMES[(client * 2 + at * at) % 5];
                let (status, answer) = world.ask(body(name)).await;
                match status {
                    200 => assert_eq!(answer["choices"][0]["text"], name),
                    _ => assert_eq!(
                        (status, &answer["error"]["code"]),
                        (404, &json!("model_not_found")),
                        "{answer}"
                    ),
                }
                assert!(status == 200 || name != "a", "a always is there");
            }
        }
    };
    let clients: Vec<_> = (0..6).map(|number| tokio::spawn(client(number))).collect();
    for round in 0.. {
        if clients.iter().all(|client| client.is_finished()) {
            break;
        }
        let chance = |number: usize| mix(10 * round + number as u64);
        let here = |number: &usize| *number == 0 || chance(*number).is_multiple_of(2);
        let flag = |number: usize| if chance(number).is_multiple_of(8) { "--changed" } else { "" };
        let models: Vec<_> = (0..5).filter(here).map(|number| (NAMES[number], flag(number))).collect();
        world.write(&models);
        assert_eq!(world.reload().await.0, 200);
        tokio::time::sleep(3 * LOAD).await;
    }
    for client in clients {
        client.await.unwrap();
    }
    assert!(world.seen.most.load(Ordering::Relaxed) <= 2, "two fit");
}
