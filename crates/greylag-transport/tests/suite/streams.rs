//! Messages over real sockets: order, restarts, overflow, limits, shutdown.

use crate::common;

use std::sync::Arc;
use std::time::Duration;

use crate::common::{LONG, Node, next, node, number, read, until};
use bytes::BytesMut;
use greylag_core::{CodecId, DeadLetterReason, EncodeError, ReplyAddress, ReplyTo};
use greylag_testkit::port;
use greylag_transport::{
    AskError, Destination, Envelope, Fault, GrpcTransport, Lane, Payload, PayloadValue, Recipient, RejectCode,
    Remoting, SendError, TransportEvent, TransportSettings,
};

fn settings() -> TransportSettings {
    TransportSettings::test()
}

#[tokio::test]
async fn messages_and_answers_cross() {
    let (a, mut b) = (node(settings()).await, node(settings()).await);
    a.tell(&b.here(), 1);
    assert_eq!(b.next().await, 1);
    let answer = a.start_ask(&b.here(), "inbox", LONG);
    let question = next(&mut b.inbox).await;
    assert_eq!(question.from, *a.transport.self_address());
    b.reply_to::<u32>(&question).reply(7);
    assert_eq!(*answer.await.unwrap().downcast::<u32>().unwrap(), 7);
    // Both directions have streams of their own, and each side knows the other.
    let known = b.transport.peer(a.transport.self_address().address()).unwrap();
    assert_eq!(known.peer, *a.transport.self_address());
    assert_eq!(known.host_id, a.transport.host_id());
}

/// Scenario 1.
#[tokio::test]
async fn a_restart_at_the_same_address_is_another_process() {
    let (mut a, mut b) = (node(settings()).await, node(settings()).await);
    a.tell(&b.here(), 1);
    assert_eq!(b.next().await, 1);
    let unanswered = a.start_ask(&b.here(), "inbox", LONG);
    next(&mut b.inbox).await;
    let (before, port) = (b.here(), b.port());
    drop(b);
    let again = || TransportSettings { canonical_port: port, ..settings() };
    let mut b = node(again()).await;
    // Send to the old incarnation, to the new one, and to any process there.
    a.tell(&before, 2);
    a.tell(&b.here(), 3);
    a.tell(&b.anyone_here(), 4);
    // Repeat: a message on the old stream before its end is noticed is lost, as any in flight.
    loop {
        a.tell(&b.here(), 5);
        let arrived = tokio::time::timeout(Duration::from_millis(50), b.inbox.recv()).await;
        if let Ok(message) = arrived {
            assert_ne!(read(&message.unwrap()), 2);
            break;
        }
    }
    assert_eq!(unanswered.await.unwrap_err(), AskError::PeerRestarted);
    // The sender knows by now, and does not write the message: an envelope that no listener takes back is dropped.
    let dropped = a.dropped(DeadLetterReason::StaleIncarnation);
    a.transport.send(&before, Envelope { recipient: Recipient::new("elsewhere"), ..number(2) }).unwrap();
    a.tell(&before, 2);
    a.tell(&b.here(), 6);
    loop {
        let n = b.next().await;
        assert_ne!(n, 2);
        if n == 6 {
            break;
        }
    }
    let handed_back = |event| match event {
        TransportEvent::HandedBack { envelopes, .. } => Some(envelopes).filter(|envelopes| !envelopes.is_empty()),
        _ => None,
    };
    // The last message for the old process; on a busy machine the first one waited until then and comes in the same
    // event.
    let handed_back = a.event(handed_back).await.len();
    assert!((1..=2).contains(&handed_back), "{handed_back} were handed back");
    until(|| a.dropped(DeadLetterReason::StaleIncarnation) == dropped + 1).await;
}

