//! The entities under test: registers, each write of which stores a unique value, in four types.

use std::sync::Arc;
use std::time::Duration;

use greylag::codec::json;
use greylag::persistence::{EventSourced, Signal};
use greylag::prelude::{Ctx, Effect, EntityInit, EntityKey, EntityType, NodeBuilder, ReplyTo};
use greylag::sharding::fingerprint::StateStoreMode;
use serde::{Deserialize, Serialize};

use crate::record::{Record, RecordedEvent};

/// An entity type of the scenarios.
#[derive(Debug)]
pub(crate) struct Kind {
    /// The entity type's name.
    pub(crate) name: &'static str,
    /// A description of the type for the table.
    pub(crate) about: &'static str,
    /// The number of shards.
    shards: u32,
    /// Where the type's coordinator stores the shards' homes.
    mode: StateStoreMode,
    /// Count of entities that are called from the start.
    entities: usize,
    /// Count of entities that are called from the first fault on, each in a shard without a home until then.
    newcomers: usize,
    /// The mean pause between two calls of one client.
    pub(super) pace: Duration,
}

/// The entity types on every node: one shard or a thousand, homes in replicated data or in the journal.
pub(crate) static KINDS: [Kind; 4] = [
    Kind {
        name: "one-ddata",
        about: "1 shard, ddata",
        shards: 1,
        mode: StateStoreMode::Ddata,
        entities: 4,
        newcomers: 0,
        pace: Duration::from_millis(200),
    },
    Kind {
        name: "one-persistence",
        about: "1 shard, persistence",
        shards: 1,
        mode: StateStoreMode::Persistence,
        entities: 4,
        newcomers: 0,
        pace: Duration::from_millis(200),
    },
    Kind {
        name: "thousand-ddata",
        about: "1,000 shards, ddata",
        shards: 1_000,
        mode: StateStoreMode::Ddata,
        entities: 16,
        newcomers: 4,
        pace: Duration::from_millis(500),
    },
    Kind {
        name: "thousand-persistence",
        about: "1,000 shards, persistence",
        shards: 1_000,
        mode: StateStoreMode::Persistence,
        entities: 16,
        newcomers: 4,
        pace: Duration::from_millis(500),
    },
];

impl Kind {
    pub(super) fn key(&self) -> EntityKey<Command> {
        EntityKey::new(self.name)
    }

    /// The ids of the entities that are called from the start.
    pub(super) fn ids(&self) -> impl Iterator<Item = String> {
        (0..self.entities).map(|id| id.to_string())
    }

    /// The ids of the newcomers, which are called from the first fault on.
    pub(super) fn newcomer_ids(&self) -> impl Iterator<Item = String> {
        (0..self.newcomers).map(|id| format!("new-{id}"))
    }

    /// The name of an entity in the record files.
    pub(super) fn entity(&self, id: &str) -> String {
        format!("{}/{id}", self.name)
    }

    /// Whether an entity in the record files is of this type.
    pub(crate) fn has(&self, entity: &str) -> bool {
        entity.strip_prefix(self.name).is_some_and(|rest| rest.starts_with('/'))
    }

    /// Registers the type with a node, whose entities record their instances.
    pub(super) fn set_up(&'static self, builder: NodeBuilder, record: &Arc<Record>) -> NodeBuilder {
        let record = Arc::clone(record);
        let entities = EntityType::event_sourced(self.key(), move |init| Ok(Register::start(init, &record)));
        let entities = entities.commands(json("register.command")).events(json("register.written"));
        builder.entity(entities.settings(move |settings| {
            settings.number_of_shards = self.shards;
            settings.state_store_mode = self.mode;
        }))
    }
}

/// The commands of a register.
#[derive(Serialize, Deserialize)]
pub(crate) enum Command {
    /// Stores the value; the answer, after the store, is the count of writes so far.
    Write { value: u64, reply_to: ReplyTo<u64> },
    /// Answers with the count of writes and the last value, without persisting anything.
    Read(ReplyTo<(u64, u64)>),
    /// Answers with all values, in order.
    Log(ReplyTo<Vec<u64>>),
}

/// A value was written.
#[derive(Serialize, Deserialize)]
pub(crate) struct Written(u64);

/// One instance of a register.
struct Register {
    record: Arc<Record>,
    entity: String,
    life: u64,
}

impl Register {
    fn start(init: &EntityInit, record: &Arc<Record>) -> Self {
        let entity = format!("{}/{}", init.entity_type.as_str(), init.id.as_str());
        let (life, generation) = (init.incarnation, init.generation.to_string());
        record.note(&entity, RecordedEvent::Started { life, pid: std::process::id(), generation });
        Self { record: Arc::clone(record), entity, life }
    }
}

impl EventSourced for Register {
    type Command = Command;
    type Event = Written;
    type State = Vec<u64>;

    fn on_command(&mut self, _: &mut Ctx<'_, Command>, values: &Vec<u64>, command: Command) -> Effect<Self> {
        self.record.note(&self.entity, RecordedEvent::Worked { life: self.life });
        match command {
            Command::Write { value, reply_to } => {
                Effect::persist(Written(value)).then_reply(reply_to, |values: &Vec<u64>| values.len() as u64)
            }
            Command::Read(reply_to) => {
                Effect::reply(reply_to, (values.len() as u64, values.last().copied().unwrap_or(0)))
            }
            Command::Log(reply_to) => Effect::reply(reply_to, values.clone()),
        }
    }

    fn apply(values: &mut Vec<u64>, written: &Written) {
        values.push(written.0);
    }

    fn on_signal(&mut self, _: &mut Ctx<'_, Command>, _: &Vec<u64>, signal: &Signal) {
        if *signal == Signal::PostStop {
            self.record.note(&self.entity, RecordedEvent::Stopped { life: self.life });
        }
    }
}
