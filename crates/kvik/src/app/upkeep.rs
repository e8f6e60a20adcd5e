//! What a running server does beside answering: it writes the accounts down, and reads the
//! tenants file again when it is told to.

use std::{sync::Arc, time::Duration};

use super::{server::Server, shelf::Shelf};
use crate::{accounts::tenants::Source, system::Hangups};

/// Between two writes of the accounts: what a crash may lose.
const WRITE_PERIOD: Duration = Duration::from_secs(5);

/// Writes the accounts every few seconds, for ever.
pub(crate) async fn keep_accounts(server: Arc<Server>) {
    let mut period = tokio::time::interval(WRITE_PERIOD);
    loop {
        period.tick().await;
        write_accounts(server.clone()).await;
    }
}

/// Writes the accounts now.
pub(crate) async fn write_accounts(server: Arc<Server>) {
    let written = tokio::task::spawn_blocking(move || server.ledger.write()).await;
    if let Ok(Err(error)) = written {
        tracing::warn!("the accounts stay in memory for now: {error}");
    }
}

/// Reads the tenants file again at every SIGHUP, for ever.
pub(crate) async fn follow_tenants(shelf: Arc<Shelf>, source: Source) {
    let Some(mut hangups) = Hangups::new() else { return };
    let source = Arc::new(source);
    while hangups.next().await.is_some() {
        let (shelf, source) = (shelf.clone(), source.clone());
        let _ = tokio::task::spawn_blocking(move || read_tenants(&shelf, &source)).await;
    }
}

/// Puts a changed file into force; a wrong one changes nothing.
fn read_tenants(shelf: &Shelf, source: &Source) {
    let keys = shelf.server.keys();
    match source.read(keys.tenants()) {
        Ok(tenants) => {
            tracing::info!("{}: {} tenants", source.path.display(), tenants.all().count() - 1);
            shelf.set_tenants(&tenants);
            shelf.server.replace_keys(keys.with_tenants(tenants));
        }
        Err(error) => tracing::warn!("{error}; the tenants stay as they were"),
    }
}
