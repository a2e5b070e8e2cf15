//! The queue of everything that listeners are told.

use greylag_core::{DeadLetterReason, Room, Share, UniqueAddress};
use tokio::sync::mpsc;

use crate::messages::envelope::Envelope;
use crate::remoting::TransportEvent;

/// Limit of queued events about processes that are no members.
const ANNOUNCED_STRANGERS: usize = 4096;

/// Something for the listeners; one task tells them, in order, so that no listener runs under a lock.
///
/// The queue has no bound for events of this node and its members, and for messages of its users: those are limited by
/// the number of members, recipients and queues, and no listener may miss one. Events that non-members cause have
/// [`ANNOUNCED_STRANGERS`] places: a process whose event found none says Hello again with its next stream.
pub(crate) enum Announcement {
    Event(TransportEvent),
    /// `reason`: why the envelopes that no listener takes become dead letters.
    HandBack {
        peer: UniqueAddress,
        unsent: Vec<Envelope>,
        reason: DeadLetterReason,
    },
}

impl Announcement {
    /// The process whose calls or dials cause the event, however often it likes; `None` for every other announcement.
    fn cause(&self) -> Option<&UniqueAddress> {
        match self {
            Self::Event(TransportEvent::PeerHandshake(info)) => Some(&info.peer),
            Self::Event(TransportEvent::LinkLost { peer, .. }) => Some(peer),
            Self::Event(_) | Self::HandBack { .. } => None,
        }
    }
}

/// The sending end of the queue.
pub(crate) struct Announcer {
    queue: mpsc::UnboundedSender<(Announcement, Option<Share>)>,
    /// Bounds the events that non-members cause; see [`Announcement`].
    room_for_strangers: Room,
}

/// The receiving end of the queue.
pub(crate) struct Announcements(mpsc::UnboundedReceiver<(Announcement, Option<Share>)>);

impl Announcer {
    pub(crate) fn new() -> (Self, Announcements) {
        let (queue, announcements) = mpsc::unbounded_channel();
        let room_for_strangers = Room::new(ANNOUNCED_STRANGERS, usize::MAX);
        (Self { queue, room_for_strangers }, Announcements(announcements))
    }

    /// Queues an announcement; one that a non-member causes is dropped if there is no room.
    pub(crate) fn announce(&self, announcement: Announcement, is_stranger: impl FnOnce(&UniqueAddress) -> bool) {
        let mut share = None;
        if announcement.cause().is_some_and(is_stranger) {
            share = self.room_for_strangers.take(0);
            if share.is_none() {
                return;
            }
        }
        // The send fails only if the runtime is gone, and then no listener is left.
        self.queue.send((announcement, share)).ok();
    }

    /// The number of events that were dropped so far because listeners were too slow.
    pub(crate) fn missed(&self) -> u64 {
        self.room_for_strangers.refused()
    }
}

impl Announcements {
    /// Calls `tell` with every announcement, one after the other, until the queue has ended. The room of an
    /// announcement is free once it was told.
    pub(crate) async fn for_each(mut self, mut tell: impl FnMut(Announcement)) {
        while let Some((announcement, _share)) = self.0.recv().await {
            tell(announcement);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lanes::lane::Lane;

    /// Events of strangers are bounded, and those of members are not.
    #[tokio::test]
    async fn events_of_strangers_are_dropped_when_listeners_are_too_slow() {
        let (announcer, announcements) = Announcer::new();
        let lost = || {
            let peer = "a:1#1".parse().unwrap();
            Announcement::Event(TransportEvent::LinkLost { peer, lane: Lane::CONTROL })
        };
        for _ in 0..ANNOUNCED_STRANGERS + 2 {
            announcer.announce(lost(), |_| true);
        }
        announcer.announce(lost(), |_| false);
        assert_eq!(announcer.missed(), 2);
        drop(announcer);
        let mut told = 0;
        announcements.for_each(|_| told += 1).await;
        assert_eq!(told, ANNOUNCED_STRANGERS + 1);
    }
}
