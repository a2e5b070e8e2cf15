//! The counter of the cluster-sharding literature, event sourced: each name counts for itself.

use std::time::Duration;

use greylag::prelude::*;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
enum Command {
    Increment,
    Get { reply_to: ReplyTo<u64> },
}

#[derive(Serialize, Deserialize)]
struct Incremented;

struct Counter(PersistenceId);

impl EventSourced for Counter {
    type Command = Command;
    type Event = Incremented;
    type State = u64;

    fn persistence_id(&self) -> PersistenceId {
        self.0.clone()
    }

    fn event_codec(&self) -> StoredCodec<Incremented> {
        StoredCodec::new(json("counter.incremented"))
    }

    fn on_command(
        &mut self,
        _cx: &mut CommandContext<'_, Self::Command>,
        count: &u64,
        command: Command,
    ) -> Effect<Self> {
        match command {
            Command::Increment => Effect::persist(Incremented),
            Command::Get { reply_to } => Effect::reply(reply_to, *count),
        }
    }

    fn apply(&self, count: &mut u64, _event: &Incremented, _meta: &EventMeta<'_>) {
        *count += 1;
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let node = Node::builder("counters").bind("127.0.0.1", 0).stores(Stores::in_memory_shared()).start().await?;
    node.registry().register::<u64>(json("u64"))?;
    let counters = node.sharding().init(
        EntityType::event_sourced("Counter", |init| Ok(Counter(init.persistence_id()?))).codec(json("counter.command")),
    )?;
    let geese = counters.entity_ref("geese");
    (0..3).try_for_each(|_| geese.tell(Command::Increment))?;
    let count = geese.ask(|reply_to| Command::Get { reply_to }, Duration::from_secs(10)).await?;
    assert_eq!(count, 3);
    node.shutdown().await;
    Ok(())
}
