use super::*;
use crate::eval::written::{Question, content};
use kvik_serving::settings::model::ModelArgs;

/// Runs `check` on cases of every task at several lengths, with the embedded model's tokenizer and template.
fn for_cases(check: impl Fn(&GeneratedTask, &Encoder<'_>, usize, &WrittenCase)) {
    let loaded = ModelArgs::embedded().load().unwrap();
    let template = loaded.template(None).unwrap();
    for template in [Some(&template), None] {
        let encoder = Encoder { tokenizer: &loaded.tokenizer, template };
        for task in &TASKS {
            for (number, length) in [300, 700, 1500].into_iter().cycle().take(5).enumerate() {
                check(task, &encoder, length, &task.case(&encoder, 7, number, length));
            }
        }
    }
}

#[test]
fn a_seed_gives_the_same_cases() {
    for_cases(|task, encoder, length, case| {
        let again = |seed| (0..3).map(|number| task.case(encoder, seed, number, length)).collect::<Vec<_>>();
        assert!(!again(8).contains(case), "{}", task.name);
        assert_eq!(again(7), again(7), "{}", task.name);
    });
}

#[test]
fn prompts_have_about_the_length_that_was_asked_for() {
    for_cases(|task, encoder, length, case| {
        let tokens = encoder.encode(case).unwrap().len();
        assert!(
            !task.sized || (length * 85 / 100..=length * 110 / 100).contains(&tokens),
            "{}: {tokens} for {length}",
            task.name
        );
    });
}

#[test]
fn the_context_holds_the_answer_once_and_the_question_does_not() {
    for_cases(|task, encoder, _, case| {
        let split = encoder.encode(case).unwrap();
        let (context, question) =
            (encoder.tokenizer.decode(&split.context), encoder.tokenizer.decode(&split.question));
        if task.name == "counting" {
            return;
        }
        for text in case.expected.texts() {
            assert_eq!(context.matches(text).count(), 1, "{}: {text} in {context}", task.name);
            assert!(!question.contains(text), "{}: {text} in {question}", task.name);
        }
    });
}

#[test]
fn medals_are_counted() {
    for_cases(|task, _, _, case| {
        if task.name == "counting" {
            let text = content(&case.messages[0]);
            let who = text.rsplit_once("did ").unwrap().1.split(' ').next().unwrap();
            let count = text.matches(&format!("{who} won a medal")).count();
            assert_eq!(case.expected.score(&format!("It is {count}.")), 1.0, "{text}");
            assert_eq!(case.expected.score(&format!("It is {}.", count + 1)), 0.0);
        }
    });
}

#[test]
fn the_question_stands_at_the_end_of_the_prompt() {
    for_cases(|task, encoder, _, case| {
        let split = encoder.encode(case).unwrap();
        assert!(split.question.len() < 60, "{}: {}", task.name, split.question.len());
        if let Question::From(text) = &case.question {
            let question = encoder.tokenizer.decode(&split.question);
            assert!(question.starts_with(text.as_str()), "{}: {question}", task.name);
        }
    });
}
