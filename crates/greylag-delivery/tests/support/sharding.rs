//! The sharding producer, and the consumer controller of one entity, driven and shown as text.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_delivery::machine::consumer_link::PoisonPolicy;
use greylag_delivery::machine::portable::{Portable, UnsendableError};
use greylag_delivery::machine::producer_link::Frames;
use greylag_delivery::machine::sharding_consumer::{self, DeliveryHandle, ShardingConsumer};
use greylag_delivery::machine::sharding_producer::{self, RoutedMessage, ShardingProducer};
use greylag_delivery::machine::storing::{Answer, Call};
use greylag_delivery::queue::MessageSent;
use greylag_delivery::{
    BatchHeader, ControllerRef, DeliverySettings, Epoch, ProducerId, ProducerIdentity, ProducerStopped, SequencedBatch,
    StreamId, UpstreamMessage,
};
use greylag_testkit::transcript::{Case, duration};

use crate::support::consumer::{marks, parse_frame};
use crate::support::producer::seconds;
use crate::support::{controller, frame, parse_upstream, storing, upstream};

const EPOCH: Epoch = Epoch(1);

/// The payload of the sharding producer's frames.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TestPayload {
    /// A message with its bytes, or a chunk of one.
    Bytes,
    /// A message without bytes, and the number of its frames once encoded; 0 for a message that cannot be encoded.
    Value(usize),
}

thread_local! {
    /// Number of messages encoded by this thread.
    static ENCODED: Cell<u64> = const { Cell::new(0) };
}

impl Portable for TestPayload {
    fn is_portable(&self) -> bool {
        *self == Self::Bytes
    }

    fn into_portable(frames: Frames<Self>) -> Result<Frames<Self>, UnsendableError> {
        let Frames::Whole(Self::Value(count)) = frames else { return Ok(frames) };
        ENCODED.set(ENCODED.get() + 1);
        match count {
            0 => Err(UnsendableError::TooLarge { size: 2, max: 1 }),
            1 => Ok(Frames::Whole(Self::Bytes)),
            count => Ok(Frames::Chunks(vec![Self::Bytes; count])),
        }
    }
}

pub(crate) struct ShardingProducerWorld {
    machine: ShardingProducer<TestPayload>,
    start: Instant,
    now: Instant,
    next_ticket: u64,
    last_call: u64,
    /// The epoch of the last frame.
    epoch: Epoch,
    /// The latest link of each entity.
    links: BTreeMap<Arc<str>, ControllerRef>,
}

impl ShardingProducerWorld {
    pub(crate) fn new(case: &Case<'_>) -> Self {
        let mut settings = DeliverySettings::test().sharding_producer();
        let mut set = |field: fn(&mut sharding_producer::ShardingProducerSettings) -> &mut usize, key| {
            if let Some(value) = case.parse(key) {
                *field(&mut settings) = value;
            }
        };
        set(|s| &mut s.buffer_size, "buffer");
        set(|s| &mut s.buffer_size_per_entity, "per_entity");
        set(|s| &mut s.max_in_flight_bytes, "bytes");
        set(|s| &mut s.max_in_flight_bytes_per_entity, "bytes_per_entity");
        set(|s| &mut s.recovery_parallelism, "parallelism");
        settings.max_in_flight_messages = case.parse("messages");
        settings.cleanup_unused_after = case.duration("cleanup").unwrap_or(settings.cleanup_unused_after);
        let (id, now) = (ProducerId::new("p").unwrap(), Instant::now());
        let (node, path) = ("n:1#1".parse().unwrap(), "delivery/1".into());
        let machine = if case.flag("durable") {
            let clock = (now, storing::WALL_MS);
            let machine = ShardingProducer::durable(settings, storing::settings(case), id, node, path, clock);
            match case.duration("polling") {
                Some(interval) => machine.polling(interval),
                None => machine,
            }
        } else {
            ShardingProducer::new(settings, ProducerIdentity::stable(id, StreamId(1), EPOCH), node, path)
        };
        Self { machine, start: now, now, next_ticket: 1, last_call: 0, epoch: EPOCH, links: BTreeMap::new() }
    }

