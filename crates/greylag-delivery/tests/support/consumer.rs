//! One consumer link, driven and shown as text.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Instant;

use greylag_delivery::machine::consumer_link::{ConsumerLink, DeliveryKey, Effect, Input, PoisonPolicy};
use greylag_delivery::machine::producer_link::{Frames, LinkMode};
use greylag_delivery::{
    BatchHeader, Dedupe, DeliverySettings, Epoch, Frame, ProducerId, SeqNr, SequencedMessage, StreamId, Watermarks,
};
use greylag_testkit::transcript::{Case, duration};

use crate::support::producer::seconds;
use crate::support::{controller, upstream};

pub(crate) struct ConsumerWorld {
    link: ConsumerLink<u64>,
    watermarks: Watermarks,
    start: Instant,
    now: Instant,
    /// The latest attempt at each total that was handed out.
    handed: BTreeMap<SeqNr, DeliveryKey>,
}

impl ConsumerWorld {
    pub(crate) fn new(case: &Case<'_>) -> Self {
        let mode = if case.flag("sharding") { LinkMode::Sharding } else { LinkMode::PointToPoint };
        let settings = settings(case);
        let now = Instant::now();
        Self {
            link: ConsumerLink::new(settings.consumer_link(mode)),
            watermarks: Watermarks::new(1000, settings.dedupe_retention),
            start: now,
            now,
            handed: BTreeMap::new(),
        }
    }

    pub(crate) fn run(&mut self, case: &Case<'_>) -> String {
        let mut output = String::new();
        match case.command {
            "start" => {
                self.handle_input(Input::Start(marks(case)), &mut output);
            }
            "frames" => self.frames(case, &mut output),
            "confirm" => {
                for total in (0..).map_while(|index| case.positional(index)) {
                    let key = self.key(total);
                    self.handle_input(Input::Confirm(key), &mut output);
                }
            }
            "abandon" => {
                let key = self.key(case.positional(0).unwrap());
                self.handle_input(Input::Abandon(key, case.duration("for")), &mut output);
            }
            "confirm-all" => {
                let keys = (0..).map_while(|index| case.positional(index)).map(|total| self.key(total)).collect();
                self.handle_input(Input::ConfirmAll(keys), &mut output);
            }
            "return" => {
                let key = self.key(case.positional(0).unwrap());
                self.handle_input(Input::Return(key, case.duration("for").unwrap_or_default()), &mut output);
            }
            "unreadable" => {
                let key = self.key(case.positional(0).unwrap());
                self.handle_input(Input::Unreadable(key), &mut output);
            }
            "state" => {
                let link = &self.link;
                let _ = writeln!(
                    output,
                    "busy {} awake {} overdue {} {:?}",
                    link.is_busy(),
                    link.keeps_awake(),
                    link.overdue(),
                    link.counters()
                );
            }
            "register" => self.handle_input(Input::RegisterTo(controller(case.positional(0).unwrap())), &mut output),
            "deliver-then-stop" => self.handle_input(Input::DeliverThenStop, &mut output),
            "finish" => self.handle_input(Input::Finish, &mut output),
            "stop" => self.handle_input(Input::Stop, &mut output),
            "advance" => {
                let end = self.now + duration(case.positional(0).unwrap()).unwrap();
                while let Some(deadline) = self.link.next_deadline().filter(|deadline| *deadline <= end) {
                    self.now = deadline.max(self.now);
                    self.handle_input(Input::Tick, &mut output);
                }
                self.now = end;
            }
            other => panic!("line {}: no command {other}", case.line),
        }
        output
    }

    fn key(&self, total: &str) -> DeliveryKey {
        self.handed[&SeqNr(total.parse().unwrap())]
    }

    fn frames(&mut self, case: &Case<'_>, output: &mut String) {
        let header = BatchHeader {
            producer_id: ProducerId::new("p").unwrap(),
            stream_id: StreamId(case.parse("stream").unwrap_or(1)),
            epoch: Epoch(case.parse("epoch").unwrap_or(1)),
            controller: controller(case.arg("from").unwrap_or("P1")),
            ordered: !case.flag("unordered"),
            lowest: case.parse("lowest").unwrap_or(0),
        };
        let words = (0..).map_while(|index| case.positional(index)).filter(|word| word.starts_with('F'));
        for frames in words.map(parse_frame) {
            self.handle_input(Input::Frames { header: header.clone(), frames: vec![frames] }, output);
        }
    }

