//! Attacks by processes that are no members: after a correct Hello, or without one, they send anything.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use greylag_core::UniqueAddress;

use crate::raw::{Raw, batch, bytes, hello, number};
use crate::schema::messages;
use crate::shop::Node;
use crate::{Attackers, Failure, Secrets};

/// Counts of what the attackers did, and of the nodes' reactions.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) connections: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) names: AtomicU64,
    pub(crate) by_strangers: AtomicU64,
    pub(crate) by_member: AtomicU64,
    pub(crate) answered: AtomicU64,
    pub(crate) turned_away: AtomicU64,
    /// Messages that the nodes dropped, by reason.
    pub(crate) dropped: Mutex<BTreeMap<String, u64>>,
}

/// Count of different node names to claim; they repeat after that.
const NAMES: u64 = 20_000;
/// Count of connections with claimed names that are kept open.
const HELD: usize = 80;
/// The pause between two connections.
const PAUSE: Duration = Duration::from_millis(50);

/// The node to attack, and the address from which one kind of attack comes.
#[derive(Clone)]
struct Target {
    node: SocketAddr,
    /// The loopback address of this kind of attack.
    from: IpAddr,
    secrets: Option<Arc<Secrets>>,
    tally: Arc<Tally>,
}

pub(crate) fn start(
    attackers: &mut Attackers,
    number: usize,
    node: &Node,
    secrets: Option<&Arc<Secrets>>,
    tally: &Arc<Tally>,
) {
    let at = |kind: u8| Target {
        node: SocketAddr::from((Ipv4Addr::LOCALHOST, node.address.port())),
        from: Ipv4Addr::new(127, 1, number as u8, kind).into(),
        secrets: secrets.cloned(),
        tally: tally.clone(),
    };
    attackers.spawn(claim_names(at(1)));
    attackers.spawn(repeat(at(2), say_everything));
    attackers.spawn(repeat(at(3), send_bombs));
    attackers.spawn(repeat(at(4), send_half));
    attackers.spawn(repeat(at(5), send_garbage));
    attackers.spawn(repeat(at(6), read_nothing));
    attackers.spawn(repeat(at(7), flood));
}

/// Repeats an attack; each one uses its own connections.
async fn repeat<F: Future<Output = Result<(), Failure>> + Send>(target: Target, attack: impl Fn(Target) -> F) {
    loop {
        target.tally.connections.fetch_add(1, Ordering::Relaxed);
        if attack(target.clone()).await.is_err() {
            target.tally.refused.fetch_add(1, Ordering::Relaxed);
        }
        tokio::time::sleep(PAUSE).await;
    }
}

impl Target {
    async fn connect(&self) -> Result<Raw, Failure> {
        Raw::connect(self.from, self.node, self.secrets.as_ref()).await
    }

    /// Opens a stream with a Hello that the node has accepted.
    async fn greeted(&self, port: u16, lane: u64) -> Result<Raw, Failure> {
        let mut raw = self.connect().await?;
        raw.call(true).await?;
        raw.say(&hello("127.0.0.1", port, 77, self.node.port(), lane, rand::random())).await?;
        // An acceptance holds the node's address; a refusal closes the call.
        if raw.hears(b"127.0.0.1").await { Ok(raw) } else { Err("the Hello was refused".into()) }
    }
}

/// Says Hello under 20,000 names in turn, each on its own connection; the last `HELD` connections stay open. Nodes
/// refuse most of them.
async fn claim_names(target: Target) {
    let mut held = std::collections::VecDeque::new();
    for name in 0.. {
        target.tally.connections.fetch_add(1, Ordering::Relaxed);
        let claim = async {
            let mut raw = target.connect().await?;
            raw.call(true).await?;
            let host = if target.secrets.is_some() { "127.0.0.1".to_owned() } else { format!("h{}", name % NAMES) };
            let port = 1 + (name % 60_000) as u16;
            raw.say(&hello(&host, port, name + 1, target.node.port(), 1 + name % 3, 1)).await?;
            Ok::<_, Failure>(raw)
        };
        match claim.await {
            Ok(raw) => {
                target.tally.names.fetch_add(1, Ordering::Relaxed);
                held.push_back(raw);
                if held.len() > HELD {
                    held.pop_front();
                }
            }
            Err(_) => {
                target.tally.refused.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Sends every message of every layer: those for `control/` on the control lane, the others on a data lane.
async fn say_everything(target: Target) -> Result<(), Failure> {
    let to = format!("127.0.0.1:{}#1", target.node.port()).parse::<UniqueAddress>()?;
    let from = "127.0.0.1:4001#77".parse::<UniqueAddress>()?;
    let (mut data, mut control) = (target.greeted(4001, 2).await?, target.greeted(4001, 1).await?);
    for message in messages(&to, &from) {
        let frame = batch(&message.path, message.manifest, &message.payload);
        let raw = if message.path.starts_with("control/") { &mut control } else { &mut data };
        raw.say(&frame).await?;
        target.tally.by_strangers.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}

/// Sends frames that are small on the wire and large when decoded.
async fn send_bombs(target: Target) -> Result<(), Failure> {
    let empty = bytes(1, &[]).repeat(1 << 18);
    let batch = bytes(3, &empty);
    let beside = [bytes(3, &bytes(1, &[]).repeat(60_000)), vec![0xf8, 0x06, 0x01]].concat();
    let features = bytes(1, &bytes(12, &[]).repeat(8000));
    for (lane, bomb) in [(3, batch), (2, beside), (2, features)] {
        let mut raw = target.greeted(4002, lane).await?;
        // Ignore the error: the node closes the stream as soon as it has read enough.
        drop(raw.say(&bomb).await);
        target.tally.by_strangers.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Opens a hundred connections that stop at various points: before, in or after the preface, or in a message.
async fn send_half(target: Target) -> Result<(), Failure> {
    let mut open = Vec::new();
    for index in 0..100_u16 {
        let mut raw = target.connect().await?;
        match index % 4 {
            0 => {}
            1 => raw.send(b"PRI * HTTP/2.0\r\n\r\nSM").await?,
            2 => raw.call(true).await?,
            _ => {
                raw.call(true).await?;
                raw.announce(1 << 20).await?;
            }
        }
        open.push(raw);
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    Ok(())
}

/// Sends random bytes, as HTTP/2 and in a message.
async fn send_garbage(target: Target) -> Result<(), Failure> {
    let noise: Vec<u8> = (0..4096).map(|_| rand::random()).collect();
    let mut raw = target.connect().await?;
    raw.send(&noise).await?;
    let mut raw = target.greeted(4005, 2).await?;
    raw.say(&noise).await
}

/// Sends requests without reading any answer.
async fn read_nothing(target: Target) -> Result<(), Failure> {
    let mut raw = target.connect().await?;
    raw.call(false).await?;
    raw.say(&hello("127.0.0.1", 4006, 77, target.node.port(), 2, rand::random())).await?;
    for id in 0..100_000 {
        // Each of these frames requires an answer.
        raw.say(&bytes(10, &number(1, id))).await?;
    }
    Ok(())
}

/// Sends messages to recipients that accept none from a non-member, about 500 a second.
async fn flood(target: Target) -> Result<(), Failure> {
    let mut raw = target.greeted(4007, 2).await?;
    let payload = vec![b'x'; 8 * 1024];
    for round in 0_u64.. {
        let path = ["sharding/Customer", "ddata/sharding", "nobody"][(round % 3) as usize];
        raw.say(&batch(path, "gl.ddata/1", &payload)).await?;
        target.tally.by_strangers.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    Ok(())
}
