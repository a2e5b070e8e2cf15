//! Regions as text: one alone, or several whose lanes are queues that a case empties on demand.
//!
//! The first case names the regions (`regions o,n,p`); they, and the members of `others`, are Up, and the test is their
//! coordinator, with epoch 7, on the first node or the one of `coordinator=`, which is the oldest member. Shard `1` is
//! meant unless a case says `shard=`. Generations and attempts are numbers of epoch 7, or `epoch.number`. A frame is
//! written `m1@2`: the message, and the generation that it is stamped with; what else its header says follows. A
//! message for a region that is not of the file goes nowhere.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::{DeadLetterReason, Generation, UniqueAddress};
use greylag_sharding::ids::{RegionId, ShardId};
use greylag_sharding::machine::membership::{MemberFacts, MemberPhase, Members, Removal};
use greylag_sharding::machine::message::{
    Attempt, CoordinatorId, CoordinatorMessage, FromCoordinator, Home, Mark, PeerMessage, RegionMessage, Stamp,
};
use greylag_sharding::machine::region::{
    Effect, Input, MessageInfo, Provenance, Region, RegionConfig, Request, Returned, Route, Token,
};
use greylag_sharding::settings::ShardingSettings;
use greylag_testkit::deadlines::assert_moved;
use greylag_testkit::transcript::{self, Case};
use greylag_transport::Lane;

use crate::machines::{self, up};

const EPOCH: u64 = 7;

/// An item under way on a lane.
enum Item {
    Frame(ShardId, Stamp, String),
    Mark(ShardId, Mark),
}

/// One region, with the state of its driver.
struct Node {
    machine: Region,
    tokens: BTreeMap<Token, String>,
    routes: BTreeMap<ShardId, Route>,
    /// Messages delivered to a shard and not handled yet, in order; a node that is not busy handles messages at once.
    inbox: BTreeMap<ShardId, Vec<(String, Provenance)>>,
    is_busy: bool,
}

/// See the module's description.
pub(crate) struct RegionsWorld {
    start: Instant,
    now: Instant,
    nodes: BTreeMap<String, Node>,
    members: Members,
    lanes: BTreeMap<(String, String), VecDeque<Item>>,
    peers: VecDeque<(String, String, PeerMessage)>,
    coordinator: String,
    epoch: u64,
    tokens: u64,
    text: String,
}

fn address(name: &str) -> UniqueAddress {
    let uid = name.bytes().next().unwrap_or(b'a') - b'a' + 1;
    format!("{name}:1#{uid}").parse().expect("an address")
}

fn region(name: &str) -> RegionId {
    RegionId { node: address(name), incarnation: 1 }
}

fn name(region: &RegionId) -> String {
    let node = region.node.address().host();
    if region.incarnation == 1 { node.to_owned() } else { format!("{node}/{}", region.incarnation) }
}

fn generation(text: &str) -> Generation {
    let (epoch, seq) =
        text.split_once('.').map_or((EPOCH, text), |(epoch, seq)| (epoch.parse().expect("a number"), seq));
    Generation::new(epoch, seq.parse().expect("a number")).expect("in range")
}

fn attempt(text: &str) -> Attempt {
    Attempt(generation(text).as_u64())
}

fn show(generation: Generation) -> String {
    if generation.epoch() == EPOCH { generation.seq().to_string() } else { generation.to_string() }
}

fn show_attempt(attempt: Attempt) -> String {
    show(Generation::from_u64(attempt.0).expect("a number of a coordinator"))
}

/// The words of `key=a,b`.
fn list<'a>(case: &Case<'a>, key: &str) -> impl Iterator<Item = &'a str> {
    case.arg(key).unwrap_or("").split(',').filter(|word| !word.is_empty())
}