    pub(crate) fn run(&mut self, case: &Case<'_>) -> String {
        let mut output = String::new();
        let word = |index: usize| -> Arc<str> { case.positional(index).unwrap_or_default().into() };
        match case.command {
            "start" => self.handle_input(sharding_producer::Input::Start, &mut output),
            "loaded" | "stored" | "confirmed" | "polled" => {
                let call = case.parse("call").unwrap_or(self.last_call);
                let answer = sharding_answer(storing::answer(case));
                self.handle_input(sharding_producer::Input::Queue { call, answer }, &mut output);
            }
            "permit" => {
                let permit = self.next_ticket;
                self.next_ticket += 1;
                self.handle_input(sharding_producer::Input::RequestPermit { permit }, &mut output);
            }
            "release" => {
                // 0 names the latest permit.
                let permit = word(0).parse().ok().filter(|permit| *permit > 0).unwrap_or(self.next_ticket - 1);
                self.handle_input(sharding_producer::Input::ReleasePermit { permit }, &mut output);
            }
            "not-buffered" => self.handle_input(sharding_producer::Input::NotBuffered(word(0)), &mut output),
            "not-kept" => self.handle_input(sharding_producer::Input::NotKept(word(0)), &mut output),
            "refused" => {
                let number = |index: usize| word(index).parse().unwrap();
                let instance = self.links[&word(0)].instance;
                let refused = sharding_producer::Input::Refused { instance, from: number(1), to: number(2) };
                self.handle_input(refused, &mut output);
            }
            "send" => {
                for _ in 0..case.parse("count").unwrap_or(1) {
                    let ticket = self.next_ticket;
                    self.next_ticket += 1;
                    if let Some(permit) = case.parse("permit") {
                        self.handle_input(sharding_producer::Input::UsePermit { permit, ticket }, &mut output);
                    }
                    self.handle_input(
                        sharding_producer::Input::Admit {
                            ticket,
                            entity: word(0),
                            shard: word(0).chars().take(1).collect::<String>().into(),
                            frames: Frames::Whole(case.parse("value").map_or(TestPayload::Bytes, TestPayload::Value)),
                            bytes: case.parse("size").unwrap_or(1),
                            ack: case.flag("ack"),
                        },
                        &mut output,
                    );
                }
            }
            "withdraw" => {
                let ticket = word(1).parse().unwrap();
                self.handle_input(sharding_producer::Input::Withdraw { ticket, entity: word(0) }, &mut output);
            }
            "from" => {
                let (from, to) = (controller(&word(1)), self.links[&word(0)].clone());
                let message = UpstreamMessage {
                    from: ControllerRef { node: case.parse("node").unwrap_or(from.node), ..from },
                    to: ControllerRef { instance: case.parse("link").unwrap_or(to.instance), ..to },
                    epoch: Some(case.parse("epoch").map_or(self.epoch, Epoch)),
                    message: parse_upstream(&word(2), false),
                };
                self.handle_input(sharding_producer::Input::Received(message), &mut output);
            }
            "moved" => self.handle_input(sharding_producer::Input::ShardMoved(word(0)), &mut output),
            "home" => {
                let is_here = case.flag("here");
                self.handle_input(sharding_producer::Input::Homed { shard: word(0), is_here }, &mut output);
            }
            "encoded" => drop(writeln!(output, "{}", ENCODED.replace(0))),
            "route" => {
                let routed = case.flag("on");
                self.handle_input(sharding_producer::Input::RouteChanged { shard: word(0), routed }, &mut output);
            }
            "close" => self.handle_input(sharding_producer::Input::Close, &mut output),
            "advance" => {
                let end = self.now + duration(&word(0)).unwrap();
                while let Some(deadline) = self.machine.next_deadline().filter(|deadline| *deadline <= end) {
                    self.now = deadline.max(self.now);
                    self.handle_input(sharding_producer::Input::Tick, &mut output);
                    let next = self.machine.next_deadline();
                    assert!(next.is_none_or(|next| next > self.now), "a tick moves the deadline");
                }
                self.now = end;
            }
            "demand" => {
                let demand = self.machine.demand();
                let _ = writeln!(output, "with {:?}", demand.entities_with_demand());
                let _ = writeln!(output, "without {:?}", demand.buffered_for_entities_without_demand());
            }
            "ignored" => {
                let _ = writeln!(output, "{}", self.machine.stats(self.now).ignored);
            }
            "stats" => {
                let stats = self.machine.stats(self.now);
                let _ = writeln!(
                    output,
                    "sent {} resent {} confirmed {} unconfirmed {} buffered {} waiting {} entities {} silence {:?}",
                    stats.sent,
                    stats.resent,
                    stats.confirmed,
                    stats.unconfirmed,
                    stats.buffered,
                    stats.waiting,
                    stats.entities,
                    stats.longest_silence
                );
                let _ = writeln!(output, "contiguous {}", self.machine.confirmed());
            }
            "numbers" => {
                let machine = &self.machine;
                let (current, highest, contiguous) =
                    (machine.current_seq_nr(), machine.highest_confirmed(), machine.confirmed());
                let _ = writeln!(output, "current {current} highest confirmed {highest} contiguous {contiguous}");
                let _ = writeln!(output, "store {:?}", machine.storing_state());
            }
            other => panic!("line {}: no command {other}", case.line),
        }
        output
    }

