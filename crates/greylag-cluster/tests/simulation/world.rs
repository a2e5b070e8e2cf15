//! A world of membership machines and singleton managers on virtual time.
//!
//! The world plays the driver, the transport (incarnations, quarantine, lost links) and the host's kernel (dials), and
//! checks invariants after every step: no two instances of the singleton, no removed member that is back, no status
//! that goes backwards.

#[path = "leases.rs"]
pub(crate) mod leases;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use greylag_cluster::*;
use greylag_core::{NodeAddress, Uid, UniqueAddress};
use greylag_testkit::deadlines::assert_moved;
use greylag_testkit::network::{Happening, Link, Network, NodeId};
use greylag_transport::{Destination, Holder, QuarantineReason, RejectCode};
use rand::RngExt;

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const MS: Duration = Duration::from_millis(1);

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Packet {
    Core(Message),
    Singleton(SingletonMessage),
    Quarantined,
}

pub(crate) struct Process {
    pub(crate) address: UniqueAddress,
    pub(crate) core: ClusterCore,
    pub(crate) manager: SingletonManager,
    pub(crate) instance: bool,
    pub(crate) ended: Option<ShutdownReason>,
    pub(crate) events: Vec<(Duration, ClusterEvent)>,
    pub(crate) killed: bool,
    pending: Vec<(Instant, Local)>,
    grants: BTreeMap<leases::Of, u64>,
    /// The processes that said Hello, and the cluster that each named.
    met: BTreeMap<UniqueAddress, Option<u128>>,
    /// The host of the process; `None` if it cannot be known.
    host: Option<String>,
    /// The holders that this process's transport was told.
    holders: Vec<Holder>,
    /// The processes that answered this process's dials.
    answered: BTreeSet<UniqueAddress>,
    quarantined: BTreeMap<UniqueAddress, bool>,
    removed: BTreeSet<UniqueAddress>,
    statuses: BTreeMap<UniqueAddress, MemberStatus>,
}

#[derive(Debug, Clone)]
enum Local {
    Core(Input),
    InstanceEnded,
    ExitingTasksDone,
    LeaseAnswer(leases::Of, LeaseOutcome),
    LeaseReleased(leases::Of),
    /// The heartbeat of the grant with this number.
    Renew(leases::Of, u64),
}

enum LeaseEvent {
    Outcome(LeaseOutcome),
    Released,
    Lost,
}

pub(crate) struct World {
    pub(crate) net: Network<Packet>,
    pub(crate) processes: BTreeMap<NodeId, Process>,
    pub(crate) settings: ClusterSettings,
    /// Whether all processes run on one host, so that kills can be proven.
    pub(crate) one_host: bool,
    /// How long an instance takes to stop.
    pub(crate) stop_delay: Duration,
    pub(crate) most_instances: usize,
    /// Whether overlaps of instances are counted and not refused (for the exception of P7).
    pub(crate) tolerate_two: bool,
    pub(crate) leases: leases::Leases,
    /// Whether instances run only under the lease.
    pub(crate) use_lease: bool,
    grants: u64,
    at: BTreeMap<NodeAddress, NodeId>,
    base: Instant,
    next_uid: u64,
    seed: u64,
    steps_without_time: u32,
}

impl World {
    pub(crate) fn new(seed: u64, settings: ClusterSettings) -> Self {
        let link = Link { delay: (MS, 3 * MS), loss: 0.0, duplication: 0.0, reorder: false };
        Self {
            net: Network::new(seed, link),
            processes: BTreeMap::new(),
            settings,
            one_host: false,
            stop_delay: 20 * MS,
            most_instances: 0,
            tolerate_two: false,
            leases: leases::Leases::default(),
            use_lease: false,
            grants: 0,
            at: BTreeMap::new(),
            base: Instant::now(),
            next_uid: 0,
            seed,
            steps_without_time: 0,
        }
    }

    pub(crate) fn resolver(seed: u64) -> Self {
        Self::new(seed, ClusterSettings::default().with_resolver(SbrSettings::default()))
    }

    pub(crate) fn now(&self) -> Instant {
        self.base + self.net.now()
    }

    pub(crate) fn address(name: &str) -> NodeAddress {
        NodeAddress::new(name, 1).unwrap()
    }

    /// Starts a process at the address; a former one there must have ended.
    pub(crate) fn start(&mut self, name: &str) -> NodeId {
        self.start_with(name, &["worker"])
    }

