//! Sharding scenario 108: a type whose role no member has is reported, drops its waiting messages, and is healed by the
//! first member that has the role.

use std::sync::Arc;
use std::time::Duration;

use greylag_cluster::{Cluster, ClusterSettings};
use greylag_codec::json;
use greylag_core::{DeadLetterReason, Registry, ReplyTo};
use greylag_persistence::Ctx;
use greylag_sharding::{
    AskError, Entity, EntityKey, EntityType, Event, Failure, Region, RegionEvent, RegionEvents, Sharding,
    ShardingSettings,
};
use greylag_transport::memory::MemoryNetwork;

const CART: EntityKey<ReplyTo<u64>> = EntityKey::new("Cart");

struct Cart;

impl Entity for Cart {
    type Message = ReplyTo<u64>;

    fn receive(&mut self, reply_to: ReplyTo<u64>, _: &mut Ctx<'_, ReplyTo<u64>>) -> Result<(), Failure> {
        reply_to.reply(1);
        Ok(())
    }
}

async fn node(network: &MemoryNetwork, address: &str, role: &str) -> (Cluster, Region<ReplyTo<u64>>) {
    let remoting = network.node(address.parse().unwrap(), Arc::new(Registry::new()));
    let settings = ClusterSettings { roles: [role.to_owned()].into(), ..ClusterSettings::test() };
    let cluster = Cluster::start(settings, remoting).await.unwrap();
    let no_host_timeout = Duration::from_millis(300);
    let settings =
        ShardingSettings { no_host_timeout, ask_timeout: Duration::from_secs(60), ..ShardingSettings::test() };
    let sharding = Sharding::start(cluster.clone(), None, settings).await.unwrap();
    let carts = sharding.init(EntityType::new(CART, |_| Ok(Cart)).codec(json("cart")).role("carts")).unwrap();
    cluster.join_seed_nodes(vec!["a:1".parse().unwrap()]).await.unwrap();
    cluster.wait_up().await.unwrap();
    (cluster, carts)
}

async fn region_event(events: &mut RegionEvents, wanted: impl Fn(&RegionEvent) -> bool) -> RegionEvent {
    loop {
        if let Event::Region(event) = events.next().await.expect("the region runs")
            && wanted(&event)
        {
            return event;
        }
    }
}

#[tokio::test]
async fn scenario_108_a_type_that_no_member_hosts_says_so_and_keeps_nothing() {
    let network = MemoryNetwork::new();
    let (cluster, carts) = node(&network, "a:1#1101", "web").await;
    let mut events = carts.subscribe();
    let question = || carts.entity_ref("1").ask(|reply_to| reply_to);
    // One message waits when the region reports that no member hosts, another is sent later: each ends after its own
    // timeout.
    for _ in 0..2 {
        assert_eq!(question().await, Err(AskError::Dropped(DeadLetterReason::NoHost)));
    }
    let told = region_event(&mut events, |event| matches!(event, RegionEvent::NoHost { .. })).await;
    assert_eq!(told, RegionEvent::NoHost { role: "carts".to_owned() });
    assert_eq!(cluster.readiness().not_ready, ["Cart: no member with role \"carts\""]);

    let waits = question().send();
    let (_second, _) = node(&network, "b:1#1102", "carts").await;
    let next = |event: &RegionEvent| matches!(event, RegionEvent::NoHost { .. } | RegionEvent::HostFound);
    assert_eq!(region_event(&mut events, next).await, RegionEvent::HostFound, "it was said once");
    // The ask that waited is answered, or its timeout passed before the host was a member.
    let waited = waits.await;
    assert!(matches!(waited, Ok(1) | Err(AskError::Dropped(DeadLetterReason::NoHost))), "{waited:?}");
    assert_eq!(question().await, Ok(1));
    assert_eq!(cluster.readiness().not_ready, Vec::<String>::new());
}
