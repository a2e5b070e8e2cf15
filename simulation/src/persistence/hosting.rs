//! The hosts of machines, and the checks after every step of a machine.

use std::time::Duration;

use greylag_core::{EntityError, Generation, NotStoredReason, answer_dropped};
use greylag_persistence::{EntityInit, Failure, Incarnation, StateEntityInit, StoreAnswer};
use greylag_testkit::deadlines::Steps;
use rand::RngExt;

use super::action_log::{LoggedAction, OrderKind, State, UserAnswer};
use super::event_entity::EventEntity;
use super::machine::{Answer, HostInput, HostRequest, Machine, asked};
use super::permits::Permits;
use super::stash::Expected;
use super::state_entity::StateEntity;
use super::world::{Due, World};
use crate::Omission;

/// One machine on one node.
pub(super) struct Hosted {
    pub(super) entity: usize,
    pub(super) node: usize,
    pub(super) machine: Machine,
    steps: Steps,
    pub(super) tick_at: Option<Duration>,
    /// The highest number in the answer to its last claim.
    claimed: Option<u64>,
    expected: Expected,
}

impl World {
    /// Starts an entity on a node, even if other nodes host it; returns the machine's key. A late host has an older
    /// generation than the newest.
    pub(super) fn start(&mut self, node: usize, entity: usize, is_late: bool) -> u64 {
        self.starts += 1;
        let (key, now) = (self.starts, self.instant());
        self.generations[entity] += 1;
        let number = self.generations[entity] - u64::from(is_late && self.generations[entity] > 1);
        let generation = self.setup.is_sharded.then(|| Generation::new(1, number).expect("few starts"));
        let (caps, snapshot_caps, state_caps) = self.store.caps();
        let seed = self.rng.random();
        let (machine, out) = if entity < self.setup.books {
            Machine::event_entity(
                self.event_entity(entity),
                EntityInit {
                    generation,
                    start: key,
                    seed,
                    caps,
                    snapshot_caps,
                    settings: self.setup.event_entity.clone(),
                    host: None,
                },
                now,
            )
        } else {
            Machine::state_entity(
                self.state_entity(entity),
                StateEntityInit {
                    generation,
                    start: key,
                    seed,
                    caps: state_caps,
                    settings: self.setup.state_entity.clone(),
                    host: None,
                },
                now,
            )
        };
        let expected = Expected::new(self.setup.event_entity.stash_capacity.get());
        self.hosted.insert(
            key,
            Hosted { entity, node, machine, steps: Steps::default(), tick_at: None, claimed: None, expected },
        );
        self.act(key, out);
        key
    }

    fn event_entity(&self, entity: usize) -> EventEntity {
        let (settings, action_log) = (self.setup.event_entity.clone(), self.action_log.clone());
        let sends_early = self.without == Some(Omission::SendBeforeStore);
        EventEntity {
            id: self.id(entity),
            settings,
            action_log,
            rollback: self.setup.rollback,
            sends_early,
            snapshot: None,
        }
    }

    fn state_entity(&self, entity: usize) -> StateEntity {
        StateEntity {
            id: self.id(entity),
            settings: self.setup.state_entity.clone(),
            action_log: self.action_log.clone(),
        }
    }

    pub(super) fn tell(&mut self, key: u64, host_input: HostInput) {
        let now = self.instant();
        let Some(hosted) = self.hosted.get_mut(&key) else { return };
        if let HostInput::Order(order) = &host_input {
            hosted.expected.given(order.number);
        }
        let ticks = matches!(host_input, HostInput::Tick);
        let out = hosted.machine.handle(now, host_input);
        if ticks {
            hosted.steps.assert_end("entity", now, hosted.machine.next_deadline());
        }
        self.steps += 1;
        self.act(key, out);
    }

    pub(super) fn on_answer(&mut self, key: u64, incarnation: Incarnation, answer: Answer) {
        let Some(hosted) = self.hosted.get_mut(&key) else { return };
        let current = hosted.machine.incarnation();
        let incarnation = if self.without == Some(Omission::Incarnation) { current } else { incarnation };
        if let (Answer::EventEntity(StoreAnswer::Claimed(Ok(claim))), true) = (&answer, incarnation == current) {
            hosted.claimed = Some(claim.highest.as_u64());
        }
        self.tell(key, HostInput::Answer(incarnation, answer));
    }