    pub(crate) fn start_with(&mut self, name: &str, roles: &[&str]) -> NodeId {
        self.start_on(name, Some(name), roles)
    }

    /// Starts a process on a host that is not the name's own, or that is not known. A process that had the name
    /// elsewhere goes on, and is reached by messages addressed to it alone.
    pub(crate) fn start_on(&mut self, name: &str, host: Option<&str>, roles: &[&str]) -> NodeId {
        // Draw the uid, so that the order of uids does not follow that of starts.
        self.next_uid += 1;
        let uid = Uid::new((self.net.rng().random::<u64>() >> 16) + self.next_uid + 1).unwrap();
        let address = UniqueAddress::new(Self::address(name), uid);
        let settings = self.settings.clone().with_roles(roles.iter().copied());
        let id = self.net.add_node();
        let now = self.now();
        let mut core = ClusterCore::new(address.clone(), settings.clone(), self.seed ^ uid.get(), now).on_host(host);
        core.handle(now, Input::WallClock(1_000_000), &mut Vec::new());
        let singleton = SingletonSettings { use_lease: self.use_lease, ..SingletonSettings::default() };
        let singleton = singleton.with_role("worker");
        let mut manager = SingletonManager::new(address.clone(), &singleton, &settings);
        manager.handle(now, ManagerInput::View(core.view().clone()), &mut Vec::new());
        self.at.insert(address.address().clone(), id);
        self.processes.insert(
            id,
            Process {
                address,
                core,
                manager,
                instance: false,
                ended: None,
                events: Vec::new(),
                killed: false,
                pending: Vec::new(),
                grants: BTreeMap::new(),
                met: BTreeMap::new(),
                host: host.map(ToOwned::to_owned),
                holders: Vec::new(),
                answered: BTreeSet::new(),
                quarantined: BTreeMap::new(),
                removed: BTreeSet::new(),
                statuses: BTreeMap::new(),
            },
        );
        id
    }

    pub(crate) fn join(&mut self, id: NodeId, seeds: &[&str]) {
        let seeds = seeds.iter().map(|name| Self::address(name)).collect();
        self.command(id, Command::JoinSeeds(seeds));
    }

    pub(crate) fn command(&mut self, id: NodeId, command: Command) {
        self.input(id, Input::Command(command));
    }

    pub(crate) fn leave(&mut self, by: NodeId, target: NodeId) {
        let target = self.ua(target);
        self.command(by, Command::Leave(target));
    }

    pub(crate) fn down(&mut self, by: NodeId, target: NodeId) {
        let target = self.ua(target);
        self.command(by, Command::Down(target));
    }

    /// SIGKILL: ends a process without a message; the kernel closes its streams.
    pub(crate) fn kill(&mut self, id: NodeId) {
        let process = self.processes.get_mut(&id).unwrap();
        process.killed = true;
        process.instance = false;
        self.vanish(id);
    }

    fn vanish(&mut self, id: NodeId) {
        self.net.crash(id);
        let gone = self.ua(id);
        let at = self.now() + MS;
        let others: Vec<NodeId> = self.processes.keys().copied().filter(|other| *other != id).collect();
        for other in others {
            if !self.net.is_cut(id, other) && self.processes[&other].met.contains_key(&gone) {
                self.later(other, at, Local::Core(Input::LinkLost(gone.clone())));
            }
        }
    }

    fn later(&mut self, id: NodeId, at: Instant, local: Local) {
        if let Some(process) = self.processes.get_mut(&id) {
            process.pending.push((at, local));
        }
        self.schedule(id);
    }

    pub(crate) fn ua(&self, id: NodeId) -> UniqueAddress {
        self.processes[&id].address.clone()
    }

    pub(crate) fn view(&self, id: NodeId) -> &MembershipView {
        self.processes[&id].core.view()
    }

    pub(crate) fn alive(&self) -> Vec<NodeId> {
        self.processes.iter().filter(|(_, p)| p.ended.is_none() && !p.killed).map(|(id, _)| *id).collect()
    }

    pub(crate) fn host_of_singleton(&self) -> Option<NodeId> {
        self.processes.iter().find(|(_, process)| process.instance).map(|(id, _)| *id)
    }

    pub(crate) fn status(&self, of: NodeId, seen_by: NodeId) -> Option<MemberStatus> {
        self.view(seen_by).member(&self.ua(of)).map(|member| member.status)
    }

    pub(crate) fn has_event(&self, id: NodeId, wanted: impl Fn(&ClusterEvent) -> bool) -> bool {
        self.processes[&id].events.iter().any(|(_, event)| wanted(event))
    }

