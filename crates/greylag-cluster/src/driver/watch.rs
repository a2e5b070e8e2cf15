//! Runs the watcher of a node: tells it the members, carries its messages, answers its users.
//!
//! The machine and its protocol are the transport's ([`greylag_transport::watch`]); the members are known here. Source:
//! cluster T30.

pub(crate) mod wire;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use greylag_core::{CodecId, DeadLetterReason, Room, Share, UniqueAddress};
use greylag_transport::watch::{Terminated, WatchEffect, WatchError, WatchInput, WatchMessage, Watched, Watcher};
use greylag_transport::{
    Envelope, Inbound, Receiver, Recipient, Remoting, SendError, TransportEvent, TransportListener,
};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;

use super::clock::{Clock, sleep_until};
use super::events::{ClusterEvents, EventHub};
use crate::membership::event::{EventKind, InitialState};
use crate::membership::view::MembershipView;

const PATH: &str = "control/watch";
const MANIFEST: &str = "gl.watch";

/// Limits of waiting messages of peers, in number and in bytes: a message that finds no room is a dead letter. Honest
/// nodes are far below: a node gets one message for each recipient that another node watches.
const ROOM: (usize, usize) = (65_536, 16 * 1024 * 1024);

type Answer = oneshot::Sender<Result<Terminated, WatchError>>;

enum Call {
    Watch {
        id: u64,
        recipient: Watched,
        non_members: bool,
        noted: oneshot::Sender<()>,
        answer: Answer,
    },
    /// An event of this node; their number is limited by watches, recipients and peers.
    Input(WatchInput),
    /// A message of a peer, or an event that a stranger caused, with its share of [`ROOM`].
    Received(WatchInput, Share),
}

/// The sender to the watcher's task, which ends when this is dropped.
pub(crate) struct Watches {
    calls: mpsc::UnboundedSender<Call>,
    next_id: AtomicU64,
    task: AbortHandle,
}

impl Drop for Watches {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Watches {
    pub(crate) fn start(handle: &Handle, remoting: Arc<dyn Remoting>, hub: &Arc<EventHub>, clock: Clock) -> Self {
        let (calls, inbox) = mpsc::unbounded_channel();
        let mailbox = Arc::new(Mailbox {
            calls: calls.clone(),
            room: Room::new(ROOM.0, ROOM.1),
            remoting: Arc::downgrade(&remoting),
        });
        remoting.register(PATH, mailbox.clone());
        remoting.listen(None, mailbox);
        let own = remoting.self_address().clone();
        let driver = Driver {
            machine: Watcher::new(own, remoting.termination_flush_timeout()),
            remoting,
            answers: BTreeMap::new(),
            calls: calls.clone(),
            hub: hub.clone(),
            view: None,
            clock,
        };
        // Subscribe to members: removals end watches, and must wake the watcher.
        let events = hub.subscribe(BTreeSet::from([EventKind::Members]), InitialState::Snapshot);
        let task = handle.spawn(driver.run(inbox, events)).abort_handle();
        Self { calls, next_id: AtomicU64::new(1), task }
    }
}

/// A watch that lasts until it is dropped.
pub struct Watch {
    id: u64,
    calls: mpsc::UnboundedSender<Call>,
    answer: oneshot::Receiver<Result<Terminated, WatchError>>,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Watch {
    /// Waits for the end of the watched recipient, reported once. `Ok(None)`: this node has ended before.
    ///
    /// # Errors
    /// [`WatchError`]; the watch was refused.
    pub async fn terminated(mut self) -> Result<Option<Terminated>, WatchError> {
        (&mut self.answer).await.map_or(Ok(None), |answer| answer.map(Some))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.calls.send(Call::Input(WatchInput::Unwatch { id: self.id })).ok();
    }
}

impl Watches {
    /// Watches the recipient that is registered under this path at a node: a member, or with `any` any node.
    ///
    /// # Errors
    /// [`WatchError`]; the watch was refused.
    pub(crate) async fn watch(
        &self,
        recipient: &Recipient,
        at: &UniqueAddress,
        any: bool,
    ) -> Result<Watch, WatchError> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let recipient = Watched { node: at.clone(), path: recipient.path.clone(), instance: recipient.instance };
        let (noted, is_noted) = oneshot::channel();
        let (answer, answered) = oneshot::channel();
        let call = Call::Watch { id, recipient, non_members: any, noted, answer };
        self.calls.send(call).ok();
        let mut watch = Watch { id, calls: self.calls.clone(), answer: answered };
        // Fails only if this node has ended, which the watch will report.
        is_noted.await.ok();
        match watch.answer.try_recv() {
            Ok(Err(error)) => Err(error),
            Ok(Ok(terminated)) => {
                let (again, answer) = oneshot::channel();
                again.send(Ok(terminated)).ok();
                watch.answer = answer;
                Ok(watch)
            }
            Err(_) => Ok(watch),
        }
    }
}

struct Driver {
    machine: Watcher,
    remoting: Arc<dyn Remoting>,
    answers: BTreeMap<u64, Answer>,
    calls: mpsc::UnboundedSender<Call>,
    hub: Arc<EventHub>,
    view: Option<Arc<MembershipView>>,
    clock: Clock,
}

impl Driver {
    async fn run(mut self, mut inbox: mpsc::UnboundedReceiver<Call>, mut events: ClusterEvents) {
        let mut is_listening = true;
        loop {
            let call = tokio::select! {
                () = sleep_until(&self.clock, self.machine.next_deadline()) => Call::Input(WatchInput::Tick),
                event = events.next(), if is_listening => {
                    is_listening = event.is_some();
                    self.look();
                    continue;
                }
                call = inbox.recv() => match call {
                    Some(call) => call,
                    None => return,
                },
            };
            // Update the members first: a caller that acts on the newest view must not be ahead of the watcher.
            self.look();
            match call {
                Call::Input(input) => self.input(input),
                // Drop the share when the message is taken out: its room is free for the next.
                Call::Received(input, _share) => self.input(input),
                Call::Watch { id, recipient, non_members, noted, answer } => {
                    self.answers.insert(id, answer);
                    self.input(WatchInput::Watch { id, recipient, non_members });
                    noted.send(()).ok();
                }
            }
        }
    }

