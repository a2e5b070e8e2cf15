//! The settings of a node: one section per layer.

#[cfg(feature = "persistence")]
mod journal;
mod leases;

use greylag_cluster::{BootstrapSettings, ClusterSettings, SingletonSettings};
use greylag_transport::TransportSettings;

#[cfg(feature = "journal-postgres")]
pub use journal::PostgresJournalPlace;
#[cfg(feature = "journal-service")]
pub use journal::ServiceJournalPlace;
#[cfg(feature = "journal-sled")]
pub use journal::SledJournalPlace;
#[cfg(feature = "persistence")]
pub use journal::{JournalKind, JournalSettings};
#[cfg(feature = "persistence")]
pub(crate) use journal::{refused, refused_by, refused_of_projection};
pub use leases::{LeaseStoreSettings, PostgresLeaseSettings, Secret};
pub(crate) use leases::{MakeLeases, POSTGRES, STORE_KEY};

/// Every setting of a node. Documents of the specification write the keys without their section.
///
/// Some sections are for parts that the program starts later (singletons, replicators, behaviours, delivery): it reads
/// them from [`Node::settings`](crate::Node::settings).
#[derive(Debug, Clone, Default)]
pub struct NodeSettings {
    /// `transport.*`.
    pub transport: TransportSettings,
    /// `cluster.*`. The builder sets the split brain resolver with keep-majority.
    pub cluster: ClusterSettings,
    /// `cluster.discovery.*`: how nodes find each other.
    pub discovery: DiscoverySettings,
    /// `cluster.bootstrap.*`: how discovered nodes found a cluster; not used with seed nodes.
    pub bootstrap: BootstrapSettings,
    /// `cluster.sbr.lease_majority.lease` and `cluster.lease.postgres.*`: the store of leases, if `cluster.leases` is
    /// not set.
    pub lease_store: LeaseStoreSettings,
    /// `cluster.singleton.*`, for singletons that the program starts.
    pub singleton: SingletonSettings,
    /// `ddata.*`, for replicators that the program starts.
    #[cfg(feature = "ddata")]
    pub ddata: greylag_ddata::ReplicatorSettings,
    /// `ddata.durable.path`, `cache_bytes`, `min_free_bytes` and `ballast_bytes`: where durable entries are stored.
    #[cfg(feature = "ddata")]
    pub ddata_store: DdataPlace,
    /// `persistence.*`: the settings that every event-sourced behaviour starts from.
    #[cfg(feature = "persistence")]
    pub persistence: greylag_persistence::EventSourcedSettings,
    /// `persistence.journal` and the sections of journals and breakers: the stores that the node opens by itself.
    #[cfg(feature = "persistence")]
    pub journal: JournalSettings,
    /// `persistence.projection.*`, for projections that the program starts.
    #[cfg(feature = "persistence")]
    pub projection: greylag_persistence::ProjectionSettings,
    /// `persistence.*`: the settings that every behaviour with a durable state starts from. A key of both kinds of
    /// behaviour sets both.
    #[cfg(feature = "persistence")]
    pub durable_state: greylag_persistence::DurableStateSettings,
    /// `persistence.query.*`, for the program's one `ReadJournal` of streams and projections.
    #[cfg(feature = "persistence")]
    pub query: greylag_persistence::QuerySettings,
    /// `sharding.*`, the defaults of all entity types.
    #[cfg(feature = "sharding")]
    pub sharding: greylag_sharding::ShardingSettings,
    /// `delivery.*`, for producers and consumers.
    #[cfg(feature = "delivery")]
    pub delivery: greylag_delivery::DeliverySettings,
    /// `management.*`. Default off.
    #[cfg(feature = "management")]
    pub management: greylag_management::ManagementSettings,
}

/// The store for the durable entries of replicators; `ddata.durable.keys` says which entries are durable.
#[cfg(feature = "ddata")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DdataPlace {
    /// A directory. If its name ends in `ddata`, the names of cluster and replicator and the port are appended, so that
    /// nodes on one machine use different directories. Default `ddata`, below the working directory. Source: ddata U6.
    pub path: std::path::PathBuf,
    /// Page cache of the store. Default 64 MiB.
    pub cache_bytes: usize,
    /// With fewer free bytes on the disk, updates of durable entries fail with `StoreFailed`. Default 256 MiB; 0
    /// switches the check off. Source: ddata U2, persistence §4.3.
    pub min_free_bytes: u64,
    /// Size of a ballast file that is given up when a full disk would keep the store from opening. Default 64 MiB; 0
    /// for none. Source: ddata U2, persistence §4.3.
    pub ballast_bytes: u64,
}

#[cfg(feature = "ddata")]
impl Default for DdataPlace {
    fn default() -> Self {
        Self { path: "ddata".into(), cache_bytes: 64 << 20, min_free_bytes: 256 << 20, ballast_bytes: 64 << 20 }
    }
}

/// How nodes find each other, unless the program gives a discovery of its own.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DiscoverySettings {
    /// The method. Default: the list `cluster.seed_nodes`.
    pub method: DiscoveryMethod,
    /// The name to look up. Required by DNS.
    pub name: String,
    /// The port of every address found. Required by [`DiscoveryMethod::DnsAddresses`].
    pub port: u16,
}

