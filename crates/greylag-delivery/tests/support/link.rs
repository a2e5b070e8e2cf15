//! Both ends of a link and the messages between them, driven and shown as text.
//!
//! Messages arrive at once and in order, unless a case says otherwise: messages to a name may be lost, messages from a
//! name may be held back and arrive late, and a case may make copies. Only `advance` advances time, so no timer affects
//! what a case shows before it.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::time::Instant;

use greylag_delivery::machine::consumer_link::{self, ConsumerLink, ConsumerLinkSettings, DeliveryKey};
use greylag_delivery::machine::producer_link::{self, Frames, LinkMode, ProducerLink, ProducerLinkSettings};
use greylag_delivery::{
    BatchHeader, DeliverySettings, Epoch, ProducerId, ProducerIdentity, SeqNr, SequencedMessage, StreamId, Upstream,
    Watermarks,
};
use greylag_testkit::transcript::{Case, duration};

use crate::support::consumer::{describe, marks, parse_frame, settings};
use crate::support::producer::seconds;
use crate::support::{controller, frame, parse_upstream, upstream};

struct Producer {
    link: ProducerLink<u64>,
    stream: StreamId,
    epoch: Epoch,
    next_total: u64,
}

struct Consumer {
    link: ConsumerLink<u64>,
    watermarks: Watermarks,
    /// The latest attempt at each total that was handed out.
    handed: BTreeMap<SeqNr, DeliveryKey>,
}

/// A message under way from one name to another.
struct Packet {
    from: String,
    to: String,
    content: Content,
}

enum Content {
    Frames(BatchHeader, SequencedMessage<u64>),
    Answer(Option<Epoch>, Upstream),
}

pub(crate) struct LinkWorld {
    mode: LinkMode,
    settings: DeliverySettings,
    link_settings: ConsumerLinkSettings,
    start: Instant,
    now: Instant,
    producers: BTreeMap<String, Producer>,
    consumers: BTreeMap<String, Consumer>,
    /// The name to which the region routes.
    home: String,
    on_its_way: VecDeque<Packet>,
    /// By name: how many of the next messages to it are lost.
    losses: BTreeMap<String, u32>,
    /// By name: messages from it that are held back.
    kept: BTreeMap<String, Vec<Packet>>,
}

impl LinkWorld {
    pub(crate) fn new(case: &Case<'_>) -> Self {
        let mode = if case.flag("sharding") { LinkMode::Sharding } else { LinkMode::PointToPoint };
        let (settings, now) = (settings(case), Instant::now());
        Self {
            mode,
            link_settings: settings.consumer_link(mode),
            settings,
            start: now,
            now,
            producers: BTreeMap::new(),
            consumers: BTreeMap::new(),
            home: String::new(),
            on_its_way: VecDeque::new(),
            losses: BTreeMap::new(),
            kept: BTreeMap::new(),
        }
    }

    pub(crate) fn run(&mut self, case: &Case<'_>) -> String {
        let mut output = String::new();
        let name = case.positional(0).unwrap_or_default().to_owned();
        match case.command {
            "begin" if name.starts_with('P') => {
                let (stream, epoch) = (case.parse("stream").unwrap_or(1), case.parse("epoch").unwrap_or(1));
                let next_total = case.parse("total").unwrap_or(1);
                let link = ProducerLink::new(self.producer_settings(stream, epoch), self.now);
                let producer = Producer { link, stream: StreamId(stream), epoch: Epoch(epoch), next_total };
                self.producers.insert(name, producer);
            }
            "begin" => self.start_consumer(&name, case, &mut output),
            "home" => name.clone_into(&mut self.home),
            "register" => {
                let input = consumer_link::Input::RegisterTo(controller(case.positional(1).unwrap()));
                self.tell_consumer(&name, input, &mut output);
            }
            "moved" => self.tell_producer(&name, producer_link::Input::Reassociate, &mut output),
            "new-epoch" => {
                let producer = self.producers.get_mut(&name).unwrap();
                producer.epoch = Epoch(producer.epoch.0 + 1);
                let input = producer_link::Input::NewEpoch(producer.epoch);
                self.tell_producer(&name, input, &mut output);
            }
            "send" => self.send(&name, case, &mut output),
            "confirm" => {
                for total in (1..).map_while(|index| case.positional(index)) {
                    match self.consumers[&name].handed.get(&SeqNr(total.parse().unwrap())).copied() {
                        Some(key) => self.tell_consumer(&name, consumer_link::Input::Confirm(key), &mut output),
                        None => output += &format!("{name} was not handed {total}\n"),
                    }
                    self.deliver(&mut output);
                }
            }
            "lose" => {
                self.losses.insert(name, case.parse("count").unwrap_or(u32::MAX));
            }
            "pass" => {
                self.losses.remove(&name);
            }
            "keep" => {
                self.kept.insert(name, Vec::new());
            }
            "late" => self.on_its_way.extend(self.kept.remove(&name).unwrap()),
            "end" => {
                self.consumers.remove(&name).map(drop).or_else(|| self.producers.remove(&name).map(drop)).unwrap();
            }
            "copy" => self.copy(&name, case, &mut output),
            "advance" => self.advance(&name, &mut output),
            other => panic!("line {}: no command {other}", case.line),
        }
        self.deliver(&mut output);
        output
    }

