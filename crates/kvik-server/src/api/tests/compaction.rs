//! `context_management` over the routes, with the real engine and the embedded model.

use serde_json::{Value, json};

use super::{
    kept::{Server, TENANTS},
    memory::{CHAT, memory, said, sealed_by},
};
use crate::accounts::tenants::Secret;

/// A client that sends a compaction item instead of the messages before it.
#[derive(Clone)]
struct Client {
    key: &'static str,
    messages: Vec<Value>,
    /// Number of answers with an item.
    items: usize,
}

impl Client {
    fn new(key: &'static str) -> Client {
        Client { key, messages: vec![said("system", "You are a helpful assistant.")], items: 0 }
    }

    async fn says(&mut self, server: &Server, text: &str) -> Value {
        self.messages.push(said("user", text));
        let body = json!({"messages": self.messages, "temperature": 0, "max_tokens": 24,
            "context_management": [{"type": "compaction", "compact_threshold": 200}]});
        let answer = server.done(self.key, "POST", CHAT, body).await;
        let message = answer["choices"][0]["message"].clone();
        if message.get("compaction").is_some() {
            self.items += 1;
            self.messages.clear();
        }
        self.messages.push(message);
        answer
    }

    /// Sends small talk until `items` answers contained an item.
    async fn talks(&mut self, server: &Server, items: usize) {
        for turn in 0..100 {
            self.says(server, &format!("The bus number {turn} was late again. I had noodles for lunch."))
                .await;
            if self.items >= items {
                return;
            }
            server.settles_down().await;
        }
        panic!("{} items", self.items);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_item_stands_for_all_before_it_also_on_a_server_that_has_forgotten() {
    let secret = Secret::of_this_process();
    let server = sealed_by("", 0, Some(secret.clone()));
    let mut client = Client::new("");
    client.says(&server, "Please remember that my dog is called Bolt.").await;
    client.talks(&server, 3).await;
    assert!(client.messages.len() < 4, "what an item stands for is not sent: {:?}", client.messages);
    let another = sealed_by("", 0, Some(secret));
    for server in [server, another] {
        let mut asked = client.clone();
        let answer = asked.says(&server, "What is my dog called?").await;
        let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
        assert!(text.contains("Bolt"), "{text}: {answer}");
        assert!(memory(&answer)["summary"]["updates"].as_u64() >= Some(2), "{answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_item_of_another_tenant_or_an_altered_one_is_refused() {
    let server = sealed_by(TENANTS, 0, None);
    let mut client = Client::new("acme");
    client.talks(&server, 1).await;
    let mut messages = client.messages.clone();
    messages.push(said("user", "Hello."));
    let refused = async |key: &str, messages: &[Value], field: &str| {
        let (status, answer) = server.send(key, "POST", CHAT, json!({"messages": messages})).await;
        assert_eq!((status.as_u16(), &answer["error"]["param"]), (400, &json!(field)), "{answer}");
    };
    refused("beta", &messages, "messages[0].compaction").await;
    let alone = [messages[0]["compaction"].clone(), said("user", "Hello.")];
    refused("beta", &alone, "messages[0]").await;
    let read = server.done("acme", "POST", CHAT, json!({"messages": alone, "max_tokens": 4})).await;
    assert_eq!(memory(&read)["messages"]["prefix"], 1, "the system message is in the item: {read}");
    messages[0]["compaction"]["encrypted_content"] = json!("bm90aGluZw");
    refused("acme", &messages, "messages[0].compaction").await;

    let hello = [said("user", "Hello.")];
    let compaction = json!({"type": "compaction"});
    for (extra, field) in [
        (json!({"context_management": [compaction, compaction]}), "context_management"),
        (json!({"context_management": [{"type": "clear"}]}), "context_management[0].type"),
        (
            json!({"context_management": [{"type": "compaction", "compact_threshold": 0}]}),
            "context_management[0].compact_threshold",
        ),
        (json!({"context_management": [compaction], "kvik": {"memory": false}}), "context_management"),
        (
            json!({"context_management": [compaction], "kvik": {"conversation": "diary"}}),
            "context_management",
        ),
    ] {
        let body = super::with(json!({"messages": hello}), extra);
        let (status, answer) = server.send("acme", "POST", CHAT, body).await;
        assert_eq!((status.as_u16(), &answer["error"]["param"]), (400, &json!(field)), "{answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_brings_its_item_first() {
    let server = sealed_by("", 0, None);
    let mut client = Client::new("");
    client.talks(&server, 1).await;
    let mut messages = client.messages;
    for turn in 0..12 {
        messages
            .push(said("user", &format!("The bus number {turn} was late again. I had noodles for lunch.")));
        messages.push(said("assistant", "That is annoying. I hope tomorrow is better."));
    }
    messages.push(said("user", "Hello."));
    let body = |stream: bool| {
        json!({"messages": messages, "max_tokens": 4, "stream": stream, "n": 2,
            "context_management": [{"type": "compaction", "compact_threshold": 100}]})
    };
    let first = server.done("", "POST", CHAT, body(false)).await;
    assert!(first["choices"][1]["message"].get("compaction").is_none(), "no newer summary is there yet");
    for _ in 0..100 {
        let frames = server.frames("", CHAT, body(true)).await;
        let has_item = |frame: &&Value| frame["choices"][0]["delta"].get("compaction").is_some();
        let with_item: Vec<&Value> = frames.iter().filter(has_item).collect();
        if !with_item.is_empty() {
            assert_eq!(with_item.len(), 2, "one a choice: {frames:?}");
            let begins = |frame: &&Value| frame["choices"][0]["delta"]["role"] == "assistant";
            assert!(with_item.iter().all(begins), "{frames:?}");
            return;
        }
        // Waits for the summary.
        server.settles_down().await;
    }
    panic!("no item came");
}
