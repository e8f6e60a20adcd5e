//! Answers that are held to a form: tools, schemas, expressions; and long prompts of which not all is read.

use crate::common::{drawn, greedy, model, text};
use kvik_library::{AnswerOptions, Constraint, Error, Message, OfferedTool, Piece, ToolCall, ToolChoice};
use serde_json::{Value, json};

fn weather() -> OfferedTool {
    OfferedTool {
        name: "weather".to_owned(),
        description: Some("The weather of a day".to_owned()),
        parameters: json!({"type": "object", "properties": {"day": {"type": "integer", "minimum": 1, "maximum": 7}}, "required": ["day"], "additionalProperties": false}),
    }
}

fn calls(pieces: &[Piece]) -> Vec<ToolCall> {
    pieces
        .iter()
        .filter_map(|piece| if let Piece::Call(call) = piece { Some(call.clone()) } else { None })
        .collect()
}

#[test]
fn a_call_that_has_to_be_made_is_made_and_its_result_is_read() {
    let model = model();
    for seed in 0..4 {
        let options =
            AnswerOptions { tools: vec![weather()], tool_choice: ToolChoice::Any, ..drawn(seed, 200) };
        let mut messages = vec![Message::user("What is the weather?")];
        let answer = model.chat(&messages, &options).unwrap();
        let pieces: Vec<Piece> = answer.map(|piece| piece.unwrap()).collect();
        let made = calls(&pieces);
        assert_eq!((made.len(), made[0].name.as_str()), (1, "weather"), "{pieces:?}");
        let arguments: Value = serde_json::from_str(&made[0].arguments).unwrap();
        assert!(arguments["day"].as_u64().is_some_and(|day| (1..=7).contains(&day)), "{arguments}");
        messages.push(Message::calls(made.clone()));
        messages.push(Message::tool(&made[0].id, "It is sunny."));
        let options = AnswerOptions { tool_choice: ToolChoice::None, ..options };
        let pieces: Vec<Piece> =
            model.chat(&messages, &options).unwrap().map(|piece| piece.unwrap()).collect();
        assert!(calls(&pieces).is_empty(), "{pieces:?}");
    }
}

#[test]
fn a_conversation_keeps_calls_and_results() {
    let model = model();
    let conversation = model.conversation("weather");
    let options = AnswerOptions { tools: vec![weather()], tool_choice: ToolChoice::Any, ..greedy(200) };
    let answer = conversation.say(&[Message::user("What is the weather?")], &options).unwrap();
    let made = calls(&answer.map(|piece| piece.unwrap()).collect::<Vec<_>>());
    let kept = conversation.messages().unwrap();
    assert_eq!((kept.len(), kept[1].tool_calls.len()), (2, 1));
    assert_eq!(kept[1].tool_calls, made, "also by the ids that results name");
    let result = Message::tool(&kept[1].tool_calls[0].id, "It is sunny.");
    conversation.say(std::slice::from_ref(&result), &greedy(8)).unwrap().finish().unwrap();
    assert_eq!(conversation.messages().unwrap()[2], result);
}

#[test]
fn constraints_hold() {
    let model = model();
    let schema = json!({"type": "object", "properties": {"now": {"type": "boolean"}}, "required": ["now"], "additionalProperties": false});
    let asked = [Message::user("Is this urgent?")];
    let held = |constraint: Constraint, seed: u64| {
        let options = AnswerOptions { constraint: Some(constraint), ..drawn(seed, 60) };
        model.chat(&asked, &options).unwrap().finish().unwrap().0
    };
    for seed in 0..4 {
        let answer = held(Constraint::JsonSchema(schema.clone()), seed);
        assert!(serde_json::from_str::<Value>(&answer).unwrap()["now"].is_boolean(), "{answer}");
        let answer = held(Constraint::Regex("(now|later|never)".to_owned()), seed);
        assert!(["now", "later", "never"].contains(&answer.as_str()), "{answer}");
    }
    let wrong = AnswerOptions { constraint: Some(Constraint::Regex("(".to_owned())), ..greedy(8) };
    let error = model.chat(&asked, &wrong).and_then(kvik_library::Answer::finish).unwrap_err();
    assert!(
        error.to_string().contains("regular expression") || error.to_string().contains("regex"),
        "{error}"
    );
}

#[test]
fn what_does_not_go_together_is_an_error_that_says_so() {
    let model = model();
    let asked = [Message::user("What is the weather?")];
    let named = ToolChoice::Named("news".to_owned());
    let unknown = AnswerOptions { tools: vec![weather()], tool_choice: named, ..greedy(8) };
    let error = model.chat(&asked, &unknown).unwrap_err();
    assert!(matches!(error, Error::Tools(_)) && error.to_string().contains("\"news\""), "{error}");
    let both = AnswerOptions {
        tools: vec![weather()],
        tool_choice: ToolChoice::Any,
        constraint: Some(Constraint::JsonObject),
        ..greedy(8)
    };
    assert!(matches!(model.chat(&asked, &both), Err(Error::TwoForms)));
}

#[test]
fn a_long_prompt_can_be_read_in_part() {
    let model = model();
    let prompt = text(11, 400);
    let ask = |retention: Option<&str>| {
        let retention = retention.map(|retention| retention.parse().unwrap());
        let options = AnswerOptions { retention, ..greedy(30) };
        model.generate(prompt.as_str(), &options).unwrap().finish().unwrap().0
    };
    let whole = ask(None);
    assert_eq!(ask(Some("sinks:1")), whole, "all of it is kept");
    assert_ne!(ask(Some("sinks:0.1")), whole);
    assert_eq!(ask(None), whole, "what others read is whole");
}

#[test]
fn the_likeliest_token_of_the_logits_is_the_next_one() {
    let model = model();
    let prompt = text(5, 60);
    let all = model.logits(prompt.as_str()).unwrap();
    let likeliest = (0..all.values.len()).max_by(|&a, &b| all.values[a].total_cmp(&all.values[b])).unwrap();
    let (next, report) = model.generate(prompt.as_str(), &greedy(1)).unwrap().finish().unwrap();
    assert_eq!(model.text_of(&[likeliest as u32]).unwrap(), next);
    assert_eq!(report.cached_tokens + 1, all.prompt_tokens, "what was computed for logits is known");
    let tokens = model.tokens("now later never").unwrap();
    let some = model.logits_of(prompt.as_str(), &tokens).unwrap();
    let expect: Vec<f32> = tokens.iter().map(|&token| all.values[token as usize]).collect();
    assert_eq!(some.values, expect);
    assert!(model.logits_of(prompt.as_str(), &[u32::MAX]).is_err());
}
