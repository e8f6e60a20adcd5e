//! A share of time: answers are the same, and nobody who cancels or goes to the background waits for a rest.

use std::time::{Duration, Instant};

use crate::common::{drawn, endless, model, options, text};
use kvik_library::{Error, Finish, Model, Options};

/// Far less than a rest in these tests, and far more than what does not wait for one.
const AT_ONCE: Duration = Duration::from_secs(5);

fn model_that_rests(time_share: f32) -> Model {
    Model::open(Options { time_share, ..options() }).unwrap()
}

#[test]
fn answers_are_the_same_with_rests() {
    let (whole, part) = (model(), model_that_rests(0.3));
    for seed in 0..3 {
        let ask =
            |model: &Model| model.generate(text(seed, 60), &drawn(seed, 24)).unwrap().finish().unwrap().0;
        assert_eq!(ask(&whole), ask(&part), "prompt {seed}");
    }
}

#[test]
fn who_cancels_or_goes_to_the_background_does_not_wait_for_a_rest() {
    // A step of 5 ms is followed by a rest of 50 s.
    let model = model_that_rests(0.0001);
    let other = model.generate(text(0, 30), &endless(0)).unwrap();
    for seed in 1..3 {
        let started = Instant::now();
        let answer = model.generate(text(seed, 300), &endless(seed)).unwrap();
        answer.cancel();
        let (_, report) = answer.finish().unwrap();
        assert_eq!(report.finish, Finish::Cancelled);
        assert!(started.elapsed() < AT_ONCE, "cancelling took {:?}", started.elapsed());
    }
    let started = Instant::now();
    assert!(model.on_background().unwrap().is_idle);
    assert_eq!(other.finish().unwrap().1.finish, Finish::Cancelled);
    model.close().unwrap();
    assert!(started.elapsed() < AT_ONCE, "background and end took {:?}", started.elapsed());
}

#[test]
fn a_share_that_is_none_is_an_error() {
    let error = Model::open(Options { time_share: 0.0, ..options() }).unwrap_err();
    assert!(matches!(error, Error::Start(_)) && error.to_string().contains("above 0"), "{error}");
}
