//! Flags of tenants, prices and the state directory.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    num::NonZeroU32,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use clap::Args;
use kvik_memory::records::{LOCK_WAIT, Records, RecordsError, private::readable_by_owner_only};
use kvik_remote::FleetKey;

use super::access::{key, keys_in};
use kvik_server::{
    accounts::{
        prices::{Decimal, PriceList, Prices},
        tenants::{Secret, SecretError, Source, file},
    },
    app::keys::Keys,
    http::readers::give_way,
};
use kvik_serving::settings::dirs;

/// Tenants, the admin's key, and prices.
#[derive(Debug, Args)]
#[command(next_help_heading = "Tenants")]
pub(crate) struct AccountArgs {
    /// A TOML file that names tenants, their keys, shares and limits; SIGHUP reads it again
    #[arg(long, value_name = "FILE")]
    tenants: Option<PathBuf>,
    /// The key for data of all tenants: /metrics, and /v1/usage of every tenant
    #[arg(long, value_name = "KEY", value_parser = key, hide_env_values = true, hide_default_value = true)]
    admin_key: Option<String>,
    /// A file with the admin's key
    #[arg(long, value_name = "FILE")]
    admin_key_file: Option<PathBuf>,
    /// The secret that separates the tenants' caches and seals compaction items, created when missing [default: one from
    /// --cache-remote-key, or secret in --state-dir]
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// Price of a prompt token that is computed
    #[arg(long, value_name = "PRICE")]
    price_input: Option<Decimal>,
    /// Price of a prompt token from the cache
    #[arg(long, value_name = "PRICE")]
    price_cached: Option<Decimal>,
    /// Price of a generated token
    #[arg(long, value_name = "PRICE")]
    price_output: Option<Decimal>,
    /// Number of tokens that a price is for, as 1000000 [default: 1]
    #[arg(long, value_name = "TOKENS")]
    price_per: Option<NonZeroU32>,
}

/// File in the state directory with the address of the server that has its records open.
const ADDRESS_FILE: &str = "address";
/// Maximum bytes of an address.
const ADDRESS_BYTES_MAX: u64 = 1024;
/// Folder of the conversations in the state directory.
const CONVERSATIONS: &str = "conversations";

/// Writes a file that only its owner can read, like all files of the state directory.
fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    readable_by_owner_only(&mut options);
    options.open(path)?.write_all(text.as_bytes())
}

/// The state directory.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Server")]
pub(crate) struct StateArgs {
    /// Directory of the accounts, the secret and conversations [default: kvik in the user's state directory]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

impl AccountArgs {
    /// Whether keys belong to tenants.
    pub(crate) fn has_tenants(&self) -> bool {
        self.tenants.is_some()
    }

    /// The tenants file with the server's secret, if there are tenants. All nodes of a fleet share one secret, derived
    /// from its key.
    pub(crate) fn source(
        &self,
        state: &StateArgs,
        fleet: Option<&FleetKey>,
    ) -> anyhow::Result<Option<Source>> {
        let Some(path) = self.tenants.clone() else { return Ok(None) };
        if let Some(secret) = self.named_secret(fleet)? {
            return Ok(Some(Source { path, secret }));
        }
        let folder = state.folder().context("there is no home directory; give --secret-file")?;
        Ok(Some(Source { path, secret: Secret::open(&folder.join("secret"))? }))
    }

    /// The secret that seals compaction items: the one that separates tenants, whether there are any or not; `None` where
    /// none can be stored.
    pub(crate) fn secret(
        &self,
        state: &StateArgs,
        fleet: Option<&FleetKey>,
    ) -> anyhow::Result<Option<Secret>> {
        Ok(self.named_secret(fleet)?.or_else(|| state.secret()))
    }

    /// The secret that settings name: the one in `--secret-file`, else the one derived from the fleet's key.
    fn named_secret(&self, fleet: Option<&FleetKey>) -> Result<Option<Secret>, SecretError> {
        match &self.secret_file {
            Some(path) => Secret::open(path).map(Some),
            None => Ok(fleet.map(Secret::of_fleet)),
        }
    }

    /// Checks the tenants file, if there is one, beside the keys of other clients.
    pub(crate) fn check_tenants(&self, keys: &Keys) -> anyhow::Result<()> {
        let Some(path) = &self.tenants else { return Ok(()) };
        let tenants = file::read(path)?;
        let of_tenants =
            tenants.iter().flat_map(|(name, tenant)| tenant.keys.iter().map(move |key| (name.as_str(), key)));
        Ok(keys.check(of_tenants)?)
    }

    /// The admin's key, if there is one.
    pub(crate) fn admin_key(&self) -> anyhow::Result<Option<String>> {
        let Some(path) = &self.admin_key_file else { return Ok(self.admin_key.clone()) };
        if self.admin_key.is_some() {
            bail!("--admin-key and --admin-key-file are both set; leave one out");
        }
        let mut keys = keys_in(path, "--admin-key-file")?;
        if keys.len() > 1 {
            bail!(
                "the file {} of --admin-key-file holds {} keys and there is one admin",
                path.display(),
                keys.len()
            );
        }
        Ok(keys.pop())
    }

    /// The server's prices, if any are set.
    pub(crate) fn prices(&self) -> anyhow::Result<Option<Prices>> {
        let (input, cached, output) = (self.price_input, self.price_cached, self.price_output);
        let list = PriceList { input, cached, output, per: self.price_per };
        list.prices().map_err(anyhow::Error::msg)
    }
}

impl StateArgs {
    /// The directory; `None` if the user has no home directory.
    pub(crate) fn folder(&self) -> Option<PathBuf> {
        self.state_dir.clone().or_else(dirs::state)
    }