    /// The times at which the process published a wanted event, in order.
    pub(crate) fn times(&self, id: NodeId, wanted: impl Fn(&ClusterEvent) -> bool) -> Vec<Duration> {
        self.processes[&id].events.iter().filter(|(_, event)| wanted(event)).map(|(at, _)| *at).collect()
    }

    // --- running --------------------------------------------------------------------------------

    pub(crate) fn run_for(&mut self, duration: Duration) {
        let end = self.net.now() + duration;
        while self.net.now() < end {
            if !self.step(end) {
                return;
            }
        }
    }

    /// Runs until `wanted` returns true; returns how long that took.
    pub(crate) fn run_until(&mut self, limit: Duration, wanted: impl Fn(&Self) -> bool) -> Duration {
        let start = self.net.now();
        let end = start + limit;
        while !wanted(self) {
            if !self.step(end) {
                panic!("seed {}: not reached within {limit:?}:\n{}", self.seed, self.describe());
            }
        }
        self.net.now() - start
    }

    pub(crate) fn describe(&self) -> String {
        let mut text = String::new();
        for (id, process) in &self.processes {
            let view = process.core.view();
            let members: Vec<String> = view
                .members
                .iter()
                .map(|m| format!("{}:{:?}{}", m.address.address().host(), m.status, if m.dead { "!" } else { "" }))
                .collect();
            text.push_str(&format!(
                "{id:?} {} ended={:?} killed={} manager={:?} instance={} leader={:?} unreachable={:?} {members:?}\n",
                process.address,
                process.ended,
                process.killed,
                process.manager.state(),
                process.instance,
                view.leader,
                view.unreachable
            ));
            for (at, event) in process.events.iter().rev().take(6).rev() {
                text.push_str(&format!("    {at:?} {}\n", format!("{event:?}").chars().take(100).collect::<String>()));
            }
        }
        text
    }

    fn step(&mut self, end: Duration) -> bool {
        let before = self.net.now();
        let Some(happening) = self.net.step_until(end) else { return false };
        self.steps_without_time = if self.net.now() > before { 0 } else { self.steps_without_time + 1 };
        assert!(self.steps_without_time < 50_000, "seed {}: time stands still\n{}", self.seed, self.describe());
        match happening {
            Happening::Delivered { from, to, message, .. } => self.deliver(from, to, message),
            Happening::Woken { node } => self.wake(node),
        }
        self.check();
        true
    }

    fn wake(&mut self, id: NodeId) {
        let now = self.now();
        let Some(process) = self.processes.get_mut(&id) else { return };
        let (due, rest): (Vec<_>, Vec<_>) =
            std::mem::take(&mut process.pending).into_iter().partition(|(at, _)| *at <= now);
        process.pending = rest;
        // Deadlines before other inputs, as in the driver.
        self.input(id, Input::Tick);
        self.manage(id, ManagerInput::Tick);
        for (_, local) in due {
            match local {
                Local::Core(input) => self.input(id, input),
                Local::InstanceEnded => {
                    self.processes.get_mut(&id).unwrap().instance = false;
                    self.manage(id, ManagerInput::InstanceEnded);
                    if self.processes[&id].ended.is_some() {
                        self.vanish(id);
                    }
                }
                Local::LeaseAnswer(of, outcome) => {
                    if outcome == LeaseOutcome::Granted {
                        self.grants += 1;
                        self.processes.get_mut(&id).unwrap().grants.insert(of, self.grants);
                        self.later(id, now + leases::HEARTBEAT, Local::Renew(of, self.grants));
                    }
                    self.tell_of_lease(id, of, LeaseEvent::Outcome(outcome));
                }
                Local::LeaseReleased(of) => self.tell_of_lease(id, of, LeaseEvent::Released),
                Local::Renew(of, grant) if self.processes[&id].grants.get(&of) == Some(&grant) => {
                    let by = self.ua(id);
                    if self.leases.renew(of, &by, now) {
                        self.later(id, now + leases::HEARTBEAT, Local::Renew(of, grant));
                    } else {
                        self.processes.get_mut(&id).unwrap().grants.remove(&of);
                        self.tell_of_lease(id, of, LeaseEvent::Lost);
                    }
                }
                Local::Renew(..) => {}
                Local::ExitingTasksDone => self.command(id, Command::ExitingTasksDone { clean: true }),
            }
        }
        self.schedule(id);
    }

