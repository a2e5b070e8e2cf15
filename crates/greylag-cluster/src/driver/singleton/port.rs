//! The messages of one singleton on one node: the proxy, the gate of the instance, and the hot path.
//!
//! Senders hold the lock while they queue a message, so that no message overtakes one that was kept before it. Effects
//! that must not run under the lock (dropping a message runs user code) run after it. Questions, answers and membership
//! reach the machines by one task.

use std::any::Any;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use greylag_core::{
    Codec, CodecId, DeadLetterReason, EncodeError, EntityError, Manifest, ReplyScope, ReplyTo, Room, Share,
    UniqueAddress, answer_dropped,
};
use greylag_transport::{
    AskError, Destination, Envelope, Inbound, OpenAsk, Payload, PayloadValue, Receiver, Recipient, Remoting,
    SendError as Rejection,
};
use tokio::sync::mpsc;

use super::error::{SingletonAskError, SingletonSendError};
use crate::driver::clock::{Clock, sleep_until};
use crate::driver::events::ClusterEvents;
use crate::driver::input::INBOX;
use crate::driver::pulse::Pulse;
use crate::settings::SingletonSettings;
use crate::singleton::ProxyMessage;
use crate::singleton::host::{HostEffect, HostInput, SingletonHost};
use crate::singleton::proxy::{ProxyEffect, ProxyInput, SingletonProxy};
use crate::wire;

/// The path of user messages.
fn data_path(name: &str) -> String {
    format!("singleton/{name}")
}

/// The path on which proxies ask, and are answered.
fn control_path(name: &str) -> String {
    format!("control/singleton-proxy/{name}")
}

/// The question of this node that a message carries.
#[derive(Debug, Clone, Copy)]
pub(super) struct AskTag {
    id: u64,
    deadline: Instant,
}

/// A message for the instance.
pub(super) struct QueuedMessage<M> {
    pub(super) message: M,
    ask: Option<AskTag>,
    /// The message's share of the mailbox's room, if it came from another node.
    _share: Option<Share>,
}

/// Bytes that messages of other nodes may have together in the mailbox of one instance.
const MAILBOX_BYTES: usize = 64 * 1024 * 1024;

/// A message for another node, encoded by the lane writer.
struct Outgoing<M> {
    queued: QueuedMessage<M>,
    codec: Arc<dyn Codec<M>>,
}

impl<M: Send + 'static> PayloadValue for Outgoing<M> {
    fn encode(&self, buffer: &mut BytesMut) -> Result<(), EncodeError> {
        self.codec.encode(&self.queued.message, buffer)
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

/// An input of the port's task.
pub(super) enum PortInput {
    /// A message of a proxy, or of a host, of this singleton.
    Said { from: UniqueAddress, message: ProxyMessage },
    /// The next deadline has changed.
    Rearm,
}

/// One singleton's port on one node.
pub(crate) struct Port<M: Send + 'static> {
    name: Arc<str>,
    path: Arc<str>,
    control: Arc<str>,
    remoting: Arc<dyn Remoting>,
    codec: Option<Arc<dyn Codec<M>>>,
    capacity: usize,
    /// The room in the mailbox for messages of other nodes.
    room: Room,
    inbox: mpsc::Sender<PortInput>,
    clock: Clock,
    pulse: Pulse,
    guarded: Mutex<PortState<M>>,
}

struct PortState<M> {
    proxy: SingletonProxy<QueuedMessage<M>>,
    host: SingletonHost,
    /// The sender to the instance's mailbox, while the instance takes messages.
    gate: Option<mpsc::Sender<QueuedMessage<M>>>,
}

/// Messages to be dropped once no lock is held, with the reasons.
type Dropped<M> = Vec<(QueuedMessage<M>, Loss)>;

#[derive(Clone, Copy)]
enum Loss {
    /// The dead letter is not counted yet.
    Uncounted(DeadLetterReason),
    /// The transport refused the message, and has counted the dead letter.
    Counted(DeadLetterReason),
}

