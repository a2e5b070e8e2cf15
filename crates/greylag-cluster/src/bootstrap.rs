//! Founds one cluster among nodes that find each other by discovery, although its answers differ.
//!
//! An operator writes the same list of seed nodes on all nodes; answers of discovery differ. Two nodes with different
//! answers may each be the first of its own sorted list, and the majorities of two lists need not meet. So the first of
//! a list does not found the cluster by itself: it asks the others for their votes. A process gives its vote to one
//! candidate at a time, to the first of its *own* list, and takes the vote back only when that candidate says that it
//! will never use the vote. A candidate that holds `required_contacts` votes may found. More than half of all processes
//! cannot vote for two candidates.
//!
//! ```text
//! first of its list ── Ask ──▶ every address it knows
//!                  ◀── Vote{ballot} ── those whose list begins with it
//!   (a voter's list begins with another now)
//!                  ◀── Withdraw{ballot} ── voter
//!   voter ◀── Withdrawn{ballot} ── one that has not founded, and now never uses that ballot
//! ```
//!
//! Meanwhile every process tries to join any cluster that exists already; the founder uses the procedure of seed nodes,
//! which asks once more whether a cluster exists.
//!
//! Source: cluster M24, M25b. The argument and its limits: `docs/design/bootstrap.md`.

pub(crate) mod wire;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use greylag_core::{NodeAddress, UniqueAddress};
use greylag_transport::Destination;

use crate::core::LogLevel;
use crate::error::ConfigError;

/// Settings of a node that finds the others by discovery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootstrapSettings {
    /// The number of nodes that must be discovered, and vote for one of them, before a cluster is founded. The number
    /// must be more than half of the processes that will ever start at the same time, or different answers can result
    /// in two clusters. No default; 0 is refused.
    pub required_contacts: usize,
    /// An answer counts once it was the same for this long. Default 5 s.
    pub stable_margin: Duration,
    /// The time between look-ups. Default 1 s.
    pub lookup_interval: Duration,
    /// The time between requests for votes. Default 1 s.
    pub ask_interval: Duration,
}

impl BootstrapSettings {
    /// The defaults, with this number of required contacts.
    pub fn new(required_contacts: usize) -> Self {
        let second = Duration::from_secs(1);
        Self { required_contacts, stable_margin: 5 * second, lookup_interval: second, ask_interval: second }
    }

    /// Short times, for tests on one machine.
    pub fn test(required_contacts: usize) -> Self {
        let tenth = Duration::from_millis(100);
        Self { required_contacts, stable_margin: 3 * tenth, lookup_interval: tenth, ask_interval: tenth }
    }

    /// Checks every value.
    ///
    /// # Errors
    /// All problems together.
    pub fn validate(&self) -> Result<(), Vec<ConfigError>> {
        let mut problems = Vec::new();
        let mut check = |ok: bool, setting: &'static str, value: String, why: &'static str| {
            if !ok {
                problems.push(ConfigError { setting: setting.into(), value, why });
            }
        };
        let required = self.required_contacts;
        let why = "must be at least 1, and more than half of the nodes that start together";
        check(required >= 1, "bootstrap.required_contacts", required.to_string(), why);
        for (setting, duration) in [
            ("bootstrap.stable_margin", self.stable_margin),
            ("bootstrap.lookup_interval", self.lookup_interval),
            ("bootstrap.ask_interval", self.ask_interval),
        ] {
            check(!duration.is_zero(), setting, format!("{duration:?}"), "must be longer than 0");
        }
        if problems.is_empty() { Ok(()) } else { Err(problems) }
    }
}

impl Default for BootstrapSettings {
    /// The number of contacts has no default: 0 is refused.
    fn default() -> Self {
        Self::new(0)
    }
}

/// A message between two nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum BootstrapMessage {
    /// Asks for a vote: the sender's list begins with the sender.
    Ask,
    /// Gives the sender's vote to the receiver, under this ballot, until the receiver gives it back.
    Vote {
        /// Counts the sender's votes.
        ballot: u64,
    },
    /// Asks for the vote back.
    Withdraw {
        /// The ballot of that vote.
        ballot: u64,
    },
    /// Gives the vote back: the sender of this message never uses it.
    Withdrawn {
        /// The ballot of that vote.
        ballot: u64,
    },
}

