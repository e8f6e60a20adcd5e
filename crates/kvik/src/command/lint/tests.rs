use std::sync::{Arc, mpsc};

use kvik_cache::Token;
use kvik_engine::api::{Event, EventSink, Request};
use kvik_model::load::LoadedModel;
use serde_json::json;

use kvik_text::template::ChatTemplate;

use super::*;
use kvik_serving::{
    load::{self, Loaded},
    settings::{capacity::Capacity, model::CacheArgs, size::ByteSize},
};

/// The embedded model, whose tokenizer counts.
struct Model {
    loaded: LoadedModel,
    template: ChatTemplate,
}

impl Model {
    fn new() -> Model {
        let loaded = ModelArgs::embedded().load().unwrap();
        Model { template: loaded.template(None).unwrap(), loaded }
    }

    fn encoder(&self) -> PromptEncoder<'_> {
        PromptEncoder { tokenizer: &self.loaded.tokenizer, template: Some(&self.template) }
    }

    fn lint(&self, bodies: &[Value]) -> Vec<Finding> {
        let bodies: Vec<RequestBody> = bodies.iter().map(request).collect();
        lint(&bodies, self.encoder()).unwrap()
    }
}

fn request(body: &Value) -> RequestBody {
    RequestBody::new(body.clone(), SystemTime::UNIX_EPOCH + Duration::from_secs(1_763_730_000)).unwrap()
}

const RULES: &str = "You sort the notifications of a phone into folders. A notification belongs to the folder \
    whose description fits it best. When none fits, say so in one word. Never invent a folder.";

fn chat(system: &str, user: &str) -> Value {
    json!({"messages": [{"role": "system", "content": system}, {"role": "user", "content": user}]})
}

fn tool(name: &str) -> Value {
    json!({"type": "function", "function": {"name": name, "description": format!("Does {name}."), "parameters": {"type": "object", "properties": {}}}})
}

fn kinds(findings: &[Finding]) -> Vec<(&str, &str, Option<usize>)> {
    findings.iter().map(|finding| (finding.kind, finding.role.as_str(), finding.index)).collect()
}

#[test]
fn a_volatile_sentence_near_the_front_is_found() {
    let model = Model::new();
    for (sentence, kind) in [
        ("It is 2026-11-21T13:05:59Z.", "timestamp"),
        ("Today is 21 November 2026.", "date"),
        ("Session 123e4567-e89b-12d3-a456-426614174000.", "uuid"),
        ("This is request #4711.", "counter"),
        ("You run in build 20261121.3 of the app.", "version"),
        ("The user has the id 123456789012.", "id"),
        ("The time is Nov. 21, 2026, 13:05.", "date"),
        ("Heute ist der 21. November 2026, 13:05 Uhr.", "date"),
        ("It is 13:05 on Nov. 21, 2026.", "timestamp"),
    ] {
        let system = format!("{sentence} {RULES}");
        let findings = model.lint(&[chat(&system, "Parcel arrived")]);
        assert_eq!(kinds(&findings), [(kind, "system", Some(0))], "{sentence}");
        assert_eq!((findings[0].offset, findings[0].text.trim()), (0, sentence));
        assert!(findings[0].saved_tokens > 40, "{findings:?}");
    }
}

#[test]
fn volatile_text_at_the_end_is_not_found() {
    let model = Model::new();
    let dated = "Parcel arrived at 2026-11-21T13:05:59Z";
    assert_eq!(model.lint(&[chat(RULES, "Parcel arrived")]), [], "nothing volatile");
    assert_eq!(model.lint(&[chat(RULES, dated)]), [], "at the end");
    let earlier = json!({"messages": [
        {"role": "system", "content": RULES},
        {"role": "user", "content": dated}, {"role": "assistant", "content": RULES},
        {"role": "user", "content": RULES},
    ]});
    assert_eq!(model.lint(&[earlier]), [], "earlier messages do not change");
    assert_eq!(
        model.lint(&[chat(RULES, "Parcel arrived"), chat(RULES, "Mail from Ann")]),
        [],
        "another question"
    );
}

#[test]
fn each_of_several_findings_has_its_own_gain() {
    let model = Model::new();
    let system = format!("It is 13:05:59 now. {RULES} Today is 2026-11-21. {RULES}");
    let findings = model.lint(&[chat(&system, "Parcel arrived")]);
    assert_eq!(kinds(&findings), [("timestamp", "system", Some(0)), ("date", "system", Some(0))]);
}

