//! Probes that take the same way as heartbeats, there and back.
//!
//! The path of the probes lies below that of the heartbeats, so probes take the same queue, stream and worker; a task
//! on the control runtime answers them, as for heartbeats.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use greylag_core::{CodecId, UniqueAddress};
use greylag_transport::{Destination, Envelope, GrpcTransport, Inbound, Receiver, Recipient, Remoting};
use tokio::sync::mpsc;

const ASKED: &str = "soak.probe";
const ANSWERED: &str = "soak.probe-answer";
const INTERVAL: Duration = Duration::from_millis(100);

/// The results of one node's probes so far.
#[derive(Default)]
pub(crate) struct Probes {
    waiting: Mutex<HashMap<u64, Instant>>,
    round_trips_us: Mutex<Vec<u64>>,
    refused: AtomicU64,
}

fn path() -> String {
    format!("{}/soak", Recipient::HEARTBEAT)
}

/// Passes messages to the task that answers them.
struct Inbox(mpsc::UnboundedSender<Inbound>);

impl Receiver for Inbox {
    fn receive(&self, message: Inbound) {
        self.0.send(message).ok();
    }
}

impl Probes {
    /// Answers the probes of other nodes from now on.
    pub(crate) fn listen(self: &Arc<Self>, transport: &Arc<GrpcTransport>) {
        let (sender, mut inbox) = mpsc::unbounded_channel();
        transport.register(&path(), Arc::new(Inbox(sender)));
        let (probes, port) = (self.clone(), transport.clone());
        transport.control_runtime().spawn(async move {
            while let Some(message) = inbox.recv().await {
                probes.take(&port, message);
            }
        });
    }

    fn take(&self, transport: &GrpcTransport, message: Inbound) {
        if message.manifest == ASKED {
            let envelope = Envelope::new(Recipient::new(path()), CodecId::FIRST_USER, ANSWERED, message.payload);
            transport.send(&Destination::Incarnation(message.from), envelope).ok();
            return;
        }
        let number = message.payload[..].try_into().map_or(0, u64::from_be_bytes);
        if let Some(sent_at) = self.waiting.lock().expect(NO_PANIC).remove(&number) {
            let us = u64::try_from(sent_at.elapsed().as_micros()).unwrap_or(u64::MAX);
            self.round_trips_us.lock().expect(NO_PANIC).push(us);
        }
    }

    /// Probes every peer for as long as the node runs.
    pub(crate) fn start(self: &Arc<Self>, transport: &Arc<GrpcTransport>, peers: Vec<UniqueAddress>) {
        let (probes, port) = (self.clone(), transport.clone());
        transport.control_runtime().spawn(async move {
            let mut ticks = tokio::time::interval(INTERVAL);
            for round in 0.. {
                ticks.tick().await;
                for (n, peer) in (0..).zip(&peers) {
                    probes.send(&port, peer, round * 1000 + n);
                }
            }
        });
    }

    fn send(&self, transport: &GrpcTransport, peer: &UniqueAddress, number: u64) {
        self.waiting.lock().expect(NO_PANIC).insert(number, Instant::now());
        let payload = number.to_be_bytes().to_vec();
        let envelope = Envelope::new(Recipient::new(path()), CodecId::FIRST_USER, ASKED, payload);
        if transport.send(&Destination::Incarnation(peer.clone()), envelope).is_err() {
            self.waiting.lock().expect(NO_PANIC).remove(&number);
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The round trips in microseconds, and how many probes were never answered.
    pub(crate) fn results(&self) -> (Vec<u64>, u64) {
        // Leave out probes of the last second: they may still be under way.
        let overdue = |sent_at: &&Instant| sent_at.elapsed() > Duration::from_secs(1);
        let waiting = self.waiting.lock().expect(NO_PANIC).values().filter(overdue).count() as u64;
        let round_trips = self.round_trips_us.lock().expect(NO_PANIC).clone();
        (round_trips, waiting + self.refused.load(Ordering::Relaxed))
    }
}

const NO_PANIC: &str = "nothing under this lock panics";
