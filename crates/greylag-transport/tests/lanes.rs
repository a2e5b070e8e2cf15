//! Lanes over real sockets: the lane of each message, full queues, and priorities.

#[path = "suite/common/mod.rs"]
mod common;

use common::logs;
use std::sync::{Arc, Condvar, Mutex, mpsc};

use common::{LONG, Node, next, node, number, read, until};
use greylag_core::DeadLetterReason;
use greylag_transport::{
    Envelope, Fault, Inbound, Lane, Payload, Receiver, Recipient, Remoting, SendError, TransportSettings,
};

fn settings() -> TransportSettings {
    TransportSettings::test()
}

fn to(path: &str, n: u32) -> Envelope {
    Envelope { recipient: Recipient::new(path), ..number(n) }
}

fn sized(path: &str, bytes: usize) -> Envelope {
    Envelope { payload: Payload::Bytes(vec![b'1'; bytes].into()), ..to(path, 0) }
}

/// Holds messages from `a` to `b` back in the queues of `a`, or lets them go on.
fn hold(a: &Node, b: &Node, is_held: bool) {
    let fault = if is_held { Fault::BlackholeOutbound } else { Fault::Pass };
    a.transport.fault(b.transport.self_address().address(), fault);
}

/// Cluster T5, T6: patterns name recipients of the large lane, answers among them; each lane has its
/// own limit.
#[tokio::test]
async fn named_recipients_take_the_large_lane() {
    let names = vec!["video/*".to_owned(), "asks/*".to_owned()];
    let large = || TransportSettings { large_message_destinations: names.clone(), ..settings() };
    let (a, mut b) = (node(large()).await, node(large()).await);
    assert_eq!(a.transport.lane_of(&Recipient::new("video/7")), Lane::LARGE);
    assert_eq!(a.transport.lane_of(&Recipient::new("video").with_sub_path("7")), Lane::LARGE);
    assert_eq!(a.transport.lane_of(&Recipient::new("video")), Lane::ordinary(0));
    let mut inbox = b.register("video/7");
    a.transport.send(&b.here(), sized("video/7", 1 << 20)).unwrap();
    assert_eq!(next(&mut inbox).await.payload.len(), 1 << 20);
    let answer = a.start_ask(&b.here(), "inbox", LONG);
    b.question::<String>().await.reply("x".repeat(300 * 1024));
    assert_eq!(answer.await.unwrap().downcast::<String>().unwrap().len(), 300 * 1024);
}

/// Cluster C7: the work of a data lane's connection is done on the data runtime, not where the
/// heartbeats are.
#[tokio::test]
async fn data_lanes_leave_the_control_runtime_and_the_control_lane_stays() {
    let (a, b) = (node(settings()).await, node(settings()).await);
    for (path, moved) in [("control/x", 0), ("x", 1), ("bulk/x", 2)] {
        let mut inbox = b.register(path);
        a.transport.send(&b.here(), to(path, 5)).unwrap();
        assert_eq!(read(&next(&mut inbox).await), 5);
        until(|| b.transport.stats().moved_connections == moved).await;
    }
}

/// Cluster T9: the only size limit that a user meets is the lane's, to the byte, and never one of HTTP/2 or of the
/// codec, which would be 4 MiB.
#[tokio::test]
async fn the_limit_of_a_lane_is_the_only_limit() {
    let large = || TransportSettings { maximum_large_frame_size: 6 << 20, compress_above: usize::MAX, ..settings() };
    let (a, b) = (node(large()).await, node(large()).await);
    for (path, max) in [("control/x", 64 << 10), ("x", 256 << 10), ("bulk/x", 6 << 20)] {
        let mut inbox = b.register(path);
        a.transport.send(&b.here(), sized(path, max)).unwrap();
        assert_eq!(next(&mut inbox).await.payload.len(), max, "{path}");
        let refused = a.transport.send(&b.here(), sized(path, max + 1)).unwrap_err();
        assert_eq!(refused.error, SendError::TooLarge { size: max + 1, max }, "{path}");
    }
}

