//! A shelf at unfortunate moments: requests that wait while loads fail and the catalogue changes, clients that leave.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::{Arc, atomic::Ordering},
    task::Poll,
    time::Duration,
};

use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::shelf::{ON_HUB, World};

const MOMENT: Duration = Duration::from_millis(1);
/// Longer than any answer takes: who is forgotten waits for ever.
const PATIENCE: Duration = Duration::from_secs(60);

fn body(model: &str) -> Value {
    json!({"model": model, "prompt": "Hello"})
}

/// A reload forgets why a model could not be loaded, also before those who wait for the model have heard of it.
#[tokio::test]
async fn who_waits_for_a_model_is_answered_though_a_reload_forgets_that_it_failed() {
    let world = World::new(&["a"]);
    world.seen.stalls.store(true, Ordering::Relaxed);
    let mut asked = pin!(world.ask(body("a")));
    tokio::select! {
        biased;
        _ = &mut asked => panic!("it is answered without its model"),
        () = world.until(0, "loading") => {}
    }
    // From here on the request is not polled: it hears of nothing.
    world.seen.breaks.store(true, Ordering::Relaxed);
    world.seen.stalls.store(false, Ordering::Relaxed);
    let failed = async || world.get("/v1/models/a").await["status"]["failed"].is_string();
    while !failed().await {
        sleep(MOMENT).await;
    }
    world.seen.breaks.store(false, Ordering::Relaxed);
    world.write(&[("a", "other")]);
    assert_eq!(world.reload().await.0, 200);
    let (status, answer) = timeout(PATIENCE, asked).await.expect("the model is asked for again");
    assert_eq!(status, 200, "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn requests_for_a_model_that_breaks_and_changes_are_all_answered() {
    let world = Arc::new(World::new(&["a"]));
    world.seen.breaks.store(true, Ordering::Relaxed);
    let client = || {
        let world = world.clone();
        async move {
            for _ in 0..40 {
                let asked = timeout(PATIENCE, world.ask(body("a"))).await;
                let (status, answer) = asked.expect("it is answered in time");
                assert_eq!((status, &answer["error"]["code"]), (503, &json!("model_load_failed")));
            }
        }
    };
    let clients: Vec<_> = (0..8).map(|_| tokio::spawn(client())).collect();
    let flags = ["", "other"];
    for round in 0.. {
        if clients.iter().all(|client| client.is_finished()) {
            break;
        }
        world.write(&[("a", flags[round % 2])]);
        assert_eq!(world.reload().await.0, 200);
        sleep(MOMENT).await;
    }
    for client in clients {
        client.await.unwrap();
    }
}

/// What a request has changed on disk is changed on the shelf, whoever waits for it.
#[tokio::test]
async fn clients_that_leave_while_models_are_copied_and_deleted_leave_the_shelf_as_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let world = World::with_hub(dir.path());
    let pulled = world.send("POST", "/api/pull", &json!({"model": "hf:o/r", "stream": false})).await;
    assert_eq!(pulled.status(), 200);
    let on_disk = kvik_shelf::Shelf::open(dir.path());
    for (method, path, body, count) in [
        ("POST", "/api/copy", json!({"source": "o/r", "destination": "mine"}), 2),
        ("DELETE", "/api/delete", json!({"model": "o/r"}), 1),
    ] {
        let is_done = || on_disk.list().unwrap().manifests.len() == count;
        left_when(is_done, world.send(method, path, &body)).await;
        let on_shelf = async || world.get("/v1/shelf").await["models"].as_array().unwrap().len();
        let known = async {
            while on_shelf().await != count {
                sleep(MOMENT).await;
            }
        };
        timeout(PATIENCE, known).await.unwrap_or_else(|_| panic!("{path} is not known to the shelf"));
    }
}

/// Polls a request until this has happened, and drops it.
async fn left_when(has_happened: impl Fn() -> bool, request: impl Future) {
    let mut request = pin!(request);
    while !has_happened() {
        if poll_fn(|context| Poll::Ready(request.as_mut().poll(context).is_ready())).await {
            return;
        }
        tokio::task::yield_now().await;
    }
}

/// The bytes of the former entry were reserved for the new one, so that more was in memory than fits.
#[tokio::test]
async fn a_model_that_has_grown_is_loaded_when_there_is_room_for_it() {
    let world = World::new(&["a", "b"]);
    for name in ["a", "b"] {
        assert_eq!(world.ask(body(name)).await.0, 200);
    }
    assert_eq!(world.open(), 2, "both fit");
    world.write(&[("a", ""), ("b", "90")]);
    assert_eq!(world.reload().await.0, 200);
    assert_eq!(world.ask(body("b")).await.0, 200);
    assert_eq!((world.open(), world.loads("b")), (1, 2), "nothing fits beside it");
}

/// A server with the model `a` and the model `far`, which the hub does not send yet.
async fn with_a_hub_that_stalls() -> World {
    let world = World::new(&[]);
    world.write(&[("a", ""), ("far", ON_HUB)]);
    assert_eq!(world.reload().await.0, 200);
    world.seen.hub_stalls.store(true, Ordering::Relaxed);
    world
}

/// A download was a load of the keeper, which loads one model at a time.
#[tokio::test]
async fn a_model_that_is_fetched_keeps_no_other_waiting() {
    let world = with_a_hub_that_stalls().await;
    let mut asked = pin!(world.ask(body("far")));
    tokio::select! {
        biased;
        _ = &mut asked => panic!("it is answered without its model"),
        () = world.until(1, "loading") => {}
    }
    let other = timeout(PATIENCE, world.ask(body("a"))).await;
    assert_eq!(other.expect("the keeper loads others").0, 200);
    world.seen.hub_stalls.store(false, Ordering::Relaxed);
    let (status, answer) = timeout(PATIENCE, asked).await.expect("it is loaded when it is fetched");
    assert_eq!(status, 200, "{answer}");
    assert_eq!(world.reload().await.0, 200);
    assert_eq!(world.ask(body("far")).await.0, 200);
    assert_eq!(world.loads("far"), 1, "its file is the one that was loaded");
}

#[tokio::test]
async fn a_download_for_nobody_ends_and_the_next_request_begins_it_again() {
    let world = with_a_hub_that_stalls().await;
    {
        let mut asked = pin!(world.ask(body("far")));
        tokio::select! {
            biased;
            _ = &mut asked => panic!("it is answered without its model"),
            () = world.until(1, "loading") => {}
        }
    }
    world.until(1, "unloaded").await;
    assert_eq!(world.get("/v1/models/far").await["status"]["failed"], Value::Null, "nobody was refused");
    world.seen.hub_stalls.store(false, Ordering::Relaxed);
    world.seen.breaks.store(true, Ordering::Relaxed);
    let (status, answer) = world.ask(body("far")).await;
    assert_eq!((status, &answer["error"]["code"]), (503, &json!("model_load_failed")));
    assert!(answer["error"]["message"].as_str().unwrap().contains("the hub does not have it"), "{answer}");
    world.seen.breaks.store(false, Ordering::Relaxed);
    assert_eq!((world.ask(body("far")).await.0, world.loads("far")), (200, 1));
}
