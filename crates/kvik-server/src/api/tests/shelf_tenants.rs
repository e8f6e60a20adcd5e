//! Tenants of a shelf: what they are told of its models, and their reloading while one is loading.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, mpsc},
    time::Duration,
};

use axum::{Router, body::Body, http::Request as HttpRequest};
use serde_json::{Value, json};
use tower::ServiceExt;

use super::{
    config, json_of,
    kept::tokens,
    shelf::World,
    tenants::{code, keys, tenants_file},
};
use crate::{
    accounts::ledger::Ledger,
    api::{of_model, over},
    app::{
        App,
        server::Server,
        shelf::{Catalogue, Described, Entry, LoadModel, ModelFile, OpenModel, Shelf},
        upkeep::read_tenants,
    },
};
use kvik_serving::{
    fetch::Cancelled,
    load,
    settings::{
        capacity::Capacity,
        model::{CacheArgs, ModelArgs},
        size::ByteSize,
    },
};

/// The embedded model. Loading begins with the current tenants, and continues when the test says so.
struct Slow {
    server: Arc<Server>,
    begun: mpsc::Sender<()>,
    goes_on: Mutex<mpsc::Receiver<()>>,
}

impl LoadModel for Slow {
    fn fetch(&self, _: Cancelled<'_>) -> anyhow::Result<Entry> {
        anyhow::bail!("it is here")
    }

    fn load(&self) -> anyhow::Result<OpenModel> {
        let cache = CacheArgs::in_ram(512, ByteSize(8 << 20));
        let capacity = Capacity { parallel: 2, queue: 8, ..Capacity::ONE };
        let loaded = load::open(&ModelArgs::embedded(), &cache, capacity)?;
        loaded.handle.set_tenants(self.server.keys().tenants().parts());
        self.begun.send(())?;
        self.goes_on.lock().unwrap().recv()?;
        let app = App::of(self.server.clone(), loaded.serving, config());
        let engine = loaded.handle.clone();
        let close = Box::new(move || engine.shutdown(Duration::ZERO));
        Ok(OpenModel { routes: of_model(app.clone()), app, bytes: 40, handle: Some(loaded.handle), close })
    }

    fn describe(&self) -> anyhow::Result<Described> {
        anyhow::bail!("nobody asks for it")
    }

    fn cache_disk(&self) -> Option<PathBuf> {
        None
    }
}

/// A catalogue of that one model.
struct One(Arc<Slow>);

impl Catalogue for One {
    fn read(&self) -> anyhow::Result<Vec<Entry>> {
        Ok(vec![Entry {
            name: "slow".to_owned(),
            aliases: Vec::new(),
            adapters: Vec::new(),
            source: "/secret/slow.gguf".to_owned().into(),
            bytes: 40,
            file: ModelFile::default(),
            is_absent: false,
            keep_alive: None,
            tenants: None,
            is_pulled: false,
            flags: Vec::new(),
            loader: Some(self.0.clone()),
        }])
    }

    fn pulled(&self) -> Option<kvik_shelf::Shelf> {
        None
    }
}

async fn pin(router: &Router) -> (u16, Value) {
    let body = json!({"model": "slow", "prompt": tokens(1, 160)}).to_string();
    let request = HttpRequest::post("/v1/cache/pin").header("authorization", "Bearer acme");
    let request = request.header("content-type", "application/json").header("host", "127.0.0.1");
    let answer = router.clone().oneshot(request.body(Body::from(body)).unwrap()).await.unwrap();
    let (status, answer) = json_of(answer).await;
    (status.as_u16(), answer)
}

/// Returns the answer to a pin request: the tenants are `before` when loading begins, and `after` when it
/// ends.
async fn pins_after_a_reload(before: &str, after: &str) -> (u16, Value) {
    let ledger = Arc::new(Ledger::new(None, std::time::SystemTime::now));
    let server = Server::new(keys(before), ledger, &config());
    let (begun, has_begun) = mpsc::channel();
    let (go_on, goes_on) = mpsc::channel();
    let catalogue = One(Arc::new(Slow { server: server.clone(), begun, goes_on: Mutex::new(goes_on) }));
    let shelf = Shelf::new(server, catalogue.read().unwrap(), 100, Box::new(catalogue));
    let keeper = tokio::spawn(shelf.clone().keep());
    let (dir, shelf_of) = (tempfile::tempdir().unwrap(), shelf.clone());
    let source = tenants_file(dir.path(), after);
    let read_again = tokio::task::spawn_blocking(move || {
        has_begun.recv().unwrap();
        read_tenants(&shelf_of, &source);
        go_on.send(()).unwrap();
    });
    let answer = pin(&over(shelf.clone())).await;
    read_again.await.unwrap();
    keeper.abort();
    shelf.shutdown(Duration::ZERO).await;
    answer
}

#[tokio::test]
async fn a_model_that_was_loaded_meanwhile_knows_the_tenants_that_were_read() {
    let (free, bound) = ("[tenant.acme]\nKEY:acme;\n", "[tenant.acme]\nKEY:acme;\npin = \"1KiB\"\n");
    let (status, answer) = pins_after_a_reload(bound, free).await;
    assert_eq!(status, 200, "{answer}");
    let (status, answer) = pins_after_a_reload(free, bound).await;
    assert_eq!((status, code(&answer)), (400, "pin_limit"), "{answer}");
    // Keys of tenants that are not theirs alone change nothing, as all mistakes in the file.
    let (status, answer) = pins_after_a_reload(free, &format!("{bound}[tenant.beta]\nKEY:root;\n")).await;
    assert_eq!(status, 200, "{answer}");
}

/// A server has one cache for all tenants: what is stored, and how long a model stays, tells of their requests.
#[tokio::test]
async fn a_tenant_is_told_what_a_model_is_and_not_what_others_do_with_it() {
    let world = World::keyed(&["a"], keys("[tenant.acme]\nKEY:acme;\n"));
    let lasting = json!({"model": "a", "keep_alive": "5m"});
    let (status, answer) = json_of(world.send_as("root", "POST", "/api/generate", &lasting).await).await;
    assert_eq!(status, 200, "{answer}");
    let get = async |key: &str, path: &str| {
        json_of(world.send_as(key, "GET", path, &Value::Null).await).await.1["models"][0].clone()
    };
    let (mine, all) = (get("acme", "/v1/shelf").await, get("root", "/v1/shelf").await);
    for field in ["bytes_used", "held", "in_use", "waiting", "loads", "expires_in_s"] {
        assert_eq!(mine[field], Value::Null, "{field}");
        assert_ne!(all[field], Value::Null, "{field}");
    }
    let held = |part: &str| all["held"][part].as_u64().unwrap();
    assert!(held("kv_used") > 0);
    let (mine, running) = (get("acme", "/api/ps").await, get("root", "/api/ps").await);
    assert_eq!((&mine["size"], &running["size"]), (&json!(held("weights")), &all["bytes_used"]));
    let forever = json!("9999-12-31T23:59:59Z");
    assert!(mine["expires_at"] == forever && running["expires_at"] != forever, "{mine} {running}");
}