impl RegionsWorld {
    pub(crate) fn new(case: &Case<'_>) -> Self {
        let now = Instant::now();
        let names: Vec<_> = case.positional(0).expect("names of regions").split(',').collect();
        let coordinator = case.arg("coordinator").unwrap_or(names[0]);
        let others = names.iter().copied().chain(list(case, "others")).filter(|node| *node != coordinator);
        // The coordinator runs on the oldest member.
        let all = std::iter::once(coordinator).chain(others);
        let members = all.enumerate().map(|(age, node)| (address(node), up(age as u32))).collect();
        let mut world = Self {
            start: now,
            now,
            nodes: BTreeMap::new(),
            members: Members { members, removed: BTreeMap::new() },
            lanes: BTreeMap::new(),
            peers: VecDeque::new(),
            coordinator: coordinator.to_owned(),
            epoch: EPOCH,
            tokens: 0,
            text: String::new(),
        };
        for node in &names {
            world.nodes.insert((*node).to_owned(), Self::node(case, node, now));
        }
        for node in &names {
            world.tell(node, Input::Membership(Arc::new(world.members.clone())));
            if !case.flag("unregistered") {
                world.coordinate(node, CoordinatorMessage::RegisterAck { serial: 1 });
            }
        }
        if !case.flag("unregistered") {
            // Drop the registration and announcement of the type: the file without a coordinator tests them.
            world.text.clear();
            world.peers.clear();
        }
        world
    }

    fn node(case: &Case<'_>, node: &str, now: Instant) -> Node {
        let base = machines::config(region(node));
        let remembers = case.flag("remembers");
        let mut settings = ShardingSettings { buffer_size: case.parse("buffer").unwrap_or(100), ..base.settings };
        settings.remember.enabled = remembers;
        let config = RegionConfig { proxy: case.flag("proxy"), settings, ..base };
        let mut machine = Region::new(config, now);
        if let Some(messages) = case.parse("turn") {
            machine.flush_in_turns_of(messages);
        }
        Node {
            machine,
            tokens: BTreeMap::new(),
            routes: BTreeMap::new(),
            inbox: BTreeMap::new(),
            is_busy: case.flag("busy"),
        }
    }

    /// Runs a case; returns the effects, one a line.
    pub(crate) fn run(&mut self, case: &Case<'_>) -> String {
        match case.command {
            "after" => {
                self.now += transcript::duration(case.positional(0).expect("a time")).expect("a duration");
                self.all(|world, node| world.tell(node, Input::Tick));
            }
            "members" => self.members_are(case),
            "arrive" => self.arrive(case.positional(0).expect("from"), case.positional(1).expect("to")),
            "settle" => self.settle(),
            "fail-over" => self.fail_over(case),
            "set-epoch" => self.epoch = case.positional(0).and_then(|epoch| epoch.parse().ok()).expect("an epoch"),
            _ => self.run_at(case.positional(0).expect("the node").to_owned(), case),
        }
        if self.text.is_empty() {
            format!("nothing ({:?} after the start)\n", self.now - self.start)
        } else {
            self.take()
        }
    }

    /// The lines since the last call.
    pub(crate) fn take(&mut self) -> String {
        std::mem::take(&mut self.text)
    }

    fn all(&mut self, act: impl Fn(&mut Self, &str)) {
        for node in self.nodes.keys().cloned().collect::<Vec<_>>() {
            act(self, &node);
        }
    }

    /// Runs a case about one node, whose name is its first word.
    fn run_at(&mut self, node: String, case: &Case<'_>) {
        let shard = Self::shard(case);
        let at = || generation(case.arg("at").expect("a generation"));
        let from = || address(case.arg("from").expect("who"));
        match case.command {
            "send" => self.send(&node, &shard, case.positional(1).expect("a message")),
            "frame" => {
                let message = MessageInfo::of(self.token(&node, case.positional(1).expect("a message")));
                let stamp = self.stamp(case);
                self.tell(&node, Input::Frame { node: from(), shard, stamp, message });
            }
            "mark" => {
                let mark = self.mark(case);
                self.tell(&node, Input::Mark { node: from(), shard, mark });
            }
            "echo" => {
                let nonce = case.parse("nonce").expect("a number");
                let message = PeerMessage::FlushEcho { shard, nonce, to: region(&node) };
                self.tell(&node, Input::FromPeer { node: from(), message });
            }
            "stale" => {
                let message = PeerMessage::StaleRoute(vec![(shard, at())]);
                self.tell(&node, Input::FromPeer { node: from(), message });
            }
            "ready" => self.tell(&node, Input::ShardInitialized { shard, generation: at() }),
            "stopped" => {
                let leftovers = self.give_back(&node, &shard);
                self.tell(&node, Input::ShardStopped { shard, generation: at(), leftovers });
            }
            "failed" => {
                let unprocessed = self.give_back(&node, &shard);
                self.tell(&node, Input::ShardFailed { shard, generation: at(), unprocessed });
            }
            "fenced" => {
                let stored = case.arg("stored").map(generation);
                self.tell(&node, Input::Fenced { shard, generation: at(), stored });
            }
            "busy" => self.node_mut(&node).is_busy = true,
            "idle" => self.node_mut(&node).is_busy = false,
            "hand-back" => self.hand_back(&node, case.positional(1).expect("the peer")),
            "link-lost" => {
                let lane = if case.flag("control") { Lane::CONTROL } else { Lane::ordinary(0) };
                self.tell(&node, Input::LinkLost { node: address(case.positional(1).expect("the peer")), lane });
            }
            "suspect" => self.tell(&node, Input::SelfSuspect),
            "trusted" => self.tell(&node, Input::SelfTrusted),
            "downed" => self.tell(&node, Input::SelfDowned),
            "continue" => self.tell(&node, Input::Continue { shard }),
            "graceful" => self.tell(&node, Input::GracefulShutdown),
            "stop" => self.tell(&node, Input::Stop),
            "stop-shards" => {
                let shards: BTreeSet<_> =
                    list(case, "shards").map(|shard| ShardId::new(shard).expect("valid")).collect();
                let (number, timeout) = (case.parse("request").expect("a number"), Duration::from_secs(1));
                self.tell(&node, Input::Request { number, request: Request::StopShards(shards), timeout });
            }
            "state" => writeln!(self.text, "{node}: {}", self.state(&node)).expect("a string takes all"),
            _ => {
                let message = self.order(case);
                self.coordinate(&node, message);
            }
        }
    }