    fn deliver(&mut self, from: NodeId, to: NodeId, packet: Packet) {
        let sender = self.ua(from);
        let now = self.now();
        // A process says Hello again once it knows its cluster.
        let cluster_id = Some(self.processes[&from].core.gossip().cluster_id).filter(|id| *id != 0);
        if !self.hears(to, from) {
            return;
        }
        let Some(process) = self.processes.get_mut(&to) else { return };
        if process.met.insert(sender.clone(), cluster_id) != Some(cluster_id) {
            self.input(to, Input::PeerHandshake { peer: sender.clone(), cluster_id });
        }
        match self.processes[&to].quarantined.get(&sender) {
            Some(true) => return,
            Some(false) => {
                // Send the notice, except in answer to a notice.
                if packet != Packet::Quarantined {
                    self.net.send(to, from, 0, Packet::Quarantined);
                }
                return;
            }
            None => {}
        }
        match packet {
            Packet::Core(message) => self.input(to, Input::Message { from: sender, message, received_at: now }),
            Packet::Singleton(message) => self.manage(to, ManagerInput::Message(message)),
            Packet::Quarantined => {
                let reason = QuarantineReason::RemovedFromMembership;
                self.input(to, Input::ThisNodeQuarantined { by: sender, reason });
            }
        }
        self.schedule(to);
    }

    /// Whether the transport of `to` carries messages of `from`: not if a member holds the address of `from` that
    /// `from` cannot have replaced. If it can have, the address is dialled. Source: cluster T15.
    fn hears(&mut self, to: NodeId, from: NodeId) -> bool {
        let (sender, host) = (self.ua(from), self.processes[&from].host.clone());
        let there = |holder: &&Holder| holder.member.address() == sender.address();
        let there: Vec<Holder> = self.processes[&to].holders.iter().filter(there).cloned().collect();
        if there.is_empty() || there.iter().any(|holder| holder.member == sender) {
            return true;
        }
        if let Some(holder) = there.iter().find(|holder| !holder.replacers.include(host.as_deref())) {
            let (holder, detail) = (holder.member.clone(), holder.detail());
            self.input(to, Input::AddressHeld { holder: holder.clone(), claimant: sender });
            let (address, code) = (self.ua(to).address().clone(), RejectCode::NotReady);
            self.later(
                from,
                self.now() + MS,
                Local::Core(Input::HelloRefused { address, code, holder: Some(holder), detail }),
            );
            return false;
        }
        if !self.processes[&to].answered.contains(&sender) {
            self.ask_who(to, sender.address());
        }
        true
    }

    /// Makes the process at the address answer the dial, if both ways are open.
    fn ask_who(&mut self, id: NodeId, there: &NodeAddress) {
        let Some(found) = self.at.get(there).copied() else { return };
        if self.net.is_crashed(found) || self.net.is_cut(id, found) || self.net.is_cut(found, id) {
            return;
        }
        let (peer, host) = (self.ua(found), self.processes[&found].host.clone());
        self.processes.get_mut(&id).unwrap().answered.insert(peer.clone());
        self.later(
            id,
            self.now() + MS,
            Local::Core(Input::DialOther { peer, host_id: host.as_deref().map(Into::into) }),
        );
    }

    pub(crate) fn input(&mut self, id: NodeId, input: Input) {
        let now = self.now();
        let mut effects = Vec::new();
        let ticks = matches!(input, Input::Tick);
        self.processes.get_mut(&id).unwrap().core.handle(now, input, &mut effects);
        if ticks {
            assert_moved("cluster core", now, self.processes[&id].core.next_deadline());
        }
        for effect in effects {
            self.execute(id, effect);
        }
        self.schedule(id);
    }

    fn manage(&mut self, id: NodeId, input: ManagerInput) {
        let now = self.now();
        let mut effects = Vec::new();
        let ticks = matches!(input, ManagerInput::Tick);
        self.processes.get_mut(&id).unwrap().manager.handle(now, input, &mut effects);
        if ticks {
            assert_moved("singleton manager", now, self.processes[&id].manager.next_deadline());
        }
        for effect in effects {
            match effect {
                ManagerEffect::Send(message) => {
                    let to = message.to.address().clone();
                    self.send(id, &to.into(), Packet::Singleton(message));
                }
                ManagerEffect::StartInstance { .. } => self.processes.get_mut(&id).unwrap().instance = true,
                ManagerEffect::StopInstance => self.later(id, now + self.stop_delay, Local::InstanceEnded),
                ManagerEffect::AcquireLease => self.acquire(id, leases::Of::Singleton),
                ManagerEffect::ReleaseLease => self.release(id, leases::Of::Singleton),
                ManagerEffect::ExitingDone => self.later(id, now + MS, Local::ExitingTasksDone),
                ManagerEffect::CloseMailbox | ManagerEffect::Stuck => {}
            }
        }
        self.check();
    }

