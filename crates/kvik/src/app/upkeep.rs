//! What a running server does beside answering: it writes the accounts down, and reads the
//! tenants file again when it is told to.

use std::{sync::Arc, time::Duration};

use super::App;
use crate::{accounts::tenants::Source, serving::load::Handle};

/// Between two writes of the accounts: what a crash may lose.
const WRITE_PERIOD: Duration = Duration::from_secs(5);

/// Writes the accounts every few seconds, for ever.
pub(crate) async fn keep_accounts(app: Arc<App>) {
    let mut period = tokio::time::interval(WRITE_PERIOD);
    loop {
        period.tick().await;
        write_accounts(app.clone()).await;
    }
}

/// Writes the accounts now.
pub(crate) async fn write_accounts(app: Arc<App>) {
    let written = tokio::task::spawn_blocking(move || app.ledger.write()).await;
    if let Ok(Err(error)) = written {
        tracing::warn!("the accounts stay in memory for now: {error}");
    }
}

/// Reads the tenants file again at every SIGHUP, for ever.
#[cfg(unix)]
pub(crate) async fn follow_tenants(app: Arc<App>, source: Source, handle: Handle) {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut hangups) = signal(SignalKind::hangup()) else { return };
    let source = Arc::new(source);
    while hangups.recv().await.is_some() {
        let (app, source, handle) = (app.clone(), source.clone(), handle.clone());
        let _ = tokio::task::spawn_blocking(move || read_tenants(&app, &source, &handle)).await;
    }
}

#[cfg(not(unix))]
pub(crate) async fn follow_tenants(_app: Arc<App>, _source: Source, _handle: Handle) {}

/// Puts a changed file into force; a wrong one changes nothing.
fn read_tenants(app: &App, source: &Source, handle: &Handle) {
    let keys = app.keys();
    match source.read(keys.tenants()) {
        Ok(tenants) => {
            handle.set_tenants(&tenants);
            tracing::info!("{}: {} tenants", source.path.display(), tenants.all().count() - 1);
            app.replace_keys(keys.with_tenants(tenants));
        }
        Err(error) => tracing::warn!("{error}; the tenants stay as they were"),
    }
}
