//! The entities under test: registers whose every write has its own number, in four types.

use std::sync::Arc;
use std::time::Duration;

use greylag::codec::json;
use greylag::persistence::{EventSourced, Signal};
use greylag::prelude::{Ctx, Effect, EntityInit, EntityKey, EntityType, NodeBuilder, ReplyTo};
use greylag::sharding::fingerprint::StateStoreMode;
use serde::{Deserialize, Serialize};

use crate::record::{Happened, Record};

/// An entity type of the scenarios.
#[derive(Debug)]
pub(crate) struct Kind {
    /// Its name.
    pub(crate) name: &'static str,
    /// What it is, for the table.
    pub(crate) about: &'static str,
    /// How many shards it has.
    shards: u32,
    /// Where its coordinator keeps the homes.
    mode: StateStoreMode,
    /// How many entities are asked from the beginning.
    entities: usize,
    /// How many more from the fault on, each in a shard that has no home until then.
    newcomers: usize,
    /// Between two calls of one client.
    pub(super) pace: Duration,
}

/// All of them, on every node: one shard and a thousand, homes in replicated data and in the journal.
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

    /// The ids that are asked from the beginning.
    pub(super) fn ids(&self) -> impl Iterator<Item = String> {
        (0..self.entities).map(|id| id.to_string())
    }

    /// The ids that are asked from the fault on.
    pub(super) fn newcomer_ids(&self) -> impl Iterator<Item = String> {
        (0..self.newcomers).map(|id| format!("new-{id}"))
    }

    /// The name of an entity in the files.
    pub(super) fn entity(&self, id: &str) -> String {
        format!("{}/{id}", self.name)
    }

    /// Whether an entity of the files is of this type.
    pub(crate) fn has(&self, entity: &str) -> bool {
        entity.strip_prefix(self.name).is_some_and(|rest| rest.starts_with('/'))
    }

    /// Sets the type up on a node, which notes the lives of its entities.
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

/// What a register is asked.
#[derive(Serialize, Deserialize)]
pub(crate) enum Command {
    /// Holds this value; answered, once it is stored, with the number of writes so far.
    Write { value: u64, reply_to: ReplyTo<u64> },
    /// Answered with the number of writes and the last value, and nothing is persisted for it.
    Read(ReplyTo<(u64, u64)>),
    /// Answered with every value, in order.
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
        record.note(&entity, Happened::Started { life, pid: std::process::id(), generation });
        Self { record: Arc::clone(record), entity, life }
    }
}

impl EventSourced for Register {
    type Command = Command;
    type Event = Written;
    type State = Vec<u64>;

    fn on_command(&mut self, _: &mut Ctx<'_, Command>, values: &Vec<u64>, command: Command) -> Effect<Self> {
        self.record.note(&self.entity, Happened::Worked { life: self.life });
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
            self.record.note(&self.entity, Happened::Stopped { life: self.life });
        }
    }
}
