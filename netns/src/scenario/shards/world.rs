//! A cluster with entities and clients, its journal, and the record files of its processes.

use std::time::Duration;

use greylag_testkit::postgres::{Postgres, USER};
use tempfile::TempDir;

use super::super::{TIMEOUT, removed};
use crate::judge::{self, Fault, Waits};
use crate::lab::{Failure, Lab};
use crate::process::{Node, STABLE_AFTER, Start};
use crate::record;
use crate::report::{At, Findings, NodeEvent};

/// Which process is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// The oldest node, where all coordinators run.
    Coordinator,
    /// The node that hosts the single shard of the types with one shard; not the oldest.
    Owner,
}

/// The kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Break {
    /// The process is killed.
    Kill,
    /// No packet reaches or leaves its host.
    Cut,
    /// The process is stopped (SIGSTOP).
    Pause,
}

/// How nodes are spread over hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    OwnHosts,
    OneHost,
}

/// The first port of the nodes that share one host.
const FIRST_PORT: u16 = 20_000;
/// The time without faults before the first fault, and at the end.
const SETTLE_TIME: Duration = Duration::from_secs(3);

/// The check of the waits after a fault.
type Promise = Box<dyn Fn(&Waits) -> Result<(), Failure>>;

/// A fault with its name in the table and the check of its waits.
struct NotedFault {
    name: String,
    fault: Fault,
    promise: Promise,
}

/// A cluster with entities. The order of the fields is that of dropping: processes, network, files, database.
pub(super) struct World {
    /// The living nodes, oldest first.
    pub(super) nodes: Vec<Node>,
    pub(super) lab: Lab,
    files: TempDir,
    database: String,
    layout: Layout,
    stable_after: Duration,
    /// Whether the clients already call the newcomers, which they do from the first fault on.
    asks_newcomers: bool,
    faults: Vec<NotedFault>,
    _server: Postgres,
}

impl World {
    /// A cluster of one node on each of `hosts` hosts. The node with the highest address is the oldest, since a single
    /// shard is allocated to the lowest.
    pub(super) fn on_hosts(hosts: usize, stable_after: Duration) -> Result<Self, Failure> {
        Self::new(Layout::OwnHosts, hosts, hosts, stable_after)
    }

    /// A cluster of `nodes` nodes on one host; the node with the highest port is the oldest.
    pub(super) fn on_one_host(nodes: usize) -> Result<Self, Failure> {
        Self::new(Layout::OneHost, 1, nodes, STABLE_AFTER)
    }

    fn new(layout: Layout, hosts: usize, nodes: usize, stable_after: Duration) -> Result<Self, Failure> {
        let server = Postgres::try_start(&["max_connections=300"]).map_err(|error| error.to_string())?;
        // A socket in the file system is reachable from every namespace.
        let (socket, port) = (server.socket_directory().display(), server.port());
        let database = format!("host={socket} port={port} user={USER} dbname=postgres");
        let files = tempfile::Builder::new().prefix("greylag-netns-").tempdir();
        let files = files.map_err(|error| format!("no directory for files: {error}"))?;
        let mut world = Self {
            nodes: Vec::new(),
            lab: Lab::new(hosts)?,
            files,
            database,
            layout,
            stable_after,
            asks_newcomers: false,
            faults: Vec::new(),
            _server: server,
        };
        for index in (0..nodes).rev() {
            world.add(index)?;
        }
        Ok(world)
    }

    /// Starts a node, and waits until all nodes see it Up.
    fn add(&mut self, index: usize) -> Result<(), Failure> {
        let own = match self.layout {
            Layout::OwnHosts => format!("{}:17355", Lab::address(index)),
            Layout::OneHost => format!("127.0.0.1:{}", Self::port(index)),
        };
        let seed = self.nodes.first().map_or(own, |node| node.name.clone());
        let start = match self.layout {
            Layout::OwnHosts => Start::on(&self.lab, index, &seed),
            Layout::OneHost => Start::beside(&self.lab, Self::port(index), &seed),
        };
        let start = start.stable_after(self.stable_after).entities(&self.database, self.files.path());
        self.nodes.push(start.spawn()?);
        let count = self.nodes.len();
        self.nodes.iter().try_for_each(|node| node.wait_up(count))
    }

    fn port(index: usize) -> u16 {
        FIRST_PORT + u16::try_from(index).unwrap_or_default()
    }

    /// Starts clients on every node, and waits until all are answered. Clients start once all regions are registered,
    /// so that a single shard is allocated to the lowest address.
    pub(super) fn warm_up(&mut self) -> Result<(), Failure> {
        let begun = At::now();
        self.order_all("go")?;
        self.wait_served(begun)?;
        std::thread::sleep(SETTLE_TIME);
        Ok(())
    }

    /// Breaks the node with this role, which leaves the list of living nodes, and lets the clients of all others call
    /// the newcomers as well. Returns the node and the time of the fault.
    pub(super) fn inject_fault(&mut self, role: Role, how: Break) -> Result<(Node, At), Failure> {
        let index = self.player(role)?;
        match how {
            Break::Kill => {
                self.nodes[index].kill()?;
            }
            Break::Pause => {
                self.nodes[index].pause()?;
            }
            Break::Cut => {
                let hosts = 0..self.nodes.len();
                let alone = Self::host(&self.nodes[index])?;
                self.lab.part(&[alone], &hosts.filter(|host| *host != alone).collect::<Vec<_>>())?;
            }
        }
        // Take the time after the fault is complete: the broken node answers no call that other nodes make later.
        let hit = At::now();
        let victim = self.nodes.remove(index);
        self.order_all(if self.asks_newcomers { "round" } else { "newcomers" })?;
        self.asks_newcomers = true;
        Ok((victim, hit))
    }

