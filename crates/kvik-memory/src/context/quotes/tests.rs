use proptest::prelude::*;
use serde_json::json;

use super::*;

fn exchange(question: &str, answer: &str) -> [Value; 2] {
    [json!({"role": "user", "content": question}), json!({"role": "assistant", "content": answer})]
}

/// Small talk of the kind that kvik-tiny was trained on.
fn small_talk(index: usize) -> [Value; 2] {
    let places = ["park", "market", "library", "museum", "beach", "station", "cinema", "bakery"];
    let days = ["sunny", "rainy", "cloudy", "windy", "cold", "warm", "foggy"];
    let (place, day) = (places[index % places.len()], days[index % days.len()]);
    match index % 5 {
        0 => exchange(&format!("It is {day} today."), &format!("A {day} day can be nice.")),
        1 => exchange(
            &format!("I went to the {place} this morning."),
            &format!("I hope the {place} was pleasant."),
        ),
        2 => exchange(&format!("My friends say the {place} is fun."), "Many people enjoy it."),
        3 => exchange("What a day! My bus was late again.", "That is annoying. I hope tomorrow is better."),
        _ => exchange("Thank you.", "You are welcome."),
    }
}

/// `count` exchanges of small talk, with `told` in place of some of them.
fn conversation(count: usize, told: &[(usize, [Value; 2])]) -> Vec<Value> {
    let at = |index: usize| told.iter().find(|(place, _)| *place == index).map(|(_, fact)| fact.clone());
    (0..count).flat_map(|index| at(index).unwrap_or_else(|| small_talk(index))).collect()
}

fn parrot(name: &str) -> [Value; 2] {
    exchange(&format!("Please remember that my parrot is called {name}."), "Noted.")
}

#[test]
fn a_fact_is_found_among_small_talk() {
    let dog = exchange("My sister's dog is called Bolt.", "Okay.");
    let code = exchange("My locker code is 4711.", "Got it.");
    let quotes = Quotes::new(&conversation(500, &[(7, parrot("Raven")), (9, dog), (300, code)]));
    let first = |question: &str| quotes.best(question, 3).first().map(|quote| quote.messages.clone());
    assert_eq!(first("What is my parrot called?"), Some(14..16));
    assert_eq!(first("What is the name of my parrot?"), Some(14..16));
    assert_eq!(first("What is my sister's dog called?"), Some(18..20));
    assert_eq!(first("tell me my LOCKER code"), Some(600..602));
}

#[test]
fn of_equal_exchanges_the_later_comes_first() {
    let quotes = Quotes::new(&conversation(200, &[(7, parrot("Raven")), (90, parrot("Bolt"))]));
    let found = quotes.best("What is my parrot called?", 2);
    assert_eq!(found.iter().map(|quote| quote.messages.clone()).collect::<Vec<_>>(), [180..182, 14..16]);
    assert_eq!(found[0].score, found[1].score);
}

#[test]
fn small_talk_is_not_quoted() {
    let quotes = Quotes::new(&conversation(500, &[(7, parrot("Raven"))]));
    for question in ["It is the day, is it?", "", "?!", "Zebra"] {
        assert_eq!(quotes.best(question, 5), [], "{question:?}");
    }
}

#[test]
fn in_a_short_conversation_every_word_counts() {
    let messages: Vec<Value> = (0..8).flat_map(|_| exchange("hello", "hi")).collect();
    assert_eq!(Quotes::new(&messages).best("hello", 3).len(), 3);
    let longer = [messages, exchange("hello", "hi").to_vec()].concat();
    assert_eq!(Quotes::new(&longer).best("hello", 3), []);
}

