//! The coordinator as text: its inputs, and its effects.
//!
//! The world of files that do not begin with the name of another one. Nodes are `a`, `b`, `c`; generations and attempts
//! are written `epoch.number`. Effects come one per line, in their order. Source: sharding §2.7 to §2.16.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::machines::{fingerprint, up};
use greylag_core::{Generation, UniqueAddress};
use greylag_sharding::Omissions;
use greylag_sharding::fingerprint::{Fingerprint, Mismatch, StateStoreMode};
use greylag_sharding::ids::{RegionId, ShardId};
use greylag_sharding::machine::coordinator::replay::Replay;
use greylag_sharding::machine::coordinator::{Coordinator, CoordinatorConfig, Effect, Input, StateEvent, StoredState};
use greylag_sharding::machine::membership::{MemberFacts, MemberPhase, Members, Removal};
use greylag_sharding::machine::message::{
    AgreementOutcome, Attempt, Claim, ClaimState, CoordinatorId, CoordinatorMessage, Home, RegionMessage, Register,
};
use greylag_sharding::settings::ShardingSettings;
use greylag_testkit::deadlines::assert_moved;
use greylag_testkit::transcript::{self, Case};

/// See the module's description.
pub(crate) struct CoordinatorWorld {
    start: Instant,
    now: Instant,
    machine: Coordinator,
    members: Members,
    mode: StateStoreMode,
    /// The committed state, as a store would return it.
    stored: StoredState,
    /// The same state in mode persistence: every history must be free of contradictions.
    history: Replay,
    /// The last batch in the history.
    batch: Option<u64>,
    min_regions: usize,
    /// Whether the type remembers its entities.
    remembers: bool,
    serials: BTreeMap<String, u64>,
    /// Wait after a removal without proof that the process has ended.
    margin: Duration,
    effects: Vec<Effect>,
}

/// `c'` is another process than `c`, at the same address.
fn address(name: &str) -> UniqueAddress {
    let host = name.trim_end_matches('\'');
    let uid = usize::from(host.bytes().next().unwrap_or(b'a') - b'a') + 1 + ANOTHER * (name.len() - host.len());
    format!("{host}:1#{uid}").parse().expect("an address")
}

const ANOTHER: usize = 100;

fn region(name: &str) -> RegionId {
    RegionId { node: address(name), incarnation: 1 }
}

fn name(address: &UniqueAddress) -> String {
    let others = address.uid().get() as usize / ANOTHER;
    format!("{}{}", address.address().host(), "'".repeat(others))
}

fn generation(text: &str) -> Generation {
    let (epoch, seq) = text.split_once('.').expect("epoch.number");
    Generation::new(epoch.parse().expect("a number"), seq.parse().expect("a number")).expect("in range")
}

/// A node's fingerprint of the type.
fn understood(shards: u32, mode: StateStoreMode, remembers: bool) -> Fingerprint {
    let plain = fingerprint(shards);
    if !remembers {
        return plain;
    }
    let store = if mode == StateStoreMode::Persistence { "eventsourced" } else { "ddata" };
    Fingerprint { remember_entities: true, remember_entities_store: store.into(), state_store_mode: mode, ..plain }
}

/// The parameters of a coordinator's incarnation that a transcript can set.
struct Made<'a> {
    node: &'a str,
    incarnation: u64,
    margin: Duration,
    mode: StateStoreMode,
    max_batch: usize,
    min_regions: usize,
    remembers: bool,
}

fn machine(effects: &mut Vec<Effect>, made: &Made<'_>) -> Coordinator {
    let Made { node, incarnation, margin, mode, max_batch, min_regions, remembers } = *made;
    let config = CoordinatorConfig {
        id: CoordinatorId { node: address(node), incarnation },
        fingerprint: understood(12, mode, remembers),
        role: String::new(),
        settings: ShardingSettings { state_store_mode: mode, min_regions, ..ShardingSettings::test() },
        down_removal_margin: margin,
        max_batch,
        omissions: Omissions::default(),
    };
    Coordinator::new(config, effects)
}

impl CoordinatorWorld {
    pub(crate) fn new() -> Self {
        let start = Instant::now();
        let mut effects = Vec::new();
        let margin = Duration::from_secs(1);
        let mode = StateStoreMode::Ddata;
        let (max_batch, min_regions, remembers) = (usize::MAX, 1, false);
        let made = Made { node: "a", incarnation: 1, margin, mode, max_batch, min_regions, remembers };
        let mut machine = machine(&mut effects, &made);
        machine.handle(start, Input::Agreement(AgreementOutcome::Agreed), &mut effects);
        let (members, stored, serials) = (Members::default(), StoredState::default(), BTreeMap::new());
        let history = Replay::new(true);
        Self {
            start,
            now: start,
            machine,
            members,
            mode,
            stored,
            history,
            batch: None,
            min_regions,
            remembers,
            serials,
            margin,
            effects,
        }
    }