    fn shard(case: &Case<'_>) -> ShardId {
        ShardId::new(case.arg("shard").unwrap_or("1")).expect("valid")
    }

    fn stamp(&self, case: &Case<'_>) -> Stamp {
        let generation_of = |key| case.arg(key).map(generation);
        let stamped = generation_of("at").expect("a generation");
        Stamp {
            generation: stamped,
            origin: region(case.arg("origin").or(case.arg("from")).expect("who")),
            first: generation_of("first").unwrap_or(stamped),
            hops: case.parse("hops").unwrap_or(0),
            leftover: case.flag("leftover"),
        }
    }

    fn mark(&self, case: &Case<'_>) -> Mark {
        let from = || region(case.arg("from").expect("who"));
        let at = || generation(case.arg("at").expect("a generation"));
        match case.positional(1) {
            Some("flush") => {
                let attempt = attempt(case.arg("attempt").expect("an attempt"));
                Mark::Flush { generation: at(), attempt, from: from() }
            }
            Some("leftover") => Mark::Leftover { generation: at(), from: from() },
            Some("probe") => Mark::Probe { nonce: case.parse("nonce").expect("a number"), stamp: self.stamp(case) },
            other => panic!("line {}: no mark {other:?}", case.line),
        }
    }

    /// An order of the coordinator.
    fn order(&self, case: &Case<'_>) -> CoordinatorMessage {
        let shard = Self::shard(case);
        let at = || generation(case.arg("at").expect("a generation"));
        let try_of = || attempt(case.arg("attempt").expect("an attempt"));
        let home = |owner: &str| Home {
            flushed: case.arg("flushed").map(attempt),
            previous: case.arg("after").map(generation),
            leftovers_from: case.arg("leftovers").map(region),
            given_up: case.arg("given-up").map(attempt),
            ..Home::new(
                shard.clone(),
                RegionId { incarnation: case.parse("incarnation").unwrap_or(1), ..region(owner) },
                at(),
            )
        };
        match case.command {
            "register-ack" => CoordinatorMessage::RegisterAck { serial: case.parse("serial").unwrap_or(1) },
            "inquiry" => CoordinatorMessage::RegionInquiry,
            "home" => CoordinatorMessage::ShardHomes(vec![home(case.arg("to").expect("the owner"))]),
            "host" => CoordinatorMessage::HostShard(vec![home(case.positional(0).expect("the node"))]),
            "begin" => {
                let owner = region(case.arg("owner").expect("the owner"));
                CoordinatorMessage::BeginHandOff { shard, generation: at(), attempt: try_of(), owner }
            }
            "hand-off" => {
                let flush_from = list(case, "flush-from").map(region).collect();
                CoordinatorMessage::HandOff { shard, generation: at(), attempt: try_of(), flush_from }
            }
            "drop" => CoordinatorMessage::DropShard { shard, generation: at() },
            "stop-here" => CoordinatorMessage::StopHere,
            "stopped-ack" => CoordinatorMessage::RegionStoppedAck,
            "shards-stopped" => {
                let shards = list(case, "shards").map(|shard| ShardId::new(shard).expect("valid")).collect();
                CoordinatorMessage::ShardsStopped { request: case.parse("request").expect("a number"), shards }
            }
            other => panic!("line {}: no command {other}", case.line),
        }
    }

