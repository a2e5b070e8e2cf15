//! Both halves of the numbered control messages; the transcript carries the messages between them.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use greylag_core::Uid;
use greylag_testkit::transcript::Case;
use greylag_transport::TransportSettings;
use greylag_transport::reliable::{
    ReceiverEffect, ReceiverInput, ReliableReceiver, ReliableSender, SenderEffect, SenderInput,
};

use super::{Machine, advance, transcript_duration};

pub(crate) struct World {
    sender: ReliableSender<String>,
    receiver: ReliableReceiver,
    start: Instant,
    now: Duration,
}

impl World {
    pub(crate) fn new(case: &Case<'_>) -> Self {
        let mut settings = TransportSettings::new("shop");
        settings.give_up_reliable_after = case.duration("give_up").unwrap_or(settings.give_up_reliable_after);
        settings.reliable_buffer_size = case.parse("buffer").unwrap_or(settings.reliable_buffer_size);
        let sender = ReliableSender::new(&settings);
        Self { sender, receiver: ReliableReceiver::new(), start: Instant::now(), now: Duration::ZERO }
    }

    fn send(&mut self, input: SenderInput<String>, output: &mut String) {
        let mut effects = Vec::new();
        self.sender.handle(self.start + self.now, input, &mut effects);
        for effect in effects {
            show(self.now, &effect, output);
        }
    }

    fn receive(&mut self, input: ReceiverInput<String>, output: &mut String) {
        let mut effects = Vec::new();
        self.receiver.handle(input, &mut effects);
        for effect in effects {
            let line = match effect {
                ReceiverEffect::Deliver(message) => format!("deliver {message}"),
                ReceiverEffect::Ack { seq } => format!("ack {seq}"),
                ReceiverEffect::Nack { seq } => format!("nack {seq}"),
            };
            writeln!(output, "{line}").expect("a string takes all");
        }
    }
}

impl Machine for World {
    fn run(&mut self, case: &Case<'_>) -> String {
        let mut output = String::new();
        let uid = |key| Uid::new(case.parse(key).unwrap_or(7)).expect("not zero");
        let seq = case.parse("seq").unwrap_or(0);
        let stream = case.parse("stream").unwrap_or(1);
        let words: Vec<String> = (0..).map_while(|n| case.positional(n)).map(str::to_owned).collect();
        let input = match case.command {
            "advance" => {
                let until = self.now + transcript_duration(case);
                let (start, sender) = (self.start, std::cell::RefCell::new(&mut self.sender));
                let tick = |now: Duration| {
                    let mut effects = Vec::new();
                    sender.borrow_mut().handle(start + now, SenderInput::Tick, &mut effects);
                    effects.iter().for_each(|effect| show(now, effect, &mut output));
                };
                advance(start, &mut self.now, until, || sender.borrow().next_deadline(), tick);
                return output;
            }
            "send" => {
                for message in words {
                    self.send(SenderInput::Send { target: uid("uid"), message }, &mut output);
                }
                return output;
            }
            "arrive" => {
                let message = words.into_iter().next();
                self.receive(ReceiverInput::Arrived { from: uid("from"), seq, message }, &mut output);
                return output;
            }
            "incarnation" => {
                self.receive(ReceiverInput::Incarnation { uid: uid("uid") }, &mut output);
                SenderInput::Incarnation { uid: uid("uid") }
            }
            "open" => SenderInput::Opened { stream },
            "close" => SenderInput::Closed { stream },
            "ack" => SenderInput::Ack { from: uid("from"), seq },
            "nack" => SenderInput::Nack { from: uid("from"), seq },
            "refused" => SenderInput::Refused,
            "quarantine" => SenderInput::Quarantined { uid: uid("uid") },
            unknown => panic!("line {}: no input is called {unknown}", case.line),
        };
        self.send(input, &mut output);
        output
    }
}

fn show(now: Duration, effect: &SenderEffect<String>, output: &mut String) {
    let line = match effect {
        SenderEffect::Connect => "connect".to_owned(),
        SenderEffect::Rewind => "rewind".to_owned(),
        SenderEffect::Write { seq, message } => format!("write {seq} {message}"),
        SenderEffect::WriteSkip { seq } => format!("write skip to {seq}"),
        SenderEffect::Drop { message, reason } => format!("drop {message}: {reason}"),
        SenderEffect::GaveUp { uid, dropped } => format!("gave up #{uid} with {dropped}"),
    };
    writeln!(output, "{:.2}s {line}", now.as_secs_f64()).expect("a string takes all");
}
