//! Proxies of one singleton on every node, while the instance moves, ends and starts again, members come and go, views
//! lag and messages are lost. Every message is accounted for once; messages from one node to one instance arrive in
//! order; and once all is calm every node reaches the instance.
//!
//! The test places the instance itself, by the rule of the managers: on the oldest, one at most.
//!
//! Source: cluster P8, scenario 55.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_cluster::*;
use greylag_core::{DeadLetterReason, UniqueAddress};
use greylag_testkit::deadlines::assert_moved;
use rand::seq::IteratorRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// A message: the node that sent it, and its number there.
type Letter = (UniqueAddress, u64);

struct Process {
    proxy: SingletonProxy<Letter>,
    host: SingletonHost,
    /// The length of the prefix of the log that the process has seen.
    seen: usize,
    told: u64,
}

#[derive(Clone)]
enum Wire {
    /// A message that may be lost.
    Plain(ProxyMessage),
    Reliable(ProxyMessage),
}

struct World {
    rng: ChaCha8Rng,
    now: Instant,
    settings: SingletonSettings,
    members: BTreeMap<UniqueAddress, Member>,
    log: Vec<Vec<Member>>,
    processes: BTreeMap<UniqueAddress, Process>,
    control: BTreeMap<(UniqueAddress, UniqueAddress), VecDeque<Wire>>,
    ordinary: BTreeMap<(UniqueAddress, UniqueAddress), VecDeque<Letter>>,
    /// The node whose instance takes messages, and the id of the instance.
    gate: Option<(UniqueAddress, u64)>,
    instances: u64,
    taken: Vec<(u64, Letter)>,
    /// Messages that were dropped, bounced or lost with their stream.
    lost: Vec<(Letter, DeadLetterReason)>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut settings = SingletonSettings::default().with_role("worker");
        settings.proxy.buffer_size = 20;
        let mut world = Self {
            rng: ChaCha8Rng::seed_from_u64(seed),
            now: Instant::now(),
            settings,
            members: BTreeMap::new(),
            log: Vec::new(),
            processes: BTreeMap::new(),
            control: BTreeMap::new(),
            ordinary: BTreeMap::new(),
            gate: None,
            instances: 0,
            taken: Vec::new(),
            lost: Vec::new(),
        };
        world.join(false);
        (0..6).for_each(|_| world.join(true));
        world
    }

    fn join(&mut self, works: bool) {
        let number = self.log.len() as u32 + 1;
        let node: UniqueAddress = format!("n{number}:1#{number}").parse().unwrap();
        let roles = BTreeSet::from_iter(works.then(|| "worker".to_owned()));
        let mut member = Member::joining(node.clone(), Arc::new(roles), AppVersion::default());
        (member.status, member.up_number) = (MemberStatus::Up, number);
        self.members.insert(node.clone(), member);
        let proxy = SingletonProxy::new(&self.settings);
        self.processes.insert(node, Process { proxy, host: SingletonHost::new(), seen: 0, told: 0 });
        self.publish();
    }

    fn publish(&mut self) {
        self.log.push(self.members.values().cloned().collect());
    }

    fn oldest(&self) -> Option<UniqueAddress> {
        let works = |member: &&Member| member.has_role("worker") && member.status.is_settled();
        self.members.values().filter(works).min_by(|a, b| a.age_order(b)).map(|member| member.address.clone())
    }

    fn see(&mut self, node: &UniqueAddress, upto: usize) {
        let Some(process) = self.processes.get_mut(node).filter(|process| process.seen < upto) else { return };
        let mut view = MembershipView::empty(node.clone());
        view.members = self.log[upto - 1].clone().into();
        if view.self_member().is_none() && process.seen == 0 {
            return;
        }
        process.seen = upto;
        let (view, gone) = (Arc::new(view.clone()), view.self_member().is_none());
        self.host(node, HostInput::View(view.clone()));
        self.proxy(node, ProxyInput::View(view));
        if gone {
            assert_eq!(self.processes[node].proxy.buffered(), 0, "a removed node keeps nothing");
            self.processes.remove(node);
        }
    }

    fn proxy(&mut self, node: &UniqueAddress, input: ProxyInput<Letter>) {
        let Some(process) = self.processes.get_mut(node) else { return };
        let mut effects = Vec::new();
        let ticks = matches!(input, ProxyInput::Tick);
        process.proxy.handle(self.now, input, &mut effects);
        if ticks {
            assert_moved("singleton proxy", self.now, process.proxy.next_deadline());
        }
        for effect in effects {
            match effect {
                ProxyEffect::Identify(to) => self.send(node, to, Wire::Plain(ProxyMessage::Identify)),
                ProxyEffect::Forward(to, letter) => {
                    self.ordinary.entry((node.clone(), to)).or_default().push_back(letter);
                }
                ProxyEffect::Drop(letter, reason) | ProxyEffect::Refuse(letter, reason) => {
                    self.lost.push((letter, reason));
                }
            }
        }
    }

    fn host(&mut self, node: &UniqueAddress, input: HostInput) {
        let Some(process) = self.processes.get_mut(node) else { return };
        let mut effects = Vec::new();
        process.host.handle(input, &mut effects);
        for effect in effects {
            match effect {
                HostEffect::Tell { to, message } => self.send(node, to, Wire::Plain(message)),
                HostEffect::Retract { to, instance } => {
                    self.send(node, to, Wire::Reliable(ProxyMessage::NotHere { instance: Some(instance) }));
                }
            }
        }
    }

    fn send(&mut self, from: &UniqueAddress, to: UniqueAddress, wire: Wire) {
        self.control.entry((from.clone(), to)).or_default().push_back(wire);
    }

    fn deliver_control(&mut self, ends: &(UniqueAddress, UniqueAddress), lossy: bool) {
        let Some(wire) = self.control.get_mut(ends).and_then(VecDeque::pop_front) else { return };
        let (from, to) = ends;
        let message = match wire {
            Wire::Plain(_) if lossy && self.rng.random_bool(0.2) => return,
            Wire::Plain(message) | Wire::Reliable(message) => message,
        };
        match message {
            ProxyMessage::Identify => self.host(to, HostInput::Identify(from.clone())),
            message => self.proxy(to, ProxyInput::Identified { from: from.clone(), message }),
        }
    }

    fn deliver_letter(&mut self, ends: &(UniqueAddress, UniqueAddress)) {
        let Some(letter) = self.ordinary.get_mut(ends).and_then(VecDeque::pop_front) else { return };
        match &self.gate {
            Some((at, instance)) if *at == ends.1 => self.taken.push((*instance, letter)),
            _ => {
                self.lost.push((letter, DeadLetterReason::NotSingletonHost));
                self.host(&ends.1, HostInput::Bounced(ends.0.clone()));
            }
        }
    }

    fn start(&mut self) {
        if let Some(oldest) = self.oldest().filter(|oldest| self.gate.is_none() && self.processes.contains_key(oldest))
        {
            self.instances += 1;
            self.gate = Some((oldest.clone(), self.instances));
            self.host(&oldest, HostInput::Started(self.instances));
        }
    }

    fn end(&mut self) {
        if let Some((at, instance)) = self.gate.take() {
            self.host(&at, HostInput::Ended(instance));
        }
    }

    fn tell(&mut self, node: &UniqueAddress) {
        let process = self.processes.get_mut(node).unwrap();
        process.told += 1;
        let letter = (node.clone(), process.told);
        self.proxy(node, ProxyInput::Message(letter));
    }

    fn pass_time(&mut self, by: Duration) {
        self.now += by;
        let due = |process: &Process| process.proxy.next_deadline().is_some_and(|at| at <= self.now);
        let due: Vec<_> = self.processes.iter().filter(|(_, p)| due(p)).map(|(node, _)| node.clone()).collect();
        due.iter().for_each(|node| self.proxy(node, ProxyInput::Tick));
    }

    /// Moves the oldest one step further on its way out, and ends its instance in time.
    fn leave(&mut self) {
        let Some(oldest) = self.members.values().filter(|m| m.has_role("worker")).min_by(|a, b| a.age_order(b)) else {
            return;
        };
        let (node, status) = (oldest.address.clone(), oldest.status);
        match status {
            MemberStatus::Up => self.members.get_mut(&node).unwrap().status = MemberStatus::Leaving,
            MemberStatus::Leaving => self.members.get_mut(&node).unwrap().status = MemberStatus::Exiting,
            _ => {
                if self.gate.as_ref().is_some_and(|(at, _)| *at == node) {
                    self.end();
                }
                self.members.remove(&node);
            }
        }
        self.publish();
    }

    fn step(&mut self) {
        let node = self.processes.keys().choose(&mut self.rng).cloned().unwrap();
        match self.rng.random_range(0..40) {
            0..=12 => self.tell(&node),
            13..=20 => {
                if let Some(ends) = self.control.keys().choose(&mut self.rng).cloned() {
                    self.deliver_control(&ends, true);
                }
            }
            21..=28 => {
                if let Some(ends) = self.ordinary.keys().choose(&mut self.rng).cloned() {
                    self.deliver_letter(&ends);
                }
            }
            29..=32 => {
                let upto = self.rng.random_range(1..=self.log.len());
                self.see(&node, upto);
            }
            33 | 34 => {
                let by = Duration::from_millis(self.rng.random_range(1..900));
                self.pass_time(by);
            }
            35 | 36 => self.start(),
            37 => self.end(),
            38 if self.members.len() > 3 => self.leave(),
            39 if self.members.len() < 9 => self.join(true),
            _ => {}
        }
    }

    fn drain(&mut self) {
        while let Some(ends) = self.control.iter().find(|(_, wire)| !wire.is_empty()).map(|(ends, _)| ends.clone()) {
            self.deliver_control(&ends, false);
        }
        while let Some(ends) = self.ordinary.iter().find(|(_, wire)| !wire.is_empty()).map(|(ends, _)| ends.clone()) {
            self.deliver_letter(&ends);
            while let Some(ends) = self.control.iter().find(|(_, w)| !w.is_empty()).map(|(ends, _)| ends.clone()) {
                self.deliver_control(&ends, false);
            }
        }
    }

    fn run(mut self) {
        for _ in 0..self.rng.random_range(100..600) {
            self.step();
        }
        // Calm: all nodes see the same state, and the instance runs.
        while self.members.values().any(|m| m.has_role("worker") && m.status >= MemberStatus::Leaving) {
            self.leave();
        }
        let all: Vec<_> = self.processes.keys().cloned().collect();
        all.iter().for_each(|node| self.see(node, self.log.len()));
        // Remove processes that were removed before they saw anything: they never joined.
        self.processes.retain(|node, _| self.members.contains_key(node));
        self.start();
        for _ in 0..3 {
            self.drain();
            self.pass_time(Duration::from_secs(1));
        }
        self.drain();
        let instance = self.gate.as_ref().expect("it runs").1;
        let all: Vec<_> = self.processes.keys().cloned().collect();
        for node in &all {
            assert_eq!(self.processes[node].proxy.identified(), self.oldest().as_ref(), "{node} has found it");
            assert_eq!(self.processes[node].proxy.buffered(), 0);
            self.tell(node);
            let letter = (node.clone(), self.processes[node].told);
            self.drain();
            assert_eq!(self.taken.last(), Some(&(instance, letter)), "{node} reaches it");
        }
        self.check();
    }

    fn check(&self) {
        let mut seen = BTreeSet::new();
        let mut newest: BTreeMap<(u64, &UniqueAddress), u64> = BTreeMap::new();
        for (instance, letter) in &self.taken {
            assert!(seen.insert(letter), "{letter:?} was handled twice");
            let before = newest.insert((*instance, &letter.0), letter.1);
            assert!(before.is_none_or(|before| before < letter.1), "{letter:?} after {before:?}");
        }
        for (letter, reason) in &self.lost {
            assert!(seen.insert(letter), "{letter:?} was accounted for twice, the second time as {reason}");
        }
        let mut counts: BTreeMap<&UniqueAddress, u64> = BTreeMap::new();
        seen.iter().for_each(|(node, _)| *counts.entry(node).or_default() += 1);
        for (node, process) in &self.processes {
            assert_eq!(counts.get(node).copied().unwrap_or(0), process.told, "nothing of {node} is held");
        }
    }
}

/// Source: cluster P8.
#[test]
fn scenario_55_every_message_is_accounted_for_and_every_node_reaches_the_instance_in_the_end() {
    let seeds = std::env::var("GREYLAG_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(200);
    for seed in 0..seeds {
        let run = std::panic::AssertUnwindSafe(|| World::new(seed).run());
        assert!(std::panic::catch_unwind(run).is_ok(), "seed {seed}");
    }
}