/// Scenario 2, and a caller of another cluster.
#[tokio::test]
async fn a_wrong_name_is_refused_with_both_spellings() {
    let (mut a, b) = (node(settings()).await, node(settings()).await);
    let alias: Destination = Destination::Address(format!("localhost:{}", b.port()).parse().unwrap());
    let answer = a.start_ask(&alias, "inbox", LONG);
    let refused = |event| match event {
        TransportEvent::HandshakeRejected { code, detail, .. } => Some((code, detail)),
        _ => None,
    };
    let (code, detail) = a.event(refused).await;
    assert_eq!(code, RejectCode::UnknownAddress);
    assert!(detail.contains("localhost:") && detail.contains("127.0.0.1:"), "{detail}");
    assert_eq!(answer.await.unwrap_err(), AskError::Dropped(DeadLetterReason::HandshakeRejected));
    assert_eq!(a.dropped(DeadLetterReason::HandshakeRejected), 1, "what was queued");
    let Destination::Address(address) = &alias else { unreachable!() };
    assert_eq!((a.transport.peer(address), a.knows(b.port()), b.knows(a.port())), (None, false, false));

    let mut c = node(TransportSettings { cluster_name: "other".to_owned(), ..settings() }).await;
    c.tell(&b.here(), 1);
    assert_eq!(c.event(refused).await.0, RejectCode::WrongCluster);
    assert_eq!(c.dropped(DeadLetterReason::HandshakeRejected), 1);
}

/// Scenario 3, first half.
#[tokio::test]
async fn messages_wait_for_a_peer_that_listens_late() {
    let a = node(settings()).await;
    let port = port::unused().port();
    let late: Destination = Destination::Address(format!("127.0.0.1:{port}").parse().unwrap());
    (0..100).for_each(|n| a.tell(&late, n));
    let mut b = node(TransportSettings { canonical_port: port, ..settings() }).await;
    for n in 0..100 {
        assert_eq!(b.next().await, n);
    }
}

/// Scenario 3, second half.
#[tokio::test]
async fn messages_that_waited_too_long_are_dead_letters_and_later_ones_arrive() {
    let a = node(TransportSettings { handshake_timeout: Duration::from_millis(200), ..settings() }).await;
    let port = port::unused().port();
    let late: Destination = Destination::Address(format!("127.0.0.1:{port}").parse().unwrap());
    (0..100).for_each(|n| a.tell(&late, n));
    let asked = a.ask(&late, "inbox", LONG).await;
    assert_eq!(asked, Err(AskError::Dropped(DeadLetterReason::HandshakeTimeout)));
    assert_eq!(a.dropped(DeadLetterReason::HandshakeTimeout), 101);
    let mut b = node(TransportSettings { canonical_port: port, ..settings() }).await;
    a.tell(&late, 1000);
    assert_eq!(b.next().await, 1000);
}

/// Scenario 4: three recipients answer each of four senders, and where no stream breaks nothing is lost on either way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_4_pings_and_pongs_of_each_pair_stay_in_order_and_none_is_lost() {
    let lanes =
        || TransportSettings { outbound_lanes: 3, inbound_lanes: 3, outbound_message_queue_size: 20_000, ..settings() };
    let (a, b) = (node(lanes()).await, node(lanes()).await);
    let mut pings: Vec<_> = (0..3).map(|r| b.register(&format!("recipient-{r}"))).collect();
    let mut pongs: Vec<_> = (0..4).map(|sender| a.register(&format!("sender-{sender}"))).collect();
    let tell = |from: &Node, to: &Destination, path: String, n: u32| {
        from.transport.send(to, Envelope { recipient: Recipient::new(path), ..number(n) }).unwrap();
    };
    for n in 0..1000 {
        (0..4).for_each(|sender| tell(&a, &b.here(), format!("recipient-{}", n % 3), sender * 10_000 + n));
    }
    for (r, inbox) in (0_u32..).zip(&mut pings) {
        for n in (0..1000).filter(|n| n % 3 == r) {
            for sender in 0..4 {
                assert_eq!(read(&next(inbox).await), sender * 10_000 + n);
                tell(&b, &a.here(), format!("sender-{sender}"), r * 10_000 + n);
            }
        }
    }
    for inbox in &mut pongs {
        let mut last = [None; 3];
        for _ in 0..1000 {
            let (r, n) = {
                let n = read(&next(inbox).await);
                ((n / 10_000) as usize, n % 10_000)
            };
            assert!(last[r] < Some(n), "recipient {r}: {n} after {:?}", last[r]);
            last[r] = Some(n);
        }
        assert_eq!(last, [Some(999), Some(997), Some(998)]);
    }
}