/// An input to the [`Bootstrap`] machine: answers of discovery, messages of other nodes, and the passing of time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BootstrapInput {
    /// Time has passed: handle the deadlines that are due.
    Tick,
    /// Discovery answered. An empty answer counts as an answer.
    Discovered(Vec<NodeAddress>),
    /// Discovery did not answer: the former answer still holds.
    LookupFailed,
    /// A message of another node came.
    Received {
        /// The node that sent it.
        from: UniqueAddress,
        /// The message.
        message: BootstrapMessage,
    },
    /// This node is a member of a cluster.
    Joined,
}

/// An effect that the driver carries out, in the order of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BootstrapEffect {
    /// Look up; answer by [`BootstrapInput::Discovered`] or [`BootstrapInput::LookupFailed`].
    Lookup,
    /// Send a message.
    Send {
        /// The receiver.
        to: Destination,
        /// The message.
        message: BootstrapMessage,
    },
    /// Join any cluster that these nodes belong to; this node is not among them, so it founds none.
    Join(Vec<NodeAddress>),
    /// Join through these nodes, of which this one is the first, so it may found a cluster.
    Found(Vec<NodeAddress>),
    /// Write to the log.
    Log(LogLevel, String),
}

/// A vote that was given.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Given {
    candidate: UniqueAddress,
    ballot: u64,
}

/// Interval of log lines about why nothing happens.
const WARN_INTERVAL: Duration = Duration::from_secs(5);

/// Decides, on one node, when to join and when to found a cluster.
#[derive(Debug)]
pub struct Bootstrap {
    node: UniqueAddress,
    settings: BootstrapSettings,
    /// The newest answer, sorted, and the time since when it has been the same.
    answer: Option<(Vec<NodeAddress>, Instant)>,
    /// The answer that was the same for long enough. Sorted, never empty.
    list: Vec<NodeAddress>,
    /// The vote of this node and its candidate, which may be this node.
    vote: Option<Given>,
    last_ballot: u64,
    /// The votes that this node holds: the ballot by voter.
    votes: BTreeMap<UniqueAddress, u64>,
    /// The newest ballot given back to each voter; earlier ones count as given back, too.
    returned: BTreeMap<UniqueAddress, u64>,
    /// Whether this node may found a cluster, or has; its votes are never given back.
    founds: bool,
    joined: bool,
    lookup_at: Instant,
    ask_at: Instant,
    warn_at: Instant,
}

impl Bootstrap {
    /// A machine of a node that has not looked up yet.
    pub fn new(node: UniqueAddress, settings: BootstrapSettings, now: Instant) -> Self {
        Self {
            node,
            settings,
            answer: None,
            list: Vec::new(),
            vote: None,
            last_ballot: 0,
            votes: BTreeMap::new(),
            returned: BTreeMap::new(),
            founds: false,
            joined: false,
            lookup_at: now,
            ask_at: now,
            warn_at: now + WARN_INTERVAL,
        }
    }

    /// Handles one input.
    pub fn handle(&mut self, now: Instant, input: BootstrapInput, out: &mut Vec<BootstrapEffect>) {
        match input {
            BootstrapInput::Tick => self.on_tick(now, out),
            BootstrapInput::Discovered(answer) => self.on_answer(now, answer, out),
            BootstrapInput::LookupFailed => {}
            BootstrapInput::Received { from, message } if from.address() != self.node.address() => {
                self.on_message(now, from, message, out);
            }
            // Ignore another process that names this node's address: it would get the vote that this node gave itself,
            // or would count as a second voter beside this node.
            BootstrapInput::Received { .. } => {}
            BootstrapInput::Joined => {
                self.joined = true;
                // Drop the record: it is of no use any more, and callers of years would accumulate in it.
                self.returned.clear();
            }
        }
        self.check_invariants();
    }

    /// Source: docs/design/bootstrap.md.
    fn check_invariants(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        let own_vote = self.vote.as_ref().is_some_and(|vote| vote.candidate == self.node);
        assert!(!self.founds || own_vote, "a founder never gives its own vote to another node");
        let newest = self.vote.as_ref().is_none_or(|vote| vote.ballot == self.last_ballot);
        assert!(newest, "each vote has a ballot of its own");
        assert!(self.list.is_empty() || self.list.len() >= self.settings.required_contacts, "a list has enough nodes");
        assert!(!self.joined || self.returned.is_empty(), "a member keeps no record of strangers");
        if self.votes.len() > 32 {
            return;
        }
        let is_given =
            |(voter, ballot): (&UniqueAddress, &u64)| self.returned.get(voter).is_none_or(|last| last < ballot);
        assert!(self.votes.iter().all(is_given), "a vote that was given back is not used");
        let voters: BTreeSet<&NodeAddress> = self.votes.keys().map(UniqueAddress::address).collect();
        assert_eq!(voters.len(), self.votes.len(), "one address has one vote");
        assert!(!voters.contains(self.node.address()), "no other process votes for this node's address");
    }

