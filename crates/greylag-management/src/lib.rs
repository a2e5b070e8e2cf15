//! A small admin service over gRPC. It shows members, health and events, and lets callers join, leave and down members
//! where a node allows it.
//!
//! **Off unless configured, read-only unless allowed.** A node listens only on
//! [`ManagementSettings::address`], if that is set, and refuses every change unless
//! [`ManagementSettings::allow_writes`] is set. The command line `greylag` uses the service; so can any gRPC client, by
//! `proto/management.proto`.
//!
//! ```
//! use std::sync::Arc;
//!
//! use greylag_cluster::{Cluster, ClusterSettings};
//! use greylag_core::Registry;
//! use greylag_management::{ManagementServer, ManagementSettings, connect, v1};
//! use greylag_transport::{GrpcTransport, TransportSettings};
//!
//! # #[tokio::main(flavor = "multi_thread", worker_threads = 2)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let transport = GrpcTransport::bind(TransportSettings::test(), Arc::new(Registry::new())).await?;
//! let cluster = Cluster::start(ClusterSettings::test(), transport.clone()).await?;
//! let settings = ManagementSettings::at("127.0.0.1:0");
//! let admin = ManagementServer::start(settings, cluster.clone(), transport.clone()).await?.expect("it is on");
//!
//! let mut client = connect(&admin.local_address().to_string())?;
//! assert!(!client.health(v1::HealthRequest {}).await?.into_inner().initialized);
//! cluster.join_self().await?;
//! assert_eq!(client.members(v1::MembersRequest {}).await?.into_inner().members.len(), 1);
//! let refused = client.down(v1::DownRequest { address: "127.0.0.1:1".to_owned() }).await.unwrap_err();
//! assert!(refused.message().contains("management.allow_writes"));
//!
//! cluster.shutdown().await;
//! admin.shutdown().await;
//! transport.shutdown().await;
//! # Ok(())
//! # }
//! ```
//!
//! # Who may call
//!
//! By default only callers on the same machine. The service does not start on an address that others can reach unless
//! [`ManagementSettings::tls`] was chosen: with [`Tls::Files`](greylag_transport::Tls::Files) it presents the
//! certificate in these files, reads the files again when they are replaced, and refuses callers without a certificate
//! of the same authorities. [`connect_tls`] calls such a service; [`DialError`] says why a connection failed.
//!
//! # How calls are refused
//!
//! | status | why |
//! |---|---|
//! | `PERMISSION_DENIED` | the node is read-only; the message names the setting |
//! | `INVALID_ARGUMENT` | an address that is none, or no address at all |
//! | `NOT_FOUND` | no member has that address, or the node does not know the entity type |
//! | `FAILED_PRECONDITION` | the node is a member already, or none, or the cluster refused it for good |
//! | `DEADLINE_EXCEEDED` | no seed node let this node in within its own limit, or a region does not answer |
//! | `UNAVAILABLE` | the node is ending |

#[cfg(feature = "server")]
mod admission;
mod client;
#[cfg(feature = "server")]
mod condition;
#[cfg(feature = "server")]
mod delivery;
mod dial;
#[cfg(feature = "server")]
mod driver;
#[cfg(feature = "server")]
mod error;
#[cfg(feature = "server")]
mod settings;
#[cfg(feature = "server")]
mod shards;
#[cfg(feature = "server")]
mod shown;
/// Messages and services of the wire format.
#[allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all, clippy::pedantic)]
pub mod v1 {
    include!("generated/greylag.management.v1.rs");
}
#[cfg(feature = "server")]
mod wire;

pub use client::{Client, ClientTls, ConnectError, connect, connect_tls};
#[cfg(feature = "server")]
pub use delivery::Delivery;
pub use dial::DialError;
#[cfg(feature = "server")]
pub use driver::server::ManagementServer;
#[cfg(feature = "server")]
pub use error::StartError;
pub use greylag_transport::HandshakeError;
#[cfg(feature = "server")]
pub use settings::ManagementSettings;
#[cfg(feature = "server")]
pub use shards::{Answering, Shards, ShardsError};
#[cfg(feature = "server")]
pub use shown::Shown;