    fn handle_input(&mut self, input: sharding_producer::Input<TestPayload>, output: &mut String) {
        let mut effects = Vec::new();
        self.machine.handle(self.now, input, &mut effects);
        let at = seconds(self.now.duration_since(self.start));
        for effect in effects {
            let text = match effect {
                sharding_producer::Effect::Admitted { ticket, total } => format!("send {ticket} accepted as {total}"),
                sharding_producer::Effect::Transmit { entity, header, message } => {
                    let kind = if message.frame.payload == TestPayload::Bytes { "" } else { " value" };
                    let text = format!(
                        "to {entity} link {} {}{kind} lowest {}",
                        header.controller.instance,
                        frame(&message),
                        header.lowest
                    );
                    let epoch = if header.epoch == EPOCH { String::new() } else { format!(" epoch {}", header.epoch) };
                    self.epoch = header.epoch;
                    self.links.insert(entity, header.controller);
                    text + &epoch
                }
                sharding_producer::Effect::Permit { permit } => format!("permit {permit}"),
                sharding_producer::Effect::Queue { id, call } => {
                    self.last_call = id;
                    describe_call(id, call)
                }
                sharding_producer::Effect::StoreUnknown { ticket, total } => {
                    format!("send {ticket} perhaps stored as {total}")
                }
                sharding_producer::Effect::Unavailable { ticket, .. } => format!("send {ticket} given back"),
                sharding_producer::Effect::QueueEnded(end) => format!("queue ended: {end:?}"),
                sharding_producer::Effect::Closed => "closed".to_owned(),
                sharding_producer::Effect::Confirmed { ticket: 0, total } => format!("recovered {total} confirmed"),
                sharding_producer::Effect::Confirmed { ticket, total } => format!("send {ticket} confirmed as {total}"),
                sharding_producer::Effect::Stop { to, message } => {
                    format!("stopped link {} to {}", message.controller.instance, to.path)
                }
                sharding_producer::Effect::Undelivered { entity, total, .. } => {
                    format!("undelivered {total} to {entity}")
                }
                sharding_producer::Effect::Unsendable { ticket, entity, total, error } => {
                    format!("send {ticket} as {total} to {entity} given up: {error}")
                }
                sharding_producer::Effect::Refused { ticket, .. } => format!("send {ticket} refused"),
                sharding_producer::Effect::Fenced { newer } => format!("fenced by {newer}"),
            };
            let _ = writeln!(output, "{at} {text}");
        }
    }
}

/// Converts a queue's answer to messages for entities; the first letter of an entity's name is its shard.
fn sharding_answer(answer: Answer<u64>) -> Answer<RoutedMessage<TestPayload>> {
    match answer {
        Answer::Loaded(Err(error)) => Answer::Loaded(Err(error)),
        Answer::Stored(answer) => Answer::Stored(answer),
        Answer::Confirmed(answer) => Answer::Confirmed(answer),
        Answer::Loaded(Ok(state)) => Answer::Loaded(Ok(state.map(routed))),
        Answer::Polled(polled) => Answer::Polled(polled.map(|sent| sent.into_iter().map(routed).collect())),
    }
}

fn routed(sent: MessageSent<u64>) -> MessageSent<RoutedMessage<TestPayload>> {
    let shard = sent.qualifier.chars().take(1).collect::<String>().into();
    sent.map(|_| RoutedMessage { shard, bytes: 1, frames: Frames::Whole(TestPayload::Bytes) })
}

