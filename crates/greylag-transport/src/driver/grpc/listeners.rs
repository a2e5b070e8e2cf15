//! Tells the listeners of a transport what happened, and the log what they missed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::{DeadLetterReason, UniqueAddress};

use super::local::{Announcement, Announcements};
use super::shared::TransportInner;
use crate::messages::envelope::Envelope;

/// Tells the listeners, one announcement after the other.
pub(super) async fn announce_all(shared: Arc<TransportInner>, announcements: Announcements) {
    let tell = |announcement| match announcement {
        Announcement::Event(event) => shared.node.endpoint.publish(event),
        Announcement::HandBack { peer, unsent, reason } => hand_back(&shared, &peer, unsent, reason),
    };
    announcements.for_each(tell).await;
}

fn hand_back(shared: &TransportInner, peer: &UniqueAddress, unsent: Vec<Envelope>, reason: DeadLetterReason) {
    let (endpoint, now) = (&shared.node.endpoint, Instant::now());
    for envelope in endpoint.hand_back(peer, unsent) {
        let lane = shared.lanes.lane(&envelope.recipient);
        endpoint.drop_unsent(now, lane, peer.address(), &envelope, reason);
    }
}

/// Logs, once a minute is over, how many dead letters the log suppressed, and how many events of strangers listeners
/// missed.
pub(super) async fn log_suppressed(shared: Arc<TransportInner>) {
    let mut untold = 0;
    loop {
        tokio::time::sleep(Duration::from_secs(15)).await;
        shared.node.endpoint.log_suppressed(Instant::now());
        let missed = shared.node.missed_announcements();
        if missed > untold {
            tracing::warn!(events = missed - untold, "events of non-members dropped: listeners are too slow");
            untold = missed;
        }
    }
}
