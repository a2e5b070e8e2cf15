//! Transcripts of the membership machines: a few nodes on a network without delay.
//!
//! Commands: `start NAME seeds=a,b smaller=leave host=h proof=off|on`, `join NAME seeds=a,b`, `leave NAME by=NAME`,
//! `down NAME by=NAME`, `prepare by=NAME`, `kill NAME`, `forge NAME at=NAME host=h` (a Join in the name of that
//! address), `pause NAME DURATION`, `advance DURATION`, `view NAME`. The output omits heartbeats, status gossip and
//! news of which members have seen the state; unit tests cover those.
//!
//! A transcript that begins with `manager NAME` drives one manager of a singleton (see `manager.rs`), one that begins
//! with `proxy NAME` one of its proxies (see `proxy.rs`).

#[path = "protocol/manager.rs"]
mod manager;
#[path = "protocol/proxy.rs"]
mod proxy;

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use greylag_cluster::{
    ClusterCore, ClusterEvent, ClusterSettings, Command, Effect, Input, MemberStatus, Message, OnForeignCluster,
    ProofOfDeath,
};
use greylag_core::{NodeAddress, Uid, UniqueAddress};
use greylag_testkit::deadlines::assert_moved;
use greylag_testkit::transcript::{self, Case};
use greylag_transport::{Destination, Holder, RejectCode};

struct World {
    base: Instant,
    now: Duration,
    /// The present process at each address.
    nodes: BTreeMap<NodeAddress, ClusterCore>,
    killed: Vec<UniqueAddress>,
    /// The host of each process; by default one per name.
    hosts: BTreeMap<UniqueAddress, String>,
    /// The policy of each node.
    proofs: BTreeMap<UniqueAddress, ProofOfDeath>,
    /// The holders that each node's transport was told.
    holders: BTreeMap<NodeAddress, Vec<Holder>>,
    queue: VecDeque<(UniqueAddress, Destination, Message)>,
    dials: VecDeque<(NodeAddress, UniqueAddress)>,
    started: u64,
    out: String,
    manager: Option<manager::Bench>,
    proxy: Option<proxy::Bench>,
}

impl World {
    fn new() -> Self {
        Self {
            base: Instant::now(),
            now: Duration::ZERO,
            nodes: BTreeMap::new(),
            killed: Vec::new(),
            hosts: BTreeMap::new(),
            proofs: BTreeMap::new(),
            holders: BTreeMap::new(),
            queue: VecDeque::new(),
            dials: VecDeque::new(),
            started: 0,
            out: String::new(),
            manager: None,
            proxy: None,
        }
    }

    fn run(&mut self, case: &Case<'_>) -> String {
        let name = case.positional(0).unwrap_or("");
        if case.command == "manager" {
            self.manager = Some(manager::Bench::new(case));
        }
        if let Some(manager) = &mut self.manager {
            return manager.run(case);
        }
        if case.command == "proxy" {
            self.proxy = Some(proxy::Bench::new(case));
        }
        if let Some(proxy) = &mut self.proxy {
            return proxy.run(case);
        }
        match case.command {
            "start" => {
                let seeds = case.arg("seeds").map(|seeds| seeds.split(',').map(address).collect());
                let on_foreign_cluster = match case.arg("smaller") {
                    Some("leave") => OnForeignCluster::LeaveIfSmaller,
                    _ => OnForeignCluster::Warn,
                };
                let seed_nodes = seeds.unwrap_or_default();
                let proof_of_death = match case.arg("proof") {
                    Some("off") => ProofOfDeath::Off,
                    Some("on") => ProofOfDeath::On,
                    _ => ProofOfDeath::Local,
                };
                let settings = ClusterSettings { proof_of_death, on_foreign_cluster, ..ClusterSettings::default() };
                self.start(name, case.arg("host").unwrap_or(name), ClusterSettings { seed_nodes, ..settings });
            }
            "prepare" => self.command(case.arg("by").unwrap(), Command::PrepareForFullShutdown),
            "pause" => self.pause(name, transcript::duration(case.positional(1).unwrap()).unwrap()),
            "join" => {
                let seeds = case.arg("seeds").unwrap().split(',').map(address).collect();
                self.command(name, Command::JoinSeeds(seeds));
            }
            "leave" => self.command(case.arg("by").unwrap(), Command::Leave(self.ua(name))),
            "down" => self.command(case.arg("by").unwrap(), Command::Down(self.named(name))),
            "kill" => self.kill(name),
            "forge" => self.forge(name, case.arg("at").unwrap(), case.arg("host")),

            "advance" => self.advance(transcript::duration(name).unwrap()),
            "view" => self.show_view(name),
            other => panic!("unknown command {other}"),
        }
        self.settle();
        std::mem::take(&mut self.out)
    }

