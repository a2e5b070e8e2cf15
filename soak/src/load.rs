//! The flood: more messages than the receivers can handle, on the ordinary and the large lane of every peer.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use greylag_core::{CodecId, UniqueAddress};
use greylag_transport::{Destination, Envelope, GrpcTransport, Inbound, Receiver, Recipient, Remoting};

const SMALL: &str = "flood";
const LARGE: &str = "bulk/flood";

/// Every twentieth message has this many bytes, the others a tenth of it.
const SMALL_BYTES: usize = 1000;
const LARGE_BYTES: usize = 1 << 20;

/// Receives the flood: the handler reads every byte of each message, and blocks when ordered to.
#[derive(Default)]
pub(crate) struct Flood {
    pub(crate) messages: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) refused: AtomicU64,
    checksum: AtomicU64,
    stalls: AtomicBool,
    stall_end: Mutex<Option<Instant>>,
}

struct Sink(Arc<Flood>);

impl Receiver for Sink {
    fn receive(&self, message: Inbound) {
        let Self(flood) = self;
        let sum = message.payload.iter().fold(0_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
        flood.checksum.fetch_xor(sum, Ordering::Relaxed);
        flood.messages.fetch_add(1, Ordering::Relaxed);
        flood.bytes.fetch_add(message.payload.len() as u64, Ordering::Relaxed);
        if flood.stalls.load(Ordering::Relaxed) {
            flood.block();
        }
    }
}

impl Flood {
    /// Registers the receiver under several recipients, so that every worker of the transport handles some messages.
    pub(crate) fn listen(self: &Arc<Self>, transport: &GrpcTransport) {
        for n in 0..8 {
            transport.register(&format!("{SMALL}-{n}"), Arc::new(Sink(self.clone())));
        }
        transport.register(LARGE, Arc::new(Sink(self.clone())));
    }

    /// Lets every handler that gets a message within `length` block its thread until `length` is over, against the
    /// rules for handlers.
    pub(crate) fn stall(&self, length: Duration) {
        *self.stall_end.lock().expect(NO_PANIC) = Some(Instant::now() + length);
        self.stalls.store(true, Ordering::Relaxed);
    }

    fn block(&self) {
        let end = *self.stall_end.lock().expect(NO_PANIC);
        if let Some(left) = end.and_then(|end| end.checked_duration_since(Instant::now())) {
            std::thread::sleep(left);
        }
        self.stalls.store(false, Ordering::Relaxed);
    }

    /// Floods one peer from its own thread, for as long as the process runs.
    pub(crate) fn start(self: &Arc<Self>, transport: &Arc<GrpcTransport>, peer: UniqueAddress) {
        let (flood, transport) = (self.clone(), transport.clone());
        std::thread::spawn(move || {
            let to = Destination::Incarnation(peer);
            let small = Bytes::from(vec![7; SMALL_BYTES / 10]);
            let medium = Bytes::from(vec![8; SMALL_BYTES]);
            let large = Bytes::from((0..LARGE_BYTES).map(|n| ((n * n) >> 7) as u8).collect::<Vec<_>>());
            let paths: Vec<Recipient> = (0..8).map(|n| Recipient::new(format!("{SMALL}-{n}"))).collect();
            let bulk = Recipient::new(LARGE);
            for n in 0_usize.. {
                let payload = if n % 20 == 0 { medium.clone() } else { small.clone() };
                let mut is_full = flood.send(&transport, &to, &paths[n % 8], payload);
                if n % 1000 == 0 {
                    is_full |= flood.send(&transport, &to, &bulk, large.clone());
                }
                if is_full {
                    // Sleep instead of spinning, which would take processor time; the queue holds more than is written
                    // meanwhile.
                    std::thread::sleep(Duration::from_micros(500));
                }
            }
        });
    }

    /// Sends one message; returns whether the queue was full.
    fn send(&self, transport: &GrpcTransport, to: &Destination, recipient: &Recipient, payload: Bytes) -> bool {
        let envelope = Envelope::new(recipient.clone(), CodecId::FIRST_USER, "soak.flood", payload);
        let is_full = transport.send(to, envelope).is_err();
        self.refused.fetch_add(is_full.into(), Ordering::Relaxed);
        is_full
    }
}

const NO_PANIC: &str = "nothing under this lock panics";
