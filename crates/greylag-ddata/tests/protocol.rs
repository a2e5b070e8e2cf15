//! The protocol in plain text: see `tests/protocol/*.txt`.
//!
//! ```text
//! nodes a b c [deltas=off] [oldest] [min_cap=n]   replicators that know each other, synchronized
//! start a peers=a,b,c                  one replicator that has still to synchronize
//! add a key element [level=...]        also: remove, inc, put (key field value ts), replace, fail, delete
//! delete a key [ahead=1h]              by a wall clock that is so much ahead
//! get a key [level=...]                what a holds, or finds
//! deliver [from=] [to=] [kind=]        everything under way that matches, and what it leads to
//! drop [from=] [to=] [kind=]           loses what matches
//! advance 100ms                        time passes; due ticks run
//! subscribe a pattern [as=n] [type=]   by subscriber n, to sets, counters or any; flush a, unsubscribe a n
//! metrics a | conflicts a              what a tells of itself
//! show a key | status a                what is held, in what state
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;
use greylag_crdt::{DotSource, GCounter, LwwMap, OrSet, ReplicatedData, UpdateCx};
use greylag_ddata::{
    BatchItem, Effect, Envelope, Input, Key, Message, Notice, Read, ReadLevel, ReadReply, Replica, ReplicaStatus,
    Replicas, ReplicatorCore, ReplicatorSettings, Reply, TypeTable, WriteLevel, WriteReply,
};
use greylag_testkit::transcript::{self, Case};

type Set = OrSet<String>;
type Map = LwwMap<String, String>;

#[test]
fn transcripts() {
    transcript::run_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/protocol"), || {
        let mut world = World::new();
        move |case: &Case<'_>| world.run(case)
    });
}

struct Flight {
    from: String,
    to: String,
    message: Message,
}

struct World {
    base: Instant,
    now: Duration,
    nodes: BTreeMap<String, ReplicatorCore>,
    statuses: BTreeMap<String, ReplicaStatus>,
    unreachable: BTreeSet<(String, String)>,
    flights: Vec<Flight>,
    next: u64,
    text: String,
}

fn address(name: &str) -> UniqueAddress {
    let uid = name.bytes().next().map_or(1, |byte| u64::from(byte - b'a') + 1);
    format!("{name}:1#{uid}").parse().unwrap()
}

fn name(address: &UniqueAddress) -> String {
    address.address().host().to_owned()
}

impl World {
    fn new() -> Self {
        Self {
            base: Instant::now(),
            now: Duration::ZERO,
            nodes: BTreeMap::new(),
            statuses: BTreeMap::new(),
            unreachable: BTreeSet::new(),
            flights: Vec::new(),
            next: 0,
            text: String::new(),
        }
    }