/// Scenario 4.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_pair_stays_in_order_over_several_lanes_and_reconnects() {
    let lanes =
        || TransportSettings { outbound_lanes: 3, inbound_lanes: 3, outbound_message_queue_size: 20_000, ..settings() };
    let (a, b) = (node(lanes()).await, node(lanes()).await);
    let mut inboxes: Vec<_> = (0..3).map(|r| b.register(&format!("recipient-{r}"))).collect();
    let to = b.here();
    let senders: Vec<_> = (0..4)
        .map(|sender| {
            let (transport, to) = (a.transport.clone(), to.clone());
            std::thread::spawn(move || {
                for n in 0..1000 {
                    let recipient = Recipient::new(format!("recipient-{}", n % 3));
                    let payload = format!("{}", sender * 10_000 + n);
                    let envelope = Envelope::new(recipient, CodecId::JSON, "number", payload.into_bytes());
                    transport.send(&to, envelope).unwrap();
                    if sender == 0 && n % 333 == 332 {
                        transport.kill_streams(to.address());
                    }
                }
            })
        })
        .collect();
    senders.into_iter().for_each(|sender| sender.join().unwrap());
    for (r, inbox) in inboxes.iter_mut().enumerate() {
        let tell = |n: u32| {
            let recipient = Recipient::new(format!("recipient-{r}"));
            let payload = n.to_string().into_bytes();
            a.transport.send(&to, Envelope::new(recipient, CodecId::JSON, "number", payload)).unwrap();
        };
        // Send an end marker last: every message that was not lost with a killed stream arrives before the marker.
        // Send it again until one arrives: a killed stream is closed a little later and may take the marker with it.
        tell(END);
        let mut last = [None; 4];
        let mut see = |n: u32| {
            let (sender, n) = ((n / 10_000) as usize, n % 10_000);
            assert!(last[sender] < Some(n), "sender {sender}: {n} after {:?}", last[sender]);
            last[sender] = Some(n);
        };
        let until_end = async {
            loop {
                match tokio::time::timeout(Duration::from_millis(200), inbox.recv()).await {
                    Err(_) => tell(END),
                    Ok(message) => match read(&message.expect("the node lives")) {
                        END => break,
                        n => see(n),
                    },
                }
            }
        };
        tokio::time::timeout(LONG, until_end).await.expect("an end marker arrives");
        // No stream is killed any more: all of these arrive, and after those before the kills.
        (1000..1010).for_each(|n| (0..4).for_each(|sender| tell(sender * 10_000 + n)));
        let mut left = 40;
        while left > 0 {
            let n = read(&next(inbox).await);
            if n != END {
                see(n);
                left -= 1;
            }
        }
        assert_eq!(last, [Some(1009); 4]);
    }
}

/// The last message of a test that reads until it comes.
const END: u32 = 99_999;

/// Scenario 5.
#[tokio::test]
async fn a_reference_to_an_ended_instance_reaches_nobody() {
    let (a, b) = (node(settings()).await, node(settings()).await);
    let first = b.transport.register("again", Arc::new(Panics));
    b.transport.unregister("again");
    let mut again = b.register("again");
    let to = |instance| {
        let recipient = Recipient::new("again").with_instance(instance);
        Envelope { recipient, ..number(u32::try_from(instance).unwrap()) }
    };
    a.transport.send(&b.here(), to(first)).unwrap();
    a.transport.send(&b.here(), to(0)).unwrap();
    assert_eq!(read(&next(&mut again).await), 0);
    assert_eq!(b.dropped(DeadLetterReason::StaleRecipient), 1);
}