    fn tell_of_lease(&mut self, id: NodeId, of: leases::Of, event: LeaseEvent) {
        match (of, event) {
            (leases::Of::Singleton, LeaseEvent::Outcome(outcome)) => {
                self.manage(id, ManagerInput::LeaseResult(outcome));
            }
            (leases::Of::Singleton, LeaseEvent::Released) => self.manage(id, ManagerInput::LeaseReleased),
            (leases::Of::Singleton, LeaseEvent::Lost) => self.manage(id, ManagerInput::LeaseLost),
            (leases::Of::Resolver, LeaseEvent::Outcome(outcome)) => self.input(id, Input::LeaseResult(outcome)),
            (leases::Of::Resolver, LeaseEvent::Released) => {}
            (leases::Of::Resolver, LeaseEvent::Lost) => self.input(id, Input::LeaseLost),
        }
    }

    fn acquire(&mut self, id: NodeId, of: leases::Of) {
        let (by, now) = (self.ua(id), self.now());
        let outcome = self.leases.acquire(of, &by, now);
        self.later(id, now + 5 * MS, Local::LeaseAnswer(of, outcome));
    }

    fn release(&mut self, id: NodeId, of: leases::Of) {
        let (by, now) = (self.ua(id), self.now());
        // The instance under a lease must have ended before the lease is released.
        let running = self.processes[&id].instance;
        assert!(of != leases::Of::Singleton || !running, "seed {}: a lease without its instance", self.seed);
        self.leases.release(of, &by);
        self.processes.get_mut(&id).unwrap().grants.remove(&of);
        self.later(id, now + 5 * MS, Local::LeaseReleased(of));
    }

    fn execute(&mut self, id: NodeId, effect: Effect) {
        let now = self.now();
        match effect {
            Effect::Send { to, message } => self.send(id, &to, Packet::Core(message)),
            Effect::View(view) => self.manage(id, ManagerInput::View(view)),
            Effect::Publish(event) => {
                let at = self.net.now();
                let process = self.processes.get_mut(&id).unwrap();
                process.events.push((at, event.clone()));
                match event {
                    ClusterEvent::SelfDowned | ClusterEvent::ClusterShuttingDown => {
                        self.manage(id, ManagerInput::SelfDowned);
                    }
                    ClusterEvent::LocalPause(_) => self.manage(id, ManagerInput::LocalPause),
                    // A clean removal means that nothing of the member can run any more (cluster M26, S20).
                    ClusterEvent::MemberRemoved { member, clean: true, .. } if !self.tolerate_two => {
                        let runs = |process: &Process| process.address == member.address && process.instance;
                        let runs = self.processes.values().any(runs);
                        assert!(!runs, "seed {}: {} was removed clean and hosts on", self.seed, member.address);
                    }
                    _ => {}
                }
            }
            Effect::Quarantine { peer, harmless } => {
                self.processes.get_mut(&id).unwrap().quarantined.insert(peer, harmless);
            }
            Effect::AcquireLease => self.acquire(id, leases::Of::Resolver),
            Effect::ReleaseLease => self.release(id, leases::Of::Resolver),
            Effect::Dial(peer) => {
                let (after, input) = self.dial(id, peer);
                self.later(id, now + after, Local::Core(input));
            }
            Effect::AskWho(address) => self.ask_who(id, &address),
            Effect::Holders(members) => {
                let holders = self.settings.holders(&members);
                self.processes.get_mut(&id).unwrap().holders = holders;
            }
            Effect::StartExitingTasks => self.manage(id, ManagerInput::ExitingPhase),
            Effect::Shutdown(reason) => {
                let process = self.processes.get_mut(&id).unwrap();
                process.ended = Some(reason);
                if !process.instance {
                    self.vanish(id);
                }
            }
            Effect::Ticked { .. }
            | Effect::ClusterId(_)
            | Effect::Joined
            | Effect::JoinFailed(_)
            | Effect::Dropped { .. }
            | Effect::Log(..) => {}
        }
    }

