//! A flooded entity and its neighbour. Source: sharding §4.2, scenario 60.

use super::*;

const FLOOD: usize = 1_000_000;
const TARGET: EntityKey<Hit> = EntityKey::new("Target");

enum Hit {
    Number(usize),
    /// Answers the number of numbers handled by all entities.
    Handled(ReplyTo<usize>),
}

struct Target(Arc<AtomicUsize>);

impl Entity for Target {
    type Message = Hit;

    fn receive(&mut self, hit: Hit, _: &mut Ctx<'_, Hit>) -> Result<(), Failure> {
        match hit {
            Hit::Number(number) => {
                assert_eq!(
                    number,
                    self.0.fetch_add(1, Ordering::Relaxed),
                    "none is lost, and none is out of its order"
                );
            }
            Hit::Handled(reply_to) => reply_to.reply(self.0.load(Ordering::Relaxed)),
        }
        Ok(())
    }
}

/// A million messages stand in the inbox, far more than the mailbox of the hot entity takes, and one for its neighbour
/// behind them. On one thread, so that the shard begins with all of them.
#[tokio::test]
async fn scenario_60_a_million_messages_of_a_hot_entity_do_not_hold_its_neighbour_up() {
    let settings = ShardingSettings {
        number_of_shards: 1,
        shard_inbox_capacity: FLOOD + 1,
        shard_inbox_bytes: 1 << 30,
        ..ShardingSettings::test()
    };
    let throughput = settings.entity_throughput;
    assert!(settings.entity_mailbox_capacity < FLOOD / 10);
    let sharding = alone(settings).await;
    let handled = Arc::<AtomicUsize>::default();
    let targets = sharding.init(EntityType::new(TARGET, move |_| Ok(Target(handled.clone())))).unwrap();
    let (hot, cold) = (targets.entity_ref("hot"), targets.entity_ref("cold"));
    for entity in [&hot, &cold] {
        assert_eq!(entity.ask(Hit::Handled).timeout(PATIENCE).await, Ok(0));
    }
    for number in 0..FLOOD {
        hot.tell(Hit::Number(number)).unwrap();
    }
    let before = cold.ask(Hit::Handled).timeout(PATIENCE * 6).await.unwrap();
    assert!(before <= throughput, "its neighbour waited for {before} messages of the flood");
    assert_eq!(hot.ask(Hit::Handled).timeout(PATIENCE * 6).await, Ok(FLOOD));
}