    /// Runs a case; returns the effects, one a line.
    pub(crate) fn run(&mut self, case: &Case<'_>) -> String {
        match case.command {
            "members" => self.members_are(case),
            "margin" => {
                self.margin = transcript::duration(case.positional(0).expect("a time")).expect("a duration");
                self.effects.clear();
                self.incarnate("a", 1, usize::MAX);
            }
            "mode" => {
                assert_eq!(case.positional(0), Some("persistence"), "the other mode is the default");
                self.mode = StateStoreMode::Persistence;
                self.effects.clear();
                self.min_regions = case.parse("min-regions").unwrap_or(1);
                self.incarnate("a", 1, case.parse("max-batch").unwrap_or(usize::MAX));
            }
            "remembered" => {
                let shards = case.arg("shards").unwrap_or("").split(',').filter(|s| !s.is_empty());
                let shards: BTreeSet<_> = shards.map(|shard| ShardId::new(shard).expect("valid")).collect();
                self.tell(match case.flag("added") {
                    true => Input::ShardsRemembered(shards.into_iter().collect()),
                    false => Input::RememberedShards(shards),
                });
            }
            "remember-stopped" => self.tell(Input::RememberStopped),
            "fail-over" => {
                self.batch = None;
                self.incarnate(case.arg("to").unwrap_or("a"), 2, usize::MAX);
            }
            "remembers" => {
                self.remembers = true;
                self.effects.clear();
                self.incarnate("a", 1, usize::MAX);
            }
            "continue" => self.tell(Input::Continue),
            "standing" => self.agreement(case),
            "read" => {
                if case.flag("lost") {
                    self.stored = StoredState::default();
                }
                let seen_epoch = case.parse("seen").unwrap_or(0);
                self.tell(Input::Read { state: self.stored.clone(), wall_secs: 5, seen_epoch });
            }
            "committed" => self.tell(Input::Committed { batch: case.parse("batch").expect("a batch") }),
            "unreadable" => self.tell(Input::Unreadable),
            "not-stored" => {
                let batch = case.parse("batch").expect("a batch");
                self.tell(Input::CommitFailed { batch, retryable: true });
            }
            "fenced" => {
                let batch = case.parse("batch").expect("a batch");
                self.tell(Input::CommitFailed { batch, retryable: false });
            }
            "terminate" => self.tell(Input::Terminate),
            "after" => {
                self.now += transcript::duration(case.positional(0).expect("a time")).expect("a duration");
                self.tell(Input::Tick);
            }
            "allocated" => {
                let shard = ShardId::new(case.arg("shard").expect("a shard")).expect("valid");
                let homes = vec![(shard, case.arg("to").map(region))];
                self.tell(Input::Allocated { call: case.parse("call").expect("a call"), homes });
            }
            "rebalance" => {
                let shards = case.arg("shards").unwrap_or("").split(',').filter(|s| !s.is_empty());
                let shards = shards.map(|shard| ShardId::new(shard).expect("valid")).collect();
                self.tell(Input::Rebalance { shards });
            }
            from => {
                let message = self.message(case, from);
                let node = address(case.arg("from").expect("who says so"));
                self.tell(Input::FromRegion { node, message });
            }
        }
        self.show()
    }

    /// Starts another incarnation, with which all members agree.
    fn incarnate(&mut self, node: &str, incarnation: u64, max_batch: usize) {
        let (margin, mode, min_regions) = (self.margin, self.mode, self.min_regions);
        let made = Made { node, incarnation, margin, mode, max_batch, min_regions, remembers: self.remembers };
        self.machine = machine(&mut self.effects, &made);
        self.tell(Input::Agreement(AgreementOutcome::Agreed));
    }

    fn agreement(&mut self, case: &Case<'_>) {
        let mismatch = Mismatch { field: "role".into(), expected: "b (on d:1)".into(), got: "a (on a:1)".into() };
        self.tell(Input::Agreement(match case.positional(0) {
            Some("asking") => AgreementOutcome::Asking,
            Some("agreed") => AgreementOutcome::Agreed,
            Some("refused") => AgreementOutcome::Refused(mismatch),
            other => panic!("no standing {other:?}"),
        }));
    }

    fn tell(&mut self, input: Input) {
        let ticks = matches!(input, Input::Tick);
        self.machine.handle(self.now, input, &mut self.effects);
        if ticks {
            assert_moved("coordinator", self.now, self.machine.next_deadline());
        }
    }

