use schemars::{JsonSchema, SchemaGenerator};
use serde_json::json;

use super::*;

fn read(value: Value) -> Result<RetainChoice> {
    RetainField(Json(value)).choice("kvik.retain")
}

#[test]
fn a_text_and_an_object_say_the_same() {
    let check = |value: Value, text: &str| {
        let choice: RetainChoice = text.parse().unwrap();
        assert_eq!(read(json!(text)), Ok(choice), "{text}");
        assert_eq!(read(value.clone()), Ok(choice), "{value}");
    };
    check(json!({"policy": "snapkv"}), "snapkv");
    check(json!({"policy": "snapkv", "keep": 0.25, "window": 16}), "snapkv:0.25,window=16");
    check(json!({"policy": "snapkv", "keep": 1}), "snapkv:1");
    check(json!({"policy": "snapkv", "keep": 1.0}), "snapkv:1");
    check(json!({"policy": "h2o", "keep": 512.0, "budget": "layer:0.3"}), "h2o:512,budget=layer:0.3");
    check(json!({"policy": "h2o", "keep": "64MiB", "every": "128"}), "h2o:64MiB,every=128");
    check(json!({"policy": "keydiff", "keep": "0.3", "protect": 100}), "keydiff:0.3,protect=100");
    check(json!({"policy": "sinks", "keep": 5e-1, "sinks": null}), "sinks:0.5");
    check(json!({"policy": "none"}), "none");
    check(json!({"policy": "auto"}), "auto");
    check(json!({"policy": "auto", "loss": 0.5}), "auto:0.5");
}

#[test]
fn what_cannot_be_meant_names_its_field() {
    let check = |value: Value, at: &str| {
        let error = read(value.clone()).expect_err(&value.to_string());
        let body = error.body();
        assert_eq!(body["error"]["param"], at, "{value}: {body}");
        let message = body["error"]["message"].as_str().unwrap();
        assert!(message.contains(at) && message.len() < 700, "{value}: {message}");
    };
    for value in [json!(1), json!(true), json!([]), json!(["snapkv"]), json!("x".repeat(300))] {
        check(value, "kvik.retain");
    }
    check(json!(""), "kvik.retain.policy");
    check(json!("nonsense:0.5"), "kvik.retain.policy");
    check(json!("snapkv:0"), "kvik.retain.keep");
    check(json!("snapkv:0.5,windows=3"), "kvik.retain.windows");
    check(json!({}), "kvik.retain.policy");
    check(json!({"keep": 0.5}), "kvik.retain.policy");
    check(json!({"policy": 5}), "kvik.retain.policy");
    check(json!({"policy": ["snapkv"]}), "kvik.retain.policy");
    check(json!({"policy": "snapkv:0.5"}), "kvik.retain.policy");
    check(json!({"policy": "SnapKV"}), "kvik.retain.policy");
    check(json!({"policy": "snapkv", "windows": 16}), "kvik.retain.windows");
    check(json!({"policy": "keydiff", "window": 16}), "kvik.retain.window");
    check(json!({"policy": "none", "keep": 0.5}), "kvik.retain.keep");
    check(json!({"policy": "auto", "keep": 0.5}), "kvik.retain.keep");
    check(json!({"policy": "auto", "loss": 101}), "kvik.retain.loss");
    check(json!({"policy": "snapkv", "loss": 1}), "kvik.retain.loss");
    for odd in [json!(0), json!(0.0), json!(-0.5), json!(1.5), json!(-7), json!(1e300), json!(1e-300)] {
        check(json!({"policy": "snapkv", "keep": odd}), "kvik.retain.keep");
    }
    for odd in [
        json!("NaN"),
        json!("inf"),
        json!("1e400"),
        json!("64 parsecs"),
        json!(true),
        json!([0.5]),
        json!({}),
    ] {
        check(json!({"policy": "snapkv", "keep": odd}), "kvik.retain.keep");
    }
    check(json!({"policy": "sinks", "keep": 3}), "kvik.retain.keep");
    for odd in [json!(-1), json!(1.5), json!(u64::MAX), json!("all"), json!([1])] {
        check(json!({"policy": "snapkv", "every": odd}), "kvik.retain.every");
    }
    check(json!({"policy": "snapkv", "budget": "some"}), "kvik.retain.budget");
    check(json!({"policy": "snapkv", "budget": "all,every=16"}), "kvik.retain.budget");
    check(json!({"policy": "snapkv", "budget": "pyramid:NaN"}), "kvik.retain.budget");
    check(json!({"policy": "snapkv", "cut": "hybrid:2"}), "kvik.retain.cut");
    check(json!({"policy": "snapkv", "cut": "x".repeat(300)}), "kvik.retain.cut");
}

#[test]
fn the_schema_knows_every_policy_and_option() {
    let schema = RetainField::json_schema(&mut SchemaGenerator::default()).to_value();
    let properties = &schema["anyOf"][1]["properties"];
    for policy in Policy::ALL {
        assert!(properties["policy"]["enum"].as_array().unwrap().contains(&json!(policy.name())));
        for option in policy.name().parse::<Retention>().unwrap().option_names() {
            assert!(properties[option].is_object(), "{}: {option}", policy.name());
        }
    }
}