    /// Parses a process: `b` is the present one at that address, `b#2` the second one that was started.
    fn named(&self, name: &str) -> UniqueAddress {
        match name.split_once('#') {
            Some((host, uid)) => UniqueAddress::new(address(host), Uid::new(uid.parse().unwrap()).unwrap()),
            None => self.ua(name),
        }
    }

    fn ua(&self, name: &str) -> UniqueAddress {
        self.nodes[&address(name)].node().clone()
    }

    fn start(&mut self, name: &str, host: &str, settings: ClusterSettings) {
        self.started += 1;
        let proof_of_death = settings.proof_of_death;
        let ua = UniqueAddress::new(address(name), Uid::new(self.started).unwrap());
        let core = ClusterCore::new(ua.clone(), settings, self.started, self.base + self.now).on_host(Some(host));
        self.hosts.insert(ua.clone(), host.to_owned());
        self.proofs.insert(ua, proof_of_death);
        self.nodes.insert(address(name), core);
    }

    /// Sends a Join in the name of an address where the sender does not run.
    fn forge(&mut self, name: &str, at: &str, host: Option<&str>) {
        let forger = UniqueAddress::new(address(name), Uid::new(666).unwrap());
        let message = Message::Join {
            roles: Vec::new(),
            app_version: greylag_cluster::AppVersion::default(),
            protocol: greylag_cluster::PROTOCOL,
            cluster_id: 0,
            data_center: "default".into(),
            host_id: host.map(Into::into),
        };
        let received_at = self.base + self.now;
        // As on a stream accepted before the member was known: no Hello is judged any more.
        self.input(&address(at), Input::Message { from: forger, message, received_at });
    }

    /// Whether the transport of this node carries messages of that process. If not, tells this node's machine so, and
    /// which process answers a dial. Source: cluster T15.
    fn hears(&mut self, node: &NodeAddress, from: &UniqueAddress) -> bool {
        let holders = self.holders.get(node).into_iter().flatten();
        let there: Vec<Holder> = holders.filter(|holder| holder.member.address() == from.address()).cloned().collect();
        if there.is_empty() || there.iter().any(|holder| holder.member == *from) {
            return true;
        }
        let host_id = self.hosts.get(from).cloned();
        if let Some(holder) = there.iter().find(|holder| !holder.replacers.include(host_id.as_deref())) {
            let (holder, detail) = (holder.member.clone(), holder.detail());
            self.input(node, Input::AddressHeld { holder: holder.clone(), claimant: from.clone() });
            let (address, code) = (node.clone(), RejectCode::NotReady);
            self.input(from.address(), Input::HelloRefused { address, code, holder: Some(holder), detail });
            return false;
        }
        self.ask_who(node, from.address());
        true
    }

    /// Makes the process that runs at the address answer the dial.
    fn ask_who(&mut self, node: &NodeAddress, there: &NodeAddress) {
        let answer = self.nodes.get(there).map(|core| core.node().clone());
        if let Some(peer) = answer {
            let host_id = self.hosts.get(&peer).map(|host| host.as_str().into());
            self.input(node, Input::DialOther { peer, host_id });
        }
    }

    fn kill(&mut self, name: &str) {
        let dead = self.ua(name);
        self.nodes.remove(dead.address());
        self.killed.push(dead.clone());
        for node in self.nodes.keys().cloned().collect::<Vec<_>>() {
            self.input(&node, Input::LinkLost(dead.clone()));
        }
    }

