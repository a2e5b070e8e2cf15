//! One producer link, driven and shown as text.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use greylag_delivery::machine::producer_link::{Effect, Frames, Input, LinkMode, ProducerLink};
use greylag_delivery::{DeliverySettings, Epoch, ProducerId, ProducerIdentity, SeqNr, SequencedMessage, StreamId};
use greylag_testkit::transcript::Case;

use crate::support::{controller, frame, parse_upstream};

pub(crate) struct ProducerWorld {
    link: ProducerLink<u64>,
    start: Instant,
    now: Instant,
    epoch: Epoch,
    next_total: u64,
}

impl ProducerWorld {
    pub(crate) fn new(case: &Case<'_>) -> Self {
        let mode = if case.flag("sharding") { LinkMode::Sharding } else { LinkMode::PointToPoint };
        let epoch = Epoch(case.parse("epoch").unwrap_or(1));
        let identity = ProducerIdentity::stable(ProducerId::new("p").unwrap(), StreamId(1), epoch);
        let now = Instant::now();
        let link = ProducerLink::new(DeliverySettings::test().producer_link(mode, &identity), now);
        Self { link, start: now, now, epoch, next_total: case.parse("total").unwrap_or(1) }
    }

    pub(crate) fn run(&mut self, case: &Case<'_>) -> String {
        let mut output = String::new();
        match case.command {
            "send" => {
                let count: u64 = case.parse("count").unwrap_or(1);
                let chunks: usize = case.parse("chunks").unwrap_or(1);
                for _ in 0..count {
                    let total = SeqNr(self.next_total);
                    self.next_total += 1;
                    let frames = match chunks {
                        1 => Frames::Whole(total.get()),
                        n => Frames::Chunks(vec![total.get(); n]),
                    };
                    self.handle_input(Input::Accept { total, frames, ack: case.flag("ack") }, &mut output);
                }
            }
            "from" => {
                let from = controller(case.positional(0).unwrap());
                let message = parse_upstream(case.positional(1).unwrap(), case.flag("lossy"));
                let epoch = Some(case.parse("epoch").map_or(self.epoch, Epoch));
                self.handle_input(Input::Received { from, epoch, message }, &mut output);
            }
            "reassociate" => self.handle_input(Input::Reassociate, &mut output),
            "route" => self.handle_input(Input::RouteChanged(case.flag("on")), &mut output),
            "not-buffered" => self.handle_input(Input::NotBuffered, &mut output),
            "hold" => self.handle_input(Input::Hold(case.flag("on")), &mut output),
            "new-epoch" => {
                self.epoch = Epoch(case.positional(0).unwrap().parse().unwrap());
                self.handle_input(Input::NewEpoch(self.epoch), &mut output);
            }
            "refused" => {
                let number = |index| case.positional(index).unwrap().parse().unwrap();
                self.handle_input(Input::Refused { from: number(0), to: number(1) }, &mut output);
            }
            "advance" => self.advance(case, &mut output),
            "demand" => {
                let _ = writeln!(output, "{}", self.link.demand());
            }
            other => panic!("line {}: no command {other}", case.line),
        }
        output
    }

    fn advance(&mut self, case: &Case<'_>, output: &mut String) {
        let by = greylag_testkit::transcript::duration(case.positional(0).unwrap()).unwrap();
        let end = self.now + by;
        while let Some(deadline) = self.link.next_deadline().filter(|deadline| *deadline <= end) {
            self.now = deadline.max(self.now);
            self.handle_input(Input::Tick, output);
            assert!(self.link.next_deadline().is_none_or(|next| next > self.now), "a tick moves the deadline");
        }
        self.now = end;
    }

    fn handle_input(&mut self, input: Input<u64>, output: &mut String) {
        let mut effects = Vec::new();
        self.link.handle(self.now, input, &mut effects);
        let at = self.now.duration_since(self.start);
        for effect in effects {
            let text = match effect {
                Effect::Transmit { frame: content, first, lowest, .. } => {
                    format!("{} lowest {lowest}", frame(&SequencedMessage { frame: content, first }))
                }
                Effect::ConfirmedUpTo(total) => format!("confirmed {total}"),
                Effect::DemandChanged(_) => continue,
                Effect::Fenced { newer } => format!("fenced by {newer}"),
            };
            let _ = writeln!(output, "{} {text}", seconds(at));
        }
    }
}

pub(crate) fn seconds(at: Duration) -> String {
    format!("{:.2}s", at.as_secs_f64())
}