    fn members_are(&mut self, case: &Case<'_>) {
        let before = std::mem::take(&mut self.members.members);
        for (age, node) in case.arg("up").unwrap_or("").split(',').filter(|n| !n.is_empty()).enumerate() {
            let is_silent = case.arg("unreachable").unwrap_or("").split(',').any(|silent| silent == node);
            let phase = if case.flag("preparing") { MemberPhase::Preparing } else { MemberPhase::Up };
            let facts = MemberFacts { reachable: !is_silent, phase, ..up(age as u32) };
            self.members.members.insert(address(node), facts);
        }
        for gone in before.into_keys().filter(|node| !self.members.members.contains_key(node)).collect::<Vec<_>>() {
            self.members.removed.insert(gone, Removal { at: self.now, clean: case.flag("clean") });
        }
        self.tell(Input::Membership(Arc::new(self.members.clone())));
    }

    fn message(&mut self, case: &Case<'_>, what: &str) -> RegionMessage {
        let from = case.arg("from").expect("who says so");
        let region_of = RegionId { incarnation: case.parse("incarnation").unwrap_or(1), ..region(from) };
        let shard = || ShardId::new(case.arg("shard").expect("a shard")).expect("valid");
        let at = || generation(case.arg("at").expect("a generation"));
        match what {
            "register" => {
                let serial = self.serials.entry(from.to_owned()).or_default();
                *serial += 1;
                let claim = |text: &str| {
                    let mut parts = text.split('@');
                    let shard = ShardId::new(parts.next().expect("a shard")).expect("valid");
                    let generation = generation(parts.next().expect("a generation"));
                    let state = match parts.next() {
                        Some("stopping") => ClaimState::Stopping,
                        _ => ClaimState::Running,
                    };
                    Claim { shard, generation, state }
                };
                RegionMessage::Register(Register {
                    region: region_of,
                    proxy: case.flag("proxy"),
                    serial: *serial,
                    fingerprint: understood(case.parse("shards").unwrap_or(12), self.mode, self.remembers),
                    highest_epoch: case.parse("epoch").unwrap_or(0),
                    hosted: case.arg("hosts").unwrap_or("").split(',').filter(|c| !c.is_empty()).map(claim).collect(),
                })
            }
            "get" => RegionMessage::GetShardHome { region: region_of, shards: vec![shard()] },
            "started" => RegionMessage::ShardStarted { region: region_of, shards: vec![(shard(), at())] },
            "ack" => RegionMessage::BeginHandOffAck {
                region: region_of,
                shard: shard(),
                generation: at(),
                attempt: Attempt(generation(case.arg("attempt").expect("an attempt")).as_u64()),
                flushed: case.flag("flushed"),
            },
            "stopped" => RegionMessage::ShardStopped {
                region: region_of,
                shard: shard(),
                generation: at(),
                leftovers: case.flag("leftovers"),
            },
            "graceful" => RegionMessage::GracefulShutdownReq { region: region_of },
            "region-stopped" => RegionMessage::RegionStopped { region: region_of },
            "stale" => RegionMessage::StaleEpoch { region: region_of, epoch: case.parse("epoch").expect("an epoch") },
            "stop-shards" => {
                let shards =
                    case.arg("shards").unwrap_or("").split(',').map(|shard| ShardId::new(shard).expect("valid"));
                let request = case.parse("request").expect("a number");
                RegionMessage::StopShards { region: region_of, request, shards: shards.collect() }
            }
            "get-regions" => RegionMessage::GetCurrentRegions {
                region: region_of,
                request: case.parse("request").expect("a number"),
            },
            "no-region" => RegionMessage::NoRegion { epoch: case.parse("epoch").expect("an epoch") },
            other => panic!("no command {other}"),
        }
    }

    fn show(&mut self) -> String {
        let mut text = String::new();
        for effect in std::mem::take(&mut self.effects) {
            match (&effect, self.mode) {
                (Effect::Commit { events, .. }, StateStoreMode::Ddata) => self.store(events),
                // A repeated batch was not stored before.
                (Effect::Commit { events, batch }, _) if self.batch != Some(*batch) => {
                    self.batch = Some(*batch);
                    self.keep(events);
                }
                _ => {}
            }
            let line = match &effect {
                Effect::Read => "read".to_owned(),
                Effect::ReadRemembered => "read remembered".to_owned(),
                Effect::Remember { shards } => format!("remember {shards:?}"),
                Effect::Commit { batch, events } => {
                    let events: Vec<_> = events.iter().map(show_event).collect();
                    format!("commit {batch}: {}", events.join("; "))
                }
                Effect::Send { to, message } => format!("{} <- {}", name(to), show_order(&message.message)),
                Effect::CallAllocate { call, shards, view } => {
                    let shards: Vec<_> = shards.iter().map(|(shard, _)| shard.as_str()).collect();
                    let regions: Vec<_> = view.regions.iter().map(|r| name(&r.region.node)).collect();
                    format!("allocate call={call} {} among {}", shards.join(","), regions.join(","))
                }
                Effect::CallRebalance { in_progress, .. } => format!("rebalance? moving {in_progress:?}"),
                Effect::Continue => "continue".to_owned(),
                Effect::Stop(reason) => format!("stop {reason:?}"),
                Effect::Event(event) => format!("event {event:?}"),
            };
            writeln!(text, "{line}").expect("a string takes all");
        }
        if text.is_empty() { format!("nothing ({:?} after the start)\n", self.now - self.start) } else { text }
    }