    fn run(&mut self, case: &Case<'_>) -> String {
        let word = |index| case.positional(index).unwrap_or_default().to_owned();
        match case.command {
            "nodes" => {
                let names: Vec<String> =
                    (0..).map_while(|index| case.positional(index)).map(ToOwned::to_owned).collect();
                let names: Vec<String> = names.into_iter().filter(|name| name.len() == 1).collect();
                names.iter().for_each(|name| self.start(case, name));
                self.publish();
                while !self.flights.is_empty() {
                    self.deliver(|_| true);
                }
                self.text.clear();
            }
            "start" => {
                self.start(case, &word(0));
                self.publish();
            }
            "status" => {
                let lifecycle = self.nodes[&word(0)].lifecycle().clone();
                self.say(&format!("{} {lifecycle:?}", word(0)));
            }
            "member" => {
                let status = match word(1).as_str() {
                    "joining" => ReplicaStatus::Joining,
                    "weakly-up" => ReplicaStatus::WeaklyUp,
                    "exiting" => ReplicaStatus::Exiting,
                    "down" => ReplicaStatus::Down,
                    _ => ReplicaStatus::Up,
                };
                self.statuses.insert(word(0), status);
                self.publish();
            }
            "unreachable" | "reachable" => {
                let pair = (word(0), word(1));
                if case.command == "reachable" {
                    self.unreachable.remove(&pair);
                } else {
                    self.unreachable.insert(pair);
                }
                self.publish();
            }
            "subscribe" => {
                let (subscriber, pattern) = (case.parse("as").unwrap_or(1), word(1).into());
                let input = match case.arg("type") {
                    Some("any") => Input::SubscribeAny { subscriber, pattern },
                    Some("counter") => Input::Subscribe { subscriber, pattern, tag: GCounter::TAG.to_string().into() },
                    _ => Input::Subscribe { subscriber, pattern, tag: Set::TAG.to_string().into() },
                };
                self.input(&word(0), input);
            }
            "unsubscribe" => {
                let subscriber = word(1).parse().unwrap();
                self.input(&word(0), Input::Unsubscribe { subscriber });
            }
            "conflicts" => {
                let found = self.nodes.get_mut(&word(0)).expect("a known node").conflicts();
                for conflict in found {
                    self.say(&format!(
                        "{} is {} here, {} at {}",
                        conflict.key, conflict.own, conflict.found, conflict.peer
                    ));
                }
            }
            "metrics" => {
                let found = self.nodes.get_mut(&word(0)).expect("a known node").metrics();
                let lag: Vec<String> =
                    found.log_lag.iter().map(|(peer, lag)| format!("{}={lag}", name(peer))).collect();
                let (keys, tombstones, bytes) = (found.keys, found.tombstones, found.bytes);
                self.say(&format!("keys={keys} tombstones={tombstones} bytes={bytes} lag {}", lag.join(" ")));
                let (in_flight, subscribers, conflicts) = (found.in_flight, found.subscribers, found.conflicts);
                self.say(&format!("in_flight={in_flight} subscribers={subscribers} conflicts={conflicts}"));
                for (what, traffic) in [("sent", found.sent), ("received", found.received)] {
                    let kinds =
                        traffic.iter().map(|(kind, messages, bytes)| format!("{kind} {messages} of {bytes} bytes"));
                    self.say(&format!("{what}: {}", kinds.collect::<Vec<_>>().join(", ")));
                }
            }
            "flush" => self.input(&word(0), Input::Flush),
            "delete" => {
                let id = self.id();
                let ahead = case.duration("ahead").unwrap_or_default();
                let wall_ms = (self.now + ahead).as_millis() as i64;
                self.input(&word(0), Input::Delete { id, key: word(1).into(), level: write_level(case), wall_ms });
            }
            "get" => {
                let id = self.id();
                let tag = tag_of(&word(1)).into();
                self.input(&word(0), Input::Get { id, key: word(1).into(), tag, level: read_level(case) });
            }
            "show" => {
                let shown = self.shown(&word(0), &word(1));
                self.say(&format!("{} holds {shown}", word(0)));
            }
            "deliver" | "drop" => {
                let matches = |flight: &Flight| {
                    let is = |key, value: &str| case.arg(key).is_none_or(|wanted| wanted == value);
                    is("from", &flight.from) && is("to", &flight.to) && is("kind", kind(&flight.message))
                };
                if case.command == "drop" {
                    self.flights.retain(|flight| !matches(flight));
                } else {
                    self.deliver(matches);
                }
            }
            "settle" => {
                for _ in 0..1_000 {
                    if self.flights.is_empty() {
                        break;
                    }
                    self.deliver(|_| true);
                }
            }
            "advance" => self.advance(transcript::duration(&word(0)).unwrap()),
            _ => self.update(case),
        }
        std::mem::take(&mut self.text)
    }

    fn say(&mut self, line: &str) {
        writeln!(self.text, "{line}").unwrap();
    }

    fn id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn start(&mut self, case: &Case<'_>, name: &str) {
        let mut settings = ReplicatorSettings {
            // Keep rounds from beginning before a transcript lets enough time pass.
            gossip_interval: Duration::from_secs(20),
            delta_propagation_interval: Duration::from_millis(100),
            delta_enabled: case.arg("deltas") != Some("off"),
            prefer_oldest: case.flag("oldest"),
            ..ReplicatorSettings::default()
        };
        if let Some(keys) = case.parse("inner") {
            settings.inner_tree_keys = keys;
        }
        if let Some(bytes) = case.parse("eager") {
            settings.eager_full_state_bytes = bytes;
        }
        let now = self.base + self.now;
        let core = ReplicatorCore::new(settings, TypeTable::new(), address(name), DotSource::new(), 7, now);
        self.nodes.insert(name.to_owned(), core);
        self.statuses.insert(name.to_owned(), ReplicaStatus::Up);
    }

