//! The rows of the table: earlier requests, the checked request, and where reuse stops.

use serde_json::{Value, json};

use super::{Ask, At, CHAT, LLAMA, RULES, Situation, TEXT};

/// A chat that generates one token.
pub(super) fn chat(messages: &[(&str, &str)]) -> Ask {
    let messages: Vec<Value> =
        messages.iter().map(|(role, content)| json!({"role": role, "content": content})).collect();
    (CHAT, json!({"messages": messages, "max_tokens": 1, "temperature": 0}))
}

/// A continuation of token ids by one token.
pub(super) fn ids(ids: &[u32]) -> Ask {
    (TEXT, json!({"prompt": ids, "max_tokens": 1, "temperature": 0}))
}

/// Adds fields to a request.
pub(super) fn with((path, mut body): Ask, fields: Value) -> Ask {
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    (path, body)
}

/// A row in which the whole prompt is cached.
pub(super) fn whole(name: &'static str, before: &[Ask], now: Ask) -> Situation {
    Situation { name, before: before.to_vec(), now, reason: "complete", at: At::Nowhere, after: "" }
}

/// A row in which a known prompt diverges at `after`.
pub(super) fn other(name: &'static str, before: &[Ask], now: Ask, at: At, after: &'static str) -> Situation {
    Situation { name, before: before.to_vec(), now, reason: "diverged", at, after }
}

/// A row in which `after` was never seen.
pub(super) fn new(name: &'static str, before: &[Ask], now: Ask, at: At, after: &'static str) -> Situation {
    Situation { name, before: before.to_vec(), now, reason: "first_seen", at, after }
}

/// The rules and a question.
pub(super) fn base() -> Ask {
    asking("Parcel arrived at the door")
}

pub(super) fn asking(question: &str) -> Ask {
    chat(&[("system", RULES), ("user", question)])
}

/// The question, its answer, and another question.
pub(super) fn long() -> Ask {
    answered("Parcel arrived at the door", "Deliveries, without a doubt")
}

pub(super) fn answered(question: &str, answer: &str) -> Ask {
    let next = "Mail from Ann about lunch";
    chat(&[("system", RULES), ("user", question), ("assistant", answer), ("user", next)])
}

pub(super) fn conversations() -> Vec<Situation> {
    let (template, user) = (At::Template, At::Message(1));
    let at_the_shop = || answered("Parcel arrived at the shop", "Deliveries, without a doubt");
    let i_think = chat(&[
        ("system", RULES),
        ("user", "Parcel arrived at the door"),
        ("assistant", "Deliveries, I think"),
    ]);
    vec![
        new("nothing was ever asked", &[], base(), template, "<|im_start|>system"),
        whole("the same again", &[base()], base()),
        whole("no answer wanted", &[base()], with(base(), json!({"max_tokens": 0}))),
        whole("asked twice before", &[base(), base()], base()),
        whole("the same after another", &[base(), asking("Mail")], base()),
        other("a message edited", &[long()], at_the_shop(), user, " shop"),
        other("the last message edited", &[base()], asking("Parcel arrived at the shop"), user, " shop"),
        other("a message cut short", &[base()], asking("Parcel arrived"), template, "<|im_end|>"),
        other("a message goes on", &[base()], asking("Parcel arrived at the door, twice"), user, ","),
        other("messages left out", &[long()], asking("Mail from Ann about lunch"), user, "Mail"),
        new("the conversation goes on", &[base()], long(), At::Message(2), "Deliveries"),
        other("it goes on, edited", &[base()], at_the_shop(), user, " shop"),
        other("the nearest of two is taken", &[base(), long()], i_think, At::Message(2), " I"),
    ]
}

pub(super) fn contents() -> Vec<Situation> {
    let (system, answer) = (At::Message(0), At::Message(2));
    let family = answered("Parcel arrived at the door", "Family, without a doubt");
    let two_words = RULES.replace("one word", "two words");
    let two_words = chat(&[("system", &two_words), ("user", "Parcel arrived at the door")]);
    let song = chat(&[("system", "Sing a song about trees"), ("user", "Parcel arrived at the door")]);
    let no_rules = chat(&[("user", "Parcel arrived at the door")]);
    let [crackers, balloons] =
        ["🎉🎉", "🎈🎈"].map(|end| chat(&[("user", &format!("Grüße aus 日本 {end}"))]));
    vec![
        other("an answer edited", &[long()], family, answer, "Family"),
        other("the rules edited", &[base()], two_words, system, " two words"),
        other("the rules replaced", &[base()], song, system, "Sing"),
        other("the rules left out", &[base()], no_rules, At::Template, "user"),
        other("characters of several bytes", &[crackers], balloons, system, "🎈🎈"),
    ]
}

pub(super) fn tool(name: &str, description: &str) -> Value {
    let parameters = json!({"type": "object", "properties": {}});
    json!({"type": "function", "function": {"name": name, "description": description, "parameters": parameters}})
}

pub(super) fn find() -> Value {
    tool("find_folder", "Finds a folder.")
}

pub(super) fn add() -> Value {
    tool("add_folder", "Adds a folder.")
}

/// The question with these tools.
pub(super) fn offering(tools: Value) -> Ask {
    with(base(), json!({"tools": tools}))
}

