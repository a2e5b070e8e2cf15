//! The store of the coordinators' state: one register and one map kept by a majority, or a journal.

use std::collections::BTreeSet;

use greylag_sharding::ids::ShardId;
use greylag_sharding::machine::coordinator::{self, Meta, StateEvent, StoredState};
use greylag_sharding::machine::message::CoordinatorId;
use rand::RngExt;

use super::journal::{Answer, FakeJournal, Fate};
use super::{Application, Timer, World};

/// See the module's description. The store outlives all nodes.
#[derive(Debug, Default)]
pub(super) struct Store {
    /// The replicated state.
    pub(super) state: StoredState,
    /// In mode persistence: the journal used instead of the replicated state, and the most events of one append.
    pub(super) journal: Option<(FakeJournal, usize)>,
    /// The shards whose entities are remembered, if the type remembers any.
    pub(super) remembered: Option<BTreeSet<ShardId>>,
    /// How many seconds the wall clock is behind.
    pub(super) clock_back: u64,
}

impl<A: Application> World<A> {
    pub(super) fn reaches_majority(&self, node: usize) -> bool {
        let members = &self.views.last().expect("there is one").members;
        let reached = self.nodes.iter().filter(|other| {
            members.contains_key(&other.address)
                && other.alive
                && (other.net == self.nodes[node].net || !self.net.is_cut(self.nodes[node].net, other.net))
        });
        reached.count() * 2 > members.len()
    }

    pub(super) fn input_of(&self, node: usize, state: StoredState) -> coordinator::Input {
        let wall_secs = (1000 + self.net.now().as_secs()).saturating_sub(self.store.clock_back);
        coordinator::Input::Read { state, wall_secs, seen_epoch: self.nodes[node].seen_epoch }
    }

    pub(super) fn on_state_journal(&mut self, timer: Timer<A>) {
        let (delay, fate) = (self.random(5, 80), self.net.rng().random_range(0..100));
        let fate = match fate {
            0..5 if self.faulty => Fate::NotStored,
            5..8 if self.faulty => Fate::AnswerLost,
            _ => Fate::Taken,
        };
        let Some((journal, _)) = &mut self.store.journal else { return };
        let (node, incarnation, answer) = match timer {
            Timer::StoreRead { node, incarnation } => match journal.read(incarnation, &self.fingerprint) {
                Ok(state) => (node, incarnation, self.input_of(node, state)),
                Err(what) => return self.fail(what),
            },
            Timer::StoreWrite { node, incarnation, batch, events } => {
                let answer = match journal.append(incarnation, events, fate) {
                    Answer::Stored => coordinator::Input::Committed { batch },
                    Answer::NotStored => coordinator::Input::CommitFailed { batch, retryable: true },
                    Answer::Lost => coordinator::Input::CommitFailed { batch, retryable: false },
                };
                (node, incarnation, answer)
            }
            _ => return,
        };
        self.after(delay, Timer::Coordinate { node, incarnation, input: answer });
    }

    pub(super) fn on_store(&mut self, node: usize, timer: Timer<A>) {
        if self.store.journal.is_some() {
            return self.on_state_journal(timer);
        }
        if !self.nodes[node].alive {
            return;
        }
        if !self.reaches_majority(node) || self.nodes[node].resumes.is_some() {
            let delay = self.random(50, 200);
            return self.after(delay, timer);
        }
        let delay = self.random(5, 80);
        match timer {
            Timer::StoreRead { node, incarnation } => {
                let input = self.input_of(node, self.store.state.clone());
                self.after(delay, Timer::Coordinate { node, incarnation, input });
            }
            Timer::StoreWrite { node, incarnation, batch, events } => {
                for event in events {
                    self.write(event);
                }
                self.after(delay, Timer::StoreFence { node, incarnation, batch });
            }
            Timer::StoreFence { node, incarnation, batch } => {
                let own = CoordinatorId { node: self.nodes[node].address.clone(), incarnation };
                let unfenced = self.sabotage.unfenced
                    || self.store.state.meta.as_ref().is_some_and(|meta| meta.coordinator == own);
                let input = if unfenced {
                    coordinator::Input::Committed { batch }
                } else {
                    coordinator::Input::CommitFailed { batch, retryable: false }
                };
                self.after(delay, Timer::Coordinate { node, incarnation, input });
            }
            _ => {}
        }
    }

    pub(super) fn write(&mut self, event: StateEvent) {
        match event {
            StateEvent::EpochStarted(meta) => {
                let rank = |meta: &Meta| {
                    (meta.epoch, std::cmp::Reverse(meta.coordinator.node.clone()), meta.coordinator.incarnation)
                };
                if self.store.state.meta.as_ref().is_none_or(|known| rank(known) < rank(&meta)) {
                    self.store.state.meta = Some(meta);
                }
            }
            StateEvent::FingerprintRecorded(_)
            | StateEvent::Initialized
            | StateEvent::RegionRegistered(_)
            | StateEvent::RegionTerminated(_) => {}
            StateEvent::Home { shard, home } => {
                let known = self.store.state.homes.get(&shard);
                if known.is_none_or(|known| known.clock() <= home.clock()) {
                    self.store.state.homes.insert(shard, home);
                }
            }
        }
    }

    /// Handles the store of remembered shards: a set that only grows, kept by a majority too, or in the journal.
    pub(super) fn on_remembered_store(&mut self, node: usize, timer: Timer<A>) {
        let cut_off = self.store.journal.is_none() && !self.reaches_majority(node);
        if self.nodes[node].alive && (cut_off || self.nodes[node].resumes.is_some()) {
            let delay = self.random(50, 200);
            return self.after(delay, timer);
        }
        let Some(remembered) = &mut self.store.remembered else { return };
        let (incarnation, input) = match timer {
            Timer::ReadRemembered { incarnation, .. } => {
                (incarnation, coordinator::Input::RememberedShards(remembered.clone()))
            }
            Timer::Remember { incarnation, shards, .. } => {
                remembered.extend(shards.iter().cloned());
                (incarnation, coordinator::Input::ShardsRemembered(shards))
            }
            _ => return,
        };
        let delay = self.random(5, 80);
        self.after(delay, Timer::Coordinate { node, incarnation, input });
    }

    /// Checks that after healing every shard whose entities are remembered lives somewhere, without a message.
    pub(super) fn check_remembered(&mut self) {
        let Some(remembered) = &self.store.remembered else { return };
        let lives = |shard: &&ShardId| {
            self.nodes.iter().any(|node| node.alive && node.shards.get(*shard).is_some_and(A::is_live))
        };
        if let Some(shard) = remembered.iter().find(|shard| !lives(shard)) {
            self.fail(format!("shard {shard} is remembered, and lives nowhere"));
        }
    }
}
