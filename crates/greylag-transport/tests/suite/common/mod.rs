//! Nodes on the loopback interface, and helpers of the tests.

#![allow(dead_code, unreachable_pub, reason = "each of the programs that include this file uses a part")]

pub mod certificates;
pub mod logs;
pub mod raw;

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use greylag_codec::json;
use greylag_core::{CodecId, DeadLetterReason, Registry, ReplyAddress, ReplyTo, UniqueAddress};
use greylag_testkit::port;
use greylag_transport::{
    Answer, AskError, BindError, Destination, Envelope, GrpcTransport, Inbound, Receiver, Recipient, Remoting,
    TransportEvent, TransportListener, TransportSettings,
};
use tokio::sync::mpsc;

/// Time limit: longer than any step takes that works.
pub const LONG: Duration = Duration::from_secs(20);

pub struct Node {
    pub transport: Arc<GrpcTransport>,
    pub inbox: mpsc::UnboundedReceiver<Inbound>,
    pub events: mpsc::UnboundedReceiver<TransportEvent>,
}

struct Inbox(mpsc::UnboundedSender<Inbound>);

impl Receiver for Inbox {
    fn receive(&self, message: Inbound) {
        self.0.send(message).ok();
    }
}

struct Events(mpsc::UnboundedSender<TransportEvent>);

impl TransportListener for Events {
    fn on_event(&self, event: &mut TransportEvent) {
        let placeholder = TransportEvent::PeerTerminating("none:1#1".parse().unwrap());
        self.0.send(std::mem::replace(event, placeholder)).ok();
    }
}

/// A node with an inbox at `inbox`, which is also its prefix for handed-back envelopes.
pub async fn node(settings: TransportSettings) -> Node {
    let node = closed(settings).await;
    node.transport.open();
    node
}

/// A node like [`node`] that accepts no connection yet.
pub async fn closed(settings: TransportSettings) -> Node {
    let registry = Registry::new();
    registry.register::<u32>(json("number")).unwrap();
    registry.register::<String>(json("text")).unwrap();
    let registry = Arc::new(registry);
    // Retry while the port is taken: a dropped node closes its socket a moment later.
    let transport = loop {
        match GrpcTransport::bind_closed(settings.clone(), registry.clone()).await {
            Ok(transport) => break transport,
            Err(BindError::Listen { cause, .. }) if cause.kind() == ErrorKind::AddrInUse => {
                tokio::task::yield_now().await;
            }
            Err(error) => panic!("{error}"),
        }
    };
    let (sender, inbox) = mpsc::unbounded_channel();
    transport.register("inbox", Arc::new(Inbox(sender)));
    let (sender, events) = mpsc::unbounded_channel();
    transport.listen(Some("inbox"), Arc::new(Events(sender)));
    Node { transport, inbox, events }
}

impl Node {
    pub fn here(&self) -> Destination {
        self.transport.self_address().clone().into()
    }

    /// The address of this process, with its uid.
    pub fn here_exactly(&self) -> UniqueAddress {
        self.transport.self_address().clone()
    }

    pub fn anyone_here(&self) -> Destination {
        self.transport.self_address().address().clone().into()
    }

    pub fn port(&self) -> u16 {
        self.transport.self_address().address().port()
    }

    pub fn register(&self, path: &str) -> mpsc::UnboundedReceiver<Inbound> {
        let (sender, inbox) = mpsc::unbounded_channel();
        self.transport.register(path, Arc::new(Inbox(sender)));
        inbox
    }

    pub fn tell(&self, to: &Destination, n: u32) {
        self.transport.send(to, number(n)).unwrap();
    }

    pub async fn next(&mut self) -> u32 {
        read(&next(&mut self.inbox).await)
    }

    /// Returns the first event that `chosen` accepts; skips others.
    pub async fn event<T>(&mut self, chosen: impl Fn(TransportEvent) -> Option<T>) -> T {
        let found = async {
            loop {
                if let Some(found) = chosen(self.events.recv().await.expect("the node lives")) {
                    return found;
                }
            }
        };
        tokio::time::timeout(LONG, found).await.expect("the event comes")
    }

    /// Whether any process is known at this port.
    pub fn knows(&self, port: u16) -> bool {
        self.transport.peer(&format!("127.0.0.1:{port}").parse().unwrap()).is_some()
    }

    pub fn dropped(&self, reason: DeadLetterReason) -> u64 {
        self.transport.stats().dropped(reason)
    }

    pub async fn ask(&self, to: &Destination, path: &str, timeout: Duration) -> Result<u32, AskError> {
        self.start_ask(to, path, timeout).await.map(|answer| *answer.downcast().unwrap())
    }

    pub fn start_ask(
        &self,
        to: &Destination,
        path: &str,
        timeout: Duration,
    ) -> impl Future<Output = Result<Answer, AskError>> + Send + use<> {
        let ask = self.transport.open_ask(timeout);
        let envelope = Envelope { recipient: Recipient::new(path), ..number(0) };
        self.transport.send(to, envelope.asking(ask.address.ask_id, timeout)).unwrap();
        ask.answer
    }

    /// Returns the reply token of the next message.
    pub async fn question<R: Send + 'static>(&mut self) -> ReplyTo<R> {
        let message = next(&mut self.inbox).await;
        self.reply_to(&message)
    }

    pub fn reply_to<R: Send + 'static>(&self, message: &Inbound) -> ReplyTo<R> {
        let address = ReplyAddress { node: message.from.clone(), ask_id: message.ask.unwrap().id };
        ReplyTo::new(address, self.transport.reply_port())
    }
}

/// An address where nothing listens; a test may start a node there.
pub fn vacant() -> Destination {
    Destination::Address(port::unused().to_string().parse().unwrap())
}

pub async fn next(inbox: &mut mpsc::UnboundedReceiver<Inbound>) -> Inbound {
    tokio::time::timeout(LONG, inbox.recv()).await.expect("a message comes").expect("the node lives")
}

pub fn number(n: u32) -> Envelope {
    Envelope::new(Recipient::new("inbox"), CodecId::JSON, "number", n.to_string().into_bytes())
}

pub fn read(message: &Inbound) -> u32 {
    serde_json::from_slice(&message.payload).unwrap()
}

/// Waits for a condition that no event announces.
pub async fn until(mut fact: impl FnMut() -> bool) {
    let wait = async {
        while !fact() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LONG, wait).await.expect("the fact comes true");
}
