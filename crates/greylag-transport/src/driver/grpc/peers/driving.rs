//! Gives the machines of peers their inputs, and has their lanes dialled.
//!
//! A peer that was dropped takes no input: the input goes to the next peer of its address. So a sender that still holds
//! the old peer loses no message.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use greylag_core::{NodeAddress, Uid};

use super::numbered::NotNumbered;
use super::peer::{Peer, Refused, Verdict};
use crate::association::Input;
use crate::driver::grpc::shared::TransportInner;
use crate::lanes::lane::Lane;
use crate::lanes::queue::{Item, Pushed, Waiter};
use crate::messages::envelope::{EncodedMessage, Envelope};
use crate::reliable::SenderInput;

impl TransportInner {
    /// The peer at an address; made on first use. Its deadlines are kept on the control runtime.
    pub(crate) fn peer(self: &Arc<Self>, address: &NodeAddress) -> Arc<Peer> {
        self.peers.find_or_start(&self.node, address, |peer| {
            self.node.runtimes.control().spawn(keep_deadlines(self.clone(), peer.clone()));
        })
    }

    /// Calls `act` with the peer at an address, without counting a reference, since every message does this.
    pub(crate) fn with_peer<T>(self: &Arc<Self>, address: &NodeAddress, act: impl FnOnce(&Arc<Peer>) -> T) -> T {
        self.peers.with(address, |known| match known {
            Some(peer) => act(peer),
            None => act(&self.peer(address)),
        })
    }

    /// Gives the machine of a peer an input and carries out its effects.
    pub(crate) fn input(self: &Arc<Self>, peer: &Arc<Peer>, input: Input) {
        self.handle(peer, input);
    }

    /// Asks the machine of a peer for its decision on a Hello.
    pub(crate) fn hello(self: &Arc<Self>, peer: &Arc<Peer>, uid: Uid, host_id: Option<String>) -> Verdict {
        self.handle(peer, Input::Hello { uid, host_id }).unwrap_or(Err(Refused::Dead(None)))
    }

    fn handle(self: &Arc<Self>, peer: &Arc<Peer>, input: Input) -> Option<Verdict> {
        match peer.handle(&self.node, input, &|dial| (self.start_stream)(self.clone(), peer.clone(), dial)) {
            Ok(verdict) => verdict,
            Err(input) => {
                self.peers.await_drop();
                self.handle(&self.peer(&peer.address), input)
            }
        }
    }

    /// Numbers a message and sends it.
    pub(crate) fn send_numbered(
        self: &Arc<Self>,
        peer: &Arc<Peer>,
        target: Uid,
        message: Arc<EncodedMessage>,
    ) -> Result<(), NotNumbered> {
        let (inputs, outcome) = peer.feed_numbered(&self.node, Instant::now(), SenderInput::Send { target, message });
        for input in inputs {
            self.input(peer, input);
        }
        outcome
    }

    /// Feeds the sender of numbered messages, and then the association with the inputs that follow.
    pub(crate) fn numbered_input(self: &Arc<Self>, peer: &Arc<Peer>, input: SenderInput<Arc<EncodedMessage>>) {
        for input in peer.feed_numbered(&self.node, Instant::now(), input).0 {
            self.input(peer, input);
        }
    }

    /// Queues an item for the process that runs at an address; the item comes back if there is no room.
    #[allow(clippy::result_large_err, reason = "the caller gets back what it gave")]
    pub(crate) fn push(
        self: &Arc<Self>,
        to: &NodeAddress,
        lane: Lane,
        mut item: Item,
        force: bool,
    ) -> Result<(), Item> {
        loop {
            let peer = self.peer(to);
            match self.push_to(&peer, lane, item, force) {
                Err(returned) if peer.is_dropped() => {
                    item = returned;
                    self.peers.await_drop();
                }
                outcome => return outcome,
            }
        }
    }

    /// Queues an item for a peer, and has the lane dialled if no stream takes from it. The item comes back if there is
    /// no room.
    #[allow(clippy::result_large_err, reason = "the caller gets back what it gave")]
    pub(crate) fn push_to(self: &Arc<Self>, peer: &Arc<Peer>, lane: Lane, item: Item, force: bool) -> Result<(), Item> {
        if peer.queue(lane).push(item, force)? == Pushed::Wanted {
            self.input(peer, Input::Wanted { lane });
        }
        Ok(())
    }

