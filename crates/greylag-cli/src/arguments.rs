//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use greylag_core::parse_duration;
use greylag_management::ClientTls;

use crate::failure::Failure;

/// Looks at a running Greylag cluster and, where its nodes allow it, changes it.
///
/// Each command but `journal` and `shards remove-internal-data` asks one node, the one that --address names, by its admin service. What you read is
/// that node's view of the cluster; during a partition another node may tell another story.
#[derive(Debug, Clone, Parser)]
#[command(name = "greylag", version, disable_help_subcommand = true, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXIT_CODES: &str = "\
Exit codes:
  0  done; for `health`, `journal health` and `journal verify`: nothing is amiss
  1  the node or the store refused, or failed
  2  the command line is invalid
  3  no admin service answers at the address, or the store cannot be opened
  4  not done within --timeout; it may still happen
  5  `health`, `journal health`: something is amiss; `journal verify`: something is damaged, or differs
  6  the two ends do not trust each other: certificate, authority, host, or TLS at one end only";

/// What every command takes.
#[derive(Debug, Clone, Args)]
pub(crate) struct Common {
    /// Where the admin service of the node to ask listens, as host:port: the node's setting
    /// management.address, not the address that its peers dial.
    #[arg(long, global = true, env = "GREYLAG_ADDRESS", value_name = "HOST:PORT")]
    pub(crate) address: Option<String>,
    #[command(flatten)]
    pub(crate) tls: Tls,
    /// Print JSON in place of a table: one object, or for `watch` one object a line.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// How long to wait for an answer, and with --wait for the end: 500ms, 10s, 2m.
    /// Default 10s, with --wait 2m.
    #[arg(long, global = true, value_name = "DURATION", value_parser = duration)]
    pub(crate) timeout: Option<Duration>,
}

/// For a node whose setting management.tls is on.
#[derive(Debug, Clone, Args)]
pub(crate) struct Tls {
    /// Call by TLS, and believe the authorities in this file (PEM), and no others.
    #[arg(long, global = true, env = "GREYLAG_TLS_CA", value_name = "FILE", help_heading = "TLS")]
    pub(crate) tls_ca: Option<PathBuf>,
    /// The certificate to show (PEM); with --tls-key. A node asks for one unless its setting
    /// management.tls_mutual is false.
    #[arg(long, global = true, env = "GREYLAG_TLS_CERT", value_name = "FILE", help_heading = "TLS")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The private key of that certificate (PEM).
    #[arg(long, global = true, env = "GREYLAG_TLS_KEY", value_name = "FILE", help_heading = "TLS")]
    pub(crate) tls_key: Option<PathBuf>,
    /// The name to find in the node's certificate, if not the host of --address: for a forwarded port.
    #[arg(long, global = true, env = "GREYLAG_TLS_HOST", value_name = "HOST", help_heading = "TLS")]
    pub(crate) tls_host: Option<String>,
}

impl Tls {
    /// What to believe and to show, if it is to be TLS at all.
    pub(crate) fn client_tls(self) -> Result<Option<ClientTls>, Failure> {
        let Some(ca) = self.tls_ca else {
            let given = [
                ("--tls-cert", self.tls_cert.is_some()),
                ("--tls-key", self.tls_key.is_some()),
                ("--tls-host", self.tls_host.is_some()),
            ];
            return match given.into_iter().find(|(_, is)| *is) {
                None => Ok(None),
                Some((option, _)) => Err(Failure::Usage(format!(
                    "{option} needs --tls-ca (or GREYLAG_TLS_CA), the file with the trusted authorities"
                ))),
            };
        };
        let tls = ClientTls { host: self.tls_host, ..ClientTls::new(ca) };
        match (self.tls_key, self.tls_cert) {
            (Some(key), Some(cert)) => Ok(Some(tls.with_identity(key, cert))),
            (None, None) => Ok(Some(tls)),
            _ => Err(Failure::Usage("--tls-cert and --tls-key go together; give both or neither".to_owned())),
        }
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).map_err(|error| error.to_string())
}

