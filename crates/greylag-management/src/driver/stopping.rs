//! The end of the service, as its calls and its listener hear of it.

use tokio::sync::watch;

/// Completes when the service ends.
pub(super) async fn until_stopped(mut stop: watch::Receiver<bool>) {
    // An error means that the server was dropped, which counts as stopped.
    let _dropped = stop.wait_for(|stop| *stop).await;
}
