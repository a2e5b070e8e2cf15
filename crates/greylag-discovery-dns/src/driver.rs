//! DNS look-ups.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use greylag_cluster::{BoxFuture, Discovery, DiscoveryError};
use greylag_core::NodeAddress;
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError, NoRecords};
use hickory_resolver::proto::op::ResponseCode;
use hickory_resolver::proto::rr::{Name, RData, RecordType};

/// How long one query to one server may take.
const TIMEOUT: Duration = Duration::from_secs(2);
/// How often a query is sent before the server counts as silent.
const ATTEMPTS: usize = 2;

/// The records to look up.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Wanted {
    Addresses { port: u16 },
    Service,
}

/// Discovery by DNS.
#[derive(Clone)]
pub struct DnsDiscovery {
    name: Name,
    wanted: Wanted,
    resolver: TokioResolver,
}

/// Why discovery by DNS cannot be set up. No look-up was made.
#[derive(thiserror::Error)]
pub enum InvalidName {
    /// The name is invalid.
    #[error("{name:?} is no name to look up: {why}")]
    Name {
        /// The name as given.
        name: String,
        /// Description of the error.
        why: String,
    },
    /// The system's name servers cannot be read.
    #[error("the system's name servers are not known: {0}")]
    System(#[source] Box<dyn std::error::Error + Send + Sync>),
}

greylag_core::debug_is_sentence!(InvalidName);

impl DnsDiscovery {
    /// Finds nodes by address: every IPv4 and IPv6 address of `name` is a node that listens on `port`. Queries the
    /// system's name servers.
    ///
    /// # Errors
    /// [`InvalidName`].
    pub fn addresses(name: &str, port: u16) -> Result<Self, InvalidName> {
        let builder = TokioResolver::builder_tokio().map_err(|error| InvalidName::System(error.into()))?;
        let (mut builder, wanted) = (builder, Wanted::Addresses { port });
        tune(builder.options_mut());
        let resolver = builder.build().map_err(|error| InvalidName::System(error.into()))?;
        Ok(Self { name: parse(name)?, wanted, resolver })
    }

    /// Finds nodes by service: every target of the service `name`, such as `_greylag._tcp.bank.example`, is a node.
    /// Queries the system's name servers.
    ///
    /// # Errors
    /// [`InvalidName`].
    pub fn service(name: &str) -> Result<Self, InvalidName> {
        Ok(Self { wanted: Wanted::Service, ..Self::addresses(name, 0)? })
    }

    /// The same, but queries only this server.
    ///
    /// # Errors
    /// [`InvalidName::System`].
    pub fn asking(self, server: SocketAddr) -> Result<Self, InvalidName> {
        let mut connection = ConnectionConfig::udp();
        connection.port = server.port();
        let server = NameServerConfig::new(server.ip(), true, vec![connection]);
        let config = ResolverConfig::from_parts(None, Vec::new(), vec![server]);
        let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
        tune(builder.options_mut());
        let resolver = builder.build().map_err(|error| InvalidName::System(error.into()))?;
        Ok(Self { resolver, ..self })
    }

    /// The records of one type. An answer without records is an empty list; silence and failure are errors.
    async fn records(&self, of: RecordType) -> Result<Vec<RData>, DiscoveryError> {
        match self.resolver.lookup(self.name.clone(), of).await {
            Ok(found) => Ok(found.answers().iter().map(|record| record.data.clone()).collect()),
            Err(error) if is_answer(&error) => Ok(Vec::new()),
            Err(error) => Err(DiscoveryError { by: format!("{self:?}"), why: error.to_string() }),
        }
    }

    async fn look_up(&self) -> Result<Vec<NodeAddress>, DiscoveryError> {
        let (records, port) = match self.wanted {
            Wanted::Service => (self.records(RecordType::SRV).await?, 0),
            Wanted::Addresses { port } => {
                // Both record types are needed: half an answer would look like a change of the nodes.
                let mut records = self.records(RecordType::A).await?;
                records.extend(self.records(RecordType::AAAA).await?);
                (records, port)
            }
        };
        Ok(records.iter().filter_map(|record| self.node(record, port)).collect())
    }

    /// The node that a record names. A record that names none is logged and left out.
    fn node(&self, record: &RData, port: u16) -> Option<NodeAddress> {
        let node = match record {
            RData::A(ip) => NodeAddress::new(&ip.0.to_string(), port),
            RData::AAAA(ip) => NodeAddress::new(&ip.0.to_string(), port),
            RData::SRV(service) => {
                let target = service.target.to_string();
                NodeAddress::new(target.trim_end_matches('.'), service.port)
            }
            // An alias, whose target's records follow.
            _ => return None,
        };
        node.inspect_err(|error| tracing::warn!(discovery = ?self, %error, "a record names no node")).ok()
    }
}

fn parse(name: &str) -> Result<Name, InvalidName> {
    let invalid = |why: String| InvalidName::Name { name: name.to_owned(), why };
    if name.is_empty() {
        return Err(invalid("it is empty".to_owned()));
    }
    Name::from_utf8(name).map_err(|error| invalid(error.to_string()))
}

/// Makes the resolver cache nothing, since the records may change, and query servers only: a hosts file differs between
/// machines, and often names its own machine alone, so that a node would found a cluster of its own.
fn tune(options: &mut ResolverOpts) {
    options.use_hosts_file = ResolveHosts::Never;
    options.cache_size = 0;
    options.positive_max_ttl = Some(Duration::ZERO);
    options.negative_max_ttl = Some(Duration::ZERO);
    options.timeout = TIMEOUT;
    options.attempts = ATTEMPTS;
}

/// Whether the error is a server's answer that there are no records.
fn is_answer(error: &NetError) -> bool {
    let NetError::Dns(DnsError::NoRecordsFound(NoRecords { response_code, .. })) = error else { return false };
    matches!(response_code, ResponseCode::NXDomain | ResponseCode::NoError)
}

impl Discovery for DnsDiscovery {
    fn lookup(&self) -> BoxFuture<'_, Result<Vec<NodeAddress>, DiscoveryError>> {
        Box::pin(self.look_up())
    }
}

impl fmt::Debug for DnsDiscovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.wanted {
            Wanted::Addresses { port } => write!(f, "DNS (addresses of {}, port {port})", self.name),
            Wanted::Service => write!(f, "DNS (service {})", self.name),
        }
    }
}
