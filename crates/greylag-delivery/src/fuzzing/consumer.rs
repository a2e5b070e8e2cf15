//! A consumer controller under arbitrary messages of producers, while its application confirms and gives up deliveries.

use std::time::Instant;

use bytes::Bytes;
use greylag_core::Codec as _;

use super::input::{Input, Time};
use super::samples::codec;
use crate::delivery::payload::Payload;
use crate::delivery::with_delivery::{Protocol, ProtocolMessage, WithDelivery};
use crate::machine::consumer_controller::{self, ConsumerController, ConsumerKind};
use crate::machine::dedupe::Dedupe;
use crate::machine::producer_link::LinkMode;
use crate::machine::sharding_consumer::{DeliveryHandle, Effect};
use crate::message::{Frames, SequencedBatch, Upstream, UpstreamMessage};
use crate::settings::DeliverySettings;
use crate::wire;

/// Maximum bytes of a message.
const MAX_MESSAGE_BYTES: usize = 256;

/// Runs a consumer controller with operations read from `input`. The first byte chooses the kind of controller; then
/// each byte names an operation, and its arguments follow. Every answer must be one that a producer can decode and
/// handle; a delivery must not exceed the size limit; a tick at a deadline must leave a later deadline.
pub fn consumer(now: Instant, input: &[u8]) {
    let mut input = Input::new(input);
    let (kind, mut settings) = (input.byte(), DeliverySettings::test());
    settings.producer.max_message_bytes = MAX_MESSAGE_BYTES;
    settings.consumer.max_outstanding_deliveries = 1 + u32::from(kind >> 1) % 3;
    let (kind, settings) = match kind % 2 {
        0 => (ConsumerKind::PointToPoint, settings.consumer(LinkMode::PointToPoint)),
        _ => (ConsumerKind::Worker, settings.worker()),
    };
    let machine = ConsumerController::new(kind, settings);
    let mut consumer = Consumer { machine, time: Time::starting(now), held: Vec::new(), last: None, out: Vec::new() };
    while let Some(operation) = input.next() {
        consumer.operate(operation, &mut input);
    }
}

struct Consumer {
    machine: ConsumerController<Payload<u64>>,
    time: Time,
    /// Deliveries that are neither confirmed nor given up.
    held: Vec<DeliveryHandle>,
    /// The last batch that could be decoded, for repeats.
    last: Option<SequencedBatch<Payload<u64>>>,
    out: Vec<Effect<Payload<u64>>>,
}

impl Consumer {
    fn operate(&mut self, operation: u8, input: &mut Input<'_>) {
        use consumer_controller::Input;
        match operation % 12 {
            0..=2 => {
                if let Some(message) = read(wire::BATCH, input.bytes()) {
                    self.receive(message);
                }
            }
            3 => {
                if let Some(ProtocolMessage::Stopped(stopped)) = read(wire::STOPPED, input.bytes()) {
                    self.handle_input(Input::ProducerStopped(stopped));
                }
            }
            4 => self.handle_input(Input::Start(Dedupe::none())),
            5 | 6 => {
                if let Some(handle) = self.take(input.byte()) {
                    self.handle_input(Input::Confirm(handle));
                }
            }
            7 => {
                if let Some(handle) = self.take(input.byte()) {
                    self.handle_input(Input::Abandon(handle, None));
                }
            }
            8 => self.tick(),
            9 => self.time.advance(input.number()),
            10 => self.again(input),
            _ => match input.byte() {
                0 => self.handle_input(Input::DeliverThenStop),
                1 => self.handle_input(Input::Stop),
                2 => {
                    if let Some(last) = &self.last {
                        self.handle_input(Input::RegisterTo(last.header.controller.clone()));
                    }
                }
                _ => {
                    let held = std::mem::take(&mut self.held);
                    self.handle_input(Input::ConfirmAll(held));
                }
            },
        }
    }

    fn receive(&mut self, message: ProtocolMessage<u64>) {
        let ProtocolMessage::Batch(batch) = message else { return };
        self.last = Some(batch.clone());
        self.handle_input(consumer_controller::Input::Batch(batch));
    }

    /// Sends the last batch again with shifted numbers.
    fn again(&mut self, input: &mut Input<'_>) {
        let Some(mut batch) = self.last.clone() else { return };
        let (by, lowest) = (input.number(), input.number());
        for message in &mut batch.frames {
            message.first = by.is_multiple_of(2);
            message.frame.seq_nr = message.frame.seq_nr.wrapping_add(by);
            message.frame.total.0 = message.frame.total.0.wrapping_add(by);
        }
        batch.header.lowest = lowest;
        batch.header.controller.instance = batch.header.controller.instance.wrapping_add(u64::from(input.byte() & 1));
        self.handle_input(consumer_controller::Input::Batch(batch));
    }

    fn take(&mut self, which: u8) -> Option<DeliveryHandle> {
        let index = usize::from(which).checked_rem(self.held.len())?;
        Some(self.held.remove(index))
    }

    fn tick(&mut self) {
        let Some(deadline) = self.machine.next_deadline() else { return };
        if self.time.reach(deadline) {
            self.handle_input(consumer_controller::Input::Tick);
            self.time.assert_later(self.machine.next_deadline());
        }
    }

    fn handle_input(&mut self, input: consumer_controller::Input<Payload<u64>>) {
        let mut out = std::mem::take(&mut self.out);
        self.machine.handle(self.time.now, input, &mut out);
        for effect in out.drain(..) {
            match effect {
                Effect::Deliver { handle, parts } => {
                    let is_read = Payload::join(&parts, MAX_MESSAGE_BYTES as u64).is_ok();
                    if is_read && matches!(parts, Frames::Chunks(_)) {
                        assert!(Payload::bytes(&parts).payload.len() <= MAX_MESSAGE_BYTES);
                    }
                    self.held.retain(|held| held.key != handle.key || held.link != handle.link);
                    self.held.push(handle);
                }
                Effect::Reply { to, epoch, message } => {
                    if let Upstream::Request { confirmed, up_to, .. } | Upstream::Ack { confirmed, up_to } = message {
                        assert!(
                            up_to > confirmed || confirmed == u64::MAX,
                            "an answer without a next step: {message:?}"
                        );
                    }
                    let message = UpstreamMessage { from: to.clone(), to, epoch, message };
                    let said = vec![message];
                    assert_eq!(wire::read_upstream(wire::write_upstream(&said)), Ok(said));
                }
                _ => {}
            }
        }
        self.out = out;
    }
}

fn read(manifest: &str, bytes: &[u8]) -> Option<ProtocolMessage<u64>> {
    match codec().decode(manifest, Bytes::copy_from_slice(bytes)).ok()? {
        WithDelivery::Protocol(Protocol(message)) => Some(message),
        WithDelivery::Bypass(_) => None,
    }
}