    /// Carries out a machine's requests, and checks them.
    fn act(&mut self, key: u64, out: Vec<HostRequest>) {
        self.read_action_log(key);
        for action in out {
            let Some(hosted) = self.hosted.get_mut(&key) else { break };
            let node = hosted.node;
            match action {
                HostRequest::RequestPermit(incarnation) => {
                    self.permits[node].ask((key, incarnation));
                    self.grant(node);
                }
                HostRequest::ReturnPermit(incarnation) => {
                    self.permits[node].give_back((key, incarnation));
                    self.grant(node);
                }
                HostRequest::Call(incarnation, call) => self.send(key, incarnation, call),
                HostRequest::Dropped(dropped) => {
                    let for_room = dropped.answer == EntityError::StashFull;
                    let judged = hosted.expected.was_dropped(dropped.command.number, for_room);
                    dropped.discard();
                    self.judge("stashed orders keep their order (§2.4)", judged);
                }
                HostRequest::Fenced => self.on_fenced(key),
                HostRequest::Failed(failure) => self.on_failed(key, &failure),
                HostRequest::Stopped => {
                    let ended = hosted.expected.ended();
                    self.judge("no order is forgotten", ended);
                    self.remove(key);
                }
            }
            self.read_action_log(key);
        }
        self.check_permits(key);
        let Some(hosted) = self.hosted.get(&key) else { return };
        let tick_at = hosted.machine.next_deadline().map(|at| self.now + self.after(at));
        if let Some(at) = tick_at.filter(|at| hosted.tick_at.is_none_or(|planned| *at < planned)) {
            self.later(at - self.now, Due::Tick { machine: key });
            self.hosted.get_mut(&key).expect("found above").tick_at = Some(at);
        }
    }

    fn grant(&mut self, node: usize) {
        while let Some((machine, incarnation)) = self.permits[node].grant() {
            let delay = Duration::from_millis(self.rng.random_range(0..5));
            self.later(delay, Due::Permit { machine, incarnation });
        }
    }

    fn check_permits(&mut self, key: u64) {
        let machine = self.hosted.get(&key).map(|hosted| &hosted.machine);
        let may_hold = machine.filter(|machine| machine.may_hold_permit()).map(|machine| (key, machine.incarnation()));
        let held = self.permits.iter().flat_map(Permits::held).filter(|(machine, _)| *machine == key);
        let kept = held.into_iter().find(|holder| may_hold != Some(*holder));
        if let Some((machine, incarnation)) = kept {
            self.fail("recovery permits come back (§2.5)", format!("machine {machine} keeps that of {incarnation}"));
        }
    }

    /// Handles the end of a fenced machine: its orders go to another host of the entity, if there is one, or are
    /// answered.
    fn on_fenced(&mut self, key: u64) {
        let hosted = self.hosted.get_mut(&key).expect("it just acted");
        let orders = hosted.machine.take_waiting();
        let numbers: Vec<u64> = orders.iter().map(|order| order.number).collect();
        let judged = hosted.expected.handed_over(&numbers);
        let entity = hosted.entity;
        self.remove(key);
        self.judge("stashed orders keep their order (§2.4)", judged);
        let heir = self.hosted.iter().rev().find(|(_, other)| other.entity == entity).map(|(key, _)| *key);
        match heir.filter(|_| self.chance(0.5)) {
            Some(machine) => {
                orders.into_iter().for_each(|order| self.later(Duration::ZERO, Due::HandedOn { machine, order }));
            }
            None => answer_dropped(EntityError::NotStored(NotStoredReason::Fenced), || drop(orders)),
        }
        self.read_action_log(key);
    }

