//! Models of a shelf that are pulled, copied and deleted while it serves them.

use serde_json::{Value, json};

use super::{json_of, shelf::World};

fn body(model: &str) -> Value {
    json!({"model": model, "prompt": "Hello"})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn models_are_pulled_copied_and_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let world = World::with_hub(dir.path());
    let send = async |method: &str, path: &str, body: Value| {
        let (status, answer) = json_of(world.send(method, path, &body).await).await;
        (status.as_u16(), answer)
    };
    let pull = json!({"model": "hf.co/o/r", "stream": false});
    assert_eq!(send("POST", "/api/pull", pull).await, (200, json!({"status": "success"})));
    assert_eq!(world.ask(body("hf.co/o/r:latest")).await.1["model"], "o/r");
    for page in ["huggingface.co/o/r", "https://huggingface.co/o/r/tree/main?library=gguf"] {
        let pull = json!({"model": page, "stream": false});
        assert_eq!(send("POST", "/api/pull", pull).await, (200, json!({"status": "success"})), "{page}");
    }
    let stream = world.send("POST", "/api/pull", &json!({"model": "hf:o/r"})).await;
    let lines = axum::body::to_bytes(stream.into_body(), usize::MAX).await.unwrap();
    assert!(
        String::from_utf8_lossy(&lines).trim_end().ends_with(r#"{"status":"success"}"#),
        "again is nothing new"
    );
    assert_eq!(
        send("POST", "/api/copy", json!({"source": "o/r", "destination": "mine"})).await,
        (200, json!({}))
    );
    assert_eq!(send("DELETE", "/api/delete", json!({"model": "o/r"})).await, (200, json!({})));
    assert_eq!((world.ask(body("o/r")).await.0, world.ask(body("mine")).await.0), (404, 200));
    let family = json!({"model": "llama3.2", "stream": false});
    assert_eq!(send("POST", "/api/pull", family).await, (200, json!({"status": "success"})));
    for name in ["llama3.2", "Llama3.2:latest", "LLAMA3.2:3B", "llama3.2:3b"] {
        assert_eq!(world.ask(body(name)).await.1["model"], "llama3.2:3b", "{name}");
    }
    assert_eq!(world.ask(body("llama3.2:1b")).await.0, 404, "another size is another model");
    for (path, body, status) in [
        ("/api/pull", json!({"model": "/etc/passwd"}), 400),
        ("/api/pull", json!({"model": "hf:o/none", "stream": false}), 502),
        ("/api/pull", json!({}), 400),
        ("/api/copy", json!({"source": "mine", "destination": "../up"}), 400),
        ("/api/copy", json!({"source": "o/r", "destination": "x"}), 404),
    ] {
        assert_eq!(send("POST", path, body.clone()).await.0, status, "{path} {body}");
    }
}

/// The model that was used last was removed with its files, or the first one with such an alias or adapter.
#[tokio::test]
async fn what_is_no_name_of_a_model_removes_and_copies_none() {
    let dir = tempfile::tempdir().unwrap();
    let world = World::with_hub(dir.path());
    let send = async |method: &str, path: &str, body: Value| {
        let (status, answer) = json_of(world.send(method, path, &body).await).await;
        (status.as_u16(), answer)
    };
    assert_eq!(send("POST", "/api/pull", json!({"model": "hf.co/o/r", "stream": false})).await.0, 200);
    let names = kvik_shelf::Shelf::open(dir.path());
    for name in ["m", "m:latest"] {
        names.copy("o/r", &name.parse().unwrap()).unwrap();
    }
    assert_eq!(world.reload().await.0, 200);
    for name in ["m", "m:latest", "o/r"] {
        assert_eq!(world.ask(body(name)).await.1["model"], name);
    }
    for name in ["kvik", "m-alias", "m-style", "o/r-style"] {
        assert_eq!(send("DELETE", "/api/delete", json!({"model": name})).await.0, 404, "{name}");
        let copy = json!({"source": name, "destination": "copied"});
        assert_eq!(send("POST", "/api/copy", copy).await.0, 404, "{name}");
    }
    assert_eq!(send("DELETE", "/api/delete", json!({"model": "m:latest"})).await.0, 200);
    let listed = names.list().unwrap().manifests;
    assert_eq!(listed.iter().map(|manifest| manifest.name.as_str()).collect::<Vec<_>>(), ["m", "o/r"]);
    for (name, who) in [("m", "m"), ("m:latest", "m"), ("o/r", "o/r")] {
        assert_eq!(world.ask(body(name)).await.1["model"], who, "{name}");
    }
    for name in ["kvik", "embedded", "hf.co/x/y"] {
        let copy = json!({"source": "m", "destination": name});
        let (status, answer) = send("POST", "/api/copy", copy).await;
        assert_eq!(status, 400, "{name}: {answer}");
    }
}
