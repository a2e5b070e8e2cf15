//! One node process: membership at default settings, flood and probes, steered by the parent over standard input.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use greylag_cluster::{Cluster, ClusterEvent, ClusterEvents, ClusterSettings};
use greylag_core::{NodeAddress, Registry, UniqueAddress};
use greylag_transport::{GrpcTransport, Remoting, TransportSettings};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::Failure;
use crate::load::Flood;
use crate::probe::Probes;
use crate::report::{NodeReport, Report, say};

/// Runs until the parent closes standard input.
pub(crate) async fn run(seed: Option<&str>) -> Result<(), Failure> {
    let settings = TransportSettings {
        canonical_host: Some("127.0.0.1".to_owned()),
        canonical_port: 0,
        dead_letter_log_rate: 1,
        ..TransportSettings::new("soak")
    };
    let transport = GrpcTransport::bind(settings, Arc::new(Registry::new())).await?;
    let remoting: Arc<dyn Remoting> = transport.clone();
    let cluster = Cluster::start_on(transport.control_runtime(), ClusterSettings::default(), remoting).await?;
    let (flood, probes) = (Arc::new(Flood::default()), Arc::new(Probes::default()));
    flood.listen(&transport);
    probes.listen(&transport);
    match seed {
        Some(seed) => cluster.join_seed_nodes(vec![seed.parse::<NodeAddress>()?]).await?,
        None => cluster.join_self().await?,
    }
    cluster.wait_up().await?;
    let seen = Arc::new(Mutex::new(Report::default()));
    tokio::spawn(watch(cluster.subscribe(), seen.clone()));
    report_to_parent(&NodeReport::Up { address: cluster.self_address().address().to_string() })?;

    let mut orders = BufReader::new(tokio::io::stdin()).lines();
    while let Some(order) = orders.next_line().await? {
        let (verb, rest) = order.split_once(' ').unwrap_or((&order, ""));
        match verb {
            "flood" => {
                let peers = members(&cluster, rest).await?;
                peers.iter().for_each(|peer| flood.start(&transport, peer.clone()));
                probes.start(&transport, peers);
            }
            "stall" => flood.stall(Duration::from_millis(rest.parse()?)),
            "report" => {
                let mut report = std::mem::take(&mut *seen.lock().map_err(|_| "the watching task panicked")?);
                report.address = cluster.self_address().to_string();
                report.members = cluster.view().members.len();
                (report.round_trips_us, report.unanswered) = probes.results();
                report.received_messages = flood.messages.load(Ordering::Relaxed);
                report.received_bytes = flood.bytes.load(Ordering::Relaxed);
                report.refused = flood.refused.load(Ordering::Relaxed);
                report.malformed = transport.stats().malformed_frames;
                report.cpu_ms = processor_time();
                report_to_parent(&NodeReport::Report(Box::new(report)))?;
            }
            _ => return Err(format!("an unknown order: {order}").into()),
        }
    }
    Ok(())
}

fn report_to_parent(told: &NodeReport) -> Result<(), Failure> {
    say(&serde_json::to_string(told)?);
    Ok(())
}

/// The members at these addresses, as soon as this node knows all of them.
async fn members(cluster: &Cluster, addresses: &str) -> Result<Vec<UniqueAddress>, Failure> {
    let addresses: Vec<NodeAddress> = addresses.split(' ').map(str::parse).collect::<Result<_, _>>()?;
    let known = |view: &greylag_cluster::MembershipView| {
        let is_wanted = |address: &&UniqueAddress| addresses.contains(address.address());
        view.members.iter().map(|member| &member.address).filter(is_wanted).cloned().collect::<Vec<_>>()
    };
    cluster.wait_for(|view| known(view).len() == addresses.len()).await?;
    Ok(known(&cluster.view()))
}

/// Records every event after which a node looks dead.
async fn watch(mut events: ClusterEvents, seen: Arc<Mutex<Report>>) {
    while let Some(event) = events.next().await {
        let accusation = match event {
            ClusterEvent::UnreachableMember(member) => format!("took {} for unreachable", member.address),
            ClusterEvent::MemberDowned(member) => format!("saw {} downed", member.address),
            ClusterEvent::MemberRemoved { member, .. } => format!("saw {} removed", member.address),
            ClusterEvent::SelfDowned => "was downed".to_owned(),
            ClusterEvent::SelfSuspect => "suspected itself".to_owned(),
            ClusterEvent::ThisNodeQuarantined { by, .. } => format!("was quarantined by {by}"),
            ClusterEvent::LocalPause(length) => {
                seen.lock().expect("nothing under this lock panics").pauses.push(length);
                continue;
            }
            _ => continue,
        };
        seen.lock().expect("nothing under this lock panics").accusations.push(accusation);
    }
}

/// Milliseconds of processor time by thread name; empty where the system has no `/proc/self/task`.
fn processor_time() -> Vec<(String, u64)> {
    /// A clock tick of Linux is a hundredth of a second.
    const MS_PER_TICK: u64 = 10;
    let mut by_name = BTreeMap::new();
    for task in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let read = |file: &str| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
        let (name, stat) = (read("comm").trim().to_owned(), read("stat"));
        // The thread name in parentheses may hold spaces; user and system time are fields 14 and 15.
        let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let ticks: u64 =
            after_name.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
        *by_name.entry(name).or_insert(0) += ticks * MS_PER_TICK;
    }
    by_name.into_iter().collect()
}