    /// Pauses a process while the others go on; messages sent to it meanwhile are lost.
    fn pause(&mut self, name: &str, by: Duration) {
        let paused = self.nodes.remove(&address(name)).unwrap();
        self.advance(by);
        self.nodes.insert(address(name), paused);
        self.input(&address(name), Input::Tick);
    }

    fn command(&mut self, name: &str, command: Command) {
        self.input(&address(name), Input::Command(command));
    }

    fn advance(&mut self, by: Duration) {
        let end = self.now + by;
        loop {
            self.settle();
            let next = self.nodes.iter().filter_map(|(node, core)| Some((core.next_deadline()?, node.clone()))).min();
            let Some((at, node)) = next.filter(|(at, _)| *at <= self.base + end) else { break };
            self.now = self.now.max(at - self.base);
            self.input(&node, Input::Tick);
            assert_moved("cluster core", self.base + self.now, self.nodes[&node].next_deadline());
        }
        self.now = end;
    }

    /// Delivers messages until none is under way.
    fn settle(&mut self) {
        loop {
            if let Some((from, to, message)) = self.queue.pop_front() {
                let at = to.address().clone();
                let reached = self.nodes.get(&at).map(|core| core.node().clone());
                let is_there =
                    reached.is_some_and(|ua| to == Destination::from(ua) || matches!(to, Destination::Address(_)));
                if is_there && self.hears(&at, &from) {
                    let received_at = self.base + self.now;
                    self.input(&at, Input::Message { from, message, received_at });
                }
            } else if let Some((from, peer)) = self.dials.pop_front() {
                let refused = self.killed.contains(&peer);
                self.input(&from, if refused { Input::DialRefused(peer) } else { Input::DialAnswered(peer) });
            } else {
                return;
            }
        }
    }

    fn input(&mut self, node: &NodeAddress, input: Input) {
        let now = self.base + self.now;
        let mut effects = Vec::new();
        let Some(core) = self.nodes.get_mut(node) else { return };
        core.handle(now, input, &mut effects);
        let ua = core.node().clone();
        for effect in effects {
            self.execute(&ua, effect);
        }
    }

    fn execute(&mut self, node: &UniqueAddress, effect: Effect) {
        let shown = match &effect {
            Effect::Send { to, message } => describe(message).map(|what| format!("-> {} {what}", to.address().host())),
            Effect::Publish(event) => event_text(event),
            Effect::Quarantine { peer, harmless } => Some(format!("quarantines {} harmless={harmless}", name(peer))),
            Effect::Dial(peer) => Some(format!("dials {}", name(peer))),
            Effect::AskWho(address) => Some(format!("asks who runs at {}", address.host())),
            Effect::StartExitingTasks => Some("hands over".to_owned()),
            Effect::Shutdown(reason) => Some(format!("ends: {reason}")),
            Effect::JoinFailed(error) => Some(format!("join failed: {error}")),
            Effect::AcquireLease => Some("asks for the lease".to_owned()),
            Effect::ReleaseLease => Some("gives the lease back".to_owned()),
            Effect::Dropped { from, reason } => Some(format!("drops what {} said: {reason}", name(from))),
            Effect::Log(_, text) if text.contains("let") && text.contains("join yet") => {
                Some("says what it waits for".to_owned())
            }
            Effect::View(_) | Effect::Holders(_) | Effect::ClusterId(_) | Effect::Joined | Effect::Log(..) => None,
            Effect::Ticked { .. } => None,
        };
        if let Some(shown) = shown {
            let _infallible = writeln!(self.out, "{:.2} {} {shown}", self.now.as_secs_f64(), node.address().host());
        }
        match effect {
            Effect::Send { to, message } => self.queue.push_back((node.clone(), to, message)),
            Effect::Dial(peer) => self.dials.push_back((node.address().clone(), peer)),
            Effect::AskWho(address) => self.ask_who(node.address(), &address),
            Effect::Holders(members) => {
                let settings = ClusterSettings { proof_of_death: self.proofs[node], ..ClusterSettings::default() };
                let holders = settings.holders(&members);
                self.holders.insert(node.address().clone(), holders);
            }
            Effect::StartExitingTasks => {
                self.input(node.address(), Input::Command(Command::ExitingTasksDone { clean: true }));
            }
            _ => {}
        }
    }