    /// Queues an envelope for the process that runs at an address, and has the lane dialled if no stream takes from it.
    /// Returns false, and leaves the envelope in its place, if there is no room.
    pub(crate) fn push_envelope(
        self: &Arc<Self>,
        to: &NodeAddress,
        lane: Lane,
        envelope: &mut Option<Envelope>,
        force: bool,
        waiting: Option<Waiter<'_>>,
    ) -> bool {
        loop {
            let (went, was_let_go) = self.with_peer(to, |peer| {
                let pushed = peer.queue(lane).push_envelope(envelope, force, waiting);
                if pushed == Some(Pushed::Wanted) {
                    self.input(peer, Input::Wanted { lane });
                }
                (pushed.is_some(), pushed.is_none() && peer.is_dropped())
            });
            if !was_let_go {
                return went;
            }
            self.peers.await_drop();
        }
    }
}

/// Ticks the machines of a peer at their deadlines.
async fn keep_deadlines(shared: Arc<TransportInner>, peer: Arc<Peer>) {
    while !peer.is_closed() {
        if peer.is_due().await {
            shared.input(&peer, Input::Tick);
            shared.numbered_input(&peer, SenderInput::Tick);
        }
    }
}

/// Drops peers that could be dropped for as long as a quarantine is remembered.
pub(crate) async fn drop_idle_peers(shared: Arc<TransportInner>) {
    let memory = shared.node.settings.remove_quarantined_association_after;
    let mut droppable_since: HashMap<NodeAddress, Instant> = HashMap::new();
    loop {
        tokio::time::sleep(memory / 4).await;
        let now = Instant::now();
        let droppable: Vec<_> = shared.peers.all().into_iter().filter(|peer| peer.is_droppable()).collect();
        droppable_since.retain(|address, _| droppable.iter().any(|peer| peer.address == *address));
        for peer in droppable {
            let since = *droppable_since.entry(peer.address.clone()).or_insert(now);
            if now.saturating_duration_since(since) >= memory {
                shared.peers.drop_idle(&shared.node, &peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use greylag_core::{CodecId, UniqueAddress};

    use super::*;
    use crate::driver::grpc::GrpcTransport;
    use crate::driver::grpc::peers::{Admission, Refused};
    use crate::messages::envelope::{Envelope, Recipient};
    use crate::remoting::{PeerInfo, QuarantineReason, Remoting};
    use crate::settings::TransportSettings;

    /// Cluster T15, T16: a Hello that was admitted, but answered only after its sender was replaced, teaches nothing
    /// about the address, and ends no question to the present process.
    #[tokio::test]
    async fn the_word_of_a_process_that_was_replaced_comes_too_late() {
        let node = GrpcTransport::bind(TransportSettings::test(), Arc::default()).await.unwrap();
        let (before, now): (UniqueAddress, UniqueAddress) =
            ("127.0.0.1:9#7".parse().unwrap(), "127.0.0.1:9#8".parse().unwrap());
        let info = |peer: &UniqueAddress| PeerInfo {
            peer: peer.clone(),
            reached: false,
            ip: std::net::Ipv4Addr::LOCALHOST.into(),
            host_id: None,
            cluster_id: None,
        };
        let peer = node.shared.peer(now.address());
        node.shared.hello(&peer, before.uid(), None).unwrap();
        node.shared.hello(&peer, now.uid(), None).unwrap();
        assert!(peer.introduce(&node.shared.node, info(&now)));
        assert!(!peer.introduce(&node.shared.node, info(&before)));
        assert_eq!(node.peer(now.address()).unwrap().peer, now);
    }

    async fn bind(memory: Duration) -> Arc<GrpcTransport> {
        let settings = TransportSettings { remove_quarantined_association_after: memory, ..TransportSettings::test() };
        GrpcTransport::bind(settings, Arc::default()).await.unwrap()
    }

    fn message() -> Envelope {
        Envelope::new(Recipient::new("inbox"), CodecId::JSON, "number", "1".as_bytes())
    }

    /// Cluster T21: an address where no process runs any more costs nothing after a while, and a process that was
    /// refused there stays refused.
    #[tokio::test]
    async fn an_unused_peer_is_dropped_and_its_retired_uids_stay_refused() {
        let node = bind(Duration::from_millis(20)).await;
        let (gone, other): (UniqueAddress, UniqueAddress) =
            ("127.0.0.1:9#7".parse().unwrap(), "127.0.0.1:10#7".parse().unwrap());
        node.shared.hello(&node.shared.peer(gone.address()), gone.uid(), None).unwrap();
        node.shared.hello(&node.shared.peer(other.address()), other.uid(), None).unwrap();
        node.quarantine(&gone, QuarantineReason::Manual, true);
        let waiting = async {
            while node.shared.peers.all().len() > 1 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), waiting).await.expect("it is let go");
        assert_eq!(node.shared.peers.all()[0].address, *other.address(), "as far as is known that one runs");
        let again = node.shared.peer(gone.address());
        assert_eq!(node.shared.hello(&again, gone.uid(), None), Err(Refused::Dead(None)));
        assert_eq!(node.shared.hello(&again, Uid::new(8).unwrap(), None), Ok(Admission::Known));
    }

    /// Cluster T21, T22: a message sent while a peer is being dropped goes to the next peer of the address; no message
    /// is lost, numbered or not.
    #[tokio::test]
    async fn dropping_a_peer_loses_no_message() {
        let node = bind(Duration::from_secs(3600)).await;
        // Keep a handle of the old peer, as a slow sender may.
        let to: UniqueAddress = "127.0.0.1:9#7".parse().unwrap();
        let old = node.shared.peer(to.address());
        node.shared.peers.drop_idle(&node.shared.node, &old);
        assert!(node.shared.push_to(&old, Lane::ordinary(0), Item::Envelope(message()), true).is_err());
        node.shared.input(&old, Input::Hello { uid: to.uid(), host_id: None });
        assert!(node.shared.peer(to.address()).is_current(to.uid()), "the Hello reached the next one");
        for port in 10..400 {
            let to: UniqueAddress = format!("127.0.0.1:{port}#7").parse().unwrap();
            let peer = node.shared.peer(to.address());
            let (start, sender) = (std::sync::Barrier::new(2), &node);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    start.wait();
                    match port % 2 {
                        0 => sender.send(&to.clone().into(), message()).unwrap(),
                        _ => sender.send_reliable(&to, message()).unwrap(),
                    }
                });
                start.wait();
                node.shared.peers.drop_idle(&node.shared.node, &peer);
            });
            let now = node.shared.peer(to.address());
            match port % 2 {
                0 => assert!(!now.queue(Lane::ordinary(0)).is_empty(), "{port}: it waits where it is sent from"),
                _ => assert!(!now.numbered.close_unused(|| true), "{port}: it waits to be repeated"),
            }
        }
    }

    /// Cluster T15, T21: a peer is kept while a dial, stream or message is under way, or a quarantine with a reason is
    /// remembered.
    #[tokio::test]
    async fn a_peer_of_use_is_kept() {
        let node = bind(Duration::from_secs(3600)).await;
        let known: UniqueAddress = "127.0.0.1:9#7".parse().unwrap();
        node.shared.hello(&node.shared.peer(known.address()), known.uid(), None).unwrap();
        let quarantined: UniqueAddress = "127.0.0.1:10#7".parse().unwrap();
        node.quarantine(&quarantined, QuarantineReason::Manual, true);
        let spoken_to: UniqueAddress = "127.0.0.1:11#7".parse().unwrap();
        node.send(&spoken_to.clone().into(), message()).unwrap();
        let faulty: UniqueAddress = "127.0.0.1:12#7".parse().unwrap();
        node.fault(faulty.address(), crate::driver::grpc::Fault::Blackhole);
        for peer in [known, quarantined, spoken_to, faulty] {
            let kept = node.shared.peer(peer.address());
            node.shared.peers.drop_idle(&node.shared.node, &kept);
            assert!(!kept.is_dropped() && Arc::ptr_eq(&kept, &node.shared.peer(peer.address())), "{peer}");
        }
    }
}