fn describe_call(id: u64, call: Call<RoutedMessage<TestPayload>>) -> String {
    let call = match call {
        Call::Load => Call::Load,
        Call::Confirm(confirmations) => Call::Confirm(confirmations),
        Call::Poll(max_messages) => Call::Poll(max_messages),
        Call::Store(batch) => Call::Store(batch.into_iter().map(|sent| sent.map(|_| 0)).collect()),
    };
    storing::call(id, &call)
}

pub(crate) struct ShardingConsumerWorld {
    machine: ShardingConsumer<u64>,
    start: Instant,
    now: Instant,
    /// The latest attempt at each message, by `producer/total`.
    handed: BTreeMap<String, DeliveryHandle>,
}

impl ShardingConsumerWorld {
    pub(crate) fn new(case: &Case<'_>) -> Self {
        let mut settings = DeliverySettings::test().sharding_consumer();
        settings.consumer_idle_after = case.duration("idle").unwrap_or(settings.consumer_idle_after);
        settings.max_producers_per_entity = case.parse("producers").unwrap_or(settings.max_producers_per_entity);
        settings.buffer_size = case.parse("buffer").unwrap_or(settings.buffer_size);
        settings.dedupe_streams_max = case.parse("streams").unwrap_or(settings.dedupe_streams_max);
        settings.dedupe_retention = case.duration("retention").unwrap_or(settings.dedupe_retention);
        let link = Arc::make_mut(&mut settings.link);
        link.max_outstanding_deliveries = case.parse("outstanding").unwrap_or(1);
        link.max_delivery_attempts = case.parse("attempts").unwrap_or(0);
        link.on_poison = match case.arg("poison") {
            Some("stall") => PoisonPolicy::Stall,
            Some("stop") => PoisonPolicy::StopConsumer,
            _ => PoisonPolicy::DeadLetter,
        };
        // No ticks of C11, which the tests of links cover.
        link.resend_interval_min = Duration::from_secs(3600);
        link.resend_interval_max = Duration::from_secs(3600);
        let now = Instant::now();
        Self { machine: ShardingConsumer::new(settings), start: now, now, handed: BTreeMap::new() }
    }

