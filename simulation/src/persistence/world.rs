//! Nodes with entities, the stores that they share, and time.
//!
//! Several nodes host the same entities, one after another and at once. Hosts of machines are in [`super::hosting`],
//! the way to the stores in [`super::network`], faults in [`super::faults`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use greylag_persistence::{Incarnation, PersistenceId, StateCall, StoreCall};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::action_log::{ActionLog, Order, OrderKind};
use super::event_entity::Entry;
use super::history::{EventHistory, StateHistory};
use super::hosting::Hosted;
use super::machine::{Answer, Call, HostInput};
use super::network::Try;
use super::permits::Permits;
use super::setup::Setup;
use super::state_entity::StateEntries;
use super::store::Store;
use super::text::Text;
use crate::{Omission, Violation};

/// An event.
pub(super) enum Due {
    /// A call reaches the stores.
    Arrives(Box<Try>),
    Answer {
        machine: u64,
        incarnation: Incarnation,
        answer: Box<Answer>,
    },
    Permit {
        machine: u64,
        incarnation: Incarnation,
    },
    Tick {
        machine: u64,
    },
    /// A user has a request for the entity with this index.
    Wanted {
        entity: usize,
        kind: OrderKind,
    },
    /// An order that another machine has not handled.
    HandedOn {
        machine: u64,
        order: Order,
    },
    Fault,
}

/// State of an order when it was given.
#[derive(Debug, Clone, Copy)]
pub(super) struct GivenOrder {
    pub(super) entity: usize,
    pub(super) kind: OrderKind,
    /// Count of events stored then.
    pub(super) stored: usize,
}

pub(super) struct World {
    pub(super) rng: ChaCha8Rng,
    pub(super) setup: Setup,
    pub(super) without: Option<Omission>,
    base: Instant,
    pub(super) now: Duration,
    due: BTreeMap<(Duration, u64), Due>,
    next: u64,
    pub(super) store: Store,
    /// Permits of each node.
    pub(super) permits: Vec<Permits>,
    pub(super) hosted: BTreeMap<u64, Hosted>,
    pub(super) starts: u64,
    /// The newest generation of each entity.
    pub(super) generations: Vec<u64>,
    pub(super) event_histories: Vec<EventHistory>,
    pub(super) state_histories: Vec<StateHistory>,
    pub(super) action_log: ActionLog,
    pub(super) given: BTreeMap<u64, GivenOrder>,
    /// Orders that were answered with a value.
    pub(super) served: BTreeSet<u64>,
    pub(super) is_faulty: bool,
    pub(super) disk_full_until: Duration,
    pub(super) breaker_until: Duration,
    pub(super) broken: Option<Violation>,
    pub(super) steps: u64,
    pub(super) faults: u64,
    pub(super) checked: u64,
}

