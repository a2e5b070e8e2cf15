//! The process under test: transport, membership at default settings, and one singleton; reports on standard output.

use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use greylag_cluster::{
    Cluster, ClusterEvent, ClusterSettings, Leases, MemberStatus, ProofOfDeath, SbrSettings, Singleton,
    SingletonSettings, StopToken,
};
use greylag_core::{NodeAddress, Registry, UniqueAddress};
use greylag_lease_postgres::PostgresLeases;
use greylag_transport::{GrpcTransport, Tls, TransportSettings};

use crate::report::{At, Line, NodeEvent};

/// The interval at which a running instance reports that it works.
const WORK_INTERVAL: Duration = Duration::from_millis(20);

/// One node with a singleton.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    place: NodeOptions,
    /// The database that keeps the singleton's lease, as for libpq; without one it runs under none.
    #[arg(long)]
    lease: Option<String>,
}

/// Where a node is, and how it judges the others.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct NodeOptions {
    /// Its host, as the others dial it.
    #[arg(long)]
    pub(crate) host: String,
    /// Its port.
    #[arg(long)]
    pub(crate) port: u16,
    /// The node to join; itself, if it is the first.
    #[arg(long)]
    pub(crate) seed: String,
    /// What counts as a proof of death.
    #[arg(long, value_enum, default_value_t = Proof::Local)]
    proof: Proof,
    /// `sbr.stable_after`, which the margin follows.
    #[arg(long, default_value_t = 20_000)]
    stable_after_ms: u64,
}

impl NodeOptions {
    /// Applies the node's `proof_of_death` and `stable_after` to these settings.
    pub(crate) fn adapt(&self, settings: ClusterSettings) -> ClusterSettings {
        let stable_after = Duration::from_millis(self.stable_after_ms);
        let settings = ClusterSettings { proof_of_death: self.proof.into(), ..settings };
        settings.with_resolver(SbrSettings { stable_after, ..SbrSettings::default() })
    }
}

/// The values of `proof_of_death` on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Proof {
    Local,
    On,
    Off,
}

impl From<Proof> for ProofOfDeath {
    fn from(proof: Proof) -> Self {
        match proof {
            Proof::Local => Self::Local,
            Proof::On => Self::On,
            Proof::Off => Self::Off,
        }
    }
}

/// Runs until the node ends.
pub(crate) fn run(arguments: Arguments) -> ExitCode {
    run_to_end(live(arguments))
}

/// Runs the node's future on a new runtime until the node ends.
pub(crate) fn run_to_end(life: impl Future<Output = Result<(), String>>) -> ExitCode {
    // Standard output is reserved for lines of JSON; people read standard error.
    let filter = tracing_subscriber::EnvFilter::from_default_env();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return note_failure(&format!("no runtime: {error}")),
    };
    match runtime.block_on(life) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => note_failure(&failure),
    }
}

fn note_failure(failure: &str) -> ExitCode {
    tell(NodeEvent::Note { text: format!("failed: {failure}") });
    ExitCode::FAILURE
}

async fn live(arguments: Arguments) -> Result<(), String> {
    let place = &arguments.place;
    let seed: NodeAddress = place.seed.parse().map_err(|error| format!("{}: {error}", place.seed))?;
    let transport_settings = TransportSettings {
        cluster_name: "lab".into(),
        canonical_host: Some(place.host.clone()),
        canonical_port: place.port,
        // No TLS: the lab's network has no hosts other than the nodes.
        tls: Tls::None,
        ..TransportSettings::default()
    };
    let transport = GrpcTransport::bind(transport_settings, Arc::new(Registry::new()))
        .await
        .map_err(|error| format!("cannot bind: {error}"))?;
    let leases = match &arguments.lease {
        Some(database) => Some(PostgresLeases::connect(database).await.map_err(|error| format!("no leases: {error}"))?),
        None => None,
    };
    let leases = leases.map(|leases| Leases::new("lab", leases));
    let settings = place.adapt(ClusterSettings { leases, ..ClusterSettings::default() });
    let cluster = Cluster::start(settings, transport.clone()).await.map_err(|error| error.to_string())?;
    let job = Singleton::job("worker", |_, stop| work(stop));
    let singleton = SingletonSettings { use_lease: arguments.lease.is_some(), ..SingletonSettings::default() };
    cluster.singleton(job.settings(singleton)).map_err(|error| error.to_string())?;
    let telling = tokio::spawn(print_events(cluster.clone()));
    cluster.join_seed_nodes(vec![seed]).await.map_err(|error| error.to_string())?;
    let reason = cluster.terminated().await;
    telling.abort();
    tell(NodeEvent::Ended { reason: format!("{reason:?}") });
    transport.shutdown().await;
    Ok(())
}

/// Reports that the singleton works, until it is told to stop.
async fn work(mut stop: StopToken) {
    tell(NodeEvent::SingletonStarted);
    let mut work = tokio::time::interval(WORK_INTERVAL);
    work.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            () = stop.stopped() => break,
            _ = work.tick() => tell(NodeEvent::SingletonWorks),
        }
    }
    tell(NodeEvent::SingletonEnded);
}

/// Reports the membership events that scenarios check, and the count of Up members whenever it changes.
pub(crate) async fn print_events(cluster: Cluster) {
    let mut events = cluster.subscribe();
    let mut up = 0;
    let mut tell_count = || {
        let count = cluster.view().members.iter().filter(|member| member.status == MemberStatus::Up).count();
        if count != up {
            up = count;
            tell(NodeEvent::Up { count });
        }
    };
    tell_count();
    while let Some(event) = events.next().await {
        tell_count();
        if let Some(what) = of_interest(event) {
            tell(what);
        }
    }
}

/// The line for an event; `None` for events that no scenario checks.
fn of_interest(event: ClusterEvent) -> Option<NodeEvent> {
    let name = |address: &UniqueAddress| address.address().to_string();
    Some(match event {
        ClusterEvent::UnreachableMember(member) => NodeEvent::Unreachable { member: name(&member.address) },
        ClusterEvent::ReachableMember(member) => NodeEvent::Reachable { member: name(&member.address) },
        ClusterEvent::MemberDowned(member) => NodeEvent::Downed { member: name(&member.address) },
        ClusterEvent::MemberRemoved { member, clean, .. } => {
            NodeEvent::Removed { member: name(&member.address), clean }
        }
        ClusterEvent::AddressHeld { holder, .. } => NodeEvent::AddressHeld { member: name(&holder) },
        ClusterEvent::ProvenDead { member, .. } => NodeEvent::ProvenDead { member: name(&member) },
        ClusterEvent::DowningDecision(decision) => {
            NodeEvent::Decision { text: format!("{} downs {:?}", decision.verdict, decision.downed) }
        }
        ClusterEvent::LocalPause(pause) => {
            NodeEvent::LocalPause { millis: u64::try_from(pause.as_millis()).unwrap_or(u64::MAX) }
        }
        ClusterEvent::SelfDowned => NodeEvent::SelfDowned,
        ClusterEvent::SelfSuspect => NodeEvent::Note { text: "self-suspect".into() },
        ClusterEvent::SelfTrusted => NodeEvent::Note { text: "self-trusted".into() },
        _ => return None,
    })
}

/// Writes a line to standard output.
pub(crate) fn tell(what: NodeEvent) {
    let line = Line { at: At::now(), what };
    let mut out = std::io::stdout().lock();
    // Ignore write errors: they mean that the scenario, which started this node and reads its lines, has ended.
    if let Ok(json) = serde_json::to_string(&line) {
        let _gone = writeln!(out, "{json}").and_then(|()| out.flush());
    }
}