    /// The result of a dial by the kernel of the host.
    fn dial(&self, from: NodeId, peer: UniqueAddress) -> (Duration, Input) {
        let now_there = self.at.get(peer.address()).copied();
        let Some(id) = now_there.filter(|id| self.processes[id].address == peer && self.one_host) else {
            return (MS, Input::DialFailed(peer));
        };
        if self.net.is_cut(from, id) || self.net.is_cut(id, from) {
            return (SECOND, Input::DialFailed(peer));
        }
        if self.net.is_crashed(id) { (MS, Input::DialRefused(peer)) } else { (MS, Input::DialAnswered(peer)) }
    }

    fn send(&mut self, from: NodeId, to: &Destination, packet: Packet) {
        // An open stream leads to its process, whichever process has the name now.
        let known =
            |ua: &UniqueAddress| self.processes.iter().find(|(_, process)| process.address == *ua).map(|(id, _)| *id);
        let target = match to {
            Destination::Incarnation(ua) => known(ua),
            Destination::Address(address) => self.at.get(address).copied(),
        };
        let Some(target) = target else { return };
        let quarantined = self.processes[&from].quarantined.contains_key(&self.processes[&target].address);
        if !quarantined && target != from {
            self.net.send(from, target, 0, packet);
        }
    }

    fn schedule(&mut self, id: NodeId) {
        if self.net.is_crashed(id) {
            return;
        }
        let process = &self.processes[&id];
        let pending = process.pending.iter().map(|(at, _)| *at).min();
        let next = [process.core.next_deadline(), process.manager.next_deadline(), pending].into_iter().flatten().min();
        match next {
            Some(at) => self.net.wake_at(id, at.saturating_duration_since(self.base)),
            None => self.net.forget_wake(id),
        }
    }

    // --- invariants -----------------------------------------------------------------------------

    fn check(&mut self) {
        let instances = self.processes.values().filter(|process| process.instance).count();
        self.most_instances = self.most_instances.max(instances);
        assert!(self.tolerate_two || instances <= 1, "seed {}: two singletons\n{}", self.seed, self.describe());
        for process in self.processes.values_mut().filter(|process| process.ended.is_none() && !process.killed) {
            let view = process.core.view();
            process.removed.extend(view.tombstones.keys().cloned());
            for member in &view.members {
                assert!(!process.removed.contains(&member.address), "seed {}: {} is back", self.seed, member.address);
                let before = process.statuses.insert(member.address.clone(), member.status);
                assert!(
                    before.is_none_or(|before| before <= member.status),
                    "seed {}: {} goes backwards",
                    self.seed,
                    member.address
                );
            }
        }
    }

    /// Whether every living node has exactly these members, all Up, and the same state.
    pub(crate) fn agreed(&self, expected: &[NodeId]) -> bool {
        let mut expected: Vec<UniqueAddress> = expected.iter().map(|id| self.ua(*id)).collect();
        expected.sort();
        let alive = self.alive();
        let all_up = alive.iter().all(|id| {
            let view = self.view(*id);
            let members: Vec<UniqueAddress> = view.members.iter().map(|m| m.address.clone()).collect();
            members == expected && view.members.iter().all(|m| m.status == MemberStatus::Up) && view.converged
        });
        let first = alive.first().map(|id| self.processes[id].core.gossip().clone());
        all_up
            && alive.iter().all(|id| first.as_ref().is_some_and(|f| f.same_content(self.processes[id].core.gossip())))
    }

    /// Whether exactly these are members for each of these, whatever other nodes believe.
    pub(crate) fn agreed_by(&self, expected: &[NodeId]) -> bool {
        let mut members: Vec<UniqueAddress> = expected.iter().map(|id| self.ua(*id)).collect();
        members.sort();
        expected.iter().all(|id| self.view(*id).members.iter().map(|m| &m.address).eq(&members))
    }

    /// A cluster of these nodes, all Up, the first being the first seed.
    pub(crate) fn cluster(&mut self, names: &[&str]) -> Vec<NodeId> {
        let mut ids = Vec::new();
        for name in names {
            let id = self.start(name);
            self.join(id, &names[..1]);
            ids.push(id);
            if ids.len() == 1 {
                self.run_for(100 * MS);
            }
        }
        let all = ids.clone();
        self.run_until(60 * SECOND, |world| world.agreed(&all));
        ids
    }

    pub(crate) fn isolate(&mut self, left: &[NodeId], right: &[NodeId]) {
        self.net.partition(left, right);
    }
}
