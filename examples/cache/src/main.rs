//! A cache on two nodes: entries that no node reads expire, and an entry that one node reads stays on both.
//!
//! Two replicators with gRPC transports on loopback ports hold quotes under ids that begin with
//! `quote-`, which expire after two seconds without use. One quote is read again and again, on one
//! node only, and so stays on both; the other expires, and a subscriber is told. Exits 1 if not.
#![expect(clippy::print_stdout, reason = "a program that shows what happens")]

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use greylag_core::Registry;
use greylag_crdt::LwwRegister;
use greylag_ddata::{Changed, Membership, Replicated, Replicator, ReplicatorSettings, TypeTable};
use greylag_transport::{GrpcTransport, Remoting, TransportSettings};

type Quote = Replicated<LwwRegister<String>>;
type Failure = Box<dyn std::error::Error>;

const LIFETIME: Duration = Duration::from_secs(2);
/// The time limit for everything but the expiry.
const TIME_LIMIT: Duration = Duration::from_secs(20);

/// Starts two replicators, each on a transport of its own.
async fn start() -> Result<(Vec<Replicator>, Vec<Arc<GrpcTransport>>), Failure> {
    let mut transports = Vec::new();
    for _ in 0..2 {
        transports.push(GrpcTransport::bind(TransportSettings::test(), Arc::new(Registry::new())).await?);
    }
    let addresses: Vec<_> = transports.iter().map(|node| node.self_address().address().clone()).collect();
    let settings = ReplicatorSettings {
        expire_keys_after_inactivity: [("quote-*".to_owned(), LIFETIME)].into(),
        ..ReplicatorSettings::test()
    };
    let mut nodes = Vec::new();
    for transport in &transports {
        let membership = Membership::fixed(addresses.clone());
        nodes.push(Replicator::start(settings.clone(), TypeTable::new(), transport.clone(), membership)?);
    }
    for node in &nodes {
        node.replicas().wait_for(|replicas| replicas.unmet.is_empty()).await?;
        node.wait_synced(TIME_LIMIT).await;
    }
    Ok((nodes, transports))
}

async fn put(quote: &Quote, text: &'static str) -> Result<(), Failure> {
    Ok(quote.update(move |register, cx| register.set(cx, text.to_owned())).all().timeout(TIME_LIMIT).await?)
}

async fn is_there(quote: &Quote) -> Result<bool, Failure> {
    Ok(quote.get().await?.value().is_some())
}

/// Reads one quote again and again, until the watched quote has expired; returns the count of reads.
async fn keep_reading_until_expired(read: &Quote, watched: &Quote) -> Result<u32, Failure> {
    let mut changes = watched.subscribe();
    let mut reads = 0;
    let mut pace = tokio::time::interval(LIFETIME / 20);
    loop {
        tokio::select! {
            change = changes.next() => match change {
                Some(Changed::Expired { .. }) => return Ok(reads),
                Some(_) => {}
                None => return Err("the replicator stopped".into()),
            },
            _ = pace.tick() => {
                if !is_there(read).await? {
                    return Err("what is in use expired".into());
                }
                reads += 1;
            }
        }
    }
}

async fn run() -> Result<bool, Failure> {
    let (nodes, transports) = start().await?;
    let [one, two] = &nodes[..] else { return Err("two nodes were started".into()) };
    let hot: [Quote; 2] = [one.replicated("quote-hot")?, two.replicated("quote-hot")?];
    let cold: [Quote; 2] = [one.replicated("quote-cold")?, two.replicated("quote-cold")?];
    put(&hot[0], "asked for").await?;
    put(&cold[0], "forgotten").await?;
    println!("both quotes are on both nodes; only one is asked for, and only on the first node");

    let reads = tokio::time::timeout(TIME_LIMIT, keep_reading_until_expired(&hot[0], &cold[1])).await??;
    println!("quote-cold expired on the second node, while quote-hot was read {reads} times on the first");
    let (stays, gone) = (is_there(&hot[1]).await?, !is_there(&cold[0]).await?);
    println!("quote-hot is on the second node too: {stays}; quote-cold is gone from the first: {gone}");

    put(&cold[1], "back again").await?;
    let again = is_there(&cold[0]).await?;
    println!("quote-cold was put again, and is on the first node: {again}");
    tokio::join!(one.shutdown(), two.shutdown());
    for transport in &transports {
        transport.shutdown().await;
    }
    Ok(stays && gone && again)
}

#[tokio::main]
async fn main() -> ExitCode {
    let is_right = run().await.unwrap_or_else(|error| {
        println!("failed: {error}");
        false
    });
    if is_right { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