    fn members_are(&mut self, case: &Case<'_>) {
        let before = std::mem::take(&mut self.members.members);
        let phase = if case.flag("preparing") { MemberPhase::Preparing } else { MemberPhase::Up };
        for (age, node) in list(case, "up").enumerate() {
            self.members.members.insert(address(node), MemberFacts { phase, ..up(age as u32) });
        }
        for (node, facts) in &before {
            match self.members.members.get_mut(node) {
                Some(still) => still.up_number = facts.up_number,
                None => drop(self.members.removed.insert(node.clone(), Removal { at: self.now, clean: false })),
            }
        }
        let members = Arc::new(self.members.clone());
        self.all(|world, node| {
            if world.members.contains(&address(node)) {
                world.tell(node, Input::Membership(members.clone()));
            }
        });
    }

    /// Makes a newer coordinator take all registrations.
    fn fail_over(&mut self, case: &Case<'_>) {
        self.epoch += 1;
        if let Some(node) = case.arg("to") {
            self.coordinator = node.to_owned();
        }
        self.all(|world, node| {
            if world.members.contains(&address(node)) {
                world.coordinate(node, CoordinatorMessage::RegisterAck { serial: 1 });
            }
        });
    }

    fn coordinate(&mut self, node: &str, message: CoordinatorMessage) {
        let by = address(&self.coordinator);
        let coordinator = CoordinatorId { node: by.clone(), incarnation: self.epoch };
        let message = FromCoordinator { coordinator, epoch: self.epoch, to: Some(region(node)), message };
        self.tell(node, Input::FromCoordinator { node: by, message });
    }

    /// Sends as a sending task does: by the route table, or through the machine.
    fn send(&mut self, node: &str, shard: &ShardId, message: &str) {
        match self.node_mut(node).routes.get(shard).cloned().unwrap_or(Route::Closed) {
            Route::Local { .. } => self.push(node, shard, message.to_owned(), Provenance::Own),
            Route::Remote { region: to, generation } => {
                let stamp = Stamp { generation, origin: region(node), first: generation, hops: 0, leftover: false };
                self.enqueue(node, &to, Item::Frame(shard.clone(), stamp, message.to_owned()));
            }
            Route::Closed => {
                let message = MessageInfo::of(self.token(node, message));
                self.tell(node, Input::LocalSend { shard: shard.clone(), message });
            }
        }
    }

    fn push(&mut self, node: &str, shard: &ShardId, message: String, provenance: Provenance) {
        let verb = if self.node_mut(node).is_busy { "takes" } else { "handles" };
        writeln!(self.text, "{node} {verb} {message}").expect("a string takes all");
        if self.node_mut(node).is_busy {
            self.node_mut(node).inbox.entry(shard.clone()).or_default().push((message, provenance));
        }
    }

    /// Takes the messages that a shard has not handled as its leftovers.
    fn give_back(&mut self, node: &str, shard: &ShardId) -> Vec<Returned> {
        let inbox = self.node_mut(node).inbox.remove(shard).unwrap_or_default();
        let back = |(message, provenance): (String, Provenance)| {
            let message = MessageInfo::of(self.token(node, &message));
            Returned { message, provenance }
        };
        inbox.into_iter().map(back).collect()
    }

    /// Hands back the frames that the transport has not written.
    fn hand_back(&mut self, node: &str, peer: &str) {
        let lane = self.lanes.remove(&(node.to_owned(), peer.to_owned())).unwrap_or_default();
        let mut frames = Vec::new();
        for item in lane {
            if let Item::Frame(shard, stamp, message) = item {
                frames.push((shard, stamp, MessageInfo::of(self.token(node, &message))));
            }
        }
        self.tell(node, Input::HandedBack { node: address(peer), frames });
    }

    fn arrive(&mut self, from: &str, to: &str) {
        let lane = self.lanes.remove(&(from.to_owned(), to.to_owned())).unwrap_or_default();
        for item in lane {
            match item {
                Item::Frame(shard, stamp, message) => {
                    let message = MessageInfo::of(self.token(to, &message));
                    self.tell(to, Input::Frame { node: address(from), shard, stamp, message });
                }
                Item::Mark(shard, mark) => self.tell(to, Input::Mark { node: address(from), shard, mark }),
            }
        }
    }

