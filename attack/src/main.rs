//! A real three-node cluster with the storefront's load, attacked for minutes.
//!
//! The program starts the storefront (three node processes and the storefront's own node), measures it unattacked for
//! a while, and then attacks it until all purchases are made: by non-members that speak the wire protocol (every
//! message of every layer with each field at its boundary values, floods of node names, half frames, frames
//! that grow when decoded, readers that never read), at the admin ports, and by a malicious member. It reports what was
//! refused and counted, how long heartbeats took before and during the attack, and how much memory each node has.
//! `cargo xtask attack` runs it.
//!
//! Source: cluster T17, T21, scenarios 77 to 80 and 82. See `docs/security.md`.

mod admin;
mod member;
mod probe;
mod raw;
mod report;
mod schema;
mod shop;
mod stranger;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use greylag_testkit::certificates::Authority;
use greylag_transport::{Tls, TlsSettings};
use tokio::runtime::{Handle, Runtime};
use tokio::task::JoinSet;

use report::{Report, say};

/// Any error; ends the run and is printed.
type Failure = Box<dyn std::error::Error + Send + Sync>;

#[derive(Parser)]
#[command(name = "greylag-attack", about = "Attacks a storefront under load and reports what came of it")]
struct Arguments {
    /// How long the purchases last, attacked for all but the first tenth of it.
    #[arg(long, default_value_t = 600)]
    seconds: u64,
    /// The nodes speak TLS, and so do the attackers, by certificates of the same authority.
    #[arg(long)]
    tls: bool,
    /// Judges nothing that depends on how fast the machine is: heartbeat times and memory are reported only.
    #[arg(long)]
    lenient: bool,
    /// How many purchases.
    #[arg(long, default_value_t = 70_000)]
    purchases: usize,
    /// The storefront's program. Default: beside this one.
    #[arg(long)]
    storefront: Option<PathBuf>,
}

/// Certificates for the nodes and the attackers; the files are deleted when this value is dropped.
pub(crate) struct Secrets {
    _authority: Authority,
    pub(crate) files: TlsSettings,
}

impl Secrets {
    fn new() -> Self {
        let authority = Authority::new();
        let files = authority.sign("node", &["127.0.0.1"]);
        Self { files: TlsSettings::new(files.key, files.cert, files.ca), _authority: authority }
    }
}

/// The TLS setting for connections to the nodes.
pub(crate) fn tls_of(secrets: Option<&Arc<Secrets>>) -> Tls {
    secrets.map_or(Tls::LoopbackOnly, |secrets| Tls::Files(secrets.files.clone()))
}

/// The attacking tasks, and the runtime on whose threads they run.
pub(crate) struct Attackers {
    tasks: JoinSet<()>,
    runtime: Handle,
}

impl Attackers {
    pub(crate) fn spawn(&mut self, attack: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn_on(attack, &self.runtime);
    }
}

/// A runtime whose threads get only the processor time that the nodes leave: real attackers have their own machines, so
/// the run measures what an attack costs its victims, not what it costs to attack.
fn elsewhere() -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("attacker")
        .on_thread_start(|| {
            if let Err(error) = step_aside() {
                say(&format!("an attacker runs at the nodes' own priority: {error}"));
            }
        })
        .enable_all()
        .build()
}

/// Gives the calling thread the scheduling policy `SCHED_IDLE`, under which a node that wakes takes the processor at
/// once. The lowest nice value is not enough: the node would wait for the end of the attacker's time slice, which is
/// three milliseconds on a quiet machine and more than a heartbeat takes. `chrt` comes with util-linux.
fn step_aside() -> std::io::Result<()> {
    let thread = rustix::thread::gettid().as_raw_nonzero().to_string();
    let status = std::process::Command::new("chrt").args(["--idle", "--pid", "0", &thread]).status()?;
    if status.success() { Ok(()) } else { Err(std::io::Error::other(format!("chrt: {status}"))) }
}

#[tokio::main]
async fn main() -> ExitCode {
    match attack(&Arguments::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            say(&format!("attack: {failure}"));
            ExitCode::FAILURE
        }
    }
}

async fn attack(arguments: &Arguments) -> Result<(), Failure> {
    let secrets = arguments.tls.then(|| Arc::new(Secrets::new()));
    let beside = std::env::current_exe()?.with_file_name("storefront");
    let program = arguments.storefront.clone().unwrap_or(beside);
    let stock = shop::Purchases::read(arguments.purchases)?;
    let mut shop = shop::Shop::open(&program, secrets.as_ref(), &stock, arguments.seconds).await?;
    let quiet = Duration::from_secs((arguments.seconds / 10).max(3));
    say(&format!("{} nodes, quiet for {} s", shop.nodes.len(), quiet.as_secs()));
    let probes = probe::Probes::start(&shop.nodes, secrets.as_ref()).await?;
    let memory = report::Memory::watch(&shop.nodes);
    tokio::time::sleep(quiet).await;
    probes.attack_begins();
    memory.attack_begins();
    say("the attack begins");
    let member = member::Member::join(&shop.nodes, secrets.as_ref()).await?;
    let tally = Arc::new(stranger::Tally::default());
    let elsewhere = elsewhere()?;
    let mut attackers = Attackers { tasks: JoinSet::new(), runtime: elsewhere.handle().clone() };
    for (number, node) in shop.nodes.iter().enumerate() {
        stranger::start(&mut attackers, number, node, secrets.as_ref(), &tally);
        admin::start(&mut attackers, node, &tally);
    }
    member.misbehave(&mut attackers, &tally);
    let outcome = shop.end(Duration::from_secs(arguments.seconds * 3 + 120)).await;
    let said = Report { probes: probes.results(), memory: memory.results(), tally, accusations: member.accusations() };
    attackers.tasks.abort_all();
    elsewhere.shutdown_background();
    said.tell(&shop);
    said.judge(&outcome?, arguments.lenient)
}