    /// When a `Tick` next has work to do; `None` once this node is a member.
    pub fn next_deadline(&self) -> Option<Instant> {
        (!self.joined).then(|| {
            let asks = (self.is_candidate() || self.wants_vote_back()).then_some(self.ask_at);
            [Some(self.lookup_at), asks, Some(self.warn_at)].into_iter().flatten().min().unwrap_or(self.lookup_at)
        })
    }

    /// The first of the list: the node that should found, in this node's view.
    fn first(&self) -> Option<&NodeAddress> {
        self.list.first()
    }

    /// Whether this node holds its own vote and is the first of its list.
    fn is_candidate(&self) -> bool {
        self.first() == Some(self.node.address())
            && self.vote.as_ref().is_some_and(|vote| vote.candidate == self.node)
            && !self.founds
    }

    /// Whether this node's vote is with a candidate that is not the first of this node's list any more.
    fn wants_vote_back(&self) -> bool {
        self.vote.as_ref().is_some_and(|vote| Some(vote.candidate.address()) != self.first()) && !self.founds
    }

    fn on_tick(&mut self, now: Instant, out: &mut Vec<BootstrapEffect>) {
        if self.joined {
            return;
        }
        if self.lookup_at <= now {
            self.lookup_at = now + self.settings.lookup_interval;
            out.push(BootstrapEffect::Lookup);
        }
        if self.ask_at <= now && (self.is_candidate() || self.wants_vote_back()) {
            self.ask(now, out);
        }
        if self.warn_at <= now {
            self.warn_at = now + WARN_INTERVAL;
            out.push(BootstrapEffect::Log(LogLevel::Warn, self.why_not()));
        }
    }

    /// Asks for votes, or for the own vote back.
    fn ask(&mut self, now: Instant, out: &mut Vec<BootstrapEffect>) {
        self.ask_at = now + self.settings.ask_interval;
        if self.is_candidate() {
            for to in self.list.iter().filter(|to| *to != self.node.address()).cloned() {
                out.push(BootstrapEffect::Send { to: to.into(), message: BootstrapMessage::Ask });
            }
        } else if let Some(Given { candidate, ballot }) = self.vote.clone() {
            out.push(BootstrapEffect::Send { to: candidate.into(), message: BootstrapMessage::Withdraw { ballot } });
        }
    }

    fn on_answer(&mut self, now: Instant, answer: Vec<NodeAddress>, out: &mut Vec<BootstrapEffect>) {
        let sorted: Vec<NodeAddress> = answer.into_iter().collect::<BTreeSet<_>>().into_iter().collect();
        let since = match &self.answer {
            Some((before, since)) if *before == sorted => *since,
            _ => now,
        };
        self.answer = Some((sorted.clone(), since));
        // Check here only: an answer, and never its absence, can show that the list is still the same.
        let is_stable = now.saturating_duration_since(since) >= self.settings.stable_margin;
        if self.joined || !is_stable || sorted.len() < self.settings.required_contacts || sorted == self.list {
            return;
        }
        self.list = sorted;
        self.ask_at = now;
        let others = self.others();
        if self.founds {
            out.push(BootstrapEffect::Found(self.list_to_found()));
        } else if !others.is_empty() {
            out.push(BootstrapEffect::Join(others));
        }
        self.settle_own_vote(now, out);
    }

    /// The list without this node: a node that joins through it founds nothing.
    fn others(&self) -> Vec<NodeAddress> {
        self.list.iter().filter(|address| *address != self.node.address()).cloned().collect()
    }

    /// The list with this node first, as the procedure of seed nodes requires of a founder.
    fn list_to_found(&self) -> Vec<NodeAddress> {
        std::iter::once(self.node.address().clone()).chain(self.others()).collect()
    }

    /// Gives the own vote to this node or takes it back, depending on the list; then founds if allowed.
    fn settle_own_vote(&mut self, now: Instant, out: &mut Vec<BootstrapEffect>) {
        let own = self.vote.as_ref().is_some_and(|vote| vote.candidate == self.node);
        if own && self.wants_vote_back() {
            self.vote = None;
        }
        if self.vote.is_none() && self.first() == Some(self.node.address()) {
            self.give_vote(self.node.clone());
        }
        self.ask_at = self.ask_at.min(now);
        self.found_if_allowed(out);
        if !self.joined && (self.is_candidate() || self.wants_vote_back()) {
            self.ask(now, out);
        }
    }