#[test]
fn text_on_which_all_files_agree_defeats_nothing() {
    let model = Model::new();
    let at =
        |time: &str| chat(&format!("It is {time} now. {RULES} Build 20261121.3. {RULES}"), "Parcel arrived");
    let findings = model.lint(&[at("13:05:59"), at("14:11:02")]);
    assert_eq!(kinds(&findings), [("timestamp", "system", Some(0))]);
    let dated =
        json!({"name": "f", "description": "Index of 2026-11-21.", "input_schema": {"type": "object"}});
    let mut same = at("13:05:59");
    same["tools"] = json!([dated]);
    assert_eq!(model.lint(&[same.clone(), same]), [], "not even where it looks like a date");
}

/// An agent's directory occurs in several sentences, some of them close together, and in a message before the question;
/// each occurrence is found, and together they account for the whole loss.
#[test]
fn what_differs_in_several_places_is_found_as_a_whole() {
    let model = Model::new();
    let of = |directory: &str, extra: &str| {
        let system = format!(
            "You work in {directory}. Be quick.\nIts notes are in {directory}/notes.\n{RULES}\n{extra}{RULES} Never leave {directory}."
        );
        let context = format!("This is what you know.\nThe directory is {directory}.\n{RULES} {RULES}");
        json!({"messages": [
            {"role": "system", "content": system}, {"role": "user", "content": context},
            {"role": "assistant", "content": "Got it."}, {"role": "user", "content": "Sort my notes."},
        ]})
    };
    let requests = [of("/home/ann/letters", ""), of("/srv/work/invoices", "It is a repository.\n")];
    let findings = model.lint(&requests);
    let all: usize = findings.iter().map(|finding| finding.saved_tokens).sum();
    let encoded = |body: &Value| request(body).tokens(model.encoder()).unwrap().len();
    let least = encoded(&requests[0]).min(encoded(&requests[1]));
    assert!(all + 80 > least, "{all} of {least}: {findings:#?}");
    assert!(findings.iter().any(|finding| finding.role == "user"), "{findings:#?}");
}

#[test]
fn bodies_of_every_dialect_are_read() {
    let model = Model::new();
    let dated = format!("It is 13:05:59 now. {RULES}");
    for body in [
        json!({"model": "x", "max_tokens": 5, "system": [{"type": "text", "text": dated}], "messages": [{"role": "user", "content": "Parcel"}]}),
        json!({"model": "x", "instructions": dated, "input": [{"role": "user", "content": "Parcel"}], "client_metadata": {}}),
    ] {
        assert_eq!(kinds(&model.lint(&[body])), [("timestamp", "system", Some(0))]);
    }
}

#[test]
fn plain_prompts_are_read_too() {
    let model = Model::new();
    let findings = model.lint(&[json!({"prompt": format!("Time: 13:05:59\n{RULES}\nParcel arrived:")})]);
    assert_eq!(kinds(&findings), [("timestamp", "prompt", Some(0))]);
}

#[test]
fn tools_in_another_order_or_spelling_are_found() {
    // The model's own template does not print tools.
    let mut model = Model::new();
    let source = format!("{{{{ tools | tojson }}}}\n{}", model.template.source());
    model.template = ChatTemplate::new(&source, "", "").unwrap();
    let with = |tools: Value| {
        let mut body = chat(RULES, "Parcel arrived");
        body["tools"] = tools;
        body
    };
    let (a, b) = (tool("find_folder"), tool("add_folder"));
    let first = with(json!([a, b]));
    assert_eq!(kinds(&model.lint(&[first.clone(), with(json!([b, a]))])), [("tool_order", "tools", Some(0))]);
    assert_eq!(model.lint(&[first.clone(), first.clone()]), []);
    let function = &a["function"];
    let respelled = json!({"type": "function", "function": {
        "parameters": function["parameters"], "description": function["description"], "name": function["name"],
    }});
    assert_eq!(kinds(&model.lint(&[first, with(json!([respelled, b]))])), [("key_order", "tools", None)]);
    let mut dated = tool("find_folder");
    dated["function"]["description"] = json!("Finds a folder. Index of 2026-11-21.");
    assert_eq!(kinds(&model.lint(&[with(json!([dated, b]))])), [("date", "tools", Some(0))]);
}