    /// Tells the machine and the transport the members, if they have changed.
    fn look(&mut self) {
        let view = self.hub.view();
        if self.view.as_ref().is_some_and(|known| Arc::ptr_eq(known, &view)) {
            return;
        }
        let members = view.members.iter().map(|member| member.address.clone()).collect();
        let tombstones: BTreeSet<UniqueAddress> = view.tombstones.keys().cloned().collect();
        self.view = Some(view);
        self.remoting.set_tombstones(&tombstones);
        self.input(WatchInput::Members { members, tombstones });
    }

    fn input(&mut self, input: WatchInput) {
        let input = match input {
            WatchInput::Message { from, message: WatchMessage::Watch { path, instance }, .. } => {
                let current = self.remoting.instance(&path);
                WatchInput::Message { from, message: WatchMessage::Watch { path, instance }, current }
            }
            other => other,
        };
        if let WatchInput::Unwatch { id } = &input {
            self.answers.remove(id);
        }
        let mut effects = Vec::new();
        self.machine.handle(self.clock.now(), input, &mut effects);
        for effect in effects {
            match effect {
                WatchEffect::Send { to, message } => self.send(to, &message),
                WatchEffect::Flush { to, flush } => {
                    let calls = self.calls.clone();
                    let done = move || drop(calls.send(Call::Input(WatchInput::Flushed { flush })));
                    self.remoting.flush(&to, Box::new(done));
                }
                WatchEffect::Terminated { id, terminated } => self.answer(id, Ok(terminated)),
                WatchEffect::Refused { id, error } => self.answer(id, Err(error)),
            }
        }
    }

    fn answer(&mut self, id: u64, answer: Result<Terminated, WatchError>) {
        if let Some(waiting) = self.answers.remove(&id) {
            let _nobody_waits_any_more = waiting.send(answer);
        }
    }