pub(super) fn tools() -> Vec<Situation> {
    let both = || offering(json!([find(), add()]));
    let function = &find()["function"];
    let respelled = json!({"type": "function", "function": {
        "description": function["description"],
        "name": function["name"],
        "parameters": function["parameters"],
    }});
    let seeks = tool("find_folder", "Seeks a folder.");
    let template = At::Template;
    vec![
        whole("the same tools again", &[both()], both()),
        other("tools in another order", &[both()], offering(json!([add(), find()])), template, ""),
        other("keys in another order", &[both()], offering(json!([respelled, add()])), template, ""),
        other("a tool described otherwise", &[both()], offering(json!([seeks, add()])), template, ""),
        other("one tool less", &[both()], offering(json!([find()])), template, ""),
        other("one tool more", &[offering(json!([find()]))], both(), template, ""),
        other("no tools any more", &[both()], base(), At::Message(0), "You"),
        whole("no choice of tools", &[base()], with(both(), json!({"tool_choice": "none"}))),
    ]
}

/// The question, a call with these arguments, and its result.
pub(super) fn calling(arguments: &str, result: &str) -> Ask {
    let function = json!({"name": "find_folder", "arguments": arguments});
    let call = json!({"id": "1", "type": "function", "function": function});
    let messages = json!([
        {"role": "system", "content": RULES},
        {"role": "user", "content": "Parcel arrived at the door"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": result},
    ]);
    with(offering(json!([find()])), json!({"messages": messages}))
}

pub(super) fn calls() -> Vec<Situation> {
    let parcels = || calling("{\"name\": \"parcels\"}", "found in drawer seven");
    let letters = calling("{\"name\": \"letters\"}", "found in drawer seven");
    let nine = calling("{\"name\": \"parcels\"}", "found in drawer nine");
    vec![
        new("a call goes on", &[offering(json!([find()]))], parcels(), At::Template, ""),
        whole("the same call again", &[parcels()], parcels()),
        other("a call with other arguments", &[parcels()], letters, At::Template, ""),
        other("another result", &[parcels()], nine, At::Message(3), " nine"),
    ]
}

pub(super) fn token_ids() -> Vec<Situation> {
    let changed = |at: usize| {
        let mut changed: Vec<u32> = (300..340).collect();
        changed[at] = 7;
        ids(&changed)
    };
    let first = |tokens: u32| ids(&(300..300 + tokens).collect::<Vec<_>>());
    let several = json!({"prompt": [(300..340).collect::<Vec<_>>(), vec![9; 3]], "max_tokens": 1});
    let at = At::Template;
    vec![
        whole("ids again", &[first(40)], first(40)),
        new("the first id changed", &[first(40)], changed(0), at, ""),
        other("the second id changed", &[first(40)], changed(1), at, ""),
        other("the last id of a block changed", &[first(40)], changed(15), at, ""),
        other("the first id of a block changed", &[first(40)], changed(16), at, ""),
        other("the last id changed", &[first(40)], changed(39), at, ""),
        new("one id more", &[first(39)], first(40), at, ""),
        new("ids go on after a whole block", &[first(32)], first(40), at, ""),
        new("ids go on in a block", &[first(20)], first(40), at, ""),
        whole("the beginning of a prompt", &[first(40)], first(20)),
        whole("the first block of a prompt", &[first(40)], first(16)),
        whole("a single id", &[first(1)], first(1)),
        whole("one of several prompts before", &[(TEXT, several)], first(40)),
    ]
}

pub(super) fn settings() -> Vec<Situation> {
    let adding = |fields: Value| with(base(), fields);
    let private = |name, fields| {
        let at = (At::Template, "<|im_start|>");
        Situation { reason: "other_tenant_or_private", ..new(name, &[base()], adding(fields), at.0, at.1) }
    };
    let observing = Situation {
        reason: "retained",
        ..new(
            "retention that observes all tokens",
            &[base()],
            adding(json!({"kvik": {"retain": "h2o:0.5"}})),
            At::Template,
            "<|im_start|>",
        )
    };
    let any_part = adding(json!({"kvik": {"kept_prefix": true}}));
    let parts = json!({"messages": [
        {"role": "developer", "content": [{"type": "text", "text": RULES}]},
        {"role": "user", "content": "Parcel arrived at the door"},
    ]});
    let usage = json!({"stream": true, "stream_options": {"include_usage": true}});
    let no_thoughts = json!({"enable_thinking": false});
    let text = || (LLAMA, json!({"prompt": "Once upon a time there was", "n_predict": 1, "max_tokens": 1}));
    vec![
        private("a private request", json!({"kvik": {"cache": "private"}})),
        private("private by llama-server's field", json!({"cache_prompt": false})),
        new("after a private one", &[adding(json!({"cache_prompt": false}))], base(), At::Template, ""),
        observing,
        whole("any part allowed, while all is known", &[base()], any_part),
        whole("shared on request", &[base()], adding(json!({"kvik": {"cache": "shared", "priority": 9}}))),
        whole("several choices", &[base()], adding(json!({"n": 3}))),
        whole("after several choices", &[adding(json!({"n": 3}))], base()),
        whole("a stream", &[base()], adding(json!({"stream": true}))),
        whole("a stream with usage", &[base()], adding(usage)),
        new("a stream of something new", &[], adding(json!({"stream": true})), At::Template, ""),
        whole("another temperature", &[base()], adding(json!({"temperature": 1.5, "seed": 3}))),
        whole("a constraint", &[base()], adding(json!({"response_format": {"type": "json_object"}}))),
        whole("no opening of the answer", &[base()], adding(json!({"add_generation_prompt": false}))),
        new("thinking switched off", &[base()], adding(no_thoughts), At::Template, "<think>"),
        whole("content in parts, a developer", &[base()], adding(parts)),
        whole("in llama-server's words", &[text()], text()),
    ]
}