    /// Delivers everything, on every lane, until nothing is under way.
    fn settle(&mut self) {
        while !self.lanes.is_empty() || !self.peers.is_empty() {
            for (from, to) in self.lanes.keys().cloned().collect::<Vec<_>>() {
                self.arrive(&from, &to);
            }
            while let Some((from, to, message)) = self.peers.pop_front() {
                self.tell(&to, Input::FromPeer { node: address(&from), message });
            }
        }
    }

    fn node_mut(&mut self, node: &str) -> &mut Node {
        self.nodes.get_mut(node).expect("a region of this file")
    }

    fn token(&mut self, node: &str, message: &str) -> Token {
        self.tokens += 1;
        let token = Token(self.tokens);
        self.node_mut(node).tokens.insert(token, message.to_owned());
        token
    }

    fn enqueue(&mut self, node: &str, to: &RegionId, item: Item) {
        let what = match &item {
            Item::Frame(_, stamp, message) => show_frame(node, stamp, message),
            Item::Mark(_, mark) => show_mark(node, mark),
        };
        writeln!(self.text, "{node} => {}: {what}", name(to)).expect("a string takes all");
        let peer = name(to);
        if self.nodes.contains_key(&peer) {
            self.lanes.entry((node.to_owned(), peer)).or_default().push_back(item);
        }
    }

    fn tell(&mut self, node: &str, input: Input) {
        let (mut effects, now) = (Vec::new(), self.now);
        let is_tick = matches!(input, Input::Tick);
        let machine = &mut self.node_mut(node).machine;
        machine.handle(now, input, &mut effects);
        if is_tick {
            assert_moved("region", now, machine.next_deadline());
        }
        effects.into_iter().for_each(|effect| self.execute(node, effect));
    }

    /// Carries out an effect as a driver would, and writes its line of the transcript.
    fn execute(&mut self, node: &str, effect: Effect) {
        let line = match effect {
            Effect::RouteChange { shard, route } => {
                let line = format!("route of {shard} is {}", show_route(&route));
                self.node_mut(node).routes.insert(shard, route);
                line
            }
            Effect::Admit { shard, origin } => format!("admits frames of {} for {shard}", name(&origin)),
            Effect::Deliver { shard, token, provenance, .. } => {
                let message = self.node_mut(node).tokens.remove(&token).expect("named once");
                return self.push(node, &shard, message, provenance);
            }
            Effect::SendData { to, shard, token, stamp } => {
                let message = self.node_mut(node).tokens.remove(&token).expect("named once");
                return self.enqueue(node, &to, Item::Frame(shard, stamp, message));
            }
            Effect::SendMark { to, shard, mark } => return self.enqueue(node, &to, Item::Mark(shard, mark)),
            Effect::SendPeer { to, message } => {
                let peer = to.address().host().to_owned();
                let line = match &message {
                    PeerMessage::StaleRoute(routes) => {
                        let routes: Vec<_> =
                            routes.iter().map(|(shard, at)| format!("{shard}@{}", show(*at))).collect();
                        format!("-> {peer}: StaleRoute {}", routes.join(","))
                    }
                    PeerMessage::FlushEcho { nonce, .. } => format!("-> {peer}: FlushEcho {nonce}"),
                    // `two_roles.txt` tests the comparison of types.
                    PeerMessage::AnnounceType { .. }
                    | PeerMessage::TypeOk { .. }
                    | PeerMessage::TypeConflict { .. } => return,
                };
                if self.nodes.contains_key(&peer) {
                    self.peers.push_back((node.to_owned(), peer, message));
                }
                line
            }
            Effect::SendCoordinator { to, message } => {
                format!("-> coordinator at {}: {}", to.address().host(), show_told(&message))
            }
            Effect::Agreement { .. } => return,
            Effect::Continue { shard } => format!("continues {shard} later"),
            Effect::StartShard { shard, generation } => format!("starts {shard}@{}", show(generation)),
            Effect::StopShard { shard, generation } => format!("stops {shard}@{}", show(generation)),
            Effect::KillShard { shard, generation } => format!("kills {shard}@{}", show(generation)),
            Effect::HoldShards => "holds its shards".to_owned(),
            Effect::ReleaseShards => "releases its shards".to_owned(),
            Effect::DeadLetter { token, reason, .. } => self.dead_letter(node, token, reason),
            Effect::Stopped => "has stopped".to_owned(),
            Effect::Answer { number, answer } => format!("answers {number}: {answer:?}"),
            Effect::Event(event) => format!("event {event:?}"),
        };
        writeln!(self.text, "{node}: {line}").expect("a string takes all");
    }