    fn store(&mut self, events: &[StateEvent]) {
        for event in events {
            match event.clone() {
                StateEvent::EpochStarted(meta) => self.stored.meta = Some(meta),
                StateEvent::Home { shard, home } => drop(self.stored.homes.insert(shard, home)),
                other => panic!("{other:?} in mode ddata"),
            }
        }
    }

    /// Appends events as a journal would.
    fn keep(&mut self, events: &[StateEvent]) {
        for event in events {
            self.history.apply(event.clone().into()).expect("no contradiction");
        }
        self.stored = self.history.state(&understood(12, self.mode, self.remembers)).expect("no contradiction");
    }
}

fn show_event(event: &StateEvent) -> String {
    match event {
        StateEvent::EpochStarted(meta) => format!("epoch {}", meta.epoch),
        StateEvent::FingerprintRecorded(recorded) => format!("fingerprint of {} shards", recorded.number_of_shards),
        StateEvent::Initialized => "initialized".to_owned(),
        StateEvent::RegionRegistered(region) => format!("region {} registered", name(&region.node)),
        StateEvent::RegionTerminated(region) => format!("region {} terminated", name(&region.node)),
        StateEvent::Home { shard, home } => {
            let what = if home.deallocated { "is nowhere since" } else { "lives at" };
            let mut text = format!("shard {shard} {what} {} {}", name(&home.region.node), home.generation);
            if let Some(previous) = home.previous {
                write!(text, " after {previous}").expect("a string takes all");
            }
            if let Some(from) = &home.leftovers_from {
                write!(text, " leftovers at {}", name(&from.node)).expect("a string takes all");
            }
            text
        }
    }
}

fn show_homes(homes: &[Home]) -> String {
    let one = |home: &Home| {
        let mut text = format!("{}@{} {}", home.shard, home.generation, name(&home.region.node));
        if let Some(flushed) = home.flushed {
            write!(text, " flushed={flushed:?}").expect("a string takes all");
        }
        if let Some(previous) = home.previous {
            write!(text, " previous={previous}").expect("a string takes all");
        }
        if let Some(from) = &home.leftovers_from {
            write!(text, " leftovers={}", name(&from.node)).expect("a string takes all");
        }
        if let Some(given_up) = home.given_up {
            write!(text, " given_up={given_up:?}").expect("a string takes all");
        }
        text
    };
    homes.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn show_order(order: &CoordinatorMessage) -> String {
    match order {
        CoordinatorMessage::ShardHomes(homes) => format!("ShardHomes {}", show_homes(homes)),
        CoordinatorMessage::HostShard(homes) => format!("HostShard {}", show_homes(homes)),
        CoordinatorMessage::BeginHandOff { shard, generation, attempt, owner } => {
            format!("BeginHandOff {shard}@{generation} attempt={attempt:?} owner={}", name(&owner.node))
        }
        CoordinatorMessage::HandOff { shard, generation, attempt, flush_from } => {
            let from: Vec<_> = flush_from.iter().map(|region| name(&region.node)).collect();
            format!("HandOff {shard}@{generation} attempt={attempt:?} flush_from={}", from.join(","))
        }
        CoordinatorMessage::DropShard { shard, generation } => format!("DropShard {shard}@{generation}"),
        CoordinatorMessage::CurrentRegions { request, regions } => {
            let regions: Vec<_> = regions.iter().map(|region| name(&region.node)).collect();
            format!("CurrentRegions request={request} {}", regions.join(","))
        }
        CoordinatorMessage::ShardsStopped { request, shards } => {
            let shards: Vec<_> = shards.iter().map(ShardId::as_str).collect();
            format!("ShardsStopped request={request} {}", shards.join(","))
        }
        CoordinatorMessage::RegisterRefused { mismatch, .. } => format!("RegisterRefused: {mismatch}"),
        other => format!("{other:?}"),
    }
}