    fn publish(&mut self) {
        let names: Vec<String> = self.nodes.keys().cloned().collect();
        for own in &names {
            let others = names.iter().filter(|other| *other != own).map(|other| Replica {
                address: address(other),
                status: self.statuses[other],
                reachable: !self.unreachable.contains(&(own.clone(), other.clone())),
                age: address(other).uid().get(),
            });
            let replicas = Replicas {
                own_status: Some(self.statuses[own]),
                own_age: address(own).uid().get(),
                others: others.collect(),
                ..Replicas::default()
            };
            self.input(own, Input::Replicas(Arc::new(replicas)));
        }
    }

    fn input(&mut self, name: &str, input: Input) {
        let mut out = Vec::new();
        let now = self.base + self.now;
        self.nodes.get_mut(name).expect("a known node").handle(now, input, &mut out);
        self.perform(name, out);
    }

    fn perform(&mut self, from: &str, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Send { to, message, .. } => {
                    let to = name(&to);
                    self.say(&format!("{from} -> {to} {}", describe(&message)));
                    self.flights.push(Flight { from: from.to_owned(), to, message });
                }
                Effect::Reply { reply, .. } => {
                    let text = match reply {
                        Reply::Update(Ok(())) => "updated".into(),
                        Reply::Update(Err(error)) => format!("update failed: {error}"),
                        Reply::Delete(Ok(())) => "deleted".into(),
                        Reply::Delete(Err(error)) => format!("delete failed: {error}"),
                        Reply::Get(Ok(Read::Found(value))) => format!("found {value:?}"),
                        Reply::Get(Ok(other)) => format!("{other:?}"),
                        Reply::Get(Err(error)) => format!("get failed: {error}"),
                    };
                    self.say(&format!("{from}: {text}"));
                }
                Effect::Notify { subscriber, key, notice } => {
                    let whom = if subscriber == 1 { String::new() } else { format!("#{subscriber}") };
                    let text = match notice {
                        Notice::Value(value) => format!("changed to {value:?}"),
                        other => format!("{other:?}"),
                    };
                    self.say(&format!("{from}{whom}: {key} {text}"));
                }
                Effect::Lifecycle(lifecycle) => self.say(&format!("{from}: {lifecycle:?}")),
                Effect::Event(event) => self.say(&format!("{from}: {event:?}")),
                Effect::Store { .. } | Effect::Load | Effect::LoadAnew => self.say(&format!("{from}: {effect:?}")),
            }
        }
    }

    /// Delivers the messages under way that match; messages that follow from them stay under way.
    fn deliver(&mut self, matches: impl Fn(&Flight) -> bool) {
        let (now, later) = std::mem::take(&mut self.flights).into_iter().partition(|flight| matches(flight));
        self.flights = later;
        let now: Vec<Flight> = now;
        for flight in now {
            self.input(&flight.to, Input::Received { from: address(&flight.from), message: flight.message });
        }
    }

    fn advance(&mut self, by: Duration) {
        let end = self.now + by;
        loop {
            let due = self.nodes.iter().filter_map(|(name, core)| Some((core.next_deadline()?, name.clone()))).min();
            let Some((at, name)) = due.filter(|(at, _)| *at <= self.base + end) else { break };
            self.now = self.now.max(at.saturating_duration_since(self.base));
            self.input(&name, Input::Tick);
        }
        self.now = end;
    }

    fn update(&mut self, case: &Case<'_>) {
        let word = |index| case.positional(index).unwrap_or_default().to_owned();
        let (node, key) = (word(0), word(1));
        match case.command {
            "add" => self.change::<Set>(case, &node, &key, |set, cx| {
                case.positional(2).unwrap_or_default().split(',').for_each(|element| set.add(cx, element.to_owned()));
                Ok(())
            }),
            "remove" => self.change::<Set>(case, &node, &key, |set, cx| {
                set.remove(cx, &word(2));
                Ok(())
            }),
            "replace" => self.change::<Set>(case, &node, &key, |set, cx| {
                *set = Set::new();
                set.add(cx, word(2));
                Ok(())
            }),
            "fail" => self.change::<Set>(case, &node, &key, |set, cx| {
                set.add(cx, "half-done".to_owned());
                Err("the closure refused".to_owned())
            }),
            "panic" => self.change::<Set>(case, &node, &key, |_, _| panic!("on purpose")),
            "inc" => self.change::<GCounter>(case, &node, &key, |counter, cx| {
                counter.increment(cx, word(2).parse().unwrap()).map_err(|error| error.to_string())
            }),
            "put" => self.change::<Map>(case, &node, &key, |map, cx| {
                let won = map.put_with(cx, word(2), word(3), |_, _| word(4).parse().unwrap());
                if won { Ok(()) } else { Err("lost".to_owned()) }
            }),
            other => panic!("unknown command {other}"),
        }
    }

    fn change<T: ReplicatedData>(
        &mut self,
        case: &Case<'_>,
        node: &str,
        key: &str,
        change: impl FnOnce(&mut T, &mut UpdateCx<'_>) -> Result<(), String>,
    ) {
        let (mut out, id, now) = (Vec::new(), self.id(), self.base + self.now);
        let key = Key::<T>::new(key).unwrap();
        let core = self.nodes.get_mut(node).expect("a known node");
        let wall_ms = self.now.as_millis() as i64;
        let result = core.update(now, wall_ms, id, &key, write_level(case), T::zero, change, &mut out);
        if let Err(error) = result {
            self.say(&format!("{node}: update failed: {error}"));
        }
        self.perform(node, out);
    }

    fn shown(&self, node: &str, key: &str) -> String {
        let core = &self.nodes[node];
        let set = core.value(&Key::<Set>::new(key).unwrap()).map(|value| format!("{value:?}"));
        let map = core.value(&Key::<Map>::new(key).unwrap()).map(|value| format!("{value:?}"));
        let counter = core.value(&Key::<GCounter>::new(key).unwrap()).map(|value| format!("{value:?}"));
        set.or(map).or(counter).unwrap_or_else(|| "nothing".into())
    }
}

