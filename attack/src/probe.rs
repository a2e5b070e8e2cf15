//! Heartbeats of a non-member: every node answers them on the path that members' heartbeats take.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use greylag_cluster::Message;
use greylag_core::{CodecId, Registry, UniqueAddress};
use greylag_transport::{
    Destination, Envelope, GrpcTransport, Inbound, Receiver, Recipient, Remoting, TransportSettings,
};

use crate::shop::Node;
use crate::{Failure, Secrets, tls_of};

/// The interval between heartbeats to one node.
const INTERVAL: Duration = Duration::from_millis(100);
const NO_PANIC: &str = "nothing under this lock panics";

/// The results of the heartbeats so far: send times by sequence number, and round trips.
#[derive(Default)]
struct Shown {
    waiting: HashMap<u64, Instant>,
    quiet: Vec<Duration>,
    attacked: Vec<Duration>,
}

/// The heartbeats to all nodes, from one transport.
pub(crate) struct Probes {
    shown: Arc<Mutex<Shown>>,
    is_attack: Arc<AtomicBool>,
    _transport: Arc<GrpcTransport>,
}

/// The sorted round trips before and during the attack, and the count of heartbeats without an answer.
pub(crate) struct RoundTrips {
    pub(crate) quiet: Vec<Duration>,
    pub(crate) attacked: Vec<Duration>,
    pub(crate) unanswered: usize,
}

struct Answers {
    shown: Arc<Mutex<Shown>>,
    is_attack: Arc<AtomicBool>,
}

impl Receiver for Answers {
    fn receive(&self, message: Inbound) {
        let Ok(Message::HeartbeatRsp { seq, .. }) = Message::from_bytes(&message.manifest, message.payload) else {
            return;
        };
        let mut shown = self.shown.lock().expect(NO_PANIC);
        let Some(sent_at) = shown.waiting.remove(&seq) else { return };
        let took = sent_at.elapsed();
        if self.is_attack.load(Ordering::Relaxed) {
            shown.attacked.push(took);
        } else {
            shown.quiet.push(took);
        }
    }
}

/// Binds a transport for a process that is no member.
pub(crate) async fn outsider(secrets: Option<&Arc<Secrets>>) -> Result<Arc<GrpcTransport>, Failure> {
    let settings = TransportSettings {
        canonical_host: Some("127.0.0.1".to_owned()),
        canonical_port: 0,
        dead_letter_log_rate: 0,
        tls: tls_of(secrets),
        ..TransportSettings::new("storefront")
    };
    Ok(GrpcTransport::bind(settings, Arc::new(Registry::new())).await?)
}

/// Finds the unique address of the process at each node's address.
pub(crate) async fn meet(transport: &Arc<GrpcTransport>, nodes: &[Node]) -> Result<Vec<UniqueAddress>, Failure> {
    let mut met = Vec::new();
    for node in nodes {
        // A node that is not joining ignores this message; the handshake tells the unique address.
        let greeting = Message::InitJoinNack;
        let envelope = Envelope::new(
            Recipient::new("control/cluster"),
            CodecId::INTERNAL,
            greeting.manifest(),
            greeting.to_bytes(),
        );
        transport.send(&Destination::Address(node.address.clone()), envelope).map_err(|rejected| rejected.error)?;
        let known = async {
            loop {
                match transport.peer(&node.address) {
                    Some(peer) => return peer.peer,
                    None => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
        };
        met.push(
            tokio::time::timeout(Duration::from_secs(30), known)
                .await
                .map_err(|_| format!("{} is not reached", node.address))?,
        );
    }
    Ok(met)
}

impl Probes {
    /// Starts a heartbeat to every node at each interval, for as long as the program runs.
    pub(crate) async fn start(nodes: &[Node], secrets: Option<&Arc<Secrets>>) -> Result<Self, Failure> {
        let transport = outsider(secrets).await?;
        let (shown, is_attack) = (Arc::new(Mutex::new(Shown::default())), Arc::new(AtomicBool::new(false)));
        let answers = Answers { shown: shown.clone(), is_attack: is_attack.clone() };
        transport.register(Recipient::HEARTBEAT, Arc::new(answers));
        let met = meet(&transport, nodes).await?;
        let (port, asked, number) = (transport.clone(), shown.clone(), AtomicU64::new(0));
        transport.control_runtime().spawn(async move {
            let mut ticks = tokio::time::interval(INTERVAL);
            loop {
                ticks.tick().await;
                for peer in &met {
                    let seq = number.fetch_add(1, Ordering::Relaxed);
                    let heartbeat = Message::Heartbeat { to: peer.clone(), seq };
                    let recipient = Recipient::new(Recipient::HEARTBEAT);
                    let envelope =
                        Envelope::new(recipient, CodecId::INTERNAL, heartbeat.manifest(), heartbeat.to_bytes());
                    asked.lock().expect(NO_PANIC).waiting.insert(seq, Instant::now());
                    drop(port.send(&Destination::Incarnation(peer.clone()), envelope));
                }
            }
        });
        Ok(Self { shown, is_attack, _transport: transport })
    }

    pub(crate) fn attack_begins(&self) {
        self.is_attack.store(true, Ordering::Relaxed);
    }

    pub(crate) fn results(&self) -> RoundTrips {
        let mut shown = self.shown.lock().expect(NO_PANIC);
        // Ignore heartbeats of the last seconds: they may be under way, or went to nodes that have left.
        let unanswered = shown.waiting.values().filter(|sent_at| sent_at.elapsed() > Duration::from_secs(30)).count();
        let (mut quiet, mut attacked) = (std::mem::take(&mut shown.quiet), std::mem::take(&mut shown.attacked));
        quiet.sort_unstable();
        attacked.sort_unstable();
        RoundTrips { quiet, attacked, unanswered }
    }
}