    fn give_vote(&mut self, candidate: UniqueAddress) -> u64 {
        self.last_ballot += 1;
        self.vote = Some(Given { candidate, ballot: self.last_ballot });
        self.last_ballot
    }

    fn found_if_allowed(&mut self, out: &mut Vec<BootstrapEffect>) {
        let voters: BTreeSet<&NodeAddress> = self.votes.keys().map(UniqueAddress::address).collect();
        if self.joined || !self.is_candidate() || voters.len() + 1 < self.settings.required_contacts {
            return;
        }
        self.founds = true;
        let text = format!("{} of {} nodes chose this one to found the cluster", voters.len() + 1, self.list.len());
        out.push(BootstrapEffect::Log(LogLevel::Info, text));
        out.push(BootstrapEffect::Found(self.list_to_found()));
    }

    fn on_message(
        &mut self,
        now: Instant,
        from: UniqueAddress,
        message: BootstrapMessage,
        out: &mut Vec<BootstrapEffect>,
    ) {
        // Drop votes of a former process at the sender's address: it is gone, and its vote with it.
        self.votes.retain(|voter, _| voter.address() != from.address() || *voter == from);
        match message {
            BootstrapMessage::Ask => self.on_ask(from, out),
            BootstrapMessage::Vote { ballot } => {
                if self.returned.get(&from).is_none_or(|returned| *returned < ballot) {
                    self.votes.insert(from, ballot);
                    self.found_if_allowed(out);
                }
            }
            BootstrapMessage::Withdraw { ballot } if !self.founds => {
                if self.votes.get(&from).is_some_and(|held| *held <= ballot) {
                    self.votes.remove(&from);
                }
                if !self.joined {
                    let returned = self.returned.entry(from.clone()).or_default();
                    *returned = ballot.max(*returned);
                }
                out.push(BootstrapEffect::Send { to: from.into(), message: BootstrapMessage::Withdrawn { ballot } });
            }
            // A founder keeps its votes: their voters join it.
            BootstrapMessage::Withdraw { .. } => {}
            BootstrapMessage::Withdrawn { ballot } => {
                if self.vote == Some(Given { candidate: from, ballot }) {
                    self.vote = None;
                    self.settle_own_vote(now, out);
                }
            }
        }
    }

    fn on_ask(&mut self, from: UniqueAddress, out: &mut Vec<BootstrapEffect>) {
        let ballot = match &self.vote {
            _ if self.joined => return,
            Some(vote) if vote.candidate == from => vote.ballot,
            // Vote anew: the process that had the vote is gone, and another one runs at its address.
            Some(vote) if vote.candidate.address() == from.address() => self.give_vote(from.clone()),
            None if self.first() == Some(from.address()) => self.give_vote(from.clone()),
            _ => return,
        };
        out.push(BootstrapEffect::Send { to: from.into(), message: BootstrapMessage::Vote { ballot } });
    }

    /// Says in words what this node waits for.
    fn why_not(&self) -> String {
        let required = self.settings.required_contacts;
        let found = self.answer.as_ref().map_or(0, |(answer, _)| answer.len());
        if self.list.is_empty() {
            return format!("discovery found {found} nodes; a cluster needs {required} that stay the same for a while");
        }
        let thin = if 2 * required <= self.list.len() {
            "; required_contacts is not more than half of them, so two clusters can come of this"
        } else {
            ""
        };
        let known = self.list.len();
        let state = match &self.vote {
            _ if self.founds => {
                "this node founds the cluster when a majority of the list says that there is none".to_owned()
            }
            Some(vote) if vote.candidate == self.node => {
                format!("{} of {required} nodes have chosen this one to found the cluster", self.votes.len() + 1)
            }
            Some(vote) if self.wants_vote_back() => format!(
                "this node voted for {} and has no answer to its wish to vote for another; if that process has ended, \
                 restart this one",
                vote.candidate
            ),
            Some(vote) => format!("this node voted for {} and waits for it", vote.candidate),
            None => format!("waiting for {} to ask", self.list[0]),
        };
        format!("not a member yet: {known} nodes discovered; {state}{thin}")
    }
}

#[cfg(test)]
mod tests;