struct Panics;

impl greylag_transport::Receiver for Panics {
    fn receive(&self, _: greylag_transport::Inbound) {
        panic!("a receiver that panics harms no other");
    }
}

#[tokio::test]
async fn a_receiver_that_panics_leaves_its_worker_alive() {
    let (a, mut b) = (node(settings()).await, node(TransportSettings { inbound_lanes: 1, ..settings() }).await);
    b.transport.register("panics", Arc::new(Panics));
    a.transport.send(&b.here(), Envelope { recipient: Recipient::new("panics"), ..number(1) }).unwrap();
    a.tell(&b.here(), 2);
    assert_eq!(b.next().await, 2);
}

/// Scenario 7.
#[tokio::test]
async fn the_3073rd_message_is_refused_and_the_others_arrive_in_order() {
    let a = node(settings()).await;
    let port = port::unused().port();
    let late: Destination = Destination::Address(format!("127.0.0.1:{port}").parse().unwrap());
    (0..3072).for_each(|n| a.tell(&late, n));
    let rejected = a.transport.send(&late, number(3072)).unwrap_err();
    assert_eq!(rejected.error, SendError::QueueFull);
    assert_eq!(a.dropped(DeadLetterReason::QueueFull), 1);
    let mark = Envelope { must_enqueue: true, ..number(4000) };
    a.transport.send(&late, mark).unwrap();
    let mut b = node(TransportSettings { canonical_port: port, ..settings() }).await;
    for n in (0..3072).chain([4000]) {
        assert_eq!(b.next().await, n);
    }
}

struct Value(Result<usize, ()>);

impl PayloadValue for Value {
    fn encode(&self, buffer: &mut BytesMut) -> Result<(), EncodeError> {
        let size = self.0.map_err(|()| EncodeError::NotRegistered { type_name: "nothing" })?;
        buffer.resize(buffer.len() + size, b'1');
        Ok(())
    }

    fn into_any(self: Box<Self>) -> Box<dyn std::any::Any + Send> {
        self
    }
}

fn value(value: Result<usize, ()>) -> Envelope {
    let payload = Payload::Value(Box::new(Value(value)));
    Envelope::with_payload(Recipient::new("inbox"), CodecId::JSON, "number", payload)
}

/// A value whose encoder panics.
struct Panicking;

impl PayloadValue for Panicking {
    fn encode(&self, buffer: &mut BytesMut) -> Result<(), EncodeError> {
        buffer.resize(10, b'1');
        panic!("an encoder that panics on purpose")
    }

    fn size_hint(&self) -> usize {
        panic!("a hint that panics on purpose")
    }

    fn into_any(self: Box<Self>) -> Box<dyn std::any::Any + Send> {
        self
    }
}

/// Cluster T27, §7 ("user callback panics: isolated"): on every path that a message can take.
#[tokio::test]
async fn an_encoder_that_panics_loses_its_own_message_and_no_other() {
    let (mut a, mut b) = (node(settings()).await, node(settings()).await);
    let panicking = || {
        let payload = Payload::Value(Box::new(Panicking));
        Envelope::with_payload(Recipient::new("inbox"), CodecId::JSON, "number", payload)
    };
    a.tell(&b.here(), 1);
    a.transport.send(&b.here(), panicking()).unwrap();
    a.tell(&b.here(), 2);
    assert_eq!((b.next().await, b.next().await), (1, 2));
    a.transport.send(&a.here(), panicking()).unwrap();
    a.transport.send_reliable(b.transport.self_address(), panicking()).unwrap();
    a.tell(&a.here(), 3);
    assert_eq!(a.next().await, 3);
    assert_eq!(a.dropped(DeadLetterReason::SerializeFailed), 3);
    assert_eq!(a.dropped(DeadLetterReason::LostInFlight), 0, "the stream was the same all the time");
}