    fn dead_letter(&mut self, node: &str, token: Token, reason: DeadLetterReason) -> String {
        let message = self.node_mut(node).tokens.remove(&token).expect("named once");
        format!("dead letter {message}: {reason}")
    }

    /// The observable state of a region.
    fn state(&self, node: &str) -> String {
        let machine = &self.nodes[node].machine;
        let hosted: Vec<_> = machine.hosted().map(|(shard, at)| format!("{shard}@{}", show(at))).collect();
        let counters = machine.counters();
        format!("{:?}, hosts [{}], buffers {}", machine.state(), hosted.join(","), counters.buffered)
    }
}

fn show_route(route: &Route) -> String {
    match route {
        Route::Closed => "closed".to_owned(),
        Route::Local { generation } => format!("local @{}", show(*generation)),
        Route::Remote { region, generation } => format!("{}@{}", name(region), show(*generation)),
    }
}

/// The message and its header, without the fields of a message that comes straight from its origin.
fn show_frame(node: &str, stamp: &Stamp, message: &str) -> String {
    let mut text = format!("{message}@{}", show(stamp.generation));
    if stamp.origin != region(node) {
        write!(text, " of {}", name(&stamp.origin)).expect("a string takes all");
    }
    if stamp.first != stamp.generation {
        write!(text, " first={}", show(stamp.first)).expect("a string takes all");
    }
    if stamp.hops > 0 {
        write!(text, " hops={}", stamp.hops).expect("a string takes all");
    }
    if stamp.leftover {
        text.push_str(" leftover");
    }
    text
}

fn show_mark(node: &str, mark: &Mark) -> String {
    match mark {
        Mark::Flush { generation, attempt, .. } => {
            format!("FlushMark @{} attempt={}", show(*generation), show_attempt(*attempt))
        }
        Mark::Leftover { generation, .. } => format!("LeftoverMark @{}", show(*generation)),
        Mark::Probe { nonce, stamp } => show_frame(node, stamp, &format!("probe {nonce} ")),
    }
}

fn show_told(message: &RegionMessage) -> String {
    let shards = |shards: &[ShardId]| shards.iter().map(ShardId::as_str).collect::<Vec<_>>().join(",");
    match message {
        RegionMessage::Register(register) => {
            let hosted = register.hosted.iter().map(|c| format!("{}@{} {:?}", c.shard, show(c.generation), c.state));
            let hosted: Vec<_> = hosted.collect();
            let what = if register.proxy { "RegisterProxy" } else { "Register" };
            format!("{what} epoch={} hosts [{}]", register.highest_epoch, hosted.join(", "))
        }
        RegionMessage::GetShardHome { shards: asked, .. } => format!("GetShardHome {}", shards(asked)),
        RegionMessage::ShardStarted { shards, .. } => {
            let started: Vec<_> = shards.iter().map(|(shard, at)| format!("{shard}@{}", show(*at))).collect();
            format!("ShardStarted {}", started.join(","))
        }
        RegionMessage::BeginHandOffAck { shard, generation, attempt, flushed, .. } => {
            let flushed = if *flushed { " flushed" } else { "" };
            format!("BeginHandOffAck {shard}@{} attempt={}{flushed}", show(*generation), show_attempt(*attempt))
        }
        RegionMessage::ShardStopped { shard, generation, leftovers, .. } => {
            let leftovers = if *leftovers { " leftovers" } else { "" };
            format!("ShardStopped {shard}@{}{leftovers}", show(*generation))
        }
        RegionMessage::GracefulShutdownReq { .. } => "GracefulShutdownReq".to_owned(),
        RegionMessage::RegionStopped { .. } => "RegionStopped".to_owned(),
        RegionMessage::StaleEpoch { epoch, .. } => format!("StaleEpoch {epoch}"),
        RegionMessage::NoRegion { epoch } => format!("NoRegion epoch={epoch}"),
        RegionMessage::StopShards { request, shards: asked, .. } => format!("StopShards {request}: {}", shards(asked)),
        RegionMessage::GetCurrentRegions { request, .. } => format!("GetCurrentRegions {request}"),
    }
}