#[test]
fn comparing_finds_differences_that_do_not_look_volatile() {
    let model = Model::new();
    let [monday, tuesday] =
        ["cheerful", "sleepy"].map(|mood| chat(&format!("You feel {mood}. {RULES}"), "Hello"));
    let findings = model.lint(&[monday, tuesday]);
    assert_eq!(kinds(&findings), [("differs", "system", Some(0))]);
    assert_eq!(findings[0].text.trim(), "You feel cheerful.");
}

#[test]
fn a_template_that_prints_the_time_is_found() {
    let mut model = Model::new();
    let source = format!("{{{{ strftime_now('%d %b %Y') }}}}\n{}", model.template.source());
    model.template = ChatTemplate::new(&source, "", "").unwrap();
    assert_eq!(kinds(&model.lint(&[chat(RULES, "Parcel arrived")])), [("time", "template", None)]);
}

#[test]
fn bodies_that_are_not_requests_are_refused() {
    for body in
        [json!([]), json!({}), json!({"messages": "hi"}), json!({"prompt": [1, 2]}), json!({"prompt": null})]
    {
        assert!(RequestBody::new(body.clone(), SystemTime::UNIX_EPOCH).is_err(), "{body}");
    }
}

#[test]
fn the_table_has_one_line_per_finding_and_no_control_characters() {
    let model = Model::new();
    let findings = model.lint(&[chat(&format!("Now\u{1b}[31m: 13:05:59\n{RULES}"), "Parcel arrived")]);
    let table = report::table(&findings, 1);
    assert_eq!(table.lines().count(), 5, "{table}");
    assert!(table.contains("If this changes"), "nothing was compared: {table}");
    assert!(report::table(&findings, 2).contains("of every later request are saved"));
    assert!(!table.contains('\u{1b}') && table.contains("messages[0] (system)"), "{table}");
}

/// Signals the end of a request to its channel.
struct End(mpsc::Sender<()>);

impl EventSink for End {
    fn send(&mut self, event: Event) -> bool {
        match event {
            Event::Done(_) => self.0.send(()).is_ok(),
            Event::Failed(error) => panic!("{error}"),
            _ => true,
        }
    }

    fn is_closed(&self) -> bool {
        false
    }
}

/// Tokens that a real engine reuses for the second of two prompts.
fn reused(loaded: &Loaded, salt: u8, prompts: [Vec<Token>; 2]) -> usize {
    let [first, second] = prompts.map(|prompt| Request { salt: [salt; 16], ..Request::new(prompt, 0) });
    let (sender, ended) = mpsc::channel();
    loaded.serving.engine.submit(first, Box::new(End(sender))).unwrap();
    ended.recv().unwrap();
    loaded.serving.engine.explain(second).unwrap().known_tokens
}

/// The engine reuses as many tokens as lint predicts: for pairs of requests that differ in sentences at every kind of
/// position, applying the fixes raises the reused tokens by the sum of the gains.
#[test]
fn the_reported_gain_is_the_gain_in_the_engine() {
    let model = Model::new();
    let cache = CacheArgs::in_ram(1024, ByteSize(16 << 20));
    let loaded = load::open(&ModelArgs::embedded(), &cache, Capacity::ONE).unwrap();
    let loaded = Arc::new(loaded);
    let moods = ["cheerful", "sleepy and cross"];
    let bodies = |place: usize, moving: &str| {
        let sentences: Vec<&str> = RULES.split_inclusive(". ").collect();
        moods.map(|mood| {
            let mut sentences = sentences.clone();
            let own = moving.replace("{}", mood);
            sentences.insert(place.min(sentences.len()), &own);
            chat(&sentences.concat(), "Parcel arrived")
        })
    };
    let mut salt = 0;
    for place in 0..4 {
        for moving in ["You feel {}. ", "Today: {}, 2026-11-21.\n", "{}! "] {
            let [first, second] = bodies(place, moving);
            let (pair, candidates) = compared(&request(&first), &request(&second));
            let findings = gains(&pair, candidates, model.encoder()).unwrap();
            let fixes: Vec<Fix> = findings.iter().map(|finding| finding.fix.clone()).collect();
            let mut run = |pair: &Pair| {
                salt += 1;
                let tokens = [0, 1].map(|side: usize| pair.0[side].tokens(model.encoder()).unwrap());
                reused(&loaded, salt, tokens)
            };
            let (before, after) = (run(&pair), run(&pair.fixed(&fixes)));
            let told: usize = findings.iter().map(|finding| finding.saved_tokens).sum();
            assert_eq!(after - before, told, "{moving:?} at {place}");
            assert!(place == 3 || told > 0, "{moving:?} at {place}");
        }
    }
}
