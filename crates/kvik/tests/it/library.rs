//! The library beside the binary: the same answers, to the byte.

use std::process::Command;

use kvik_library::{AnswerOptions, Message, Model, Options, Piece, SamplingOptions};

fn run(args: &[&str]) -> String {
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvik"));
    command.arg("run").args(["--device", "cpu", "--cache-disk", "off", "--cache-ram", "64MiB"]).args(args);
    let output = command.env("HOME", home.path()).env_remove("KVIK_STATE_DIR").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn answers_are_those_of_kvik_run_to_the_byte() {
    let options = Options { kv_bytes: Some(64 << 20), ..Options::new(kvik_testing::tiny_model()) };
    let model = Model::open(options).unwrap();
    // All else is what the model's makers recommend, in both.
    let drawn = |seed, temperature| {
        let sampling = SamplingOptions { temperature, ..SamplingOptions::NONE };
        AnswerOptions { sampling, seed: Some(seed), ..AnswerOptions::RECOMMENDED.at_most(40) }
    };
    let prompt = "Who are you, and what is a prefix tree?";
    for (seed, temperature) in [(0, None), (7, Some(0.7)), (8, Some(1.3))] {
        let mut flags =
            vec!["--max-tokens".to_owned(), "40".to_owned(), "--seed".to_owned(), seed.to_string()];
        flags.extend(temperature.map(|temperature: f32| format!("--temperature={temperature}")));
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let options = drawn(seed, temperature);

        let expect = run(&[&flags[..], &["--raw", prompt]].concat());
        let (answer, _) = model.generate(prompt, &options).unwrap().finish().unwrap();
        assert_eq!(format!("{answer}\n"), expect, "seed {seed}");

        let expect = run(&[&flags[..], &["--system", "Be brief.", prompt]].concat());
        let messages = [Message::system("Be brief."), Message::user(prompt)];
        let pieces = model.chat(&messages, &options).unwrap().map(|piece| piece.unwrap());
        let said = pieces.filter(|piece| matches!(piece, Piece::Text(_)));
        let answer: String = said.map(|piece| piece.text().to_owned()).collect();
        assert_eq!(format!("{answer}\n"), expect, "seed {seed}, as a chat");
    }
}
