//! A producer controller under arbitrary messages of consumers, while its senders go on.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::input::{Input, Time};
use super::samples::{controller, identity};
use crate::ids::{ControllerRef, Epoch, SeqNr};
use crate::machine::controller::{self, Controller, Effect, Message};
use crate::machine::omissions::Omissions;
use crate::machine::point_to_point::{PointToPoint, PointToPointSettings};
use crate::machine::sharding_producer::{self, ShardingProducer};
use crate::machine::storing::Storing;
use crate::machine::work_pulling::{ListedWorker, WorkPulling, WorkPullingSettings, WorkerSelection};
use crate::message::{Frames, Upstream, UpstreamMessage};
use crate::settings::DeliverySettings;
use crate::wire;

/// Maximum number of messages given to a producer.
const MESSAGES: u64 = 64;

/// Runs a producer controller with operations read from `input`. The first byte chooses one of three kinds of
/// controller; then each byte names an operation, and its arguments follow. No message may be confirmed that was not
/// sent, none may be confirmed twice, and a tick at a deadline must leave a later deadline.
pub fn producer(now: Instant, input: &[u8]) {
    let mut input = Input::new(input);
    let kind = input.byte();
    let (time, mut first) = (Time::starting(now), Vec::new());
    let machine = match kind % 3 {
        0 => Machine::Plain(Box::new(point_to_point(&time, &mut first))),
        1 => Machine::Plain(Box::new(work_pulling(&time, &mut first))),
        _ => Machine::Sharding(Box::new(sharding())),
    };
    let mut producer = Producer { machine, time, next_ticket: 1, accepted: BTreeSet::new(), last_header: None };
    producer.start(first);
    while let Some(operation) = input.next() {
        producer.operate(operation, &mut input);
    }
}

fn point_to_point(time: &Time, out: &mut Vec<Effect<u64>>) -> PointToPoint<u64> {
    let identity = identity();
    let settings = PointToPointSettings {
        producer_id: identity.producer_id,
        controller: controller(1),
        stream: Some((identity.stream_id, identity.epoch)),
        resend_first_interval: Duration::from_secs(1),
        resend_first_unconfirmed_idle_timeout: Duration::from_secs(10),
        clock: (0, time.now),
        omissions: Omissions::default(),
    };
    PointToPoint::new(settings, Storing::in_memory(), time.now, out)
}

fn work_pulling(time: &Time, out: &mut Vec<Effect<u64>>) -> WorkPulling<u64> {
    let (identity, of) = (identity(), controller(1));
    let settings = WorkPullingSettings {
        producer_id: identity.producer_id,
        node: of.node,
        path: of.path,
        stream: Some((identity.stream_id, identity.epoch)),
        resend_first_interval: Duration::from_secs(1),
        resend_first_unconfirmed_idle_timeout: Duration::from_secs(10),
        buffer_size: 8,
        selection: WorkerSelection::LeastInFlight,
        worker_first_timeout: Duration::from_secs(30),
        work_timeout: Some(Duration::from_secs(60)),
        seed: 1,
        clock: (0, time.now),
        omissions: Omissions::default(),
    };
    WorkPulling::new(settings, Storing::in_memory(), time.now, out)
}

fn sharding() -> ShardingProducer<u64> {
    let (mut settings, of) = (DeliverySettings::test(), controller(1));
    (settings.sharding.buffer_size, settings.sharding.buffer_size_per_entity) = (10, 4);
    ShardingProducer::new(settings.sharding_producer(), identity(), of.node, of.path)
}

enum Machine {
    Plain(Box<dyn Controller<u64>>),
    Sharding(Box<ShardingProducer<u64>>),
}

struct Producer {
    machine: Machine,
    time: Time,
    next_ticket: u64,
    /// Numbers that were accepted and are not confirmed.
    accepted: BTreeSet<SeqNr>,
    /// The link of the last frame, to which answers of its consumer refer.
    last_header: Option<(ControllerRef, Epoch)>,
}

impl Producer {
    fn start(&mut self, first: Vec<Effect<u64>>) {
        first.into_iter().for_each(|effect| self.plain_effect(effect));
        match &self.machine {
            Machine::Plain(_) => self.plain(controller::Input::Start { session: 1 }),
            Machine::Sharding(_) => self.sharding(sharding_producer::Input::Start),
        }
    }

    fn operate(&mut self, operation: u8, input: &mut Input<'_>) {
        match operation % 10 {
            0 | 1 => self.admit(input.byte()),
            2 => {
                let said = wire::read_upstream(Bytes::copy_from_slice(input.bytes()));
                said.unwrap_or_default().into_iter().for_each(|message| self.receive(message));
            }
            3..=5 => {
                let message = self.said(input);
                self.receive(message);
            }
            6 => self.tick(),
            7 => self.time.advance(input.number()),
            8 => self.around(input),
            _ if input.byte() == 0 => match &self.machine {
                Machine::Plain(_) => self.plain(controller::Input::Close),
                Machine::Sharding(_) => self.sharding(sharding_producer::Input::Close),
            },
            _ => {}
        }
    }