    /// The other process that has the records of accounts or of conversations open.
    pub(crate) fn holder(&self) -> Option<u32> {
        let folder = self.folder()?;
        let holders = [Records::holder(&folder), Records::holder(&folder.join(CONVERSATIONS))];
        holders.into_iter().flatten().find(|&pid| pid != std::process::id())
    }

    /// Records the address of the server that has the records open.
    pub(crate) fn write_address(&self, url: &str) {
        let written = self.folder().map(|folder| write_private(&folder.join(ADDRESS_FILE), url));
        if let Some(Err(error)) = written {
            tracing::debug!("the server's address was not written down: {error}");
        }
    }

    /// The recorded address of the server that has the records open. A server that has ended leaves its address behind.
    pub(crate) fn address(&self) -> Option<String> {
        let file = File::open(self.folder()?.join(ADDRESS_FILE)).ok()?;
        let mut url = String::new();
        file.take(ADDRESS_BYTES_MAX).read_to_string(&mut url).ok()?;
        Some(url.trim().to_owned()).filter(|url| url.starts_with("http://"))
    }

    /// The secret of the state directory, if one can be stored.
    fn secret(&self) -> Option<Secret> {
        let opened = Secret::open(&self.folder()?.join("secret"));
        let without = |error: &SecretError| {
            tracing::warn!("{error}; compaction items last only as long as this process")
        };
        opened.inspect_err(without).ok()
    }

    /// Opens the records of a server. If another process has them open, the server runs without them at once, and loses
    /// its accounts when it stops.
    pub(crate) fn records(&self) -> Option<Records> {
        let Some(folder) = self.folder() else {
            tracing::error!(
                "there is no home directory for accounts, kept prompts and conversations; give --state-dir"
            );
            return None;
        };
        let opened = open(&folder);
        let without = |error: &RecordsError| {
            tracing::error!("{error}; this server loses its accounts and kept prompts when it stops");
        };
        opened.inspect_err(without).ok()
    }

    /// Opens the conversations of a server. They may be large, so they have a file of their own: reading a server's
    /// accounts copies their file.
    pub(crate) fn conversations(&self) -> Option<Records> {
        let folder = self.folder()?.join(CONVERSATIONS);
        let opened = open(&folder);
        opened
            .inspect_err(|error| {
                tracing::error!("{error}; this server loses its conversations when it stops")
            })
            .ok()
    }
}

/// Opens records of a server; threads that wait for their file give way to other readers.
fn open(folder: &Path) -> Result<Records, RecordsError> {
    Ok(Records::open(folder, LOCK_WAIT)?.giving_way(give_way))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use clap::Parser;
    use kvik_server::accounts::tenants::Share;

    use super::*;

    #[derive(Debug, Parser)]
    struct Flags {
        #[command(flatten)]
        accounts: AccountArgs,
        #[command(flatten)]
        state: StateArgs,
    }

    /// Compaction items were sealed with the secret of the state directory whatever `--secret-file` said, so that another
    /// server with that file refused them.
    #[test]
    fn one_secret_separates_tenants_and_seals_items() {
        let dir = tempfile::tempdir().unwrap();
        let text = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        let (state, named) = (text("state"), text("named"));
        let salts = |flags: &[&str]| {
            let flags = ["kvik", "--tenants", "tenants.toml"].into_iter().chain(flags.iter().copied());
            let Flags { accounts, state } = Flags::try_parse_from(flags).unwrap();
            let seals = accounts.secret(&state, None).unwrap().unwrap();
            let separates = accounts.source(&state, None).unwrap().unwrap().secret;
            [seals, separates].map(|secret| secret.salt("", Share::Shared))
        };
        let by_file = salts(&["--state-dir", &state, "--secret-file", &named]);
        assert!(!dir.path().join("state").exists(), "no other secret is made");
        let elsewhere = salts(&["--state-dir", &text("other"), "--secret-file", &named]);
        let by_default = salts(&["--state-dir", &state]);
        assert_eq!(by_file[0], by_file[1]);
        assert_eq!(by_file, elsewhere);
        assert_eq!(by_default[0], by_default[1]);
        assert_ne!(by_file[0], by_default[0]);
    }

    #[test]
    fn the_admins_key_is_one_and_never_empty() {
        let admin_key = |flags: &[&str]| {
            let flags = std::iter::once("kvik").chain(flags.iter().copied());
            Flags::try_parse_from(flags)?.accounts.admin_key()
        };
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap();
        assert_eq!(admin_key(&[]).unwrap(), None);
        assert_eq!(admin_key(&["--admin-key", " root"]).unwrap().as_deref(), Some("root"));
        assert!(admin_key(&["--admin-key", " "]).unwrap_err().to_string().contains("the key is empty"));
        for (text, expect) in [("root\n", Some("root")), ("", None), ("\n", None), ("a\nb\n", None)] {
            fs::write(path, text).unwrap();
            assert_eq!(admin_key(&["--admin-key-file", path]).ok().flatten().as_deref(), expect, "{text:?}");
        }
        fs::write(path, "root").unwrap();
        let both = admin_key(&["--admin-key", "root", "--admin-key-file", path]).unwrap_err();
        assert!(both.to_string().contains("leave one out"), "{both}");
    }
}