    fn show_view(&mut self, name: &str) {
        for member in &self.nodes[&address(name)].view().members {
            let number = if member.up_number == u32::MAX { "-".to_owned() } else { member.up_number.to_string() };
            let _infallible = writeln!(self.out, "{} {} {number}", self::name(&member.address), member.status);
        }
    }
}

fn address(name: &str) -> NodeAddress {
    NodeAddress::new(name, 1).unwrap()
}

fn name(ua: &UniqueAddress) -> String {
    format!("{}#{}", ua.address().host(), ua.uid())
}

fn describe(message: &Message) -> Option<String> {
    Some(match message {
        Message::GossipStatus { .. } | Message::Heartbeat { .. } | Message::HeartbeatRsp { .. } => return None,
        Message::GossipEnvelope { gossip, .. } | Message::Welcome { gossip, .. } => {
            let member = |m: &greylag_cluster::Member| {
                format!("{}:{}{}", name(&m.address), m.status, if m.dead { "!" } else { "" })
            };
            let members: Vec<String> = gossip.members.values().map(member).collect();
            let seen: Vec<&str> = gossip.seen.iter().map(|ua| ua.address().host()).collect();
            let kind = if matches!(message, Message::Welcome { .. }) { "Welcome" } else { "Gossip" };
            format!("{kind} {} seen {}", members.join(" "), seen.join(","))
        }
        Message::JoinRejected { reason } => format!("JoinRejected: {reason}"),
        Message::ExitingConfirmed { clean } => format!("ExitingConfirmed clean={clean}"),
        Message::IslandProbe { asked, .. } => format!("IslandProbe size={}", asked.size),
        Message::IslandProbeAnswer { asked, own, .. } => {
            format!("IslandProbeAnswer asked={} own={}", asked.size, own.size)
        }
        other => other.manifest().to_owned(),
    })
}

fn event_text(event: &ClusterEvent) -> Option<String> {
    Some(match event {
        ClusterEvent::MemberRemoved { member, previous_status, clean } => {
            format!("* {} removed from {previous_status} clean={clean}", name(&member.address))
        }
        ClusterEvent::MemberJoined(m)
        | ClusterEvent::MemberUp(m)
        | ClusterEvent::MemberLeft(m)
        | ClusterEvent::MemberExited(m)
        | ClusterEvent::MemberDowned(m)
        | ClusterEvent::MemberPreparingForShutdown(m)
        | ClusterEvent::MemberReadyForShutdown(m)
        | ClusterEvent::MemberWeaklyUp(m) => {
            debug_assert!(MemberStatus::ALL.contains(&m.status));
            format!("* {} {}", name(&m.address), m.status)
        }
        ClusterEvent::UnreachableMember(m) => format!("* {} unreachable", name(&m.address)),
        ClusterEvent::ReachableMember(m) => format!("* {} reachable", name(&m.address)),
        ClusterEvent::LeaderChanged(Some(leader)) => format!("* leader {}", name(leader)),
        ClusterEvent::SelfDowned => "* SelfDowned".to_owned(),
        ClusterEvent::SelfSuspect => "* SelfSuspect".to_owned(),
        ClusterEvent::SelfTrusted => "* SelfTrusted".to_owned(),
        ClusterEvent::LocalPause(by) => format!("* stood still for {:.2} s", by.as_secs_f64()),
        ClusterEvent::ForeignClusterDetected { size, .. } => format!("* another cluster, size {size:?}"),
        ClusterEvent::AddressHeld { holder, claimant } => {
            format!("* {} is held, {} waits", name(holder), name(claimant))
        }
        ClusterEvent::ProvenDead { member, how } => format!("* {} proven dead: {how:?}", name(member)),
        _ => return None,
    })
}

#[test]
fn transcripts() {
    transcript::run_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/protocol"), || {
        let mut world = World::new();
        move |case: &Case<'_>| world.run(case)
    });
}