    fn producer_settings(&self, stream: u128, epoch: u64) -> ProducerLinkSettings {
        let identity = ProducerIdentity::stable(ProducerId::new("p").unwrap(), StreamId(stream), Epoch(epoch));
        self.settings.producer_link(self.mode, &identity)
    }

    fn start_consumer(&mut self, name: &str, case: &Case<'_>, output: &mut String) {
        let consumer = Consumer {
            link: ConsumerLink::new(self.link_settings.clone()),
            watermarks: Watermarks::new(1000, self.settings.dedupe_retention),
            handed: BTreeMap::new(),
        };
        self.consumers.insert(name.to_owned(), consumer);
        self.tell_consumer(name, consumer_link::Input::Start(marks(case)), output);
        if self.home.is_empty() {
            name.clone_into(&mut self.home);
        }
    }

    fn send(&mut self, name: &str, case: &Case<'_>, output: &mut String) {
        let chunks = case.parse("chunks");
        for _ in 0..case.parse("count").unwrap_or(1) {
            let producer = self.producers.get_mut(name).unwrap();
            let total = SeqNr(producer.next_total);
            producer.next_total += 1;
            let frames = match chunks {
                None => Frames::Whole(total.get()),
                Some(chunks) => Frames::Chunks(vec![total.get(); chunks]),
            };
            let input = producer_link::Input::Accept { total, frames, ack: case.flag("ack") };
            self.tell_producer(name, input, output);
            self.deliver(output);
        }
    }

    /// A late copy of a frame, or of an answer: `copy P A F1(1) lowest=1`, `copy A P Ack(4,20)`.
    fn copy(&mut self, from: &str, case: &Case<'_>, output: &mut String) {
        let (to, words) = (case.positional(1).unwrap().to_owned(), case.positional(2).unwrap());
        let epoch = case.parse("epoch").map_or(Epoch(1), Epoch);
        let content = if words.starts_with('F') && !words.starts_with("Fenced") {
            let stream = StreamId(case.parse("stream").unwrap_or(1));
            let lowest = case.parse("lowest").unwrap_or(0);
            Content::Frames(header(from, stream, epoch, lowest), parse_frame(words))
        } else {
            let message = parse_upstream(words, self.link_settings.only_flow_control);
            Content::Answer((message != Upstream::RegisterConsumer).then_some(epoch), message)
        };
        let _ = writeln!(output, "{} {from} to {to} {words}", self.at());
        self.on_its_way.push_back(Packet { from: from.to_owned(), to, content });
    }

    fn advance(&mut self, by: &str, output: &mut String) {
        let end = self.now + duration(by).unwrap();
        loop {
            let producers = self.producers.values().filter_map(|producer| producer.link.next_deadline());
            let consumers = self.consumers.values().filter_map(|consumer| consumer.link.next_deadline());
            let Some(deadline) = producers.chain(consumers).min().filter(|deadline| *deadline <= end) else { break };
            self.now = deadline.max(self.now);
            for name in self.producers.keys().cloned().collect::<Vec<_>>() {
                self.tell_producer(&name, producer_link::Input::Tick, output);
            }
            for name in self.consumers.keys().cloned().collect::<Vec<_>>() {
                self.tell_consumer(&name, consumer_link::Input::Tick, output);
            }
            self.deliver(output);
        }
        self.now = end;
    }

