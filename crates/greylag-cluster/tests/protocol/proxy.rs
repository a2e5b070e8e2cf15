//! Transcripts of one proxy of a singleton; the script plays the other nodes. Messages are words.
//!
//! Commands: `proxy NAME [buffer=N] [role=R]`; `view a:Up b:Leaving:worker …` (a third part is the member's role;
//! members get their age by the order in which they are first named); `tell WORD…`; `here NAME INSTANCE`, `nothere NAME
//! [INSTANCE]`: messages of these nodes; `stop`; `advance DURATION`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_cluster::*;
use greylag_testkit::deadlines::assert_moved;
use greylag_testkit::transcript::{self, Case};

use crate::manager::{node, status};

pub(crate) struct Bench {
    own: String,
    proxy: SingletonProxy<String>,
    base: Instant,
    now: Duration,
    ages: BTreeMap<String, u32>,
    out: String,
}

impl Bench {
    pub(crate) fn new(case: &Case<'_>) -> Self {
        let mut settings =
            SingletonSettings { role: case.arg("role").map(str::to_owned), ..SingletonSettings::default() };
        settings.proxy.buffer_size = case.parse("buffer").unwrap_or(settings.proxy.buffer_size);
        Self {
            own: case.positional(0).unwrap().to_owned(),
            proxy: SingletonProxy::new(&settings),
            base: Instant::now(),
            now: Duration::ZERO,
            ages: BTreeMap::new(),
            out: String::new(),
        }
    }

    pub(crate) fn run(&mut self, case: &Case<'_>) -> String {
        let words = || (0..).map_while(|index| case.positional(index));
        let instance = case.positional(1).and_then(|number| number.parse().ok());
        match case.command {
            "proxy" => {}
            "view" => self.view(words()),
            "tell" => words().for_each(|word| self.input(ProxyInput::Message(word.to_owned()))),
            "here" => self.hear(case, ProxyMessage::Here { instance: instance.unwrap() }),
            "nothere" => self.hear(case, ProxyMessage::NotHere { instance }),
            "stop" => self.input(ProxyInput::Stop),
            "advance" => self.advance(transcript::duration(case.positional(0).unwrap()).unwrap()),
            other => panic!("unknown command {other}"),
        }
        std::mem::take(&mut self.out)
    }

    fn view<'a>(&mut self, words: impl Iterator<Item = &'a str>) {
        let mut view = MembershipView::empty(node(&self.own));
        for word in words {
            let parts: Vec<&str> = word.split(':').collect();
            let next = self.ages.len() as u32 + 1;
            let age = *self.ages.entry(parts[0].to_owned()).or_insert(next);
            let roles = parts.get(2).map(|role| (*role).to_owned()).into_iter().collect();
            let mut member = Member::joining(node(parts[0]), Arc::new(roles), AppVersion::default());
            member.status = status(parts[1]);
            if member.status > MemberStatus::WeaklyUp {
                member.up_number = age;
            }
            view.members.insert(member);
        }
        self.input(ProxyInput::View(Arc::new(view)));
    }

    fn hear(&mut self, case: &Case<'_>, message: ProxyMessage) {
        self.input(ProxyInput::Identified { from: node(case.positional(0).unwrap()), message });
    }

    fn advance(&mut self, by: Duration) {
        let end = self.now + by;
        while let Some(at) = self.proxy.next_deadline().filter(|at| *at <= self.base + end) {
            self.now = self.now.max(at - self.base);
            self.input(ProxyInput::Tick);
            assert_moved("singleton proxy", self.base + self.now, self.proxy.next_deadline());
        }
        self.now = end;
    }

    fn input(&mut self, input: ProxyInput<String>) {
        let mut effects = Vec::new();
        self.proxy.handle(self.base + self.now, input, &mut effects);
        for effect in effects {
            let shown = match effect {
                ProxyEffect::Identify(host) => format!("-> {} Identify", host.address().host()),
                ProxyEffect::Forward(host, message) => format!("{message} => {}", host.address().host()),
                ProxyEffect::Drop(message, reason) => format!("{message} is dropped: {reason}"),
                ProxyEffect::Refuse(message, reason) => format!("{message} is refused: {reason}"),
            };
            let _infallible = writeln!(self.out, "{:.2} {shown}", self.now.as_secs_f64());
        }
    }
}
