//! The stop of the server, as its sessions and connections see it.

use tokio::sync::watch;

/// Resolves once the server stops.
pub(super) async fn stopped(mut stop: watch::Receiver<bool>) {
    // An error means that the server was dropped, which counts as stopped.
    let _gone = stop.wait_for(|stop| *stop).await;
}
