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
//! - [`DnsDiscovery::addresses`]: each A and AAAA record is a node at one port. Nodes must then be
//!   known by their IP address (`transport.canonical_host`), as they are by default.
//! - [`DnsDiscovery::service`]: each SRV record is a node: its target and port. Nodes must then be
//!   known by exactly that name.
//!
//! Discovery caches nothing, whatever the records' time to live: a cluster is founded on answers that
//! stay the same, and an answer from a cache would always do so. The machine's hosts file is not read. That there
//! are no nodes (`NXDOMAIN`, no record) is an answer; that the server is silent or fails is not.
//!
//! This crate knows nothing of how clusters are founded: that is `Cluster::bootstrap`'s.

mod driver;

pub use driver::{DnsDiscovery, InvalidName};