/// Cluster T5, T27: a numbered message is written again on every stream, so one whose frame breaks its stream would
/// break all of them; it is refused.
#[tokio::test]
async fn a_reliable_message_that_is_too_large_is_refused() {
    let (a, b) = (node(settings()).await, node(settings()).await);
    let rejected = a.transport.send_reliable(b.transport.self_address(), value(Ok(65 * 1024))).unwrap_err();
    assert_eq!(rejected.error, SendError::TooLarge { size: 65 * 1024, max: 64 * 1024 });
    assert_eq!(a.dropped(DeadLetterReason::TooLarge), 1);
}

/// Cluster T3: a host that no address can have is an error, and nothing is left running.
#[tokio::test]
async fn a_canonical_host_that_cannot_be_is_named() {
    let wrong = TransportSettings {
        canonical_host: Some("node_1".to_owned()),
        bind_host: Some("127.0.0.1".to_owned()),
        ..settings()
    };
    let error = GrpcTransport::bind(wrong, Arc::new(greylag_core::Registry::new())).await.unwrap_err();
    assert!(matches!(error, greylag_transport::BindError::Address(_)), "{error}");
}

/// Cluster T4: an answer to a former process of this address reaches no process, least of all the present one.
#[tokio::test]
async fn an_answer_to_a_former_process_of_this_address_goes_nowhere() {
    let a = node(settings()).await;
    let former = format!("{}#{}", a.transport.self_address().address(), 1).parse().unwrap();
    let reply = ReplyTo::<u32>::new(ReplyAddress { node: former, ask_id: 5 }, a.transport.reply_port());
    reply.reply(1);
    assert_eq!(a.dropped(DeadLetterReason::StaleIncarnation), 1);
    assert_eq!(a.dropped(DeadLetterReason::HandshakeRejected), 0);
}

/// Decodes numbers by the registry; refuses messages that cannot be decoded.
struct Reading {
    transport: std::sync::Weak<GrpcTransport>,
    numbers: tokio::sync::mpsc::UnboundedSender<u32>,
}

impl greylag_transport::Receiver for Reading {
    fn receive(&self, message: greylag_transport::Inbound) {
        let Some(transport) = self.transport.upgrade() else { return };
        match transport.registry().decode_as::<u32>(message.codec, &message.manifest, message.payload.clone()) {
            Ok(number) => drop(self.numbers.send(number)),
            Err(_) => transport.refuse(&message, DeadLetterReason::Undecodable),
        }
    }
}