    /// The index of the node with this role among the living nodes.
    fn player(&self, role: Role) -> Result<usize, Failure> {
        let records = record::read(self.files.path())?;
        let host_of = |kind: &str| judge::host_of(&records, kind, At::now());
        let (owner, other, oldest) = (host_of("one-ddata/")?, host_of("one-persistence/")?, self.nodes[0].pid());
        if owner != other || owner == oldest {
            return Err(format!("the single shards are in {owner} and {other}, the coordinators in {oldest}"));
        }
        match role {
            Role::Coordinator => Ok(0),
            Role::Owner => self.nodes.iter().position(|node| node.pid() == owner).ok_or("the owner is gone".into()),
        }
    }

    /// The index of the host on which this node runs alone.
    fn host(node: &Node) -> Result<usize, Failure> {
        let is_its = |host: &usize| node.name.starts_with(&format!("{}:", Lab::address(*host)));
        (0..usize::from(u8::MAX)).find(is_its).ok_or_else(|| format!("{} has no host of its own", node.name))
    }

    /// Waits until all living nodes have removed the node.
    pub(super) fn wait_removed(&self, victim: &Node, hit: At) -> Result<At, Failure> {
        self.latest("the removal", hit, removed(&victim.name))
    }

    /// Waits until every client on all living nodes has been answered.
    pub(super) fn wait_served(&self, since: At) -> Result<At, Failure> {
        self.latest("answers to all clients", since, |what| matches!(what, NodeEvent::Served { .. }))
    }

    /// Waits until every living node has written a wanted line; returns the time of the last one.
    fn latest(&self, what: &str, since: At, wanted: impl Fn(&NodeEvent) -> bool) -> Result<At, Failure> {
        let mut last = since;
        for node in &self.nodes {
            last = last.max(node.wait(what, since, TIMEOUT, &wanted)?);
        }
        Ok(last)
    }

    /// Starts another process with clients in place of a broken node, and waits until all clients are answered.
    pub(super) fn replace(&mut self, victim: &Node) -> Result<(), Failure> {
        self.add(Self::host(victim)?)?;
        let begun = At::now();
        let (new, others) = self.nodes.split_last_mut().ok_or("no node was added")?;
        new.order("go")?;
        others.iter_mut().try_for_each(|node| node.order("round"))?;
        self.wait_served(begun).map(drop)
    }

    /// Records a fault, and the check of the waits after it.
    pub(super) fn note_fault(
        &mut self,
        name: &str,
        at: At,
        victim: &Node,
        promise: impl Fn(&Waits) -> Result<(), Failure> + 'static,
    ) {
        let fault = Fault { at, victim: victim.pid() };
        self.faults.push(NotedFault { name: name.to_owned(), fault, promise: Box::new(promise) });
    }

    fn order_all(&mut self, order: &str) -> Result<(), Failure> {
        self.nodes.iter_mut().try_for_each(|node| node.order(order))
    }

    /// Runs the steps of a scenario, and checks the record files, which are kept after a failure.
    pub(super) fn judged(
        mut self,
        story: impl FnOnce(&mut Self, &mut Findings) -> Result<(), Failure>,
    ) -> Result<Findings, Failure> {
        let mut findings = Findings::default();
        let outcome = story(&mut self, &mut findings).and_then(|()| self.judge(&mut findings));
        match outcome {
            Ok(()) => Ok(findings),
            Err(failure) => {
                self.files.disable_cleanup(true);
                Err(format!("{failure} (what happened stands in {})", self.files.path().display()))
            }
        }
    }

    fn judge(&mut self, findings: &mut Findings) -> Result<(), Failure> {
        std::thread::sleep(SETTLE_TIME);
        let ending = At::now();
        self.order_all("stop")?;
        self.latest("the end of its clients", ending, |what| *what == NodeEvent::ClientsStopped)?;
        let surveyor = self.nodes.first_mut().ok_or("no node is left")?;
        surveyor.order("survey")?;
        surveyor.wait("the survey", ending, TIMEOUT, |what| *what == NodeEvent::Surveyed)?;
        let records = record::read(self.files.path())?;
        let (lives, checked) = match (judge::never_two_instances(&records), judge::linearizable(&records)) {
            (Ok(lives), Ok(checked)) => (lives, checked),
            (lives, checked) => {
                return Err([lives.err(), checked.err()].into_iter().flatten().collect::<Vec<_>>().join("; "));
            }
        };
        for NotedFault { name, fault, promise } in &self.faults {
            for waits in judge::report_waits(&records, *fault, name, findings) {
                promise(&waits)?;
            }
            judge::report_beside(&records, *fault, name, findings);
        }
        findings.add("instances, never two of an entity at a time", lives.to_string());
        let figures = format!("{} of {} entities", checked.operations, checked.keys);
        findings.add("writes and plain reads, linearizable", figures);
        Ok(())
    }
}
