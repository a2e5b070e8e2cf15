//! A limit of active entities holds over all shards of a region, and may be changed at run time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use greylag_core::{Registry, ReplyTo};
use greylag_sharding::{
    Ctx, Entity, EntityKey, EntityType, Failure, InitError, Passivation, Region, Sharding, ShardingSettings,
};
use greylag_transport::memory::MemoryNetwork;

const PATIENCE: Duration = Duration::from_secs(20);

/// A message that is answered when it is handled.
type Touch = ReplyTo<()>;

const SESSION: EntityKey<Touch> = EntityKey::new("Session");

/// An entity that is counted while it lives.
struct Session(Arc<AtomicUsize>);

impl Session {
    fn new(live: &Arc<AtomicUsize>) -> Self {
        live.fetch_add(1, Ordering::SeqCst);
        Self(live.clone())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Entity for Session {
    type Message = Touch;

    fn receive(&mut self, done: Touch, _: &mut Ctx<'_, Touch>) -> Result<(), Failure> {
        done.reply(());
        Ok(())
    }
}

async fn sharding() -> Sharding {
    let remoting = MemoryNetwork::new().node("a:1#1".parse().unwrap(), Arc::new(Registry::new()));
    let settings = ShardingSettings { number_of_shards: 4, ..ShardingSettings::test() };
    Sharding::alone(remoting, None, settings).await.unwrap()
}

async fn use_all(sessions: &Region<Touch>, ids: std::ops::Range<u32>) {
    for id in ids {
        sessions.entity_ref(id.to_string()).ask(|done| done).timeout(PATIENCE).await.unwrap();
    }
}

/// Waits until `count` entities live: entities end a moment after others took their place.
async fn come_to(live: &AtomicUsize, count: usize) {
    let settled = async {
        while live.load(Ordering::SeqCst) != count {
            tokio::task::yield_now().await;
        }
    };
    let settled = tokio::time::timeout(PATIENCE, settled).await;
    assert!(settled.is_ok(), "{} live, {count} expected", live.load(Ordering::SeqCst));
}

#[tokio::test]
async fn scenario_65_a_limit_holds_over_all_shards_and_follows_what_is_set() {
    let live = Arc::new(AtomicUsize::new(0));
    let counted = live.clone();
    let limit = Passivation::least_recently_used(40);
    let sessions = EntityType::new(SESSION, move |_| Ok(Session::new(&counted))).passivation(limit);
    let sessions = sharding().await.init(sessions).unwrap();
    use_all(&sessions, 0..400).await;
    come_to(&live, 40).await;
    sessions.set_active_entity_limit(8);
    come_to(&live, 8).await;
    sessions.set_active_entity_limit(80);
    use_all(&sessions, 0..400).await;
    come_to(&live, 80).await;
}

#[tokio::test]
async fn a_limit_that_makes_no_sense_is_named_when_the_type_is_set_up() {
    let live = Arc::new(AtomicUsize::new(0));
    let sessions = EntityType::new(SESSION, move |_| Ok(Session::new(&live)));
    let sessions = sessions.passivation(Passivation::least_recently_used(0));
    let Err(InitError::InvalidSetting(wrong)) = sharding().await.init(sessions) else { panic!("it was taken") };
    assert_eq!((wrong.key, wrong.value.as_str()), ("passivation.<s>.active_entity_limit", "0"));
}
