//! Persistent entities on a node: they get the settings of its config file.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use greylag::codec::json;
use greylag::persistence::{
    Ctx, DurableState, DurableStateSettings, Effect, EventSourced, EventSourcedSettings, PersistenceId, SeqNr,
    SnapshotCriteria, StateEffect, Stores,
};
use greylag::prelude::*;
use greylag::sharding::{EntityKey, EntityType};
use greylag::{Config, NodeBuilder};

const FILE: &str = "
[persistence]
snapshot_every = 2
keep_n_snapshots = 3
recovery_timeout = \"7s\"
stash_capacity = 11
on_failure = \"restart\"
backoff_min = \"2s\"
replay_filter.window = 5
delivery_tracker.max_unconfirmed = 9
max_concurrent_recoveries = 3
permit_wait_warn = \"4s\"

[sharding]
allow_local_journal = true
";

fn builder(stores: &Stores) -> NodeBuilder {
    Node::builder("shop").config(Config::new().text("node.toml", FILE)).bind("127.0.0.1", 0).stores(stores.clone())
}

const LONG: Duration = Duration::from_secs(30);

/// Settings that behaviours were given by their node.
#[derive(Clone, Default)]
struct ReportedSettings(Arc<Mutex<(Option<EventSourcedSettings>, Option<DurableStateSettings>)>>);

type Command = (u64, ReplyTo<u64>);

const COUNTER: EntityKey<Command> = EntityKey::new("counter");
const CELL: EntityKey<Command> = EntityKey::new("cell");

struct Counter {
    told: ReportedSettings,
}

impl EventSourced for Counter {
    type Command = Command;
    type Event = u64;
    type State = u64;

    fn settings(&self, node: &EventSourcedSettings) -> EventSourcedSettings {
        self.told.0.lock().expect("no holder of the lock panics").0 = Some(node.clone());
        node.clone()
    }

    fn on_command(&mut self, _: &mut Ctx<'_, Command>, _: &u64, (by, to): Command) -> Effect<Self> {
        Effect::<Self>::persist(by).then_reply(to, |sum| *sum)
    }

    fn apply(state: &mut u64, event: &u64) {
        *state += event;
    }
}

struct Cell {
    told: ReportedSettings,
}

impl DurableState for Cell {
    type Command = Command;
    type State = u64;

    fn settings(&self, node: &DurableStateSettings) -> DurableStateSettings {
        self.told.0.lock().expect("no holder of the lock panics").1 = Some(node.clone());
        node.clone()
    }

    fn on_command(&mut self, _: &mut Ctx<'_, Command>, state: &u64, (by, to): Command) -> StateEffect<Self> {
        StateEffect::<Self>::persist(state + by).then_reply(to, |sum| *sum)
    }
}

/// persistence §9: the settings of entities start from those of the node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entities_start_from_the_config_file_of_their_node() {
    let (stores, told) = (Stores::in_memory(), ReportedSettings::default());
    let node = builder(&stores).start().await.expect("a cluster of one");
    assert_eq!(node.settings().sharding.max_concurrent_recoveries, 3);
    assert_eq!(node.settings().sharding.permit_wait_warn, Duration::from_secs(4));
    let of_counters = told.clone();
    let counters = EntityType::event_sourced(COUNTER, move |_| Ok(Counter { told: of_counters.clone() }))
        .events(json("added"))
        .snapshots(json("sum"))
        .local_only();
    let of_cells = told.clone();
    let cells =
        EntityType::durable_state(CELL, move |_| Ok(Cell { told: of_cells.clone() })).states(json("cell")).local_only();
    let counter = node.sharding().init(counters).expect("it is set up").entity_ref("a");
    let cell = node.sharding().init(cells).expect("it is set up").entity_ref("a");
    for sum in 1..=2 {
        assert_eq!(counter.ask(|to| (1, to)).timeout(LONG).await.expect("it is stored"), sum);
    }
    assert_eq!(cell.ask(|to| (5, to)).timeout(LONG).await.expect("it is stored"), 5);
    let (events, state) = told.0.lock().expect("no holder of the lock panics").clone();
    let (events, state) = (events.expect("it was asked"), state.expect("it was asked"));
    assert_eq!(&events, &node.settings().persistence);
    assert_eq!(&state, &node.settings().durable_state);
    assert_eq!(state.recovery_timeout, Duration::from_secs(7));
    assert_eq!((state.stash_capacity.get(), events.stash_capacity.get()), (11, 11));
    assert_eq!(state.on_failure, events.on_failure);
    assert!(format!("{:?}", events.on_failure).contains("min: 2s"), "{:?}", events.on_failure);
    assert_eq!((events.replay_filter.window.get(), events.delivery_tracker.max_unconfirmed.get()), (5, 9));
    node.shutdown().await.expect("it leaves in order");
    // The second event reaches the interval of the file, so a snapshot is saved while the answer is sent.
    let id = PersistenceId::of("counter", "a").expect("an id");
    let saved = stores.snapshots.load(&id, SnapshotCriteria::LATEST).await.expect("it can be read");
    assert_eq!(saved.map(|saved| saved.seq_nr), Some(SeqNr::new(2).expect("small")));
}

/// persistence §9: settings that cannot work are refused at the start, by name.
#[tokio::test]
async fn settings_of_entities_that_cannot_work_are_named_at_the_start() {
    let cases = [
        ("backoff_min = \"40s\"", "backoff_max"),
        ("backoff_jitter = 3.0", "backoff_jitter"),
        ("recovery_timeout = \"0s\"", "recovery_timeout"),
        ("delivery_tracker.redeliver_interval = \"0s\"", "delivery_tracker.redeliver_interval"),
        ("max_concurrent_recoveries = 0", "persistence.max_concurrent_recoveries"),
        ("on_failure = \"retry\"", "persistence.on_failure"),
        ("replay_filter.mode = \"maybe\"", "persistence.replay_filter.mode"),
    ];
    for (line, named) in cases {
        let config = Config::new().text("node.toml", format!("[persistence]\n{line}"));
        let refused = Node::builder("shop").config(config).bind("127.0.0.1", 0).start().await.expect_err(line);
        assert!(refused.to_string().contains(named), "{line}: {refused}");
    }
}