/// Scenario 8. Cluster T27, T34, T35: each message that cannot travel or cannot be read is dropped
/// alone, with its own reason, and the stream goes on.
#[tokio::test]
async fn scenario_08_each_failure_is_its_own() {
    let (a, b) = (node(settings()).await, node(settings()).await);
    let (numbers, mut read_here) = tokio::sync::mpsc::unbounded_channel();
    let reading = Reading { transport: Arc::downgrade(&b.transport), numbers };
    b.transport.register("reading", Arc::new(reading));
    let to_reading = |envelope: Envelope| Envelope { recipient: Recipient::new("reading"), ..envelope };
    let ask = async |envelope: Envelope| {
        let ask = a.transport.open_ask(LONG);
        a.transport.send(&b.here(), to_reading(envelope).asking(ask.address.ask_id, LONG)).unwrap();
        ask.answer.await.unwrap_err()
    };

    let big = Envelope { payload: Payload::Bytes(vec![b'1'; 300 * 1024].into()), ..number(0) };
    let refused = a.transport.send(&b.here(), to_reading(big)).unwrap_err();
    assert!(matches!(refused.error, SendError::TooLarge { .. }));
    assert_eq!(ask(value(Ok(300 * 1024))).await, AskError::Dropped(DeadLetterReason::TooLarge));
    assert_eq!(ask(value(Err(()))).await, AskError::Dropped(DeadLetterReason::SerializeFailed));
    assert!(matches!(ask(Envelope { manifest: "unknown".into(), ..number(0) }).await, AskError::Undecodable { .. }));
    assert!(matches!(ask(Envelope { codec: CodecId::CBOR, ..number(0) }).await, AskError::Undecodable { .. }));
    let garbled = Envelope { payload: Payload::Bytes(b"no number"[..].into()), ..number(0) };
    assert!(matches!(ask(garbled).await, AskError::Undecodable { .. }));
    assert_eq!((a.dropped(DeadLetterReason::TooLarge), a.dropped(DeadLetterReason::SerializeFailed)), (2, 1));
    assert_eq!(b.dropped(DeadLetterReason::Undecodable), 3);

    a.transport.send(&b.here(), to_reading(number(7))).unwrap();
    assert_eq!(read_here.recv().await, Some(7));
    assert_eq!(b.transport.stats().malformed_frames, 0);
    assert_eq!(a.dropped(DeadLetterReason::LostInFlight), 0, "the stream was the same all the time");
}

/// Scenario 8 without questions.
#[tokio::test]
async fn a_message_that_cannot_travel_is_dropped_alone() {
    let (a, mut b) = (node(settings()).await, node(settings()).await);
    let big = Envelope { payload: Payload::Bytes(vec![b'1'; 300 * 1024].into()), ..number(0) };
    let rejected = a.transport.send(&b.here(), big).unwrap_err();
    assert_eq!(rejected.error, SendError::TooLarge { size: 300 * 1024, max: 256 * 1024 });
    a.transport.send(&b.here(), value(Ok(300 * 1024))).unwrap();
    a.transport.send(&b.here(), value(Err(()))).unwrap();
    a.transport.send(&b.here(), value(Ok(200 * 1024))).unwrap();
    a.tell(&b.here(), 9);
    assert_eq!(next(&mut b.inbox).await.payload.len(), 200 * 1024);
    assert_eq!(b.next().await, 9);
    assert_eq!(a.dropped(DeadLetterReason::TooLarge), 2);
    assert_eq!(a.dropped(DeadLetterReason::SerializeFailed), 1);
}

/// Scenario 12.
#[tokio::test]
async fn messages_queued_before_a_shutdown_arrive() {
    let (a, mut b) = (node(settings()).await, node(settings()).await);
    (0..200).for_each(|n| a.tell(&b.here(), n));
    a.transport.shutdown().await;
    assert_eq!(a.transport.send(&b.here(), number(0)).unwrap_err().error, SendError::ShuttingDown);
    for n in 0..200 {
        assert_eq!(b.next().await, n);
    }
    let gone = b.event(|event| matches!(event, TransportEvent::PeerTerminating(_)).then_some(())).await;
    assert_eq!(gone, ());
    // The address is free again.
    let address = format!("127.0.0.1:{}", a.port());
    until(|| std::net::TcpListener::bind(&address).is_ok()).await;
}

/// Cluster T33, T41: messages that cannot be acknowledged any more become dead letters, numbered ones too.
#[tokio::test]
async fn messages_left_by_a_shutdown_are_counted() {
    let brief = TransportSettings { shutdown_flush_timeout: Duration::from_millis(50), ..settings() };
    let a = node(brief).await;
    let Destination::Address(address) = common::vacant() else { unreachable!() };
    let silent = format!("{address}#5").parse().unwrap();
    (0..3).for_each(|n| a.transport.send_reliable(&silent, number(n)).unwrap());
    a.tell(&silent.clone().into(), 4);
    a.transport.shutdown().await;
    assert_eq!(a.dropped(DeadLetterReason::ShuttingDown), 4);
}