    fn on_failed(&mut self, key: u64, failure: &Failure) {
        if matches!(failure, Failure::Handler { .. } | Failure::StashFull) {
            let judged = self.hosted[&key].expected.lost_its_state();
            self.judge("stashed orders keep their order (§2.4)", judged);
        }
        if self.is_faulty && self.chance(0.3) {
            return self.tell(key, HostInput::StopNow);
        }
        let (entity, now) = (self.hosted[&key].entity, self.instant());
        let out = if entity < self.setup.books {
            let (event_entity, mut out) = (self.event_entity(entity), Vec::new());
            let Some(Machine::EventEntity(core)) = self.hosted.get_mut(&key).map(|hosted| &mut hosted.machine) else {
                return;
            };
            core.restart(now, event_entity, &mut out);
            asked(out, super::machine::Call::EventEntity)
        } else {
            let (state_entity, mut out) = (self.state_entity(entity), Vec::new());
            let Some(Machine::StateEntity(core)) = self.hosted.get_mut(&key).map(|hosted| &mut hosted.machine) else {
                return;
            };
            core.restart(now, state_entity, &mut out);
            asked(out, super::machine::Call::StateEntity)
        };
        self.act(key, out);
    }

    fn remove(&mut self, key: u64) {
        // The next check of permits finds a permit that the machine has not returned.
        drop(self.hosted.remove(&key));
    }

    /// Drops a machine with everything in it, as in a crash.
    pub(super) fn kill(&mut self, key: u64) {
        if let Some(hosted) = self.hosted.remove(&key) {
            self.permits[hosted.node].forget(key);
            let node = hosted.node;
            drop(hosted);
            self.action_log.take();
            self.grant(node);
        }
    }

    // ---- Checks ---------------------------------------------------------------------------------

    fn judge(&mut self, promise: &'static str, judged: Result<(), String>) {
        if let Err(what) = judged {
            self.fail(promise, what);
        }
    }

    fn read_action_log(&mut self, key: u64) {
        for line in self.action_log.take() {
            let hosted = self.hosted.get_mut(&key);
            let entity = hosted.as_ref().map(|hosted| hosted.entity);
            let kept = hosted.map_or(Ok(()), |hosted| hosted.expected.did(&line));
            self.judge("stashed orders keep their order (§2.4)", kept);
            match line {
                LoggedAction::Recovered { state, count } => self.on_recovered(key, &state, count),
                LoggedAction::Sent { delivery, entry } => {
                    let Some(entity) = entity else { continue };
                    let judged = self.event_histories[entity].check_sent(delivery, entry);
                    self.judge("nothing is sent before it is stored (§6)", judged);
                    if !self.is_faulty || self.chance(0.75) {
                        let delay = Duration::from_millis(self.rng.random_range(1..50));
                        self.later(delay, Due::Wanted { entity, kind: OrderKind::Confirm(delivery) });
                    }
                }
                LoggedAction::Answered { number, answer_of_user } => self.on_user_answer(number, &answer_of_user),
                LoggedAction::Handled { .. } | LoggedAction::Unstashes => {}
            }
        }
    }

    fn on_recovered(&mut self, key: u64, state: &State, count: u64) {
        self.checked += 1;
        let hosted = &self.hosted[&key];
        let judged = match state {
            State::EventEntity(_) if hosted.claimed != Some(count) => {
                Err(format!("recovered to {count}, where its claim said {:?}", hosted.claimed))
            }
            State::EventEntity(pages) => self.event_histories[hosted.entity].check_state(pages, count as usize),
            State::StateEntity(lines) => {
                self.state_histories[hosted.entity - self.setup.books].check_state(lines, count as usize)
            }
        };
        self.judge("state after recovery is the fold of what is stored (§10.4)", judged);
    }

    fn on_user_answer(&mut self, number: u64, answer_of_user: &UserAnswer) {
        let given = self.given[&number];
        let judged = match (answer_of_user, given.entity.checked_sub(self.setup.books)) {
            (UserAnswer::Unknown, _) => return,
            (UserAnswer::NotStored(_), None) => self.event_histories[given.entity].deny(number),
            (UserAnswer::NotStored(_), Some(state_history)) => self.state_histories[state_history].deny(number),
            (UserAnswer::Value(count), None) => {
                self.served.insert(number);
                self.event_histories[given.entity].check_answer(number, given.kind, given.stored, *count as usize)
            }
            (UserAnswer::Value(count), Some(state_history)) => {
                self.served.insert(number);
                self.state_histories[state_history].check_answer(number, given.kind, *count as usize)
            }
        };
        self.checked += 1;
        self.judge("a reply follows what it rests on into the store (§10.2)", judged);
    }
}