    fn admit(&mut self, entity: u8) {
        let ticket = self.next_ticket;
        if ticket > MESSAGES {
            return;
        }
        self.next_ticket += 1;
        let frames = match entity / 8 % 3 {
            0 => Frames::Chunks(vec![ticket; 3]),
            _ => Frames::Whole(ticket),
        };
        let ack = entity.is_multiple_of(2);
        match &self.machine {
            Machine::Plain(_) => {
                let message = Message { frames, bytes: 8, ack };
                self.plain(controller::Input::Admit { session: 1, ticket, message, waits: true });
            }
            Machine::Sharding(_) => {
                let (entity, shard) = (name(entity % 4), name(entity % 2));
                self.sharding(sharding_producer::Input::Admit { ticket, entity, shard, frames, bytes: 8, ack });
            }
        }
    }

    /// Makes a message of a consumer, on a link that may exist.
    fn said(&self, input: &mut Input<'_>) -> UpstreamMessage {
        let (kind, who) = (input.byte(), input.byte());
        let (a, b) = (input.number(), input.number());
        let message = match kind % 8 {
            0 | 1 => Upstream::Request { confirmed: a, up_to: b, support_resend: true, via_timeout: kind >= 128 },
            2 => Upstream::Request { confirmed: a, up_to: b, support_resend: false, via_timeout: kind >= 128 },
            3 | 4 => Upstream::Ack { confirmed: a, up_to: b },
            5 => Upstream::Resend { from: a, to: b },
            6 => Upstream::RegisterConsumer,
            _ => Upstream::Fenced { stream_id: identity().stream_id, newer: Epoch(a) },
        };
        let mut to = controller(1);
        let mut epoch = Some(Epoch::FIRST);
        if let Some((link, of)) = self.last_header.clone() {
            (to, epoch) = (link, Some(of));
        }
        if who >= 224 {
            to.instance = u64::from(who - 223);
        }
        if who % 16 == 15 {
            epoch = None;
        }
        UpstreamMessage { from: consumer_of(who % 4), to, epoch, message }
    }

    /// Makes an event about consumers or their nodes.
    fn around(&mut self, input: &mut Input<'_>) {
        let which = input.byte();
        match &self.machine {
            Machine::Plain(_) => match which % 4 {
                0 => self.plain(controller::Input::RegisterConsumer(consumer_of(which / 4 % 4))),
                1 | 2 => {
                    let is_there = |index: &u8| which & (16 << index) != 0;
                    let listed =
                        |index| ListedWorker { worker: consumer_of(index), selectable: index != 3 || which % 4 == 1 };
                    self.plain(controller::Input::Workers((0..4).filter(is_there).map(listed).collect()));
                }
                _ => self.plain(controller::Input::Withdraw { ticket: u64::from(which / 4) }),
            },
            Machine::Sharding(_) => {
                let shard = name(which / 4 % 2);
                self.sharding(match which % 4 {
                    0 => sharding_producer::Input::ShardMoved(shard),
                    1 => sharding_producer::Input::RouteChanged { shard, routed: which >= 128 },
                    2 => sharding_producer::Input::NotKept(name(which / 4 % 4)),
                    _ => sharding_producer::Input::Refused {
                        instance: input.number(),
                        from: input.number(),
                        to: input.number(),
                    },
                });
            }
        }
    }

    fn receive(&mut self, message: UpstreamMessage) {
        match &self.machine {
            Machine::Plain(_) => self.plain(controller::Input::Received(message)),
            Machine::Sharding(_) => self.sharding(sharding_producer::Input::Received(message)),
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        match &self.machine {
            Machine::Plain(machine) => machine.next_deadline(),
            Machine::Sharding(machine) => machine.next_deadline(),
        }
    }

    fn tick(&mut self) {
        let Some(deadline) = self.next_deadline() else { return };
        if self.time.reach(deadline) {
            match &self.machine {
                Machine::Plain(_) => self.plain(controller::Input::Tick),
                Machine::Sharding(_) => self.sharding(sharding_producer::Input::Tick),
            }
            self.time.assert_later(self.next_deadline());
        }
    }

    fn plain(&mut self, input: controller::Input<u64>) {
        let (Machine::Plain(machine), mut out) = (&mut self.machine, Vec::new()) else { return };
        machine.handle(self.time.now, input, &mut out);
        out.into_iter().for_each(|effect| self.plain_effect(effect));
    }

    fn plain_effect(&mut self, effect: Effect<u64>) {
        match effect {
            Effect::Accepted { total, .. } => self.accepted(total),
            Effect::Transmit { header, .. } => self.last_header = Some((header.controller, header.epoch)),
            Effect::Confirmed { total, .. } => self.confirmed(total),
            _ => {}
        }
    }

    fn sharding(&mut self, input: sharding_producer::Input<u64>) {
        let (Machine::Sharding(machine), mut out) = (&mut self.machine, Vec::new()) else { return };
        machine.handle(self.time.now, input, &mut out);
        for effect in out {
            match effect {
                sharding_producer::Effect::Admitted { total, .. } => self.accepted(total),
                sharding_producer::Effect::Transmit { header, .. } => {
                    self.last_header = Some((header.controller, header.epoch));
                }
                sharding_producer::Effect::Confirmed { total, .. } => self.confirmed(total),
                _ => {}
            }
        }
    }

    fn accepted(&mut self, total: SeqNr) {
        assert!(self.accepted.insert(total), "{total:?} is given twice");
    }

    fn confirmed(&mut self, total: SeqNr) {
        assert!(self.accepted.remove(&total), "{total:?} is confirmed twice, or was never accepted");
    }
}

fn name(index: u8) -> Arc<str> {
    index.to_string().into()
}

fn consumer_of(index: u8) -> ControllerRef {
    ControllerRef { path: "delivery/consumer".into(), ..controller(100 + u64::from(index)) }
}
