//! How connections are kept alive, how they end, and how a newer one takes over.

#[path = "suite/common/mod.rs"]
mod common;

use common::{logs, raw};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::raw::{Hello, Raw};
use common::{LONG, Node, closed, next, node, number, read, until};
use greylag_core::DeadLetterReason;
use greylag_transport::{Destination, Envelope, Inbound, Receiver, Recipient, Remoting, TransportSettings};
use tokio::io::AsyncReadExt;
use tokio::sync::mpsc;

const NEVER: Duration = Duration::from_secs(3600);

/// Settings without keep-alive, so that only the tested mechanism ends a stream whose peer is silent.
fn without_keep_alive() -> TransportSettings {
    TransportSettings { http2_keepalive_interval: NEVER, ..TransportSettings::test() }
}

/// Settings by which the silent loss of a peer is noticed soon.
fn keeping_alive() -> TransportSettings {
    let soon = Duration::from_millis(50);
    TransportSettings {
        http2_keepalive_interval: soon,
        http2_keepalive_timeout: soon,
        connection_timeout: NEVER,
        handshake_timeout: NEVER,
        ..TransportSettings::test()
    }
}

/// A node that is bound and not open yet lets its callers wait, so that no message comes before its recipients are
/// registered.
#[tokio::test]
async fn messages_to_a_node_that_is_not_open_yet_find_their_recipients() {
    let late = closed(TransportSettings::test()).await;
    let caller = node(TransportSettings::test()).await;
    let message = Envelope { recipient: Recipient::new("late"), ..number(7) };
    caller.transport.send(&late.anyone_here(), message).unwrap();
    // Long enough that an open node would have dropped the message by now.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(late.transport.stats().received_envelopes, 0);
    let mut inbox = late.register("late");
    late.transport.open();
    assert_eq!(read(&next(&mut inbox).await), 7);
    assert_eq!(late.dropped(DeadLetterReason::NoSuchRecipient), 0);

    let never = closed(TransportSettings::test()).await;
    tokio::time::timeout(LONG, never.transport.shutdown()).await.expect("it ends without having been opened");
}

/// Cluster T9: the connection of a caller that leaves pings unanswered is closed.
#[tokio::test]
async fn a_caller_that_answers_no_ping_is_hung_up_on() {
    let target = node(keeping_alive()).await;
    let mut raw = Raw::connect(target.port()).await;
    raw.call().await;
    raw.say(&Hello::to(target.port()).frame()).await;
    raw.settle().await;
    raw.until_closed().await;
    until(|| target.transport.stats().inbound_streams == 0).await;
}

/// Cluster T9: the connection to a called node that leaves pings unanswered is closed, too.
#[tokio::test]
async fn a_called_node_that_answers_no_ping_is_hung_up_on() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let caller = node(keeping_alive()).await;
    let to = Destination::Address(silent.local_addr().unwrap().to_string().parse().unwrap());
    caller.tell(&to, 1);
    let (mut socket, _) = tokio::time::timeout(LONG, silent.accept()).await.expect("it dials").unwrap();
    let hung_up = async { while !matches!(socket.read(&mut [0; 4096]).await, Ok(0) | Err(_)) {} };
    tokio::time::timeout(LONG, hung_up).await.expect("the called node does not answer, and no other limit is near");
}

/// Cluster T33: streams that peers do not end delay the end of a node for the configured time, and no longer.
#[tokio::test]
async fn a_shutdown_waits_for_streams_as_long_as_is_set() {
    logs::keep();
    let (flush, streams) = (Duration::from_millis(100), Duration::from_secs(1));
    let settings =
        TransportSettings { shutdown_flush_timeout: flush, shutdown_streams_timeout: streams, ..without_keep_alive() };
    let target = node(settings).await;
    let mut raw = Raw::connect(target.port()).await;
    raw.call_unheard().await;
    raw.say(&Hello { port: 4730, ..Hello::to(target.port()) }.frame()).await;
    until(|| target.transport.stats().inbound_streams == 1).await;
    let begun = Instant::now();
    target.transport.shutdown().await;
    let took = begun.elapsed();
    assert!(took >= streams && took < (flush + streams) * 2, "{took:?}");
    assert!(logs::has(&["some streams did not close in time"]));
}

/// Cluster T26: a frame holds no more bytes of queued messages than configured.
#[tokio::test]
async fn a_batch_has_a_limit_in_bytes() {
    let mut target = node(TransportSettings::test()).await;
    for (limit, frames) in [(1, 200), (TransportSettings::default().max_batch_bytes, 100)] {
        let sender = node(TransportSettings { max_batch_bytes: limit, ..TransportSettings::test() }).await;
        // Queue all before the stream opens: then they would fit into one frame.
        (0..200).for_each(|n| sender.tell(&target.here(), n));
        for n in 0..200 {
            assert_eq!(target.next().await, n);
        }
        let sent = sender.transport.stats();
        assert_eq!(sent.sent_envelopes, 200);
        assert!(
            if limit == 1 { sent.sent_frames == frames } else { sent.sent_frames < frames },
            "{}",
            sent.sent_frames
        );
    }
}

/// A receiver that takes each message only once it is released.
struct Held {
    may: Mutex<std::sync::mpsc::Receiver<()>>,
    taken: mpsc::UnboundedSender<Inbound>,
}

impl Receiver for Held {
    fn receive(&self, message: Inbound) {
        // Fails when the sender was dropped: then every message passes.
        self.may.lock().unwrap().recv().ok();
        self.taken.send(message).ok();
    }
}

