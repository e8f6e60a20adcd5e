//! `kvik search`: lists short names, and repositories of the hub.

use clap::Args;
use kvik_shelf::{FoundRepository, Hub, Quiet, ShortName};
use serde_json::{Value, json};

use kvik_serving::{
    causes::with_causes,
    settings::{logging::say, size::ByteSize},
};

/// Default number of repositories.
const COUNT: u16 = 20;

/// Finds models: short names that kvik knows, and repositories of the Hugging Face hub with GGUF files
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kvik search                   all short names
  kvik search qwen3             those of a word, and what the hub has of it
  kvik search coder --json      the same for programs
  kvik pull qwen3:0.6b          fetches one by its short name, in the quantisation that fits this machine
  kvik pull qwen3:0.6b-q4_k_m   in this one
  kvik pull hf:OWNER/REPO       fetches one of the hub

The size is that of a file in Q8_0, by the number of parameters; in Q4_K_M it is about three fifths of it.")]
pub(crate) struct SearchArgs {
    /// A word of the name; without it, all short names are listed and the hub is not asked
    #[arg(value_name = "WORD")]
    word: Option<String>,
    /// Repositories of the hub at most
    #[arg(long, value_name = "N", default_value_t = COUNT, value_parser = clap::value_parser!(u16).range(0..=1000))]
    count: u16,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: &SearchArgs) -> anyhow::Result<()> {
    let word = args.word.as_deref().unwrap_or_default();
    let short: Vec<&ShortName> = ShortName::matching(word).collect();
    let found = match word {
        "" => Ok(Vec::new()),
        _ if args.count == 0 => Ok(Vec::new()),
        _ => Hub::from_env().search(word, args.count.into(), &Quiet),
    };
    let found = match found {
        // Short names are known without the network.
        Err(error) if !short.is_empty() => {
            say(&format!("warning: the hub was not searched: {}", with_causes(&error.into())));
            Vec::new()
        }
        found => found?,
    };
    match args.json {
        true => println!("{}", serde_json::to_string_pretty(&card(&short, &found))?),
        false => print!("{}", table(word, &short, &found)),
    }
    Ok(())
}

fn card(short: &[&ShortName], found: &[FoundRepository]) -> Value {
    let short = short.iter().map(|row| {
        json!({
            "name": row.name,
            "source": format!("hf:{}", row.repository),
            "parameters": u64::from(row.parameters_m) * 1_000_000,
            "bytes_q8_0": row.bytes_in_q8(),
            "licence": row.licence,
        })
    });
    let found = found.iter().map(|one| {
        json!({"source": format!("hf:{}", one.source), "downloads": one.downloads, "gated": one.is_gated})
    });
    json!({"short_names": short.collect::<Vec<_>>(), "hub": found.collect::<Vec<_>>()})
}

fn table(word: &str, short: &[&ShortName], found: &[FoundRepository]) -> String {
    let mut out = String::new();
    if !short.is_empty() {
        let width = short.iter().map(|row| row.name.len()).max().unwrap_or(0);
        out += &format!("{:width$}  {:>10}  {:16}  source\n", "name", "size", "licence");
        for row in short {
            let size = ByteSize(row.bytes_in_q8()).to_string();
            out += &format!("{:width$}  {size:>10}  {:16}  hf:{}\n", row.name, row.licence, row.repository);
        }
    }
    if !found.is_empty() {
        out += &format!("{}{:>12}  on the hub\n", if short.is_empty() { "" } else { "\n" }, "downloads");
        for FoundRepository { source, downloads, is_gated } in found {
            let gated = if *is_gated { "  (asks for its licence to be accepted)" } else { "" };
            out += &format!("{downloads:>12}  hf:{source}{gated}\n");
        }
    }
    if out.is_empty() { format!("nothing with GGUF files is called like {word:?}\n") } else { out }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_short_names_and_repositories() {
        let short: Vec<&ShortName> = ShortName::matching("smollm2:135m").collect();
        let one = |source: &str, downloads, is_gated| FoundRepository {
            source: source.parse().unwrap(),
            downloads,
            is_gated,
        };
        let found = [one("o/r", 90_000, false), one("o/gated", 7, true)];
        let both = table("smol", &short, &found);
        let lines: Vec<&str> = both.lines().collect();
        assert!(lines[1].starts_with("smollm2:135m  ") && lines[1].contains("Apache-2.0"), "{both}");
        assert!(
            lines[1].contains(" MiB  ") && lines[1].ends_with("hf:bartowski/SmolLM2-135M-Instruct-GGUF"),
            "{both}"
        );
        assert_eq!(lines[4], "       90000  hf:o/r");
        assert!(lines[5].starts_with("           7  hf:o/gated  (asks"), "{both}");
        assert!(table("smol", &[], &found).starts_with("   downloads"));
        assert_eq!(table("x", &[], &[]), "nothing with GGUF files is called like \"x\"\n");
        let card = card(&short, &found);
        assert_eq!(
            (&card["short_names"][0]["name"], &card["hub"][1]["gated"]),
            (&json!("smollm2:135m"), &json!(true))
        );
    }
}
