//! `kvik tenant`: keys for the tenants file.

use anyhow::{Context, bail};
use clap::{Args, Subcommand};

use kvik_server::accounts::tenants::{
    file,
    key::{KeyDigest, new_key},
};

/// Create API keys for tenants
#[derive(Debug, Args)]
pub(crate) struct TenantArgs {
    #[command(subcommand)]
    task: TenantTask,
}

#[derive(Debug, Subcommand)]
enum TenantTask {
    /// Create a key and print it once, with the line for the tenants file
    #[command(after_help = "Example:
  kvik tenant key acme
  kvik serve --tenants tenants.toml")]
    Key {
        /// The tenant's name
        name: String,
    },
}

/// Runs the command.
pub(crate) fn run(args: &TenantArgs) -> anyhow::Result<()> {
    match &args.task {
        TenantTask::Key { name } => {
            if let Err(wrong) = file::check_name(name) {
                bail!(wrong);
            }
            let key = new_key(name).context("the system provides no random numbers")?;
            print!("{}", advice(name, &key));
        }
    }
    Ok(())
}

/// The key, and its lines for the tenants file.
fn advice(name: &str, key: &str) -> String {
    format!(
        "\
{key}

This key is shown once: give it to the client. Only its digest belongs in the tenants file:

[tenant.{name}]
keys = [\"{}\"]
",
        KeyDigest::of(key)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_is_a_valid_tenants_file_for_the_key() {
        let text = advice("acme", "kvik-acme-00");
        let (key, rest) = text.split_once('\n').unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tenants.toml");
        std::fs::write(&path, &rest[rest.find("[tenant").unwrap()..]).unwrap();
        let tenants = file::read(&path).unwrap();
        assert_eq!(tenants["acme"].keys, [KeyDigest::of(key)]);
        assert!(!rest.contains(key));
    }
}
