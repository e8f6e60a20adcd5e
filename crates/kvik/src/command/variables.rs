//! Variables of llama-server and Ollama that are set where `kvik serve` starts. It reads none of them, so that no setting of
//! another program changes it, and says what does the same.

use anyhow::bail;
use kvik_server::app::keys::Keys;

/// The variables with llama-server's keys, and their likes.
const KEYS: [(&str, &str); 2] =
    [("LLAMA_API_KEY", "KVIK_API_KEY"), ("LLAMA_ARG_API_KEY_FILE", "KVIK_API_KEY_FILE")];

/// Variables whose like is a proxy in front: kvik serves plain HTTP, under its own paths.
const OF_A_PROXY: [&str; 3] = ["LLAMA_ARG_SSL_KEY_FILE", "LLAMA_ARG_SSL_CERT_FILE", "LLAMA_ARG_API_PREFIX"];

/// Variables that have a like here, and what that is. docs/coming-from.md has Ollama's.
const LIKES: &[(&str, &str)] = &[
    KEYS[0],
    KEYS[1],
    ("LLAMA_ARG_HOST", "KVIK_HOST"),
    ("LLAMA_ARG_PORT", "KVIK_PORT"),
    ("LLAMA_ARG_CORS_ORIGINS", "KVIK_CORS"),
    ("LLAMA_ARG_MODEL", "KVIK_MODEL"),
    ("LLAMA_ARG_HF_REPO", "KVIK_MODEL=hf:OWNER/REPO"),
    ("LLAMA_ARG_HF_FILE", "KVIK_MODEL=hf:OWNER/REPO:FILE"),
    ("LLAMA_ARG_SPEC_DRAFT_MODEL", "KVIK_DRAFT"),
    ("LLAMA_ARG_MODEL_DRAFT", "KVIK_DRAFT"),
    ("LLAMA_ARG_ALIAS", "KVIK_ALIAS"),
    ("LLAMA_ARG_CTX_SIZE", "KVIK_CONTEXT"),
    ("LLAMA_ARG_N_PREDICT", "KVIK_N_PREDICT"),
    ("LLAMA_ARG_N_PARALLEL", "KVIK_PARALLEL"),
    ("LLAMA_ARG_THREADS", "KVIK_THREADS"),
    ("LLAMA_ARG_DEVICE", "KVIK_DEVICE"),
    ("LLAMA_ARG_N_GPU_LAYERS", "KVIK_GPU_LAYERS"),
    ("LLAMA_ARG_CACHE_TYPE_K", "KVIK_KV_K"),
    ("LLAMA_ARG_CACHE_TYPE_V", "KVIK_KV_V"),
    ("LLAMA_ARG_CACHE_RAM", "KVIK_CACHE_RAM"),
    ("LLAMA_ARG_TEMPERATURE", "KVIK_TEMP"),
    ("LLAMA_ARG_TOP_K", "KVIK_TOP_K"),
    ("LLAMA_ARG_TOP_P", "KVIK_TOP_P"),
    ("LLAMA_ARG_MIN_P", "KVIK_MIN_P"),
    ("LLAMA_ARG_REPEAT_PENALTY", "KVIK_REPEAT_PENALTY"),
    ("LLAMA_ARG_PRESENCE_PENALTY", "KVIK_PRESENCE_PENALTY"),
    ("LLAMA_ARG_FREQUENCY_PENALTY", "KVIK_FREQUENCY_PENALTY"),
    ("LLAMA_ARG_CHAT_TEMPLATE", "KVIK_CHAT_TEMPLATE"),
    ("LLAMA_ARG_CHAT_TEMPLATE_FILE", "KVIK_CHAT_TEMPLATE"),
    ("LLAMA_ARG_CHAT_TEMPLATE_KWARGS", "KVIK_CHAT_TEMPLATE_KWARGS"),
    ("LLAMA_ARG_REASONING", "KVIK_CHAT_TEMPLATE_KWARGS"),
    ("LLAMA_ARG_REASONING_EFFORT", "KVIK_CHAT_TEMPLATE_KWARGS"),
    ("LLAMA_ARG_THINK_BUDGET", "KVIK_CHAT_TEMPLATE_KWARGS"),
    ("LLAMA_ARG_POOLING", "KVIK_POOLING"),
    ("LLAMA_ARG_LOG_JSONL", "KVIK_LOG_FORMAT=json"),
    ("LLAMA_ARG_LOG_VERBOSITY", "KVIK_LOG"),
    ("OLLAMA_HOST", "KVIK_HOST, and KVIK_PORT for its port,"),
    ("OLLAMA_ORIGINS", "KVIK_CORS"),
    ("OLLAMA_MODELS", "KVIK_MODELS_DIR"),
    ("OLLAMA_CONTEXT_LENGTH", "KVIK_CONTEXT"),
    ("OLLAMA_KV_CACHE_TYPE", "KVIK_KV"),
    ("OLLAMA_NUM_PARALLEL", "KVIK_PARALLEL"),
    ("OLLAMA_MAX_QUEUE", "KVIK_QUEUE"),
    ("OLLAMA_KEEP_ALIVE", "KVIK_KEEP_ALIVE"),
    ("OLLAMA_DEBUG", "KVIK_LOG=debug"),
];