/// The method by which nodes find each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DiscoveryMethod {
    /// `cluster.seed_nodes`.
    #[default]
    SeedNodes,
    /// Every address of a name is a node; needs feature `discovery-dns`.
    DnsAddresses,
    /// Every target of a service is a node; needs feature `discovery-dns`.
    DnsService,
}

impl NodeSettings {
    /// Problems of all settings, alone or together: the key with its section, and why.
    pub(crate) fn problems(&self) -> Vec<(String, String)> {
        let mut problems = Vec::new();
        for error in self.transport.validate().err().into_iter().flat_map(|errors| errors.0) {
            problems.push((error.setting.to_owned(), format!("{}: {}", error.value, error.why)));
        }
        let cluster = self.cluster.validate().err().into_iter().flatten();
        // The cluster's check misses a store of leases that is only named here and chosen later, so that error is
        // dropped.
        let cluster = cluster.filter(|error| !self.lease_store.is_named() || !error.setting.ends_with(".lease"));
        for error in cluster.chain(self.singleton.validate().err().into_iter().flatten()) {
            problems.push((format!("cluster.{}", error.setting), format!("{}: {}", error.value, error.why)));
        }
        if self.cluster.leases.is_none() {
            problems.extend(self.lease_store.problems());
        }
        if self.singleton.use_lease && self.cluster.leases.is_none() && !self.lease_store.is_named() {
            let why = "true: there is no store of leases; name one by cluster.sbr.lease_majority.lease";
            problems.push(("cluster.singleton.use_lease".to_owned(), why.to_owned()));
        }
        if self.discovery.method != DiscoveryMethod::SeedNodes {
            for error in self.bootstrap.validate().err().into_iter().flatten() {
                problems.push((format!("cluster.{}", error.setting), format!("{}: {}", error.value, error.why)));
            }
            let mut refuse = |key: &str, why: &str| problems.push((format!("cluster.discovery.{key}"), why.to_owned()));
            if cfg!(not(feature = "discovery-dns")) {
                refuse("method", "this program was built without the feature discovery-dns");
            }
            if self.discovery.name.is_empty() {
                refuse("name", "discovery by DNS needs a name to look up");
            }
            if self.discovery.method == DiscoveryMethod::DnsAddresses && self.discovery.port == 0 {
                refuse("port", "discovery of addresses needs the port that all nodes listen on");
            }
        }
        self.problems_of_layers(&mut problems);
        problems
    }

    /// The problem of leases of shards, if they are on and there is no store for them.
    #[cfg(feature = "sharding")]
    fn problem_of_shard_leases(&self) -> Option<(String, String)> {
        let store = Some(&self.sharding.lease.use_lease).filter(|store| !store.is_empty())?;
        let why = match &self.lease_store.name {
            Some(named) if named == store => return None,
            Some(named) => format!("{store:?}: the node's store of leases is {named:?}"),
            None if self.cluster.leases.is_some() => return None,
            None => format!("{store:?}: there is no store of leases; name one by cluster.sbr.lease_majority.lease"),
        };
        Some(("sharding.use_lease".to_owned(), why))
    }

    fn problems_of_layers(&self, problems: &mut Vec<(String, String)>) {
        #[cfg(feature = "sharding")]
        problems.extend(self.problem_of_shard_leases());
        #[cfg(feature = "ddata")]
        if let Err(error) = self.ddata.validate() {
            problems.push(("ddata".to_owned(), error.to_string()));
        }
        #[cfg(feature = "persistence")]
        {
            for checked in [self.persistence.validate(), self.durable_state.validate()] {
                let problem = checked.err().map(|error| refused_by(&error));
                // A setting that event-sourced entities and those with a durable state share is reported once.
                problems.extend(problem.filter(|problem| !problems.contains(problem)));
            }
            let projection = self.projection.validate(&self.query).err();
            problems.extend(projection.map(|error| refused_of_projection(&error)));
            problems.extend(self.journal.problems());
        }
        #[cfg(feature = "sharding")]
        if let Err(error) = self.sharding.validate() {
            // The recovery permits are shared by all entity types, so their keys belong to persistence.
            let of_node = ["max_concurrent_recoveries", "permit_wait_warn"].contains(&error.key);
            let section = if of_node { "persistence" } else { "sharding" };
            problems.push((format!("{section}.{}", error.key), format!("{}: {}", error.value, error.reason)));
        }
        #[cfg(feature = "delivery")]
        if let Err(error) = self.delivery.validate() {
            problems.push((format!("delivery.{}", error.field), error.why.to_owned()));
        }
        #[cfg(feature = "management")]
        for error in self.management.validate().err().into_iter().flat_map(|errors| errors.0) {
            problems.push((error.setting.to_owned(), format!("{}: {}", error.value, error.why)));
        }
        #[cfg(not(any(feature = "ddata", feature = "persistence", feature = "management")))]
        let _ = problems;
    }
}
