//! The point-to-point producer controller, driven and shown as text.

use std::fmt::Write as _;
use std::time::Instant;

use greylag_delivery::machine::controller::{Controller, Effect, Input, Message, Refusal};
use greylag_delivery::machine::point_to_point::{PointToPoint, PointToPointSettings};
use greylag_delivery::machine::producer_link::Frames;
use greylag_delivery::machine::storing::Storing;
use greylag_delivery::{Epoch, Omissions, ProducerId, StreamId, UpstreamMessage};
use greylag_testkit::transcript::{Case, duration};

use crate::support::producer::seconds;
use crate::support::{controller, frame, parse_upstream, storing};

pub(crate) struct PointToPointWorld {
    machine: PointToPoint<u64>,
    start: Instant,
    now: Instant,
    session: u64,
    next_ticket: u64,
    epoch: Epoch,
    last_call: u64,
}

impl PointToPointWorld {
    pub(crate) fn new(case: &Case<'_>, output: &mut String) -> Self {
        let now = Instant::now();
        let settings = greylag_delivery::DeliverySettings::test();
        let settings = PointToPointSettings {
            producer_id: ProducerId::new("p").unwrap(),
            controller: controller("P1"),
            stream: Some((StreamId(1), Epoch::FIRST)),
            resend_first_interval: settings.producer.resend_first_interval,
            resend_first_unconfirmed_idle_timeout: settings.producer.resend_first_unconfirmed_idle_timeout,
            clock: (1_000_000, now),
            omissions: Omissions::default(),
        };
        let storing =
            if case.flag("durable") { Storing::durable(storing::settings(case)) } else { Storing::in_memory() };
        let mut effects = Vec::new();
        let machine = PointToPoint::new(settings, storing, now, &mut effects);
        let mut world =
            Self { machine, start: now, now, session: 0, next_ticket: 1, epoch: Epoch::FIRST, last_call: 0 };
        world.show(effects, output);
        world
    }

    pub(crate) fn run(&mut self, case: &Case<'_>) -> String {
        let mut output = String::new();
        let word = |index: usize| case.positional(index).unwrap_or_default();
        match case.command {
            "start" => {
                self.session += 1;
                self.handle_input(Input::Start { session: self.session }, &mut output);
            }
            "register" => self.handle_input(Input::RegisterConsumer(controller(word(0))), &mut output),
            "send" | "try" => {
                for _ in 0..case.parse("count").unwrap_or(1) {
                    let ticket = self.ticket();
                    let session = case.parse("session").unwrap_or(self.session);
                    let waits = case.command == "send";
                    let message = message(case, ticket);
                    self.handle_input(Input::Admit { session, ticket, message, waits }, &mut output);
                }
            }
            "reserve" => {
                for _ in 0..case.parse("count").unwrap_or(1) {
                    let ticket = self.ticket();
                    self.handle_input(Input::Reserve { session: self.session, ticket }, &mut output);
                }
            }
            "use" => {
                let ticket = word(0).parse().unwrap();
                self.handle_input(Input::Use { permit: ticket, ticket, message: message(case, ticket) }, &mut output);
            }
            "withdraw" => self.handle_input(Input::Withdraw { ticket: word(0).parse().unwrap() }, &mut output),
            "from" => {
                let message = UpstreamMessage {
                    from: controller(word(0)),
                    to: controller(case.arg("to").unwrap_or("P1")),
                    epoch: Some(case.parse("epoch").map_or(self.epoch, Epoch)),
                    message: parse_upstream(word(1), case.flag("lossy")),
                };
                self.handle_input(Input::Received(message), &mut output);
            }
            "loaded" | "stored" | "confirmed" => {
                let answer = storing::answer_with(case, Frames::Whole);
                let call = case.parse("call").unwrap_or(self.last_call);
                if let Some(epoch) = case.parse("epoch") {
                    self.epoch = Epoch(epoch);
                }
                self.handle_input(Input::Answered { call, answer }, &mut output);
            }
            "close" => self.handle_input(Input::Close, &mut output),
            "advance" => {
                let end = self.now + duration(word(0)).unwrap();
                while let Some(deadline) = self.machine.next_deadline().filter(|deadline| *deadline <= end) {
                    self.now = deadline.max(self.now);
                    self.handle_input(Input::Tick, &mut output);
                    let next = self.machine.next_deadline();
                    assert!(next.is_none_or(|next| next > self.now), "line {}: a tick left its deadline", case.line);
                }
                self.now = end;
            }
            "stats" => {
                let stats = self.machine.stats();
                let _ = writeln!(output, "{stats:?}");
                let _ = writeln!(
                    output,
                    "current {} confirmed {}",
                    self.machine.current_seq_nr(),
                    self.machine.confirmed()
                );
            }
            other => panic!("line {}: no command {other}", case.line),
        }
        output
    }

    fn ticket(&mut self) -> u64 {
        self.next_ticket += 1;
        self.next_ticket - 1
    }

    fn handle_input(&mut self, input: Input<u64>, output: &mut String) {
        let mut effects = Vec::new();
        self.machine.handle(self.now, input, &mut effects);
        self.show(effects, output);
    }

    fn show(&mut self, effects: Vec<Effect<u64>>, output: &mut String) {
        let at = seconds(self.now.duration_since(self.start));
        for effect in effects {
            let text = match effect {
                Effect::Permitted { ticket, current_seq_nr, confirmed_seq_nr } => {
                    format!("permit {ticket}: current {current_seq_nr} confirmed {confirmed_seq_nr}")
                }
                Effect::Accepted { ticket, total } => format!("send {ticket} accepted as {total}"),
                Effect::Transmit { to, header, message } => {
                    let epoch = if header.epoch == Epoch::FIRST { String::new() } else { format!("/{}", header.epoch) };
                    format!("to {}{epoch} {} lowest {}", to.path, frame(&message), header.lowest)
                }
                Effect::Confirmed { ticket, total } => format!("send {ticket} confirmed as {total}"),
                Effect::Call { id, call } => {
                    self.last_call = id;
                    storing::call(id, &call)
                }
                Effect::Refused { ticket, frames, why } => {
                    let why = match why {
                        Refusal::Closed => "closed",
                        Refusal::Superseded => "superseded",
                        Refusal::Full => "full",
                        Refusal::Unavailable => "unavailable",
                    };
                    format!("{} {ticket} refused: {why}", if frames.is_some() { "send" } else { "permit" })
                }
                Effect::Unknown { ticket, total } => format!("send {ticket} unknown, perhaps {total}"),
                Effect::Stop { to, message } => format!("to {} stopped, epoch {}", to.path, message.epoch),
                Effect::Undelivered { ticket, total } => format!("undelivered {total} of {ticket:?}"),
                Effect::Failed(failure) => format!("failed: {failure:?}"),
                Effect::Closed => "closed".to_owned(),
            };
            let _ = writeln!(output, "{at} {text}");
        }
    }
}

pub(crate) fn message(case: &Case<'_>, content: u64) -> Message<u64> {
    let frames = match case.parse("chunks") {
        None => Frames::Whole(content),
        Some(chunks) => Frames::Chunks(vec![content; chunks]),
    };
    Message { frames, bytes: case.parse("size").unwrap_or(1), ack: case.flag("ack") }
}