    fn handle_input(&mut self, input: Input<u64>, output: &mut String) {
        let mut effects = Vec::new();
        self.link.handle(self.now, input, &mut self.watermarks, &mut effects);
        let at = seconds(self.now.duration_since(self.start));
        for effect in effects {
            if let Effect::Deliver { key, id, .. } = &effect {
                self.handed.insert(id.seq_nr, *key);
            }
            let text = describe(&effect);
            let _ = writeln!(output, "{at} {text}");
        }
    }
}

/// The settings of a case.
pub(crate) fn settings(case: &Case<'_>) -> DeliverySettings {
    let mut settings = DeliverySettings::test();
    let consumer = &mut settings.consumer;
    consumer.flow_control_window = case.parse("window").unwrap_or(20);
    consumer.flow_control_window_max = case.parse("window_max").unwrap_or(consumer.flow_control_window);
    consumer.redelivery_backoff = case.duration("backoff").unwrap_or(consumer.redelivery_backoff);
    consumer.confirm_warn_after = case.duration("warn").unwrap_or(consumer.confirm_warn_after);
    consumer.on_poison = match case.arg("poison") {
        Some("stall") => PoisonPolicy::Stall,
        Some("stop") => PoisonPolicy::StopConsumer,
        _ => PoisonPolicy::DeadLetter,
    };
    consumer.max_outstanding_deliveries = case.parse("outstanding").unwrap_or(1);
    consumer.resend_interval_min = case.duration("min").unwrap_or(consumer.resend_interval_min);
    consumer.resend_interval_max = case.duration("max").unwrap_or(consumer.resend_interval_max);
    consumer.max_delivery_attempts = case.parse("attempts").unwrap_or(0);
    consumer.confirm_timeout = case.duration("confirm_timeout");
    consumer.ack_max_delay = case.duration("ack_delay").unwrap_or_default();
    consumer.delayed_ack_timeout = case.duration("delayed");
    consumer.only_flow_control = case.flag("lossy");
    settings
}

/// Formats an effect.
pub(crate) fn describe(effect: &Effect<u64>) -> String {
    match effect {
        Effect::Deliver { key, id, parts } => {
            let chunks = match parts {
                Frames::Whole(_) => String::new(),
                Frames::Chunks(parts) => format!(" of {} chunks", parts.len()),
            };
            let attempt = if key.attempt == 1 { String::new() } else { format!(" attempt {}", key.attempt) };
            format!("deliver {}{chunks}{attempt}", id.seq_nr)
        }
        Effect::Reply { to, epoch, message } => {
            let epoch = epoch.filter(|epoch| epoch.0 != 1).map_or(String::new(), |epoch| format!("/{epoch}"));
            format!("to {}{epoch} {}", to.path, upstream(message))
        }
        Effect::Suppressed(id) => format!("suppressed {}", id.seq_nr),
        Effect::Poisoned { id, attempts } => format!("poisoned {} after {attempts}", id.seq_nr),
        Effect::Held(id) => format!("held {}", id.seq_nr),
        Effect::Overdue(id) => format!("overdue {}", id.seq_nr),
        Effect::Replaced { former, by } => format!("replaced {} by {}", former.path, by.path),
        Effect::Stopped => "stopped".to_owned(),
    }
}

/// Parses the format of `support::frame`.
pub(crate) fn parse_frame(word: &str) -> SequencedMessage<u64> {
    let (kind, rest) = word.split_once('(').unwrap();
    let (numbers, flags) = rest.split_once(')').unwrap();
    let (seq_nr, total) = numbers.split_once(':').unwrap_or((numbers, numbers));
    let total: u64 = total.parse().unwrap();
    let frame = Frame {
        seq_nr: seq_nr.parse().unwrap(),
        total: SeqNr(total),
        ack: flags.contains('a'),
        first_chunk: !flags.contains(['-', ']']),
        last_chunk: !flags.contains(['-', '[']),
        payload: total,
    };
    SequencedMessage { frame, first: kind == "F1" }
}

/// Parses `marks=stream:total,stream:total`.
pub(crate) fn marks(case: &Case<'_>) -> Dedupe {
    let marks = case.arg("marks").into_iter().flat_map(|marks| marks.split(','));
    marks
        .map(|mark| {
            let (stream, total) = mark.split_once(':').unwrap();
            (StreamId(stream.parse().unwrap()), SeqNr(total.parse().unwrap()))
        })
        .collect()
}