/// What to do.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Command {
    /// List the members: address, status, roles, age, version, and who finds whom unreachable.
    Members,
    /// Say whether the node and its cluster are well, and what stands in the way if not.
    ///
    /// Exits with 0 if nothing is amiss and with 5 otherwise, so that it can serve as a probe.
    Health,
    /// Show what the node's transport has counted since its start, dropped messages by reason.
    Counters,
    /// Follow what happens in the cluster, beginning with the members. Ends when the node does.
    Watch(Watch),
    /// Tell a node that is no member yet to join the cluster of these nodes.
    ///
    /// The addresses are those that nodes dial (the `ADDRESS` of `greylag members`). If the node's
    /// own address is the first of them, the node may found a new cluster when the others know of
    /// none: give every node the same list.
    Join(Join),
    /// Tell a member to leave in order: it hands over what it hosts, then ends.
    ///
    /// Any node may be asked about any member.
    Leave(Change),
    /// Declare a member dead, for good. You vouch that its process has ended.
    ///
    /// What it hosted starts elsewhere. If the process still runs and only the network is cut, two
    /// of everything may run; prefer `leave` for a node that answers, and end the process first
    /// for one that does not.
    Down(Change),
    /// Look at entity types: their regions, shards and entities. Nothing is started by looking.
    #[command(subcommand)]
    Shards(Shards),
    /// Show the node's producers of reliable delivery (links, demand, what is not confirmed, and for how long) and what its
    /// consumers have counted.
    Delivery,
    /// Look into a journal, prove it whole, move it to another backend, or serve it. Asks no node.
    ///
    /// A store is named by URL: `sled:/path/to/directory`, or `postgres://user@host/database?schema=name`
    /// (without `schema`: public).
    #[command(subcommand)]
    Journal(Journal),
    /// Prepare the whole cluster for its shutdown: no node joins, nothing is handed over any more.
    ///
    /// Stop the nodes once all members are ReadyForShutdown (--wait waits for it).
    PrepareForShutdown(Prepare),
}

/// `shards`.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Shards {
    /// List the entity types that the node has set up.
    Types,
    /// List the nodes that host a type, as its coordinator knows them.
    Regions(OfType),
    /// Show the shards of a type on all nodes, with their entities by state.
    ///
    /// Shards and regions that do not answer within --timeout are named; the rest is shown.
    Stats(OfType),
    /// List the live entities that one node hosts, at most 10,000 at a time.
    Entities(Entities),
    /// Say to which shard and node messages for an entity go, as far as the node knows. Asks no other node.
    Location(Location),
    /// Remove what the coordinators of types keep in a journal: homes of shards, and, with --remembered, the ids of
    /// remembered entities. Asks no node.
    ///
    /// Stop all nodes of the cluster first. A type whose coordinator wrote within the last minute is refused, unless
    /// --force is given. Entities keep their own events. Ends at the first type that fails; doing it again is harmless.
    RemoveInternalData(RemoveInternalData),
}

/// `shards regions` and `shards stats`.
#[derive(Debug, Clone, Args)]
pub(crate) struct OfType {
    /// The entity type.
    #[arg(value_name = "TYPE")]
    pub(crate) entity_type: String,
}

/// `shards entities`.
#[derive(Debug, Clone, Args)]
pub(crate) struct Entities {
    /// The entity type.
    #[arg(value_name = "TYPE")]
    pub(crate) entity_type: String,
    /// The node whose entities are listed, as host:port or host:port#uid. Default: the one that is asked.
    #[arg(long, value_name = "MEMBER")]
    pub(crate) region: Option<String>,
    /// Begin at this shard.
    #[arg(long, value_name = "SHARD")]
    pub(crate) shard: Option<String>,
    /// Begin behind this entity of --shard.
    #[arg(long, value_name = "ID", requires = "shard")]
    pub(crate) after: Option<String>,
    /// List all pages, one behind the other: with --json one object a line.
    #[arg(long)]
    pub(crate) all: bool,
}

/// `shards location`.
#[derive(Debug, Clone, Args)]
pub(crate) struct Location {
    /// The entity type.
    #[arg(value_name = "TYPE")]
    pub(crate) entity_type: String,
    /// The entity.
    #[arg(value_name = "ID")]
    pub(crate) entity: String,
}

/// `shards remove-internal-data`.
#[derive(Debug, Clone, Args)]
pub(crate) struct RemoveInternalData {
    /// The store, as for `journal`: sled:/path/to/directory, or postgres://user@host/database?schema=name.
    #[arg(long, value_name = "URL")]
    pub(crate) store: String,
    /// Remove the ids of remembered entities, too.
    #[arg(long)]
    pub(crate) remembered: bool,
    /// Do not look whether a coordinator wrote a moment ago.
    #[arg(long)]
    pub(crate) force: bool,
    /// Remove what earlier formats kept, too. There are none yet.
    #[arg(long)]
    pub(crate) legacy: bool,
    /// The entity types.
    #[arg(required = true, value_name = "TYPE")]
    pub(crate) types: Vec<String>,
}

/// `journal`.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Journal {
    /// Say how much a store holds, or everything about one id: head, snapshots, first and last event, state.
    Inspect(Inspect),
    /// Print the events of one id. Payloads in JSON or CBOR are printed as JSON, others in hexadecimal.
    Replay(Replay),
    /// Read everything and check it; with two stores, prove that they are equal, or name what differs.
    ///
    /// No other process may use the stores meanwhile. Exits with 5 if something is damaged or differs.
    Verify(Verify),
    /// Copy everything to another store: heads, events, snapshots, states, with numbers, times and writers.
    ///
    /// Goes on where an earlier run ended. No other process may use the stores meanwhile, nor the target before
    /// the copy is done. Each id is compared after it was copied. Offsets of projections are not copied.
    Copy(Copy),
    /// Serve an embedded journal to the processes of this machine, until SIGTERM or Ctrl-C.
    ///
    /// For several nodes on one machine; the nodes set persistence.journal = "service". It is one process and one disk:
    /// while it is away nothing is stored. Across machines use PostgreSQL.
    Serve(Serve),
    /// Ask a served journal how it is. Exits with 0 if nothing is amiss and with 5 otherwise, so that it can serve as a
    /// probe.
    Health(ServiceHealth),
}