/// Scenario 12, second half: the peer has read everything and never says so.
#[tokio::test]
async fn scenario_12_a_peer_that_never_acknowledges_delays_a_shutdown_by_the_flush_alone() {
    let flush = Duration::from_secs(1);
    let a = node(TransportSettings { shutdown_flush_timeout: flush, ..settings() }).await;
    let mut b = node(settings()).await;
    a.tell(&b.here(), 1);
    assert_eq!(b.next().await, 1);
    a.transport.fault(b.transport.self_address().address(), Fault::BlackholeInbound);
    let begun = std::time::Instant::now();
    a.transport.shutdown().await;
    let took = begun.elapsed();
    assert!(took >= flush && took < flush * 2, "{took:?}");
}

/// Scenario 12, second half: the peer accepts no stream.
#[tokio::test]
async fn a_peer_that_never_answers_delays_a_shutdown_by_its_timeouts_only() {
    let flush = Duration::from_millis(100);
    let a = node(TransportSettings { shutdown_flush_timeout: flush, ..settings() }).await;
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent: Destination = Destination::Address(silent.local_addr().unwrap().to_string().parse().unwrap());
    a.tell(&silent, 1);
    tokio::time::timeout(LONG, a.transport.shutdown()).await.unwrap();
    assert_eq!(a.dropped(DeadLetterReason::ShuttingDown), 1);
}

#[tokio::test]
async fn a_message_to_oneself_needs_no_connection() {
    let mut a = node(settings()).await;
    a.tell(&a.here(), 1);
    a.tell(&a.anyone_here(), 2);
    assert_eq!((a.next().await, a.next().await), (1, 2));
    assert_eq!(a.transport.stats().sent_frames, 0);
    let answer = a.start_ask(&a.here(), "inbox", LONG);
    let question = next(&mut a.inbox).await;
    a.reply_to::<u32>(&question).reply(5);
    assert_eq!(*answer.await.unwrap().downcast::<u32>().unwrap(), 5);
}

#[tokio::test]
async fn each_kind_of_recipient_has_its_lane() {
    let (a, b) = (node(settings()).await, node(settings()).await);
    for (path, lane) in [("control/x", Lane::CONTROL), ("x", Lane::ordinary(0)), ("bulk/x", Lane::LARGE)] {
        let recipient = Recipient::new(path);
        assert_eq!(a.transport.lane_of(&recipient), lane);
        let mut inbox = b.register(path);
        a.transport.send(&b.here(), Envelope { recipient, ..number(3) }).unwrap();
        assert_eq!(read(&next(&mut inbox).await), 3);
    }
}

/// Cluster T3: the advertised and the listening address are separate settings, and port 0 is a free port.
#[tokio::test]
async fn advertised_and_bound_addresses_are_two_settings() {
    let apart = TransportSettings {
        canonical_host: Some("LocalHost".to_owned()),
        bind_host: Some("127.0.0.1".to_owned()),
        ..settings()
    };
    let (a, mut b) = (node(settings()).await, node(apart).await);
    assert_eq!(b.transport.self_address().address().host(), "localhost");
    assert_ne!(b.port(), 0, "the bound port is advertised");
    a.tell(&b.here(), 1);
    assert_eq!(b.next().await, 1);
    // Behind a forwarder: the advertised port is not the bound one.
    let forwarded = node(TransportSettings { canonical_port: 4711, bind_port: Some(0), ..settings() }).await;
    assert_eq!(forwarded.port(), 4711);
}

/// Cluster T4: a node sends to itself without a connection.
#[tokio::test]
async fn messages_to_the_own_node_use_no_connection() {
    let mut a = node(settings()).await;
    a.tell(&a.here(), 1);
    a.tell(&a.anyone_here(), 2);
    assert_eq!((a.next().await, a.next().await), (1, 2));
    let stats = a.transport.stats();
    assert_eq!((stats.sent_frames, stats.received_frames, stats.inbound_streams), (0, 0, 0));
}