/// Cluster T5: a queue is full by bytes too, and every message refused for that is counted.
#[tokio::test]
async fn a_queue_is_full_by_bytes_before_it_is_full_by_messages() {
    let a = node(TransportSettings { outbound_queue_bytes: 4 << 20, ..settings() }).await;
    let mut b = node(settings()).await;
    let mut inbox = b.register("bulk/x");
    hold(&a, &b, true);
    let half = (2 << 20) - 100;
    (0..2).for_each(|_| a.transport.send(&b.here(), sized("bulk/x", half)).unwrap());
    for _ in 0..3 {
        let refused = a.transport.send(&b.here(), sized("bulk/x", 1000)).unwrap_err();
        assert_eq!(refused.error, SendError::QueueFull);
    }
    assert_eq!(a.dropped(DeadLetterReason::QueueFull), 3);
    // Each lane has a queue of its own.
    a.tell(&b.here(), 1);
    hold(&a, &b, false);
    assert_eq!(b.next().await, 1);
    for _ in 0..2 {
        assert_eq!(next(&mut inbox).await.payload.len(), half);
    }
    a.transport.send(&b.here(), sized("bulk/x", 1000)).unwrap();
    assert_eq!(next(&mut inbox).await.payload.len(), 1000);
}

/// Writes down the path of each message.
struct Scribe(&'static str, mpsc::Sender<(&'static str, u32)>);

impl Receiver for Scribe {
    fn receive(&self, message: Inbound) {
        self.1.send((self.0, read(&message))).ok();
    }
}

/// Cluster T26: a heartbeat is behind one batch at most, however many control messages wait.
#[tokio::test(flavor = "multi_thread")]
async fn a_heartbeat_overtakes_what_waits_in_the_control_lane() {
    let (a, b) = (node(settings()).await, node(settings()).await);
    hold(&a, &b, true);
    let (notes, arrived) = mpsc::channel();
    b.transport.register("control/x", Arc::new(Scribe("x", notes.clone())));
    b.transport.register(Recipient::HEARTBEAT, Arc::new(Scribe("heartbeat", notes)));
    (0..2000).for_each(|n| a.transport.send(&b.here(), to("control/x", n)).unwrap());
    a.transport.send(&b.here(), to(Recipient::HEARTBEAT, 7)).unwrap();
    hold(&a, &b, false);
    let arrived: Vec<_> = (0..2001).map(|_| arrived.recv_timeout(LONG).unwrap()).collect();
    assert_eq!(arrived[0], ("heartbeat", 7));
    assert!((0..2000).zip(&arrived[1..]).all(|(n, note)| *note == ("x", n)), "the others keep their order");
}

/// Whether the gate is shut, and a signal of its opening.
type Gate = Arc<(Mutex<bool>, Condvar)>;

/// Blocks its worker until the gate opens, then passes on its message.
struct Stuck {
    gate: Gate,
    through: mpsc::Sender<u32>,
}

impl Receiver for Stuck {
    fn receive(&self, message: Inbound) {
        let (is_shut, moved) = &*self.gate;
        drop(moved.wait_while(is_shut.lock().unwrap(), |is_shut| *is_shut));
        self.through.send(read(&message)).ok();
    }
}

/// Cluster T39: when the workers are saturated the stream is not read, and the sender's queue fills; control messages
/// are not affected. Messages that were taken arrive, in order.
#[tokio::test(flavor = "multi_thread")]
async fn saturated_workers_hold_the_sender_back_but_no_control_message() {
    let (a, b) = (node(settings()).await, node(TransportSettings { inbound_lanes: 2, ..settings() }).await);
    let (gate, (through, passed)) = (Gate::default(), mpsc::channel());
    let mut control = b.register("control/x");
    // Both workers block, and with them both threads of the data runtime.
    for path in ["stuck-1", "stuck-2", "stuck-3", "stuck-4"] {
        b.transport.register(path, Arc::new(Stuck { gate: gate.clone(), through: through.clone() }));
    }
    *gate.0.lock().unwrap() = true;
    let padded = |n: u32| {
        let envelope = to(["stuck-1", "stuck-2", "stuck-3", "stuck-4"][(n % 4) as usize], 0);
        Envelope { payload: Payload::Bytes(format!("{:width$}", n, width = 8 << 10).into()), ..envelope }
    };
    let (mut taken, mut control_sent) = (0, 0);
    for n in 0.. {
        match a.transport.send(&b.here(), padded(n)) {
            Ok(()) => taken += 1,
            Err(refused) => {
                assert_eq!(refused.error, SendError::QueueFull);
                // Full, and the writer makes no more room: the peer does not read.
                let sent = a.transport.stats().sent_frames;
                a.transport.send(&b.here(), to("control/x", n)).unwrap();
                assert_eq!(read(&next(&mut control).await), n);
                control_sent += 1;
                if a.transport.stats().sent_frames == sent + 1 {
                    break;
                }
            }
        }
    }
    let received = b.transport.stats().received_envelopes - control_sent;
    assert!(received + 3000 < taken, "{received} of {taken} were read");
    *gate.0.lock().unwrap() = false;
    gate.1.notify_all();
    let mut last = [None; 4];
    for _ in 0..taken {
        let n = passed.recv_timeout(LONG).unwrap();
        assert!(last[(n % 4) as usize] < Some(n), "in order per recipient");
        last[(n % 4) as usize] = Some(n);
    }
}