/// `journal serve`.
#[derive(Debug, Clone, Args)]
pub(crate) struct Serve {
    /// The directory of the journal; made if it does not exist.
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) dir: PathBuf,
    /// Where to listen: the numeric address and the port; port 0 picks a free one. An address that others can reach
    /// needs --tls-ca, --tls-cert and --tls-key.
    #[arg(long, value_name = "IP:PORT")]
    pub(crate) listen: SocketAddr,
    /// Listen in plain text on an address that others can reach: every process that reaches the address may read and
    /// write everything.
    #[arg(long)]
    pub(crate) plain_text: bool,
}

/// `journal health`.
#[derive(Debug, Clone, Args)]
pub(crate) struct ServiceHealth {
    /// Where the journal is served.
    #[arg(value_name = "HOST:PORT")]
    pub(crate) address: String,
}

/// `journal inspect`.
#[derive(Debug, Clone, Args)]
pub(crate) struct Inspect {
    /// The store.
    #[arg(value_name = "URL")]
    pub(crate) store: String,
    /// Only this id, but everything about it.
    #[arg(value_name = "ID")]
    pub(crate) id: Option<String>,
    /// List so many ids, the first ones after --after.
    #[arg(long, value_name = "COUNT", default_value_t = 0, conflicts_with = "id")]
    pub(crate) ids: usize,
    /// List ids after this one.
    #[arg(long, value_name = "ID", requires = "ids")]
    pub(crate) after: Option<String>,
}

/// `journal replay`.
#[derive(Debug, Clone, Args)]
pub(crate) struct Replay {
    /// The store.
    #[arg(value_name = "URL")]
    pub(crate) store: String,
    /// The persistence id whose events are printed.
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    /// Number of the first event.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub(crate) from: u64,
    /// Number of the last event. Default: the last one there is.
    #[arg(long, value_name = "NUMBER")]
    pub(crate) to: Option<u64>,
    /// Print no more than this of a payload.
    #[arg(long, value_name = "COUNT", default_value_t = 4096)]
    pub(crate) payload_bytes: usize,
}

/// `journal verify`.
#[derive(Debug, Clone, Args)]
pub(crate) struct Verify {
    /// The store.
    #[arg(value_name = "URL")]
    pub(crate) first: String,
    /// What it must be equal to.
    #[arg(value_name = "URL")]
    pub(crate) second: Option<String>,
    /// End after so many differences.
    #[arg(long, value_name = "COUNT", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) differences: u32,
}

/// `journal copy`.
#[derive(Debug, Clone, Args)]
pub(crate) struct Copy {
    /// The source; it stays as it is.
    #[arg(value_name = "FROM")]
    pub(crate) from: String,
    /// The target: empty, or as an earlier run left it. Made if it does not exist.
    #[arg(value_name = "TO")]
    pub(crate) to: String,
}

/// `watch`.
#[derive(Debug, Clone, Args)]
pub(crate) struct Watch {
    /// End after so many events, the first one (the members) included.
    #[arg(long, value_name = "COUNT")]
    pub(crate) events: Option<u64>,
}

/// `join`.
#[derive(Debug, Clone, Args)]
pub(crate) struct Join {
    /// Members of the cluster to join.
    #[arg(required = true, value_name = "HOST:PORT")]
    pub(crate) addresses: Vec<String>,
    /// Wait until the node is Up, not only let in.
    #[arg(long)]
    pub(crate) wait: bool,
}

/// `leave` and `down`.
#[derive(Debug, Clone, Args)]
pub(crate) struct Change {
    /// The member: host:port for every incarnation there, host:port#uid for one.
    #[arg(value_name = "MEMBER")]
    pub(crate) member: String,
    /// Wait until it is removed.
    #[arg(long)]
    pub(crate) wait: bool,
}

/// `prepare-for-shutdown`.
#[derive(Debug, Clone, Args)]
pub(crate) struct Prepare {
    /// Wait until every member is ReadyForShutdown.
    #[arg(long)]
    pub(crate) wait: bool,
}

impl Command {
    fn waits(&self) -> bool {
        match self {
            Self::Join(join) => join.wait,
            Self::Leave(change) | Self::Down(change) => change.wait,
            Self::PrepareForShutdown(prepare) => prepare.wait,
            Self::Members
            | Self::Health
            | Self::Counters
            | Self::Watch(_)
            | Self::Shards(_)
            | Self::Delivery
            | Self::Journal(_) => false,
        }
    }
}

impl Cli {
    /// How long the whole command may take.
    pub(crate) fn limit(&self) -> Duration {
        let default = Duration::from_secs(if self.command.waits() { 120 } else { 10 });
        self.common.timeout.unwrap_or(default)
    }
}
