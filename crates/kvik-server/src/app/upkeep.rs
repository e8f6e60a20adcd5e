//! Background tasks of a running server: writing the accounts, finishing deletions, and rereading the tenants file and
//! the catalogue of models on SIGHUP, which also ends a server whose terminal is closed.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{keys::Keys, server::Server, shelf::Shelf};
use crate::accounts::tenants::Source;
use kvik_serving::system::{Hangup, Hangups, terminate};

/// Interval between writes of the accounts, bounding the loss in a crash.
const WRITE_PERIOD: Duration = Duration::from_secs(5);

/// First and longest delay before a failed deletion is retried.
const DELETE_AGAIN: Duration = Duration::from_millis(500);
const DELETE_AGAIN_MAX: Duration = Duration::from_secs(16);

/// Interval between reports of this node's use to other nodes, bounding the loss when it is killed.
const TELL_PERIOD: Duration = Duration::from_secs(60);

/// Writes the accounts every few seconds, for ever.
pub async fn keep_accounts(server: Arc<Server>) {
    let mut period = tokio::time::interval(WRITE_PERIOD);
    loop {
        period.tick().await;
        write_accounts(server.clone()).await;
    }
}

/// Reports this node's use to other nodes every minute, for ever, except of what they have deleted meanwhile.
pub async fn tell_nodes(shelf: Arc<Shelf>) {
    let mut period = tokio::time::interval_at(Instant::now() + TELL_PERIOD, TELL_PERIOD);
    loop {
        period.tick().await;
        let shelf = shelf.clone();
        let tell = move || {
            shelf.hear_deletions(Duration::ZERO);
            shelf.tell_nodes();
        };
        let _ = tokio::task::spawn_blocking(tell).await;
    }
}

/// Retries failed deletions, for ever: a model may have been loading, a disk full, a store unreachable.
pub async fn finish_deletions(shelf: Arc<Shelf>) {
    let mut pause = DELETE_AGAIN;
    loop {
        tokio::time::sleep(pause).await;
        if shelf.server.deletions.all().is_empty() {
            pause = DELETE_AGAIN;
            continue;
        }
        let deleting = shelf.clone();
        let ended = tokio::task::spawn_blocking(move || deleting.delete_all()).await;
        pause =
            if matches!(ended, Ok(Some(true))) { DELETE_AGAIN } else { (pause * 2).min(DELETE_AGAIN_MAX) };
        if pause == DELETE_AGAIN_MAX {
            let left = shelf.server.deletions.all().len();
            tracing::info!("{left} deletions are not complete yet and are tried again");
        }
    }
}

/// Writes the accounts now, and what was learned from prompts.
pub async fn write_accounts(server: Arc<Server>) {
    let written = tokio::task::spawn_blocking(move || (server.ledger.write(), server.settler.write())).await;
    let Ok((accounts, settled)) = written else { return };
    if let Err(error) = accounts {
        tracing::warn!("the accounts stay in memory for now: {error}");
    }
    if let Err(error) = settled {
        tracing::warn!("what changes in prompts stays in memory for now: {error}");
    }
}

/// Reads the tenants file and the models' tables again at every SIGHUP, until one says that the terminal of this server
/// is closed: that ends the server, as SIGTERM does.
pub async fn follow_hangups(mut hangups: Hangups, shelf: Arc<Shelf>, tenants: Option<Source>) {
    let tenants = tenants.map(Arc::new);
    while let Some(hangup) = hangups.next().await {
        if hangup == Hangup::TerminalClosed {
            tracing::info!("the terminal of this server is closed");
            // Once: a shell and the system may both report it, and a second SIGTERM would cut off running answers.
            let _ = terminate(std::process::id());
            return;
        }
        if let Some(source) = tenants.clone() {
            let shelf = shelf.clone();
            let _ = tokio::task::spawn_blocking(move || read_tenants(&shelf, &source)).await;
        }
        reload(&shelf).await;
    }
}

/// Applies changed tables of models; invalid ones change nothing.
async fn reload(shelf: &Arc<Shelf>) {
    if shelf.has_one() {
        return;
    }
    match shelf.reload().await {
        Ok(()) => tracing::info!("{} models on the shelf", shelf.count()),
        Err(error) => tracing::warn!("{error}"),
    }
}

/// Applies a changed tenants file; an invalid one changes nothing.
pub(crate) fn read_tenants(shelf: &Shelf, source: &Source) {
    let keys = shelf.server.keys();
    let read = || -> anyhow::Result<Keys> { Ok(keys.with_tenants(source.read(keys.tenants())?)?) };
    match read() {
        Ok(keys) => {
            tracing::info!("{}: {} tenants", source.path.display(), keys.tenants().all().count() - 1);
            // A model that is being loaded reads the keys afterwards.
            shelf.server.replace_keys(keys);
            shelf.set_tenants(shelf.server.keys().tenants());
        }
        Err(error) => tracing::warn!("{error}; the tenants stay as they were"),
    }
}