impl Loss {
    fn reason(self) -> DeadLetterReason {
        match self {
            Self::Uncounted(reason) | Self::Counted(reason) => reason,
        }
    }
}

impl<M: Send + 'static> Port<M> {
    pub(super) fn new(
        name: Arc<str>,
        codec: Option<Arc<dyn Codec<M>>>,
        settings: &SingletonSettings,
        capacity: NonZeroUsize,
        remoting: Arc<dyn Remoting>,
        clock: Clock,
        pulse: Pulse,
    ) -> (Arc<Self>, mpsc::Receiver<PortInput>) {
        let (inbox, receiver) = mpsc::channel(INBOX);
        let port = Self {
            path: data_path(&name).into(),
            control: control_path(&name).into(),
            name,
            remoting,
            codec,
            capacity: capacity.get(),
            room: Room::new(usize::MAX, MAILBOX_BYTES),
            inbox,
            clock,
            pulse,
            guarded: Mutex::new(PortState {
                proxy: SingletonProxy::new(settings),
                host: SingletonHost::new(),
                gate: None,
            }),
        };
        let port = Arc::new(port);
        let remoting = &port.remoting;
        remoting.register(&port.path, Arc::new(DataReceiver { port: Arc::downgrade(&port) }));
        remoting.register(&port.control, Arc::new(ControlReceiver { port: Arc::downgrade(&port) }));
        (port, receiver)
    }

    fn lock(&self) -> MutexGuard<'_, PortState<M>> {
        self.guarded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn identified(&self) -> Option<UniqueAddress> {
        self.lock().proxy.identified().cloned()
    }

    // --- sending --------------------------------------------------------------------------------

    pub(super) fn tell(&self, message: M) -> Result<(), SingletonSendError> {
        self.send(QueuedMessage { message, ask: None, _share: None })
    }

    /// Starts an ask: the message is on its way, or kept, when this returns.
    pub(super) fn begin_ask<R: Send + 'static>(
        &self,
        message: impl FnOnce(ReplyTo<R>) -> M,
        timeout: Duration,
    ) -> Result<OpenAsk, SingletonAskError> {
        if timeout.is_zero() {
            return Err(SingletonAskError::InvalidTimeout);
        }
        let ask = self.remoting.open_ask(timeout);
        let now = self.clock.now();
        let deadline = now.checked_add(timeout).unwrap_or_else(|| now + FAR);
        let tag = AskTag { id: ask.address.ask_id, deadline };
        let message = message(ReplyTo::new(ask.address.clone(), self.remoting.reply_port()));
        self.send(QueuedMessage { message, ask: Some(tag), _share: None })?;
        Ok(ask)
    }

    fn send(&self, queued: QueuedMessage<M>) -> Result<(), SingletonSendError> {
        let mut dropped = Vec::new();
        let outcome = self.proxy_input(&mut self.lock(), ProxyInput::Message(queued), &mut dropped);
        self.drop_all(dropped);
        outcome.map_err(SingletonSendError::from)
    }

    /// Gives the proxy an input. An error is about the message that was handed in.
    fn proxy_input(
        &self,
        guarded: &mut PortState<M>,
        input: ProxyInput<QueuedMessage<M>>,
        dropped: &mut Dropped<M>,
    ) -> Result<(), DeadLetterReason> {
        let mut effects = Vec::new();
        guarded.proxy.handle(self.clock.now(), input, &mut effects);
        let mut outcome = Ok(());
        for effect in effects {
            match effect {
                ProxyEffect::Identify(host) => self.send_control(&host, ProxyMessage::Identify),
                ProxyEffect::Forward(host, queued) => {
                    if let Err((queued, loss)) = self.forward(guarded, &host, queued) {
                        outcome = Err(loss.reason());
                        dropped.push((queued, loss));
                    }
                }
                ProxyEffect::Drop(queued, reason) => dropped.push((queued, Loss::Uncounted(reason))),
                ProxyEffect::Refuse(queued, reason) => {
                    outcome = Err(reason);
                    dropped.push((queued, Loss::Uncounted(reason)));
                }
            }
        }
        outcome
    }

    /// Queues a message for the instance, or returns it.
    fn forward(
        &self,
        guarded: &mut PortState<M>,
        host: &UniqueAddress,
        queued: QueuedMessage<M>,
    ) -> Result<(), (QueuedMessage<M>, Loss)> {
        if queued.ask.is_some_and(|ask| ask.deadline <= self.clock.now()) {
            return Err((queued, Loss::Uncounted(DeadLetterReason::Expired)));
        }
        if host == self.remoting.self_address() {
            return guarded.deliver(queued).map_err(|(queued, reason)| (queued, Loss::Uncounted(reason)));
        }
        let Some(codec) = self.codec.clone() else {
            return Err((queued, Loss::Uncounted(DeadLetterReason::SerializeFailed)));
        };
        let (codec_id, manifest, ask) = (codec.id(), codec.manifest(&queued.message), queued.ask);
        let payload = Payload::Value(Box::new(Outgoing { queued, codec }));
        let mut envelope = Envelope::with_payload(Recipient::new(self.path.clone()), codec_id, manifest, payload);
        if let Some(ask) = ask {
            envelope = envelope.asking(ask.id, ask.deadline.saturating_duration_since(self.clock.now()));
        }
        let to = Destination::Incarnation(host.clone());
        self.remoting.send(&to, envelope.to_uid(host.uid())).map_err(|rejected| {
            let reason = match rejected.error {
                Rejection::QueueFull => DeadLetterReason::QueueFull,
                Rejection::Quarantined => DeadLetterReason::Quarantined,
                Rejection::TooLarge { .. } | Rejection::NameTooLong { .. } => DeadLetterReason::TooLarge,
                Rejection::ShuttingDown => DeadLetterReason::ShuttingDown,
            };
            let Payload::Value(value) = rejected.envelope.payload else {
                unreachable!("the envelope comes back as it was sent")
            };
            let outgoing = value.into_any().downcast::<Outgoing<M>>().expect("the envelope comes back as it was sent");
            (outgoing.queued, Loss::Counted(reason))
        })
    }

    // --- the instance ---------------------------------------------------------------------------

    /// Opens the gate of an instance, which takes messages from now on.
    pub(super) fn open(self: &Arc<Self>, instance: u64) -> (mpsc::Receiver<QueuedMessage<M>>, Gate<M>) {
        let (gate, messages) = mpsc::channel(self.capacity);
        let mut guarded = self.lock();
        guarded.gate = Some(gate);
        self.host_input(&mut guarded, HostInput::Started(instance), &mut Vec::new());
        drop(guarded);
        (messages, Gate { port: self.clone(), instance })
    }

    pub(super) fn pulse(&self) -> &Pulse {
        &self.pulse
    }

    /// Closes the mailbox of the instance and reports this to senders, to this node's proxy first.
    fn close(&self, instance: u64) {
        let mut dropped = Vec::new();
        let mut guarded = self.lock();
        if guarded.host.running() == Some(instance) {
            guarded.gate = None;
            self.host_input(&mut guarded, HostInput::Ended(instance), &mut dropped);
        }
        drop(guarded);
        self.drop_all(dropped);
    }

    fn host_input(&self, guarded: &mut PortState<M>, input: HostInput, dropped: &mut Dropped<M>) {
        let mut effects = Vec::new();
        guarded.host.handle(input, &mut effects);
        for effect in effects {
            match effect {
                HostEffect::Tell { to, message } => self.send_control(&to, message),
                HostEffect::Retract { to, instance } => {
                    let message = ProxyMessage::NotHere { instance: Some(instance) };
                    if to == *self.remoting.self_address() {
                        let input = ProxyInput::Identified { from: to, message };
                        let _no_message_was_handed_in = self.proxy_input(guarded, input, dropped);
                        let _task_has_more_to_do_anyway = self.inbox.try_send(PortInput::Rearm);
                    } else if let Err(rejected) = self.remoting.send_reliable(&to, self.envelope(&to, message)) {
                        tracing::debug!(%to, error = %rejected.error, "a proxy is not told that its singleton ends");
                    }
                }
            }
        }
    }

    /// Sends a message to the other half of this singleton's port on a node, which may be this one.
    fn send_control(&self, to: &UniqueAddress, message: ProxyMessage) {
        if to == self.remoting.self_address() {
            let _full_and_repeated = self.inbox.try_send(PortInput::Said { from: to.clone(), message });
        } else if let Err(rejected) = self.remoting.send(&to.clone().into(), self.envelope(to, message)) {
            // Do not retry: the proxy asks again, and the transport has counted the loss.
            tracing::debug!(%to, ?message, error = %rejected.error, "not sent");
        }
    }

    fn envelope(&self, to: &UniqueAddress, message: ProxyMessage) -> Envelope {
        let recipient = Recipient::new(self.control.clone());
        let bytes = wire::encode_proxy(message);
        Envelope::new(recipient, CodecId::INTERNAL, wire::SINGLETON_PROXY, bytes).to_uid(to.uid())
    }

    // --- dropping -------------------------------------------------------------------------------

    fn drop_all(&self, dropped: Dropped<M>) {
        for (queued, loss) in dropped {
            self.drop_with_reason(queued, loss);
        }
    }

    /// Drops a message; its ask fails with the reason at once.
    pub(super) fn drop_message(&self, queued: QueuedMessage<M>, reason: DeadLetterReason) {
        self.drop_with_reason(queued, Loss::Uncounted(reason));
    }

    fn drop_with_reason(&self, queued: QueuedMessage<M>, loss: Loss) {
        if let Loss::Uncounted(reason) = loss {
            let manifest = self.codec.as_ref().map_or_else(Manifest::default, |codec| codec.manifest(&queued.message));
            self.remoting.dead_letter(reason, &self.path, &manifest);
        }
        if let Some(ask) = queued.ask {
            self.remoting.fail_ask(ask.id, AskError::Dropped(loss.reason()));
        }
        // Dropping the message answers a question from another node by the token in it.
        answer_dropped(EntityError::Stopped, || drop(queued.message));
    }

    // --- the task -------------------------------------------------------------------------------

    /// Feeds the machines until the node has ended.
    pub(super) async fn run(self: Arc<Self>, mut inbox: mpsc::Receiver<PortInput>, mut events: ClusterEvents) {
        let mut seen = None;
        loop {
            let deadline = self.lock().proxy.next_deadline();
            tokio::select! {
                () = sleep_until(&self.clock, deadline) => self.input(ProxyInput::Tick),
                event = events.next() => {
                    let view = events.view();
                    if seen.as_ref().is_none_or(|seen| !Arc::ptr_eq(seen, &view)) {
                        self.host(HostInput::View(view.clone()));
                        self.input(ProxyInput::View(view.clone()));
                        seen = Some(view);
                    }
                    if event.is_none() {
                        return self.end();
                    }
                }
                Some(input) = inbox.recv() => match input {
                    PortInput::Said { from, message: ProxyMessage::Identify } => self.host(HostInput::Identify(from)),
                    PortInput::Said { from, message } => self.input(ProxyInput::Identified { from, message }),
                    PortInput::Rearm => {}
                },
            }
        }
    }

    fn end(&self) {
        self.input(ProxyInput::Stop);
        self.remoting.unregister(&self.path);
        self.remoting.unregister(&self.control);
    }

    fn input(&self, input: ProxyInput<QueuedMessage<M>>) {
        let mut dropped = Vec::new();
        let _each_loss_is_in_the_list = self.proxy_input(&mut self.lock(), input, &mut dropped);
        self.drop_all(dropped);
    }

    fn host(&self, input: HostInput) {
        let mut dropped = Vec::new();
        self.host_input(&mut self.lock(), input, &mut dropped);
        self.drop_all(dropped);
    }
}