    fn send(&self, to: UniqueAddress, message: &WatchMessage) {
        let envelope = Envelope::new(Recipient::new(PATH), CodecId::INTERNAL, MANIFEST, wire::encode(message));
        match self.remoting.send_reliable(&to, envelope) {
            Err(rejected) if rejected.error == SendError::Quarantined => {
                self.calls.send(Call::Input(WatchInput::PeerQuarantined(to))).ok();
            }
            // Ignore: if the message overflowed its lane, the transport reports its loss by an event.
            Ok(()) | Err(_) => {}
        }
    }
}

/// Forwards messages of watchers and events of the transport.
struct Mailbox {
    calls: mpsc::UnboundedSender<Call>,
    room: Room,
    /// Weak, because the transport holds its receivers.
    remoting: Weak<dyn Remoting>,
}

impl Receiver for Mailbox {
    fn receive(&self, message: Inbound) {
        let Some(decoded) = wire::decode(&message.payload) else {
            return tracing::warn!(
                from = %message.from, reason = %DeadLetterReason::Undecodable, "an unreadable watch message"
            );
        };
        match self.room.take(message.size()) {
            Some(share) => {
                let input = WatchInput::Message { from: message.from, message: decoded, current: None };
                self.calls.send(Call::Received(input, share)).ok();
            }
            None => {
                if let Some(remoting) = self.remoting.upgrade() {
                    remoting.dead_letter(DeadLetterReason::MailboxFull, PATH, &message.manifest);
                }
            }
        }
    }
}

impl TransportListener for Mailbox {
    fn on_event(&self, event: &mut TransportEvent) {
        let input = match event {
            TransportEvent::RecipientStopped { path, instance } => {
                WatchInput::Stopped { path: path.clone(), instance: *instance }
            }
            TransportEvent::Quarantined { peer, .. } => WatchInput::PeerQuarantined(peer.clone()),
            // Drop a handshake that finds no room: strangers can cause any number of them, and a peer says Hello again
            // with its next stream.
            TransportEvent::PeerHandshake(info) => {
                if let Some(share) = self.room.take(0) {
                    self.calls.send(Call::Received(WatchInput::PeerHandshake(info.peer.clone()), share)).ok();
                }
                return;
            }
            TransportEvent::ReliableGaveUp { peer, .. } => WatchInput::GaveUp(peer.clone()),
            _ => return,
        };
        self.calls.send(Call::Input(input)).ok();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use greylag_core::Registry;
    use greylag_transport::memory::MemoryNetwork;
    use greylag_transport::watch::WhyTerminated;

    use super::*;
    use crate::driver::handle::Cluster;
    use crate::settings::ClusterSettings;

    struct Sink;

    impl Receiver for Sink {
        fn receive(&self, _: Inbound) {}
    }

    async fn within<T>(future: impl Future<Output = T>) -> T {
        tokio::time::timeout(Duration::from_secs(30), future).await.expect("it ends")
    }

    /// Sharding scenario 105: messages of peers to the watcher wait within a bound in number and in bytes, and those
    /// beyond are dead letters; handshakes that strangers cause take the same room. Events of this node itself pass all
    /// the same.
    #[tokio::test]
    async fn scenario_105_the_queue_of_the_watcher_is_bounded_in_messages_and_bytes() {
        let network = MemoryNetwork::new();
        let payload = wire::encode(&WatchMessage::Watch { path: "x".into(), instance: 0 });
        let message = || Inbound {
            from: "b.watch:1#2".parse().unwrap(),
            recipient: Recipient::new(PATH),
            codec: CodecId::INTERNAL,
            manifest: MANIFEST.into(),
            payload: payload.clone().into(),
            ask: None,
        };
        let by_bytes = 7 * message().size() + 1;
        for (host, room) in
            [("a.watch:1#1", Room::new(7, usize::MAX)), ("c.watch:1#3", Room::new(usize::MAX, by_bytes))]
        {
            let remoting = network.node(host.parse().unwrap(), Arc::new(Registry::new()));
            let (calls, mut waiting) = mpsc::unbounded_channel();
            let mailbox = Mailbox { calls, room, remoting: Arc::downgrade(&remoting) };
            (0..10).for_each(|_| mailbox.receive(message()));
            let full = BTreeMap::from([(DeadLetterReason::MailboxFull, 3)]);
            assert_eq!((waiting.len(), remoting.dead_letter_totals()), (7, full), "{host}");
            mailbox.on_event(&mut TransportEvent::RecipientStopped { path: "x".into(), instance: 1 });
            assert_eq!(waiting.len(), 8);
            // Take one out, so that there is room for one.
            assert!(matches!(waiting.recv().await, Some(Call::Received(..))));
            (0..2).for_each(|_| mailbox.receive(message()));
            assert_eq!(waiting.len(), 8);
        }
    }

    /// Cluster T30: a watch ends when the recipient stops, is refused for a stranger, ends at once for a missing
    /// recipient, and ends with a removal.
    #[tokio::test]
    async fn a_watch_ends_once_with_its_reason() {
        let network = MemoryNetwork::new();
        let registry = Arc::new(Registry::new());
        let a = network.node("a:1#1".parse().unwrap(), registry.clone());
        let b = network.node("b:1#2".parse().unwrap(), registry.clone());
        let one = Cluster::start(ClusterSettings::test(), a.clone()).await.unwrap();
        let two = Cluster::start(ClusterSettings::test(), b.clone()).await.unwrap();
        let at = b.self_address().clone();
        let early = one.watch(&Recipient::new("x"), &at).await;
        assert_eq!(early.unwrap_err(), WatchError::NotAMember(at.clone()));
        within(one.join_self()).await.unwrap();
        within(two.join_seed_nodes(vec![a.self_address().address().clone()])).await.unwrap();
        within(one.wait_for(|view| view.members.len() == 2)).await.unwrap();

        let instance = b.register("x", Arc::new(Sink));
        let any = one.watch(&Recipient::new("x"), &at).await.unwrap();
        let this = one.watch(&Recipient::new("x").with_instance(instance), &at).await.unwrap();
        let absent = one.watch(&Recipient::new("y"), &at).await.unwrap();
        let why = |ended: Result<Option<Terminated>, WatchError>| ended.unwrap().unwrap().why;
        assert_eq!(why(within(absent.terminated()).await), WhyTerminated::Stopped);
        b.unregister("x");
        assert_eq!(why(within(any.terminated()).await), WhyTerminated::Stopped);
        assert_eq!(why(within(this.terminated()).await), WhyTerminated::Stopped);

        b.register("z", Arc::new(Sink));
        let last = one.watch(&Recipient::new("z"), &at).await.unwrap();
        one.down(at.clone()).unwrap();
        network.crash(&at);
        let why_last = why(within(last.terminated()).await);
        assert!(matches!(why_last, WhyTerminated::MemberRemoved | WhyTerminated::Quarantined), "{why_last:?}");
        within(one.wait_for(|view| view.members.len() == 1)).await.unwrap();
        let late = one.watch(&Recipient::new("z"), &at).await.unwrap();
        assert_eq!(why(within(late.terminated()).await), WhyTerminated::Tombstoned);
    }

    /// Cluster T30: the removal itself ends a watch, however late the quarantine after a clean removal begins.
    #[tokio::test]
    async fn a_watch_ends_with_the_clean_removal_of_its_node() {
        let network = MemoryNetwork::new();
        let registry = Arc::new(Registry::new());
        let a = network.node("a:1#1".parse().unwrap(), registry.clone());
        let b = network.node("b:1#2".parse().unwrap(), registry.clone());
        let patient =
            ClusterSettings { quarantine_removed_node_after: Duration::from_secs(3600), ..ClusterSettings::test() };
        let one = Cluster::start(patient, a.clone()).await.unwrap();
        let two = Cluster::start(ClusterSettings::test(), b.clone()).await.unwrap();
        within(one.join_self()).await.unwrap();
        within(two.join(a.self_address().address().clone())).await.unwrap();
        within(one.wait_for(|view| view.members.len() == 2 && view.converged)).await.unwrap();
        b.register("x", Arc::new(Sink));
        let watch = one.watch(&Recipient::new("x"), b.self_address()).await.unwrap();
        within(two.shutdown()).await;
        let terminated = within(watch.terminated()).await.unwrap().unwrap();
        assert_eq!(terminated.why, WhyTerminated::MemberRemoved);
    }
    /// Scenario 10, over sockets and with short times: a watch that begins during a short cut ends when its recipient
    /// stops later; a long cut ends the watch by the quarantine of the node.
    #[tokio::test(flavor = "multi_thread")]
    async fn scenario_10_a_watch_survives_a_short_cut_and_ends_with_a_long_one() {
        use greylag_transport::{Fault, GrpcTransport, TransportSettings};

        let give_up_reliable_after = Duration::from_secs(2);
        let bind = async || {
            let settings = TransportSettings { give_up_reliable_after, ..TransportSettings::test() };
            GrpcTransport::bind(settings, Arc::new(Registry::new())).await.unwrap()
        };
        let (a, b) = (bind().await, bind().await);
        let one = Cluster::start(ClusterSettings::test(), a.clone()).await.unwrap();
        let two = Cluster::start(ClusterSettings::test(), b.clone()).await.unwrap();
        within(one.join_self()).await.unwrap();
        within(two.join(a.self_address().address().clone())).await.unwrap();
        within(one.wait_for(|view| view.members.len() == 2 && view.converged)).await.unwrap();
        let at = b.self_address().clone();
        b.register("x", Arc::new(Sink));
        a.fault(at.address(), Fault::BlackholeOutbound);
        let watch = one.watch(&Recipient::new("x"), &at).await.unwrap();
        let swallowed = a.stats().swallowed_envelopes;
        while a.stats().swallowed_envelopes < swallowed + 4 {
            tokio::task::yield_now().await;
        }
        a.fault(at.address(), Fault::Pass);
        b.unregister("x");
        assert_eq!(within(watch.terminated()).await.unwrap().unwrap().why, WhyTerminated::Stopped);

        b.register("x", Arc::new(Sink));
        a.fault(at.address(), Fault::BlackholeOutbound);
        let watch = one.watch(&Recipient::new("x"), &at).await.unwrap();
        assert_eq!(within(watch.terminated()).await.unwrap().unwrap().why, WhyTerminated::Quarantined);
    }
}