/// Scenario 11, first half; cluster T32: closed in order, opened again by the next message.
#[tokio::test]
async fn scenario_11_idle_streams_close_and_a_send_reopens_them() {
    let brief = || TransportSettings { stop_idle_outbound_after: Duration::from_millis(50), ..settings() };
    let (mut a, mut b) = (node(brief()).await, node(brief()).await);
    for n in 0..5 {
        let mut control = b.register("control/x");
        a.tell(&b.here(), n);
        a.transport.send(&b.here(), Envelope { recipient: Recipient::new("control/x"), ..number(n) }).unwrap();
        assert_eq!(b.next().await, n);
        assert_eq!(read(&next(&mut control).await), n);
        until(|| b.transport.stats().inbound_streams == 0).await;
    }
    for node in [&mut a, &mut b] {
        assert_eq!(node.transport.stats().dead_letters.values().sum::<u64>(), 0, "nothing is lost on the way");
        while let Ok(event) = node.events.try_recv() {
            assert!(!matches!(event, TransportEvent::LinkLost { .. }), "{event:?}");
        }
    }
}

/// Cluster T32, T24: messages sent just when a stream closes are not lost.
#[tokio::test]
async fn scenario_11_closing_and_sending_at_once_loses_nothing() {
    let brief = || TransportSettings { stop_idle_outbound_after: Duration::from_millis(10), ..settings() };
    let (a, mut b) = (node(brief()).await, node(brief()).await);
    for n in 0..60 {
        a.tell(&b.here(), n);
        assert_eq!(b.next().await, n);
        // Send around the moment of the close: just before, at it, and after it.
        tokio::time::sleep(Duration::from_micros(9_000 + 50 * u64::from(n))).await;
    }
    assert_eq!(a.transport.stats().dead_letters.values().sum::<u64>(), 0);
}

/// Cluster T12: the Hello names the cluster, and is sent again once there is one.
#[tokio::test]
async fn a_cluster_id_is_told_to_those_who_were_greeted_before() {
    let (mut a, mut b) = (node(settings()).await, node(settings()).await);
    a.tell(&b.here(), 1);
    assert_eq!(b.next().await, 1);
    let met = |event| match event {
        TransportEvent::PeerHandshake(info) => Some(info.cluster_id),
        _ => None,
    };
    assert_eq!((a.event(met).await, b.event(met).await), (None, None));
    // Look only at Hellos that name a cluster: a dial that is slow is repeated, and its first Hello comes twice.
    let told = |event| met(event).flatten();
    a.transport.set_cluster_id(7);
    assert_eq!(b.event(told).await, 7);
    // A later Hello names the cluster at once, and so does its answer.
    b.transport.set_cluster_id(7);
    b.tell(&a.here(), 2);
    assert_eq!((a.event(told).await, b.event(told).await), (7, 7));
    let known = a.transport.peer(b.transport.self_address().address()).unwrap();
    assert_eq!(known.cluster_id, Some(7));
}

#[tokio::test]
async fn a_crash_breaks_the_links_audibly() {
    let (mut a, mut b) = (node(settings()).await, node(settings()).await);
    let mut control = b.register("control/x");
    a.tell(&b.here(), 1);
    a.transport.send(&b.here(), Envelope { recipient: Recipient::new("control/x"), ..number(2) }).unwrap();
    b.next().await;
    next(&mut control).await;
    let crashed = b.transport.self_address().clone();
    drop(b);
    let lost = |event| match event {
        TransportEvent::LinkLost { peer, lane } => Some((peer, lane)),
        _ => None,
    };
    let mut lanes = vec![a.event(lost).await, a.event(lost).await];
    lanes.sort();
    assert_eq!(lanes, [(crashed.clone(), Lane::CONTROL), (crashed, Lane::ordinary(0))]);
}
