//! The counter known from the cluster-sharding literature, event sourced: one counter per name.

#![expect(clippy::print_stdout, reason = "a program that shows what happens")]

use greylag::prelude::*;

const COUNTER: EntityKey<Command> = EntityKey::new("Counter");

#[derive(Serialize, Deserialize)]
enum Command {
    Increment,
    Get(ReplyTo<u64>),
}

#[derive(Serialize, Deserialize)]
struct Incremented;

#[derive(Default)]
struct Counter;

impl EventSourced for Counter {
    type Command = Command;
    type Event = Incremented;
    type State = u64;

    fn on_command(&mut self, _: &mut Ctx<'_, Command>, count: &u64, command: Command) -> Effect<Self> {
        match command {
            Command::Increment => Effect::persist(Incremented),
            Command::Get(reply_to) => Effect::reply(reply_to, *count),
        }
    }

    fn apply(count: &mut u64, _: &Incremented) {
        *count += 1;
    }
}

#[tokio::main]
async fn main() -> greylag::Result {
    let counters = EntityType::event_sourced(COUNTER, |_| Ok(Counter))
        .commands(json("counter.command"))
        .events(json("counter.incremented"));
    let node = Node::builder("counters").stores(Stores::in_memory_shared()).entity(counters).start().await?;

    let geese = node.entity_ref(COUNTER, "geese");
    geese.tell(Command::Increment)?;
    println!("{} geese", geese.ask(Command::Get).await?);
    node.shutdown().await
}
