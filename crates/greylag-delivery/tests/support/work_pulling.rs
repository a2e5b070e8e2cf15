//! The work-pulling producer controller, driven and shown as text.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Instant;

use greylag_delivery::machine::controller::{Controller, Effect, Input};
use greylag_delivery::machine::producer_link::Frames;
use greylag_delivery::machine::storing::Storing;
use greylag_delivery::machine::work_pulling::{ListedWorker, WorkPulling, WorkPullingSettings, WorkerSelection};
use greylag_delivery::{ControllerRef, Epoch, Omissions, ProducerId, StreamId, Upstream, UpstreamMessage};
use greylag_testkit::transcript::{Case, duration};

use crate::support::point_to_point::message;
use crate::support::producer::seconds;
use crate::support::{controller, frame, parse_upstream, storing};

pub(crate) struct WorkPullingWorld {
    machine: WorkPulling<u64>,
    start: Instant,
    now: Instant,
    session: u64,
    next_ticket: u64,
    epoch: Epoch,
    last_call: u64,
    /// The latest link to each worker.
    links: BTreeMap<String, ControllerRef>,
}

impl WorkPullingWorld {
    pub(crate) fn new(case: &Case<'_>, output: &mut String) -> Self {
        let now = Instant::now();
        let settings = greylag_delivery::DeliverySettings::test();
        let settings = WorkPullingSettings {
            producer_id: ProducerId::new("p").unwrap(),
            node: "n:1#1".parse().unwrap(),
            path: "delivery/1".into(),
            stream: Some((StreamId(1), Epoch::FIRST)),
            resend_first_interval: settings.producer.resend_first_interval,
            resend_first_unconfirmed_idle_timeout: settings.producer.resend_first_unconfirmed_idle_timeout,
            buffer_size: case.parse("buffer").unwrap_or(1000),
            selection: if case.flag("random") { WorkerSelection::Random } else { WorkerSelection::LeastInFlight },
            worker_first_timeout: case.duration("first_timeout").unwrap_or(std::time::Duration::from_secs(30)),
            work_timeout: case.duration("work_timeout"),
            seed: case.parse("seed").unwrap_or(1),
            clock: (1_000_000, now),
            omissions: Omissions::default(),
        };
        let storing =
            if case.flag("durable") { Storing::durable(storing::settings(case)) } else { Storing::in_memory() };
        let mut effects = Vec::new();
        let machine = WorkPulling::new(settings, storing, now, &mut effects);
        let (epoch, links) = (Epoch::FIRST, BTreeMap::new());
        let mut world = Self { machine, start: now, now, session: 0, next_ticket: 1, epoch, last_call: 0, links };
        world.show(effects, output);
        world.session = 1;
        world.handle_input(Input::Start { session: 1 }, output);
        world
    }

    pub(crate) fn run(&mut self, case: &Case<'_>) -> String {
        let mut output = String::new();
        let word = |index: usize| case.positional(index).unwrap_or_default();
        match case.command {
            "workers" => {
                // `W1 W2 -W3`: the third worker is unreachable.
                let words = (0..).map_while(|index| case.positional(index));
                let listed = words.map(|word| ListedWorker {
                    worker: controller(word.trim_start_matches('-')),
                    selectable: !word.starts_with('-'),
                });
                self.handle_input(Input::Workers(listed.collect()), &mut output);
            }
            "send" | "try" => {
                for _ in 0..case.parse("count").unwrap_or(1) {
                    let ticket = self.ticket();
                    let (session, waits) = (self.session, case.command == "send");
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
                let mut to = self.links[word(0)].clone();
                to.instance = case.parse("link").unwrap_or(to.instance);
                let epoch = Some(case.parse("epoch").map_or(self.epoch, Epoch));
                let message = parse_upstream(word(1), case.flag("lossy"));
                let message = UpstreamMessage { from: controller(word(0)), to, epoch, message };
                self.handle_input(Input::Received(message), &mut output);
            }
            "loaded" | "stored" | "confirmed" => {
                let answer = storing::answer_with(case, Frames::Whole);
                let call = case.parse("call").unwrap_or(self.last_call);
                self.epoch = case.parse("epoch").map_or(self.epoch, Epoch);
                self.handle_input(Input::Answered { call, answer }, &mut output);
            }
            "close" => self.handle_input(Input::Close, &mut output),
            "advance" => {
                let end = self.now + duration(word(0)).unwrap();
                while let Some(deadline) = self.machine.next_deadline().filter(|deadline| *deadline <= end) {
                    self.now = deadline.max(self.now);
                    self.handle_input(Input::Tick, &mut output);
                    if let Some(name) = case.arg("alive") {
                        // A worker busy with its first job answers every repeat.
                        let (from, to) = (controller(name), self.links[name].clone());
                        let message = Upstream::Ack { confirmed: 0, up_to: 8 };
                        let message = UpstreamMessage { from, to, epoch: Some(self.epoch), message };
                        self.handle_input(Input::Received(message), &mut output);
                    }
                    let next = self.machine.next_deadline();
                    assert!(next.is_none_or(|next| next > self.now), "line {}: a tick left its deadline", case.line);
                }
                self.now = end;
            }
            "stats" => {
                let _ = writeln!(output, "{:?}", self.machine.workers());
                let stats = self.machine.stats();
                let _ = writeln!(
                    output,
                    "sent {} confirmed {} unconfirmed {} waiting {} permits {} ignored {}; current {} confirmed {}",
                    stats.sent,
                    stats.confirmed,
                    stats.unconfirmed,
                    stats.waiting,
                    stats.permits,
                    stats.ignored,
                    self.machine.current_seq_nr(),
                    self.machine.confirmed(),
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
                    assert!(!header.ordered, "workers take messages in any order");
                    let epoch = if header.epoch == Epoch::FIRST { String::new() } else { format!("/{}", header.epoch) };
                    let (link, lowest) = (header.controller.instance, header.lowest);
                    self.links.insert(to.path.to_string(), header.controller);
                    format!("to {}{epoch} link {link} {} lowest {lowest}", to.path, frame(&message))
                }
                Effect::Confirmed { ticket, total } => format!("send {ticket} confirmed as {total}"),
                Effect::Call { id, call } => {
                    self.last_call = id;
                    storing::call(id, &call)
                }
                Effect::Refused { ticket, frames, why } => {
                    format!("{} {ticket} refused: {why:?}", if frames.is_some() { "send" } else { "permit" })
                }
                Effect::Unknown { ticket, total } => format!("send {ticket} unknown, perhaps {total}"),
                Effect::Stop { to, message } => format!("to {} link {} stopped", to.path, message.controller.instance),
                Effect::Undelivered { ticket, total } => format!("undelivered {total} of {ticket:?}"),
                Effect::Failed(failure) => format!("failed: {failure:?}"),
                Effect::Closed => "closed".to_owned(),
            };
            let _ = writeln!(output, "{at} {text}");
        }
    }
}