/// Cluster T39: lane key and origin choose the worker of a message. While one of two workers is blocked, its recipients
/// get nothing, and those of the other get everything, in order.
#[tokio::test(flavor = "multi_thread")]
async fn a_blocked_worker_keeps_back_its_own_keys_and_no_others() {
    let (a, b) = (node(settings()).await, node(TransportSettings { inbound_lanes: 2, ..settings() }).await);
    let (gate, (through, _passed)) = (Gate::default(), mpsc::channel());
    b.transport.register("stuck", Arc::new(Stuck { gate: gate.clone(), through }));
    let paths: Vec<String> = (0..40).map(|n| format!("path-{n}")).collect();
    let mut inboxes: Vec<_> = paths.iter().map(|path| b.register(path)).collect();
    let mut got = vec![Vec::new(); paths.len()];
    let mut look = |got: &mut Vec<Vec<u32>>| {
        for (inbox, got) in inboxes.iter_mut().zip(got) {
            got.extend(std::iter::from_fn(|| inbox.try_recv().ok()).map(|message| read(&message)));
        }
    };
    *gate.0.lock().unwrap() = true;
    a.transport.send(&b.here(), to("stuck", 0)).unwrap();
    for n in 0..3 {
        paths.iter().for_each(|path| a.transport.send(&b.here(), to(path, n)).unwrap());
    }
    let mut free = None;
    until(|| {
        look(&mut got);
        free = got.iter().position(|got| !got.is_empty());
        free.is_some()
    })
    .await;
    let free = free.unwrap();
    // Wait for this message: its worker has delivered everything before it.
    a.transport.send(&b.here(), to(&paths[free], 3)).unwrap();
    until(|| {
        look(&mut got);
        got[free].last() == Some(&3)
    })
    .await;
    assert_eq!(got[free], [0, 1, 2, 3]);
    got[free].pop();
    assert!(got.iter().all(|got| got.is_empty() || got[..] == [0, 1, 2]), "{got:?}");
    assert!(got.iter().any(Vec::is_empty), "each worker has some of so many");
    *gate.0.lock().unwrap() = false;
    gate.1.notify_all();
    until(|| {
        look(&mut got);
        got.iter().all(|got| got[..] == [0, 1, 2])
    })
    .await;
}

/// Cluster T41 (`log_frame_size_exceeding`): the largest message of each manifest is logged, and again once one is
/// larger by more than a tenth.
#[tokio::test]
async fn the_largest_message_of_each_kind_is_logged_where_that_is_wanted() {
    logs::keep();
    let a = node(TransportSettings { log_frame_size_exceeding: Some(1000), ..settings() }).await;
    let (b, mut quiet) = (node(settings()).await, node(settings()).await);
    let mut inbox = b.register("x");
    let named = |manifest: &str, size| Envelope { manifest: manifest.to_owned().into(), ..sized("x", size) };
    for (manifest, size) in
        [("picture", 1000), ("picture", 2000), ("picture", 2200), ("picture", 2201), ("icon", 1500), ("picture", 1800)]
    {
        a.transport.send(&b.here(), named(manifest, size)).unwrap();
        next(&mut inbox).await;
    }
    let is_logged = |manifest: &str, size: usize| {
        let (manifest, size) = (format!("manifest=\"{manifest}\""), format!("size={size} "));
        logs::has(&["largest message of this manifest", &manifest, &size, "limit=1000"])
    };
    assert!(is_logged("picture", 2000) && is_logged("picture", 2201) && is_logged("icon", 1500));
    assert!([1000, 2200, 1800].iter().all(|size| !is_logged("picture", *size)));
    // Off, as by default.
    b.transport.send(&quiet.here(), Envelope { recipient: Recipient::new("inbox"), ..named("film", 9000) }).unwrap();
    next(&mut quiet.inbox).await;
    assert!(!is_logged("film", 9000) && !logs::has(&["film"]));
}
