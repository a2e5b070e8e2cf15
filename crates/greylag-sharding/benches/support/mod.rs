//! Common parts of the benchmarks of this crate.

#![allow(dead_code, unused_imports, unreachable_pub, reason = "each benchmark takes what it needs")]

#[path = "../figures/mod.rs"]
mod figures;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use greylag_cluster::{Cluster, ClusterSettings};
use greylag_core::{NodeAddress, UniqueAddress};
use greylag_sharding::{Sharding, ShardingSettings};
use greylag_transport::{GrpcTransport, TransportSettings};

pub use figures::{is_measured, report};

/// A timeout that no working step exceeds.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub fn resident_bytes() -> f64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: f64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("the second number");
    pages * 4096.0
}

/// User and system time of this process.
pub fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux");
    let fields: Vec<&str> = stat.rsplit(')').next().expect("a name in parentheses").split_whitespace().collect();
    let ticks: f64 = [fields[11], fields[12]].iter().map(|field| field.parse::<f64>().expect("a number")).sum();
    ticks / 100.0
}

/// A member with a port of this host, and its sharding.
pub struct Node {
    pub transport: Arc<GrpcTransport>,
    pub cluster: Cluster,
    pub sharding: Sharding,
}

impl Node {
    /// A process that has not joined, with the role that the settings name.
    pub async fn start(settings: ShardingSettings) -> Self {
        let roles = Some(settings.role.clone()).filter(|role| !role.is_empty()).into_iter().collect();
        Self::with_roles(roles, settings).await
    }

    /// A process that has not joined.
    pub async fn with_roles(roles: BTreeSet<String>, settings: ShardingSettings) -> Self {
        let transport = GrpcTransport::bind_closed(TransportSettings::test(), Arc::default()).await.expect("it binds");
        let of_cluster = ClusterSettings { roles, ..ClusterSettings::default() };
        let cluster = Cluster::start_on(transport.control_runtime(), of_cluster, transport.clone()).await;
        let cluster = cluster.expect("valid settings");
        transport.open();
        let sharding = Sharding::start(cluster.clone(), None, settings).await.expect("valid settings");
        Self { transport, cluster, sharding }
    }

    /// Joins, at itself if there is no other node, and returns once it is Up.
    pub async fn join(&self, seed: Option<&NodeAddress>) {
        match seed {
            None => self.cluster.join_self().await.expect("alone"),
            Some(seed) => self.cluster.join_seed_nodes(vec![seed.clone()]).await.expect("it joins"),
        }
        self.cluster.wait_up().await.expect("it comes up");
    }

    pub fn address(&self) -> &UniqueAddress {
        self.cluster.self_address()
    }

    /// Leaves in order, and ends.
    pub async fn end(self) {
        let own = self.cluster.self_address().clone();
        self.cluster.leave(own).ok();
        self.cluster.wait_for(|_| false).await.ok();
        self.transport.shutdown().await;
    }
}