/// A caller whose stream is not read on, because its receiver is held; the frames that wait have arrived.
struct Stuck {
    target: Node,
    old: Raw,
    release: std::sync::mpsc::Sender<()>,
    taken: mpsc::UnboundedReceiver<Inbound>,
}

/// Messages sent: more than all queues on the way hold.
const SENT: u32 = 100;

async fn stuck(port: u16) -> (Stuck, Hello) {
    let target = node(TransportSettings { data_threads: 2, inbound_lanes: 1, ..without_keep_alive() }).await;
    let (release, may) = std::sync::mpsc::channel();
    let (taken, inbox) = mpsc::unbounded_channel();
    target.transport.register("held", Arc::new(Held { may: Mutex::new(may), taken }));
    let hello = Hello { port, ..Hello::to(target.port()) };
    let mut old = Raw::connect(target.port()).await;
    old.call().await;
    old.say(&hello.frame()).await;
    old.settle().await;
    for n in 0..SENT {
        old.say(&raw::message("held", n)).await;
    }
    old.ping().await;
    (Stuck { target, old, release, taken: inbox }, hello)
}

/// Opens newer streams of the same lane, which wait for the older one to end; of two with the same number, returns the
/// one that came first.
async fn waiting(port: u16, hello: &Hello) -> Raw {
    let (mut one, mut two) = (Raw::connect(port).await, Raw::connect(port).await);
    for raw in [&mut one, &mut two] {
        raw.call().await;
        raw.say(&Hello { seq: 2, ..hello.clone() }.frame()).await;
    }
    let is_one_refused = tokio::select! {
        refused = one.hear("a newer stream") => { assert!(refused); true }
        refused = two.hear("a newer stream") => { assert!(refused); false }
    };
    if is_one_refused { two } else { one }
}

/// Cluster T24: messages that an older stream brought and that were not read are counted; no other message of it is
/// lost, and the newer stream is read after it.
#[tokio::test(flavor = "multi_thread")]
async fn unread_messages_of_a_superseded_stream_are_counted() {
    let (mut stuck, hello) = stuck(4731).await;
    let mut newer = waiting(stuck.target.port(), &hello).await;
    newer.say(&raw::message("held", SENT)).await;
    drop(stuck.release);
    newer.settle().await;
    let mut taken = Vec::new();
    while taken.last() != Some(&SENT) {
        taken.push(read(&next(&mut stuck.taken).await));
    }
    let read = taken.len() as u32 - 1;
    assert!(taken[..read as usize].iter().copied().eq(0..read), "{taken:?}");
    assert!(read < SENT, "some of it was not read");
    assert_eq!(stuck.target.dropped(DeadLetterReason::SupersededStream), u64::from(SENT - read));
    drop(stuck.old);
}

/// Cluster T15, T24: a process that is replaced while its stream waits for its turn is refused, and its stream is not
/// read.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_whose_process_is_replaced_while_it_waits_is_refused() {
    let (stuck, hello) = stuck(4732).await;
    let mut waiting = waiting(stuck.target.port(), &hello).await;
    let mut successor = Raw::connect(stuck.target.port()).await;
    successor.call().await;
    successor.say(&Hello { uid: 78, ..hello }.frame()).await;
    successor.settle().await;
    drop(stuck.release);
    assert!(waiting.hear("takes 127.0.0.1:4732#").await, "it is taken for dead");
}

/// Sends messages to a target whose worker is blocked, and breaks the stream; returns how long that took.
async fn lose(sender: &Node, target: &Node, messages: u32) -> Duration {
    let began = Instant::now();
    for n in 0..messages {
        let envelope = Envelope { recipient: Recipient::new("held"), ..number(n) };
        sender.transport.send(&target.here(), envelope).unwrap();
        // Wait, so that each is in a frame of its own: the target takes a limited number of frames.
        until(|| sender.transport.stats().sent_envelopes == u64::from(n) + 1).await;
    }
    sender.transport.kill_streams(target.transport.self_address().address());
    began.elapsed()
}

/// Cluster T41: messages that a broken stream may have lost are counted, with a warning if the peer had announced no
/// end.
#[tokio::test(flavor = "multi_thread")]
async fn messages_lost_by_a_broken_stream_are_counted_and_warned_of() {
    const LOST: u32 = 10;
    logs::keep();
    let mut attempts = 0;
    let (target, release) = loop {
        let target = node(TransportSettings { data_threads: 2, inbound_lanes: 1, ..without_keep_alive() }).await;
        let (release, may) = std::sync::mpsc::channel();
        let (taken, _inbox) = mpsc::unbounded_channel();
        target.transport.register("held", Arc::new(Held { may: Mutex::new(may), taken }));
        let sender = node(without_keep_alive()).await;
        let took = lose(&sender, &target, LOST).await;
        attempts += 1;
        // Try again if that took too long, as on a busy machine: every 100 ms the reader acknowledges messages, which
        // then do not count as lost.
        if took > Duration::from_millis(80) && attempts < 20 {
            continue;
        }
        until(|| sender.dropped(DeadLetterReason::LostInFlight) > 0).await;
        assert_eq!(sender.dropped(DeadLetterReason::LostInFlight), u64::from(LOST), "each, and each once");
        break (target, release);
    };
    // Wait: the log line follows the count.
    let port = target.port().to_string();
    until(|| logs::has(&["WARN", "written, and not known to have been read", &port])).await;
    drop(release);
}
