//! Sharding scenario 107: one type under two roles lives on one side only, and the other side reports that.

use std::sync::Arc;
use std::time::Duration;

use greylag_cluster::{Cluster, ClusterSettings};
use greylag_codec::json;
use greylag_core::{Registry, ReplyTo};
use greylag_persistence::Ctx;
use greylag_sharding::fingerprint::Mismatch;
use greylag_sharding::{
    AskError, Entity, EntityKey, EntityType, Event, Failure, Region, RegionEvent, RegionEvents, SendError, Sharding,
    ShardingSettings,
};
use greylag_testkit::uid::fresh_uid;
use greylag_transport::memory::MemoryNetwork;

const CART: EntityKey<ReplyTo<String>> = EntityKey::new("Cart");
const PATIENCE: Duration = Duration::from_secs(20);

/// Answers the side on which it lives.
struct Cart(&'static str);

impl Entity for Cart {
    type Message = ReplyTo<String>;

    fn receive(&mut self, reply_to: ReplyTo<String>, _: &mut Ctx<'_, ReplyTo<String>>) -> Result<(), Failure> {
        reply_to.reply(self.0.to_owned());
        Ok(())
    }
}

/// A member with a role.
struct Node {
    cluster: Cluster,
    sharding: Sharding,
    role: &'static str,
}

impl Node {
    async fn start(network: &MemoryNetwork, address: &str, role: &'static str) -> Self {
        // Give each process another number, since replicators are registered per process, and the tests of this file
        // run in one.
        let process = format!("{address}#{}", fresh_uid());
        let remoting = network.node(process.parse().unwrap(), Arc::new(Registry::new()));
        // Use no resolver for members that are cut off: the test is about two sides that meet again.
        let settings = ClusterSettings { roles: [role.to_owned()].into(), ..ClusterSettings::test() };
        let cluster = Cluster::start(settings, remoting).await.unwrap();
        let sharding = Sharding::start(cluster.clone(), None, ShardingSettings::test()).await.unwrap();
        Self { cluster, sharding, role }
    }

    async fn join(&self) {
        self.cluster.join_seed_nodes(vec!["n1:1".parse().unwrap()]).await.unwrap();
        self.cluster.wait_up().await.unwrap();
    }

    /// Sets the type up under the node's own role.
    fn host(&self) -> (Region<ReplyTo<String>>, RegionEvents) {
        let role = self.role;
        let carts = EntityType::new(CART, move |_| Ok(Cart(role))).codec(json("cart")).role(role).ask_timeout(PATIENCE);
        let region = self.sharding.init(carts).unwrap();
        let events = region.subscribe();
        (region, events)
    }
}

async fn where_it_lives(region: &Region<ReplyTo<String>>) -> Result<String, AskError> {
    region.entity_ref("1").ask(|reply_to| reply_to).await
}

async fn found<T>(events: &mut RegionEvents, wanted: impl Fn(RegionEvent) -> Option<T>) -> T {
    let search = async {
        loop {
            if let Event::Region(event) = events.next().await.expect("the region runs")
                && let Some(found) = wanted(event)
            {
                return found;
            }
        }
    };
    tokio::time::timeout(PATIENCE, search).await.expect("the region says so")
}

fn refused(event: RegionEvent) -> Option<Mismatch> {
    if let RegionEvent::Refused(mismatch) = event { Some(mismatch) } else { None }
}

fn differs(there: &str, here: &str) -> Mismatch {
    Mismatch { field: "role".into(), expected: there.into(), got: here.into() }
}

/// The later side is refused, whatever its role, until the other one is gone.
async fn the_later_side_is_refused(first: &'static str, second: &'static str, init_before_join: bool) {
    let network = MemoryNetwork::new();
    let one = Node::start(&network, "n1:1", first).await;
    one.join().await;
    let (stays, _events) = one.host();
    assert_eq!(where_it_lives(&stays).await, Ok(first.to_owned()));

    let two = Node::start(&network, "n2:1", second).await;
    let (goes, mut events) = if init_before_join {
        let hosted = two.host();
        two.join().await;
        hosted
    } else {
        two.join().await;
        two.host()
    };
    let (there, here) = (format!("{first} (on n1:1)"), format!("{second} (on n2:1)"));
    assert_eq!(found(&mut events, refused).await, differs(&there, &here));
    assert_eq!(where_it_lives(&goes).await, Err(AskError::Send(SendError::Refused)));
    let reason = format!("Cart: refused: role is {here:?} here and {there:?} in the cluster");
    assert_eq!(two.cluster.readiness().not_ready, [reason]);
    assert_eq!(where_it_lives(&stays).await, Ok(first.to_owned()), "the side that was there first");
    assert_eq!(one.cluster.readiness().not_ready, Vec::<String>::new());

    one.cluster.leave(one.cluster.self_address().clone()).unwrap();
    found(&mut events, |event| matches!(event, RegionEvent::Registered { .. }).then_some(())).await;
    assert_eq!(where_it_lives(&goes).await, Ok(second.to_owned()), "the other side is gone");
    assert_eq!(two.cluster.readiness().not_ready, Vec::<String>::new());
}

#[tokio::test]
async fn scenario_107_the_side_that_came_later_is_refused() {
    for (first, second) in [("a", "b"), ("b", "a")] {
        for init_before_join in [false, true] {
            the_later_side_is_refused(first, second, init_before_join).await;
        }
    }
}

/// Both at once, after the join and before it: one side stays, the same for every node, and the other one reports why
/// not.
#[tokio::test]
async fn scenario_107_of_two_sides_that_start_at_once_one_stays() {
    for round in 0..20 {
        let network = MemoryNetwork::new();
        let one = Node::start(&network, "n1:1", "a").await;
        let two = Node::start(&network, "n2:1", "b").await;
        let before_the_join = round < 10;
        if !before_the_join {
            tokio::join!(one.join(), two.join());
        }
        let ((left, left_events), (right, right_events)) = if round % 2 == 0 {
            (one.host(), two.host())
        } else {
            let right = two.host();
            (one.host(), right)
        };
        if before_the_join {
            tokio::join!(one.join(), two.join());
        }
        let answers = tokio::join!(where_it_lives(&left), where_it_lives(&right));
        let dropped = Err(AskError::Dropped(greylag_core::DeadLetterReason::Refused));
        let is_refused = |answer: &Result<String, AskError>| {
            *answer == dropped || *answer == Err(AskError::Send(SendError::Refused))
        };
        match &answers {
            (Ok(side), other) if side == "a" => assert!(is_refused(other), "{answers:?}"),
            (other, Ok(side)) if side == "b" => assert!(is_refused(other), "{answers:?}"),
            _ => panic!("one side stays: {answers:?}"),
        }
        let (a, b) = ("a (on n1:1)", "b (on n2:1)");
        let (mut events, said) =
            if answers.0.is_ok() { (right_events, differs(a, b)) } else { (left_events, differs(b, a)) };
        assert_eq!(found(&mut events, refused).await, said);
    }
}

/// Both sides were active before they met: neither is refused, and both report the dispute.
#[tokio::test]
async fn scenario_107_after_a_partition_both_sides_say_so() {
    let network = MemoryNetwork::new();
    let one = Node::start(&network, "n1:1", "a").await;
    one.join().await;
    let two = Node::start(&network, "n2:1", "b").await;
    two.join().await;
    network.cut(&"n1:1".parse().unwrap(), &"n2:1".parse().unwrap());
    let ((left, mut left_events), (right, mut right_events)) = (one.host(), two.host());
    // Each side goes on once it finds the other one unreachable.
    assert_eq!(where_it_lives(&left).await, Ok("a".to_owned()));
    assert_eq!(where_it_lives(&right).await, Ok("b".to_owned()));
    network.heal_all();
    let disputed = |event| if let RegionEvent::Disputed(mismatch) = event { Some(mismatch) } else { None };
    let (a, b) = ("a (on n1:1)", "b (on n2:1)");
    assert_eq!(found(&mut left_events, disputed).await, differs(b, a));
    assert_eq!(found(&mut right_events, disputed).await, differs(a, b));
    assert_eq!(where_it_lives(&left).await, Ok("a".to_owned()), "neither is refused");
    assert_eq!(where_it_lives(&right).await, Ok("b".to_owned()), "neither is refused");
    let text = format!("Cart: active on both sides: role is {a:?} here and {b:?} in the cluster");
    assert_eq!(one.cluster.readiness().not_ready, [text]);
    let text = format!("Cart: active on both sides: role is {b:?} here and {a:?} in the cluster");
    assert_eq!(two.cluster.readiness().not_ready, [text]);
}