    pub(crate) fn run(&mut self, case: &Case<'_>) -> String {
        let mut output = String::new();
        match case.command {
            "frames" => {
                let header = BatchHeader {
                    producer_id: ProducerId::new(case.arg("producer").unwrap_or("p")).unwrap(),
                    stream_id: StreamId(case.parse("stream").unwrap_or(1)),
                    epoch: Epoch(case.parse("epoch").unwrap_or(1)),
                    controller: controller(case.arg("from").unwrap_or("P1")),
                    ordered: true,
                    lowest: case.parse("lowest").unwrap_or(0),
                };
                let words = (0..).map_while(|index| case.positional(index)).filter(|word| word.starts_with('F'));
                let frames = words.map(parse_frame).collect();
                self.handle_input(sharding_consumer::Input::Batch(SequencedBatch { header, frames }), &mut output);
            }
            "start" => self.handle_input(sharding_consumer::Input::Start(marks(case)), &mut output),
            "confirm" => {
                for name in (0..).map_while(|index| case.positional(index)) {
                    let handle = self.handed[name].clone();
                    self.handle_input(sharding_consumer::Input::Confirm(handle), &mut output);
                }
            }
            "abandon" | "return" | "unreadable" | "give-up" => {
                let handle = self.handed[case.positional(0).unwrap()].clone();
                self.handle_input(
                    match case.command {
                        "abandon" => sharding_consumer::Input::Abandon(handle, case.duration("for")),
                        "return" => sharding_consumer::Input::Return(handle, case.duration("for").unwrap_or_default()),
                        "unreadable" => sharding_consumer::Input::Unreadable(handle),
                        _ => sharding_consumer::Input::GiveUp(handle),
                    },
                    &mut output,
                );
            }
            "confirm-all" => {
                let names = (0..).map_while(|index| case.positional(index));
                let handles = names.map(|name| self.handed[name].clone()).collect();
                self.handle_input(sharding_consumer::Input::ConfirmAll(handles), &mut output);
            }
            "restarts" => {
                // 10,000 starts of one in-memory producer, each with a message.
                for start in 1..=case.parse::<u64>("count").unwrap() {
                    let stream = StreamId(u128::from(1000 + start));
                    let from = format!("P{}", 1000 + start);
                    let header = BatchHeader {
                        producer_id: ProducerId::new("p").unwrap(),
                        stream_id: stream,
                        epoch: Epoch(1),
                        controller: controller(&from),
                        ordered: true,
                        lowest: 0,
                    };
                    let mut quiet = String::new();
                    let batch = SequencedBatch { header, frames: vec![parse_frame("F1(1)")] };
                    self.handle_input(sharding_consumer::Input::Batch(batch), &mut quiet);
                    self.handle_input(sharding_consumer::Input::Confirm(self.handed["p/1"].clone()), &mut quiet);
                    let stopped = ProducerStopped { controller: controller(&from), epoch: Epoch(1) };
                    self.handle_input(sharding_consumer::Input::ProducerStopped(stopped), &mut quiet);
                }
            }
            "stopped" => {
                let controller = controller(case.positional(0).unwrap());
                let epoch = Epoch(case.parse("epoch").unwrap_or(1));
                let stopped = ProducerStopped { controller, epoch };
                self.handle_input(sharding_consumer::Input::ProducerStopped(stopped), &mut output);
            }
            "node-removed" => {
                let node = case.positional(0).unwrap().parse().unwrap();
                self.handle_input(sharding_consumer::Input::NodeRemoved(node), &mut output);
            }
            "finish" => self.handle_input(sharding_consumer::Input::Finish, &mut output),
            "stop" => self.handle_input(sharding_consumer::Input::Stop, &mut output),
            "start-over" => self.handle_input(sharding_consumer::Input::StartOver, &mut output),
            "advance" => {
                let end = self.now + duration(case.positional(0).unwrap()).unwrap();
                while let Some(deadline) = self.machine.next_deadline().filter(|deadline| *deadline <= end) {
                    self.now = deadline.max(self.now);
                    self.handle_input(sharding_consumer::Input::Tick, &mut output);
                }
                self.now = end;
            }
            "links" => {
                let (links, refused) = (self.machine.link_count(), self.machine.refused());
                let _ = writeln!(output, "{links} refused {refused} streams {}", self.machine.watermarks().len());
            }
            "counted" => {
                let _ = writeln!(output, "{:?}", self.machine.counters());
            }
            "watermark" => {
                let stream = StreamId(case.parse("stream").unwrap_or(1));
                let _ = writeln!(output, "{}", self.machine.watermarks().confirmed(stream));
            }
            other => panic!("line {}: no command {other}", case.line),
        }
        output
    }

    fn handle_input(&mut self, input: sharding_consumer::Input<u64>, output: &mut String) {
        let mut effects = Vec::new();
        self.machine.handle(self.now, input, &mut effects);
        let at = seconds(self.now.duration_since(self.start));
        for effect in effects {
            let text = match effect {
                sharding_consumer::Effect::Deliver { handle, .. } => {
                    let name = format!("{}/{}", handle.id.producer_id, handle.id.seq_nr);
                    let attempt = if handle.key.attempt == 1 {
                        String::new()
                    } else {
                        format!(" attempt {}", handle.key.attempt)
                    };
                    self.handed.insert(name.clone(), handle);
                    format!("deliver {name}{attempt}")
                }
                sharding_consumer::Effect::Reply { to, message, .. } => {
                    format!("to {} {}", to.path, upstream(&message))
                }
                sharding_consumer::Effect::Suppressed(id) => format!("suppressed {}/{}", id.producer_id, id.seq_nr),
                sharding_consumer::Effect::Poisoned { id, attempts } => {
                    format!("poisoned {} after {attempts}", id.seq_nr)
                }
                sharding_consumer::Effect::Held(id) => format!("held {}/{}", id.producer_id, id.seq_nr),
                sharding_consumer::Effect::Overdue(id) => format!("overdue {}/{}", id.producer_id, id.seq_nr),
                sharding_consumer::Effect::Replaced { producer, former, by } => {
                    format!("{producer} replaced {} by {}", former.path, by.path)
                }
                sharding_consumer::Effect::SameProducer(producer) => format!("two streams of {producer}"),
                sharding_consumer::Effect::Refused(producer) => format!("refused {producer}"),
                sharding_consumer::Effect::Busy(busy) => if busy { "busy" } else { "idle" }.to_owned(),
                sharding_consumer::Effect::Stopped => "stopped".to_owned(),
            };
            let _ = writeln!(output, "{at} {text}");
        }
    }
}