/// Whether a variable of this process has a value.
pub(super) fn is_set(name: &str) -> bool {
    std::env::var_os(name).is_some_and(|value| !value.is_empty())
}

/// A note for each variable that is set and has a like here.
pub(super) fn notes(is_set: impl Fn(&str) -> bool) -> Vec<String> {
    let of_a_proxy = OF_A_PROXY.map(|name| (name, "a proxy in front of kvik"));
    let set = LIKES.iter().chain(&of_a_proxy).filter(|(name, _)| is_set(name));
    set.map(|(name, like)| format!("{name} is not read: {like} does the same")).collect()
}

/// Refuses to serve without a key where llama-server would ask for one.
pub(super) fn check_key(keys: &Keys, is_set: impl Fn(&str) -> bool) -> anyhow::Result<()> {
    match KEYS.iter().find(|(name, _)| is_set(name)) {
        Some((name, like)) if keys.are_open() => bail!(
            "{name} is set, which kvik does not read, and no key is asked for: set {like}, or unset {name}"
        ),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::command::{Cli, config};

    #[test]
    fn variables_that_are_set_are_told_with_their_likes() {
        let set = ["LLAMA_ARG_CTX_SIZE", "OLLAMA_HOST", "LLAMA_ARG_UNKNOWN", "LLAMA_ARG_SSL_KEY_FILE"];
        assert_eq!(
            notes(|name| set.contains(&name)),
            [
                "LLAMA_ARG_CTX_SIZE is not read: KVIK_CONTEXT does the same",
                "OLLAMA_HOST is not read: KVIK_HOST, and KVIK_PORT for its port, does the same",
                "LLAMA_ARG_SSL_KEY_FILE is not read: a proxy in front of kvik does the same",
            ]
        );
        assert!(notes(|_| false).is_empty());
    }

    /// Every like is a setting of `kvik serve`.
    #[test]
    fn likes_are_variables_that_are_read() {
        let command =
            config::configure(Cli::command(), &["kvik".into(), "--config=/dev/null".into()]).unwrap();
        let serve = command.find_subcommand("serve").unwrap();
        let read: Vec<&str> =
            serve.get_arguments().filter_map(|arg| arg.get_env()?.to_str()).chain(["KVIK_LOG"]).collect();
        for (name, like) in LIKES {
            let words = like.split([' ', ',', '=']).filter(|word| word.starts_with("KVIK_"));
            let words: Vec<&str> = words.collect();
            assert!(!words.is_empty() && words.iter().all(|word| read.contains(word)), "{name}: {like}");
        }
    }

    #[test]
    fn a_key_of_llama_server_opens_no_server() {
        let check = |keys: &Keys, is_set: bool, expect: bool| {
            for (variable, like) in KEYS {
                let checked = check_key(keys, |name| is_set && name == variable);
                assert_eq!(checked.is_ok(), expect, "{variable}");
                if let Err(error) = checked {
                    assert!(
                        error.to_string().contains(&format!("set {like}, or unset {variable}")),
                        "{error}"
                    );
                }
            }
        };
        check(&Keys::new([]), true, false);
        check(&Keys::new([]), false, true);
        check(&Keys::new([]).with_admin(Some("root")).unwrap(), true, false);
        check(&Keys::new(["sesame"]), true, true);
    }
}