impl<M> PortState<M> {
    /// Puts a message into the mailbox of this node's instance.
    fn deliver(&mut self, queued: QueuedMessage<M>) -> Result<(), (QueuedMessage<M>, DeadLetterReason)> {
        use mpsc::error::TrySendError;
        let Some(gate) = &self.gate else { return Err((queued, DeadLetterReason::NotSingletonHost)) };
        gate.try_send(queued).map_err(|refused| match refused {
            TrySendError::Full(queued) => (queued, DeadLetterReason::MailboxFull),
            TrySendError::Closed(queued) => (queued, DeadLetterReason::NotSingletonHost),
        })
    }
}

/// Deadline of asks whose timeout overflows the clock.
const FAR: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Held while an instance runs. Closes its mailbox when dropped, also by a panic.
pub(super) struct Gate<M: Send + 'static> {
    port: Arc<Port<M>>,
    instance: u64,
}

impl<M: Send + 'static> Gate<M> {
    pub(super) fn close(&self) {
        self.port.close(self.instance);
    }
}

impl<M: Send + 'static> Drop for Gate<M> {
    fn drop(&mut self) {
        self.close();
    }
}

/// Takes messages from other nodes.
struct DataReceiver<M: Send + 'static> {
    port: Weak<Port<M>>,
}