/// The tag of a key: its first letter names the type.
fn tag_of(key: &str) -> String {
    match key.as_bytes().first() {
        Some(b'c') => GCounter::TAG.to_string(),
        Some(b'm') => Map::TAG.to_string(),
        _ => Set::TAG.to_string(),
    }
}

const TIMEOUT: Duration = Duration::from_secs(5);

fn write_level(case: &Case<'_>) -> WriteLevel {
    let min_cap = case.parse("min_cap");
    match case.arg("level") {
        None | Some("local") => WriteLevel::Local,
        Some("majority") => WriteLevel::Majority { min_cap, timeout: TIMEOUT },
        Some("plus") => WriteLevel::MajorityPlus { additional: 1, min_cap, timeout: TIMEOUT },
        Some("all") => WriteLevel::All { timeout: TIMEOUT },
        Some(n) => WriteLevel::To { n: n.parse().unwrap(), timeout: TIMEOUT },
    }
}

fn read_level(case: &Case<'_>) -> ReadLevel {
    let min_cap = case.parse("min_cap");
    match case.arg("level") {
        None | Some("local") => ReadLevel::Local,
        Some("majority") => ReadLevel::Majority { min_cap, timeout: TIMEOUT },
        Some("plus") => ReadLevel::MajorityPlus { additional: 1, min_cap, timeout: TIMEOUT },
        Some("all") => ReadLevel::All { timeout: TIMEOUT },
        Some(n) => ReadLevel::From { n: n.parse().unwrap(), timeout: TIMEOUT },
    }
}

