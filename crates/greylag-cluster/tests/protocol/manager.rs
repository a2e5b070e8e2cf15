//! Transcripts of one manager of a singleton; the script plays the other nodes.
//!
//! Commands: `manager NAME [lease]`; `view a:Up b:Leaving … [removed=x,y] [clean=x,y] [suspect]` (members get their age
//! by the order in which they are first named, or state it: `b:Up:7`; `[moved=x]`: as removed, on another host); `hear
//! KIND from=NAME [attempt=N] [to=UID]`; `ended`, `exiting`, `downed`, `pause`; `lease
//! granted|denied|failed|released|lost`; `advance DURATION`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_cluster::*;
use greylag_core::UniqueAddress;
use greylag_testkit::deadlines::assert_moved;
use greylag_testkit::transcript::{self, Case};

pub(crate) struct Bench {
    own: String,
    manager: SingletonManager,
    base: Instant,
    now: Duration,
    ages: BTreeMap<String, u32>,
    tombstones: BTreeMap<UniqueAddress, Tombstone>,
    out: String,
}

/// Parses a process: `a` is the present one at that address, `a#1` another one there.
pub(crate) fn node(name: &str) -> UniqueAddress {
    let (host, uid) = name.split_once('#').unwrap_or((name, ""));
    let uid = uid.parse().unwrap_or(u64::from(host.as_bytes()[0]));
    format!("{host}:1#{uid}").parse().unwrap()
}

/// The host of a process: each name has its own.
fn host(node: &UniqueAddress) -> Arc<str> {
    node.address().host().into()
}

pub(crate) fn status(name: &str) -> MemberStatus {
    MemberStatus::ALL.into_iter().find(|status| status.to_string() == name).unwrap_or_else(|| panic!("{name}?"))
}

impl Bench {
    pub(crate) fn new(case: &Case<'_>) -> Self {
        let own = case.positional(0).unwrap().to_owned();
        let settings = SingletonSettings { use_lease: case.flag("lease"), ..SingletonSettings::default() };
        let base = Instant::now();
        let manager = SingletonManager::new(node(&own), &settings, &ClusterSettings::default());
        Self {
            own,
            manager,
            base,
            now: Duration::ZERO,
            ages: BTreeMap::new(),
            tombstones: BTreeMap::new(),
            out: String::new(),
        }
    }

    pub(crate) fn run(&mut self, case: &Case<'_>) -> String {
        let word = case.positional(0).unwrap_or("");
        match case.command {
            "manager" => {}
            "view" => self.view(case),
            "hear" => self.hear(case),
            "ended" => self.input(ManagerInput::InstanceEnded),
            "exiting" => self.input(ManagerInput::ExitingPhase),
            "downed" => self.input(ManagerInput::SelfDowned),
            "pause" => self.input(ManagerInput::LocalPause),
            "lease" => self.input(match word {
                "granted" => ManagerInput::LeaseResult(LeaseOutcome::Granted),
                "denied" => ManagerInput::LeaseResult(LeaseOutcome::Denied),
                "failed" => ManagerInput::LeaseResult(LeaseOutcome::Failed),
                "released" => ManagerInput::LeaseReleased,
                "lost" => ManagerInput::LeaseLost,
                other => panic!("unknown outcome {other}"),
            }),
            "advance" => self.advance(transcript::duration(word).unwrap()),
            other => panic!("unknown command {other}"),
        }
        std::mem::take(&mut self.out)
    }

    fn view(&mut self, case: &Case<'_>) {
        let mut view = MembershipView::empty(node(&self.own));
        view.self_suspect = case.flag("suspect");
        for word in (0..).map_while(|index| case.positional(index)).filter(|word| word.contains(':')) {
            let parts: Vec<&str> = word.split(':').collect();
            let next = self.ages.len() as u32 + 1;
            let age = *self.ages.entry(parts[0].to_owned()).or_insert(next);
            let mut member = Member::joining(node(parts[0]), Arc::default(), AppVersion::default());
            member.status = status(parts[1]);
            if member.status != MemberStatus::Joining {
                member.up_number = parts.get(2).map_or(age, |age| age.parse().unwrap());
            }
            let own_host = host(&member.address);
            view.members.insert(member.on_host(Some(own_host)));
        }
        for (key, clean) in [("removed", false), ("moved", false), ("clean", true)] {
            for name in case.arg(key).into_iter().flat_map(|names| names.split(',')) {
                let host = if key == "moved" { "elsewhere".into() } else { host(&node(name)) };
                let tombstone = Tombstone { clean, host_id: Some(host), ..Tombstone::default() };
                self.tombstones.insert(node(name), tombstone);
            }
        }
        view.tombstones = self.tombstones.clone().into();
        assert!(view.members.keys().all(|name| !view.tombstones.contains_key(name)), "a member with a tombstone");
        self.input(ManagerInput::View(Arc::new(view)));
    }

    fn hear(&mut self, case: &Case<'_>) {
        let kind = match case.positional(0).unwrap() {
            "HandOverToMe" => Kind::HandOverToMe,
            "HandOverInProgress" => Kind::HandOverInProgress,
            "HandOverDone" => Kind::HandOverDone,
            "TakeOverFromMe" => Kind::TakeOverFromMe,
            other => panic!("unknown message {other}"),
        };
        let own = node(&self.own);
        let to = case.arg("to").map_or(own.clone(), |uid| format!("{}#{uid}", own.address()).parse().unwrap());
        let from = node(case.arg("from").unwrap());
        let attempt = case.parse("attempt").unwrap_or(0);
        self.input(ManagerInput::Message(SingletonMessage { kind, from, to, attempt }));
    }

    fn advance(&mut self, by: Duration) {
        let end = self.now + by;
        while let Some(at) = self.manager.next_deadline().filter(|at| *at <= self.base + end) {
            self.now = self.now.max(at - self.base);
            self.input(ManagerInput::Tick);
            assert_moved("singleton manager", self.base + self.now, self.manager.next_deadline());
        }
        self.now = end;
    }

    fn input(&mut self, input: ManagerInput) {
        let before = self.manager.state();
        let mut effects = Vec::new();
        self.manager.handle(self.base + self.now, input, &mut effects);
        for effect in effects {
            let shown = match effect {
                ManagerEffect::Send(message) => {
                    let named = if message.from == node(&self.own) { "" } else { " in the name of its predecessor" };
                    format!("-> {} {:?} {}{named}", message.to.address().host(), message.kind, message.attempt)
                }
                ManagerEffect::StartInstance { up_number } => format!("starts the instance, age {up_number}"),
                ManagerEffect::StopInstance => "stops the instance".to_owned(),
                ManagerEffect::CloseMailbox => "hands the instance nothing more".to_owned(),
                ManagerEffect::AcquireLease => "asks for the lease".to_owned(),
                ManagerEffect::ReleaseLease => "gives the lease back".to_owned(),
                ManagerEffect::ExitingDone => "keeps the node from nothing".to_owned(),
                ManagerEffect::Stuck => "is stuck".to_owned(),
            };
            self.line(&shown);
        }
        let after = self.manager.state();
        if before != after {
            self.line(&format!("{before:?} => {after:?}"));
        }
    }

    fn line(&mut self, text: &str) {
        let _infallible = writeln!(self.out, "{:.2} {text}", self.now.as_secs_f64());
    }
}