impl<M: Send + 'static> Receiver for DataReceiver<M> {
    fn receive(&self, message: Inbound) {
        if let Some(port) = self.port.upgrade() {
            port.receive(&message);
        }
    }
}

impl<M: Send + 'static> Port<M> {
    /// Takes a message from another node, on a decode worker. A message that finds no instance is bounced: its sender
    /// is told, and so is the proxy that sent it here.
    fn receive(&self, message: &Inbound) {
        let read =
            if self.lock().gate.is_some() { self.read(message) } else { Err(DeadLetterReason::NotSingletonHost) };
        let share = self.room.take(message.size());
        let delivered = match read {
            Ok(_) if share.is_none() => Err((None, DeadLetterReason::MailboxFull)),
            Ok(message) => self
                .lock()
                .deliver(QueuedMessage { message, ask: None, _share: share })
                .map_err(|(p, reason)| (Some(p), reason)),
            Err(reason) => Err((None, reason)),
        };
        let Err((queued, reason)) = delivered else { return };
        self.remoting.refuse(message, reason);
        if reason == DeadLetterReason::NotSingletonHost {
            self.host(HostInput::Bounced(message.from.clone()));
        }
        answer_dropped(EntityError::Stopped, || drop(queued));
    }

    fn read(&self, message: &Inbound) -> Result<M, DeadLetterReason> {
        let codec = self.codec.as_ref().filter(|codec| codec.id() == message.codec);
        let codec = codec.ok_or(DeadLetterReason::Undecodable)?;
        let scope = ReplyScope::enter(self.remoting.reply_port());
        codec.decode(&message.manifest, message.payload.clone()).map_err(|error| {
            tracing::warn!(singleton = %self.name, from = %message.from, %error, "a message could not be read");
            let reason = DeadLetterReason::Undecodable;
            // Refusing the message answers its asker; this answers the askers of other tokens in it.
            scope.refuse(reason, message.ask.map(|ask| (&message.from, ask.id)));
            reason
        })
    }
}

/// Takes the messages of proxies and hosts.
struct ControlReceiver<M: Send + 'static> {
    port: Weak<Port<M>>,
}

impl<M: Send + 'static> Receiver for ControlReceiver<M> {
    fn receive(&self, message: Inbound) {
        let Some(port) = self.port.upgrade() else { return };
        match wire::decode_proxy(message.payload.clone()) {
            Ok(said) => {
                let input = PortInput::Said { from: message.from.clone(), message: said };
                if port.inbox.try_send(input).is_err() {
                    port.remoting.dead_letter(DeadLetterReason::MailboxFull, &port.control, &message.manifest);
                }
            }
            Err(error) => tracing::warn!(from = %message.from, %error, "an unreadable message of a singleton's proxy"),
        }
    }
}