fn kind(message: &Message) -> &'static str {
    match message {
        Message::Write { .. } => "Write",
        Message::Check { .. } => "Check",
        Message::DeltaWrite { .. } => "DeltaWrite",
        Message::WriteReply { .. } => "WriteReply",
        Message::Read { .. } => "Read",
        Message::ReadReply { .. } => "ReadReply",
        Message::DeltaBatch { .. } => "DeltaBatch",
        Message::DeltaAck { .. } => "DeltaAck",
        Message::SyncOpen { .. } => "SyncOpen",
        Message::SyncSame { .. } => "SyncSame",
        Message::SyncDiffers { .. } => "SyncDiffers",
        Message::SyncNodes { .. } => "SyncNodes",
        Message::SyncList { .. } => "SyncList",
        Message::SyncWant { .. } => "SyncWant",
        Message::Gossip { .. } => "Gossip",
        Message::SyncAck { .. } => "SyncAck",
        Message::SyncDone { .. } => "SyncDone",
        Message::InnerNodes { .. } => "InnerNodes",
        Message::InnerWant { .. } => "InnerWant",
        Message::Bucket { .. } => "Bucket",
    }
}

/// A message without the numbers that only its sender understands, unless they are the point of the test.
fn describe(message: &Message) -> String {
    let entry = |(key, _): &(Arc<str>, Envelope)| key.to_string();
    match message {
        Message::Write { key, .. } | Message::Check { key, .. } | Message::Read { key, .. } => {
            format!("{} {key}", kind(message))
        }
        Message::DeltaWrite { item, .. } => format!("DeltaWrite {} ({},{}]", item.key, item.prev, item.version),
        Message::WriteReply { reply, .. } => match reply {
            WriteReply::DeltaNack { have, full } => format!("WriteReply DeltaNack have={have} full={full}"),
            other => format!("WriteReply {other:?}"),
        },
        Message::ReadReply { reply: ReadReply::Value(_), .. } => "ReadReply Value".into(),
        Message::ReadReply { reply, .. } => format!("ReadReply {reply:?}"),
        Message::DeltaBatch { items, .. } => {
            let items = items.iter().map(|item| match item {
                BatchItem::Delta(item) => format!("{} ({},{}]", item.key, item.prev, item.version),
                BatchItem::Full { key, .. } => format!("{key} in full"),
                BatchItem::Hint { .. } => "hint".into(),
                BatchItem::Touch { used_ms, .. } => format!("touch {used_ms}"),
            });
            format!("DeltaBatch [{}]", items.collect::<Vec<_>>().join(", "))
        }
        Message::DeltaAck { nacked, .. } => {
            let nacked = nacked.iter().map(|nack| format!("{} have={} full={}", nack.key, nack.have, nack.full));
            format!("DeltaAck nacked=[{}]", nacked.collect::<Vec<_>>().join(", "))
        }
        Message::SyncOpen { root, .. } => format!("SyncOpen count={}", root.count),
        Message::InnerNodes { key, offer, nodes, .. } => {
            let offered = if offer.is_some() { " offered" } else { "" };
            format!("InnerNodes {key}{offered} {}", nodes.len())
        }
        Message::InnerWant { key, ranges, .. } => {
            let split = ranges.iter().filter(|wanted| wanted.split).count();
            format!("InnerWant {key} split={split} all={}", ranges.len() - split)
        }
        Message::Bucket { key, .. } => format!("Bucket {key}"),
        Message::SyncNodes { parents, .. } => format!("SyncNodes {}", parents.len()),
        Message::SyncList { prefixes, keys, .. } => {
            let parts: Vec<String> = prefixes.iter().map(|prefix| format!("{prefix:?}")).collect();
            format!("SyncList {} of {}", parts.join(" "), keys.len())
        }
        Message::SyncWant { hashes, .. } => format!("SyncWant {}", hashes.len()),
        Message::Gossip { send_back, entries, .. } => {
            let entries: Vec<String> = entries.iter().map(entry).collect();
            format!("Gossip [{}]{}", entries.join(", "), if *send_back { " send back" } else { "" })
        }
        Message::SyncAck { received, sent, idle, .. } => format!("SyncAck received={received} sent={sent} idle={idle}"),
        Message::SyncSame { .. } | Message::SyncDiffers { .. } | Message::SyncDone { .. } => kind(message).into(),
    }
}