    /// Delivers messages until none is under way.
    fn deliver(&mut self, output: &mut String) {
        while let Some(Packet { from, to, content }) = self.on_its_way.pop_front() {
            match content {
                Content::Frames(header, message) if self.consumers.contains_key(&to) => {
                    let input = consumer_link::Input::Frames { header, frames: vec![message] };
                    self.tell_consumer(&to, input, output);
                }
                Content::Answer(epoch, message) if self.producers.contains_key(&to) => {
                    let input = producer_link::Input::Received { from: controller(&from), epoch, message };
                    self.tell_producer(&to, input, output);
                }
                _ => {} // a recipient that has ended
            }
        }
    }

    fn tell_producer(&mut self, name: &str, input: producer_link::Input<u64>, output: &mut String) {
        let mut effects = Vec::new();
        let (at, producer) = (self.at(), self.producers.get_mut(name).unwrap());
        producer.link.handle(self.now, input, &mut effects);
        let (stream, epoch) = (producer.stream, producer.epoch);
        let consumer = producer.link.consumer().map(|consumer| consumer.path.to_string());
        for effect in effects {
            match effect {
                producer_link::Effect::Transmit { frame: content, first, lowest, .. } => {
                    let message = SequencedMessage { frame: content, first };
                    let to = if self.mode == LinkMode::Sharding { Some(self.home.clone()) } else { consumer.clone() };
                    let text = format!("{} lowest {lowest}", frame(&message));
                    let content = Content::Frames(header(name, stream, epoch, lowest), message);
                    self.dispatch(name, to.unwrap(), epoch, &text, content, output);
                }
                producer_link::Effect::ConfirmedUpTo(total) => {
                    let _ = writeln!(output, "{at} {name}: confirmed {total}");
                }
                producer_link::Effect::DemandChanged(_) => {}
                producer_link::Effect::Fenced { newer } => {
                    let _ = writeln!(output, "{at} {name}: fenced by {newer}");
                }
            }
        }
    }

    fn tell_consumer(&mut self, name: &str, input: consumer_link::Input<u64>, output: &mut String) {
        let mut effects = Vec::new();
        let (at, consumer) = (self.at(), self.consumers.get_mut(name).unwrap());
        consumer.link.handle(self.now, input, &mut consumer.watermarks, &mut effects);
        for effect in &effects {
            if let consumer_link::Effect::Deliver { key, id, .. } = effect {
                consumer.handed.insert(id.seq_nr, *key);
            }
        }
        for effect in effects {
            match effect {
                consumer_link::Effect::Reply { to, epoch, message } => {
                    let text = upstream(&message);
                    let content = Content::Answer(epoch, message);
                    self.dispatch(name, to.path.to_string(), epoch.unwrap_or(Epoch(1)), &text, content, output);
                }
                other => {
                    let _ = writeln!(output, "{at} {name}: {}", describe(&other));
                }
            }
        }
    }

    /// Puts a message from one name to another under way, and shows it.
    fn dispatch(&mut self, from: &str, to: String, epoch: Epoch, text: &str, content: Content, output: &mut String) {
        let at = self.at();
        let under = if epoch.0 == 1 { String::new() } else { format!(" epoch {epoch}") };
        let mut what_becomes = "";
        if let Some(losses) = self.losses.get_mut(&to).filter(|losses| **losses > 0) {
            *losses = losses.saturating_sub(u32::from(*losses != u32::MAX));
            what_becomes = ", lost";
        } else {
            let packet = Packet { from: from.to_owned(), to: to.clone(), content };
            match self.kept.get_mut(from) {
                Some(kept) => {
                    kept.push(packet);
                    what_becomes = ", late";
                }
                None => self.on_its_way.push_back(packet),
            }
        }
        let _ = writeln!(output, "{at} {from} to {to} {text}{under}{what_becomes}");
    }

    fn at(&self) -> String {
        seconds(self.now.duration_since(self.start))
    }
}

fn header(from: &str, stream_id: StreamId, epoch: Epoch, lowest: u64) -> BatchHeader {
    let producer_id = ProducerId::new("p").unwrap();
    BatchHeader { producer_id, stream_id, epoch, controller: controller(from), ordered: true, lowest }
}