impl World {
    pub(super) fn new(seed: u64, without: Option<Omission>) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let setup = Setup::draw(&mut rng);
        let entities = setup.books + setup.slates;
        Self {
            rng,
            without,
            base: Instant::now(),
            now: Duration::ZERO,
            due: BTreeMap::new(),
            next: 0,
            store: Store::new(setup.latest_only, without),
            permits: (0..setup.nodes).map(|_| Permits::new(setup.permits)).collect(),
            hosted: BTreeMap::new(),
            starts: 0,
            generations: vec![0; entities],
            event_histories: (0..setup.books).map(|_| EventHistory::default()).collect(),
            state_histories: (0..setup.slates).map(|_| StateHistory::default()).collect(),
            setup,
            action_log: ActionLog::default(),
            given: BTreeMap::new(),
            served: BTreeSet::new(),
            is_faulty: true,
            disk_full_until: Duration::ZERO,
            breaker_until: Duration::ZERO,
            broken: None,
            steps: 0,
            faults: 0,
            checked: 0,
        }
    }

    pub(super) fn entities(&self) -> usize {
        self.setup.books + self.setup.slates
    }

    pub(super) fn id(&self, entity: usize) -> PersistenceId {
        let kind = if entity < self.setup.books { "Book" } else { "Slate" };
        PersistenceId::of(kind, &entity.to_string()).expect("a short id")
    }

    pub(super) fn instant(&self) -> Instant {
        self.base + self.now
    }

    pub(super) fn after(&self, at: Instant) -> Duration {
        at.saturating_duration_since(self.instant())
    }

    pub(super) fn chance(&mut self, share: f64) -> bool {
        self.rng.random_bool(share)
    }

    pub(super) fn later(&mut self, delay: Duration, due: Due) {
        self.next += 1;
        self.due.insert((self.now + delay, self.next), due);
    }

    pub(super) fn fail(&mut self, promise: &'static str, what: String) {
        let what = format!("{what}, at {:?}", self.now);
        self.broken.get_or_insert(Violation { promise, what });
    }

    /// Runs for a time, unless a promise is broken.
    pub(super) fn run_for(&mut self, time: Duration) {
        let until = self.now + time;
        while self.broken.is_none()
            && let Some(first) = self.due.first_entry().filter(|first| first.key().0 <= until)
        {
            let ((at, _), due) = first.remove_entry();
            self.now = at;
            self.happen(due);
        }
        self.now = until;
    }

    fn happen(&mut self, due: Due) {
        match due {
            Due::Arrives(tried) => self.on_arrival(*tried),
            Due::Answer { machine, incarnation, answer } => self.on_answer(machine, incarnation, *answer),
            Due::Permit { machine, incarnation } => self.tell(machine, HostInput::Permit(incarnation)),
            Due::Tick { machine } => {
                if let Some(hosted) = self.hosted.get_mut(&machine) {
                    hosted.tick_at = None;
                }
                self.tell(machine, HostInput::Tick);
            }
            Due::Wanted { entity, kind } => self.want(entity, kind),
            Due::HandedOn { machine, order } => self.tell(machine, HostInput::Order(order)),
            Due::Fault => self.inject_fault(),
        }
    }

    /// Gives a user's request to one of the machines that host the entity.
    pub(super) fn want(&mut self, entity: usize, kind: OrderKind) {
        let hosts: Vec<u64> =
            self.hosted.iter().filter(|(_, hosted)| hosted.entity == entity).map(|(key, _)| *key).collect();
        if hosts.is_empty() {
            return;
        }
        let machine = hosts[self.rng.random_range(0..hosts.len())];
        self.order(machine, kind);
    }

    /// Gives an order to a machine; answers its number.
    pub(super) fn order(&mut self, machine: u64, kind: OrderKind) -> u64 {
        let number = self.given.len() as u64 + 1;
        let entity = self.hosted[&machine].entity;
        let stored = self.event_histories.get(entity).map_or(0, |history| history.entries.len());
        self.given.insert(number, GivenOrder { entity, kind, stored });
        let order = self.action_log.order(number, kind);
        self.tell(machine, HostInput::Order(order));
        number
    }

    /// Lets a store perform a call, and tells the model what the store took.
    pub(super) fn perform(&mut self, call: Call) -> Answer {
        let micros = 1 + u64::try_from(self.now.as_micros()).expect("minutes at most");
        match &call {
            Call::EventEntity(asked) => {
                let Some(entity) = self.entity_of(&call) else { return self.store.perform(micros, call) };
                let (id, before) = (self.id(entity), self.store.head(&self.id(entity)));
                let (writer, entries) = match asked {
                    StoreCall::Append(append) => {
                        let events = append.events.iter();
                        let read = |payload: &[u8]| {
                            let text = std::str::from_utf8(payload).ok()?;
                            Entry::read(&mut text.split(' '))
                        };
                        (Some(append.writer_uuid), events.filter_map(|event| read(&event.payload)).collect())
                    }
                    StoreCall::Claim { writer_uuid, under, .. } => {
                        self.event_histories[entity].claims.asked(*writer_uuid, *under);
                        (Some(*writer_uuid), Vec::new())
                    }
                    _ => (None, Vec::new()),
                };
                let answer = self.store.perform(micros, call);
                let after = self.store.head(&id);
                if let Err(what) = self.event_histories[entity].performed(&before, &after, writer, entries) {
                    self.fail("never two accepted histories", what);
                }
                answer
            }
            Call::StateEntity(asked) => {
                let entity = self.entity_of(&call).expect("every call names its state");
                let (generation, content) = match asked {
                    StateCall::Upsert { write, value, .. } => {
                        let text = String::from_utf8_lossy(&value.payload).into_owned();
                        (write.generation, StateEntries::read(&mut text.split(' ')))
                    }
                    StateCall::Delete { write } => (write.generation, None),
                    StateCall::Get { .. } => (None, None),
                };
                let (id, before) = (self.id(entity), self.store.state_head(&self.id(entity)));
                let answer = self.store.perform(micros, call);
                let after = self.store.state_head(&id);
                let state_history = &mut self.state_histories[entity - self.setup.books];
                if let Err(what) = state_history.performed(&before, &after, generation, content) {
                    self.fail("never two accepted histories", what);
                }
                answer
            }
        }
    }

    fn entity_of(&self, call: &Call) -> Option<usize> {
        let id = match call {
            Call::EventEntity(StoreCall::Append(append)) => &append.id,
            Call::EventEntity(StoreCall::Claim { id, .. }) => id,
            Call::EventEntity(_) => return None,
            Call::StateEntity(StateCall::Upsert { write, .. } | StateCall::Delete { write }) => &write.id,
            Call::StateEntity(StateCall::Get { id }) => id,
        };
        id.entity_id().parse().ok()
    }
}
