use super::*;
use greylag_core::{Codec, CodecId, DecodeError, EncodeError, EntityError, Manifest, ReplyTo};
use std::future::Future;
use std::task::{Context, Poll, Wake, Waker};

struct Inbox(mpsc::Sender<Inbound>);

impl Receiver for Inbox {
    fn receive(&self, message: Inbound) {
        self.0.send(message).ok();
    }
}

struct Events(mpsc::Sender<String>);

impl TransportListener for Events {
    fn on_event(&self, event: &mut TransportEvent) {
        self.0.send(format!("{event:?}")).ok();
    }
}

struct Number;

impl Codec<u32> for Number {
    fn id(&self) -> CodecId {
        CodecId::FIRST_USER
    }
    fn manifest(&self, _: &u32) -> Manifest {
        "number".into()
    }
    fn manifests(&self) -> Vec<Manifest> {
        vec!["number".into()]
    }
    fn encode(&self, message: &u32, buffer: &mut bytes::BytesMut) -> Result<(), EncodeError> {
        buffer.extend_from_slice(&message.to_be_bytes());
        Ok(())
    }
    fn decode(&self, manifest: &str, bytes: bytes::Bytes) -> Result<u32, DecodeError> {
        let bytes = bytes[..].try_into().map_err(|e| DecodeError::malformed(manifest, e))?;
        Ok(u32::from_be_bytes(bytes))
    }
}

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn wait<T>(mut future: std::pin::Pin<Box<dyn Future<Output = T> + Send>>) -> T {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}

struct World {
    network: MemoryNetwork,
    a: Arc<dyn Remoting>,
    b: Arc<dyn Remoting>,
    at_b: mpsc::Receiver<Inbound>,
}

fn registry() -> Arc<Registry> {
    let registry = Registry::new();
    registry.register::<u32>(Number).unwrap();
    Arc::new(registry)
}

fn world() -> World {
    let network = MemoryNetwork::new();
    let a = network.node("a:1#1".parse().unwrap(), registry());
    let b = network.node("b:1#1".parse().unwrap(), registry());
    let at_b = inbox(&b);
    World { network, a, b, at_b }
}

fn inbox(node: &Arc<dyn Remoting>) -> mpsc::Receiver<Inbound> {
    let (sender, receiver) = mpsc::channel();
    node.register("inbox", Arc::new(Inbox(sender)));
    receiver
}

fn message(n: u32) -> Envelope {
    Envelope::new(Recipient::new("inbox"), CodecId::FIRST_USER, "number", n.to_be_bytes().to_vec())
}

fn number(message: &Inbound) -> u32 {
    u32::from_be_bytes(message.payload[..].try_into().unwrap())
}

fn to(node: &Arc<dyn Remoting>) -> Destination {
    node.self_address().clone().into()
}

fn reply_token(node: &Arc<dyn Remoting>, message: &Inbound) -> ReplyTo<u32> {
    let address = ReplyAddress { node: message.from.clone(), ask_id: message.ask.unwrap().id };
    ReplyTo::new(address, node.reply_port())
}

#[test]
fn messages_arrive_in_order_and_a_cut_swallows_them() {
    let w = world();
    let b = to(&w.b);
    w.a.send(&b, message(1)).unwrap();
    w.network.cut_one_way(w.a.self_address().address(), b.address());
    w.a.send(&b, message(2)).unwrap();
    w.network.heal_all();
    w.a.send(&b, message(3)).unwrap();
    assert_eq!([(); 2].map(|()| number(&w.at_b.recv().unwrap())), [1, 3]);
}

#[test]
fn an_ask_is_answered_refused_or_ends() {
    let w = world();
    let ask = |path: &str, timeout| {
        let ask = w.a.open_ask(timeout);
        let envelope = Envelope { recipient: Recipient::new(path), ..message(0) };
        w.a.send(&to(&w.b), envelope.asking(ask.address.ask_id, timeout)).unwrap();
        ask.answer
    };
    let long = Duration::from_secs(60);
    let answer = ask("inbox", long);
    reply_token(&w.b, &w.at_b.recv().unwrap()).reply(7);
    assert_eq!(*wait(answer).unwrap().downcast::<u32>().unwrap(), 7);

    let answer = ask("inbox", long);
    drop(reply_token(&w.b, &w.at_b.recv().unwrap()));
    assert_eq!(wait(answer).unwrap_err(), AskError::Entity(EntityError::NoReply));

    assert_eq!(wait(ask("unregistered", long)).unwrap_err(), AskError::NoSuchRecipient);
    let short = Duration::from_millis(1);
    assert_eq!(wait(ask("inbox", short)).unwrap_err(), AskError::Timeout(short));
}

#[test]
fn a_restarted_process_is_another_process() {
    let w = world();
    w.a.send(&to(&w.b), message(1)).unwrap();
    w.at_b.recv().unwrap();
    let ask = w.a.open_ask(Duration::from_secs(60));
    w.a.send(&to(&w.b), message(2).asking(ask.address.ask_id, Duration::from_secs(60))).unwrap();
    let again = w.network.node("b:1#2".parse().unwrap(), registry());
    let at_again = inbox(&again);
    w.a.send(&to(&w.b), message(3)).unwrap();
    w.a.send(&to(&again), message(4)).unwrap();
    w.a.send(&again.self_address().address().clone().into(), message(5)).unwrap();
    assert_eq!([(); 2].map(|()| number(&at_again.recv().unwrap())), [4, 5]);
    assert_eq!(wait(ask.answer).unwrap_err(), AskError::PeerRestarted);
    assert_eq!(w.b.send(&to(&w.a), message(6)).unwrap_err().error, SendError::ShuttingDown);
}

#[test]
fn a_quarantined_process_is_refused_and_told() {
    let w = world();
    let (sender, events) = mpsc::channel();
    w.b.listen(None, Arc::new(Events(sender)));
    let (sender, own_events) = mpsc::channel();
    w.a.listen(Some("inbox"), Arc::new(Events(sender)));
    w.a.quarantine(w.b.self_address(), QuarantineReason::Manual, false);
    assert_eq!(own_events.recv().unwrap(), "Quarantined { peer: b:1#1, reason: Manual, harmless: false }");
    assert_eq!(own_events.recv().unwrap(), "HandedBack { peer: b:1#1, envelopes: [] }");
    assert_eq!(events.recv().unwrap(), "ThisNodeQuarantined { by: a:1#1, reason: Manual }");
    assert_eq!(w.a.send(&to(&w.b), message(1)).unwrap_err().error, SendError::Quarantined);
    assert!(w.a.send(&to(&w.a), message(1)).is_ok());
}