#[test]
fn calls_of_tools_and_text_without_spaces_are_found() {
    let call = json!({"role": "assistant", "content": null, "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "read_file", "arguments": "{\"path\": \"src/lease.rs\"}"}},
    ]});
    let tool =
        json!({"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "fn renew() {}"}]});
    let asked = [json!({"role": "user", "content": "look"}), call, tool].to_vec();
    let chinese = exchange("我的鹦鹉叫雷文。", "好的。").to_vec();
    let messages = [conversation(20, &[]), asked, conversation(20, &[]), chinese].concat();
    let quotes = Quotes::new(&messages);
    for question in ["what is in lease.rs?", "where is renew?", "read_file"] {
        let found = quotes.best(question, 1);
        assert_eq!(found.first().map(|quote| quote.messages.clone()), Some(40..43), "{question:?}");
    }
    assert_eq!(quotes.best("鹦鹉叫什么名字？", 1)[0].messages, 83..85);
}

fn any_message() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a-d ]{0,12}".prop_map(Value::from),
        "\\PC{0,12}".prop_map(Value::from),
    ];
    let fields = ["role", "content", "text", "tool_calls", "function", "name", "arguments"];
    let any_value = leaf.prop_recursive(4, 24, 4, move |inner| {
        let field = prop::sample::select(fields.to_vec()).prop_map(str::to_owned);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((field, inner), 0..4).prop_map(|fields| fields.into_iter().collect()),
        ]
    });
    let role = prop::sample::select(vec!["user", "assistant", "tool", "system"]);
    let message = (role, any_value.clone(), any_value.clone())
        .prop_map(|(role, content, calls)| json!({"role": role, "content": content, "tool_calls": calls}));
    prop_oneof![any_value, message, "[a-d ]{0,12}".prop_map(|text| json!({"role": "user", "content": text}))]
}

/// Reference for `Quotes::best` without an index: reads every exchange for every word.
fn best_naive(messages: &[Value], question: &str, count: usize) -> Vec<Quote> {
    let split = |text: &str| {
        let mut found = Vec::new();
        words::words(text, &mut |word| found.push(word.to_owned()));
        found
    };
    let read = |range: &Range<usize>| {
        let mut found = Vec::new();
        messages[range.clone()].iter().for_each(|m| texts(m, &mut |text| found.extend(split(text))));
        found
    };
    let ranges = exchanges(messages);
    let contents: Vec<Vec<String>> = ranges.iter().map(read).collect();
    let all = contents.len();
    let mean = (contents.iter().map(Vec::len).sum::<usize>() as f32 / all.max(1) as f32).max(1.0);
    let mut asked = split(question);
    let mut seen = HashSet::new();
    asked.retain(|word| seen.insert(word.clone()));
    let with = |word: &String| contents.iter().filter(|content| content.contains(word)).count();
    let scored = ranges.iter().zip(&contents).map(|(range, content)| {
        let shared = asked.iter().filter(|word| content.contains(word));
        let rare = shared.clone().any(|word| all <= 8 || with(word) * 4 < all);
        let score = |word: &String| {
            let n = content.iter().filter(|other| *other == word).count() as f32;
            let length = content.len() as f32 / mean;
            weight(with(word), all) * n * (K1 + 1.0) / (n + K1 * (1.0 - B + B * length))
        };
        let total = shared.map(score).fold(0.0, |sum, score| sum + score);
        rare.then(|| Quote { messages: range.clone(), score: total })
    });
    let mut found: Vec<Quote> = scored.flatten().collect();
    found.reverse();
    found.sort_by(|left, right| right.score.total_cmp(&left.score));
    found.truncate(count);
    found
}

proptest! {
    #[test]
    fn exchanges_are_consecutive_and_begin_where_a_user_speaks_up(
        messages in prop::collection::vec(any_message(), 0..20),
    ) {
        let exchanges = exchanges(&messages);
        let covered: Vec<usize> = exchanges.iter().cloned().flatten().collect();
        prop_assert_eq!(covered, (0..messages.len()).collect::<Vec<_>>());
        let is_user = |index: usize| messages[index].get("role").is_some_and(|role| role == "user");
        for index in 0..messages.len() {
            let begins = exchanges.iter().any(|exchange| exchange.start == index);
            prop_assert_eq!(begins, index == 0 || (is_user(index) && !is_user(index - 1)));
        }
    }

    #[test]
    fn the_index_answers_as_a_search_without_one(
        messages in prop::collection::vec(any_message(), 0..40),
        question in "[a-d ]{0,20}",
        count in 0usize..8,
    ) {
        let found = Quotes::new(&messages).best(&question, count);
        prop_assert_eq!(&found, &best_naive(&messages, &question, count));
        prop_assert!(found.iter().all(|quote| quote.score > 0.0 && quote.score.is_finite()));
    }

    #[test]
    fn no_message_and_no_question_panics(messages in prop::collection::vec(any_message(), 0..20), question in "\\PC{0,40}") {
        let exchanges = exchanges(&messages);
        for quote in Quotes::new(&messages).best(&question, usize::MAX) {
            prop_assert!(exchanges.contains(&quote.messages));
        }
    }
}
