//! Finds the nodes of a cluster by DNS.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use greylag_cluster::{BootstrapSettings, Cluster};
//! use greylag_discovery_dns::DnsDiscovery;
//!
//! # async fn join(cluster: Cluster) -> Result<(), Box<dyn std::error::Error>> {
//! // Every address of the name is a node that listens on this port.
//! let discovery = DnsDiscovery::addresses("nodes.bank.example", 17355)?;
//! // Five nodes start together: three of them must agree before a cluster is founded.
//! cluster.bootstrap(Arc::new(discovery), BootstrapSettings::new(3)).await?;
//! # Ok(())
//! # }
//! ```
//!
//! - [`DnsDiscovery::addresses`]: each A and AAAA record is a node, all with the same port. Nodes must then be known by
//!   their IP address (`transport.canonical_host`), as they are by default.
//! - [`DnsDiscovery::service`]: each SRV record is a node, with the record's target and port. Nodes must then be known
//!   by exactly that name.
//!
//! Discovery caches nothing, whatever the records' time to live: a cluster is founded when answers stay the same for a
//! while, and answers from a cache would always stay the same. The machine's hosts file is not read. "No nodes"
//! (`NXDOMAIN`, no record) is an answer; silence or failure of the server is an error.
//!
//! This crate does not found clusters: `Cluster::bootstrap` does.

mod driver;

pub use driver::{DnsDiscovery, InvalidName};
