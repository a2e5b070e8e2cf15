//! Requests made before any replica is known.

use std::time::Duration;

use greylag_ddata::{
    DeleteError, GetError, Read, ReadLevel, ReplicaStatus, ReplicatorSettings, UpdateError, WriteLevel,
};

use crate::scenarios::levels::{MAJORITY, count, counter_key};
use crate::scenarios::world::{TIMEOUT, World};

/// Two replicators that have synchronized, and `a`, which does not know the replicas yet.
fn unintroduced() -> World {
    let mut world = World::with("bc", ReplicatorSettings::default());
    world.start('a', 0, ReplicaStatus::Up);
    world
}

/// ddata 92, R9: majority requests that come before the first set of replicas wait for it, and succeed when it arrives.
#[test]
fn scenario_92_requests_before_the_first_replicas_wait_for_them() {
    let mut world = unintroduced();
    let written = count(&mut world, 'a', "c", 4, MAJORITY);
    let read = world.get('a', &counter_key("c"), ReadLevel::majority(TIMEOUT));
    let deleted = world.delete('a', "d", MAJORITY);
    let local = count(&mut world, 'a', "l", 1, WriteLevel::Local);
    let local_read = world.get('a', &counter_key("l"), ReadLevel::Local);
    assert_eq!(world.written(local), Some(Ok(())), "local requests are answered at once");
    assert!(matches!(world.found(local_read), Some(Ok(Read::Found(_)))));
    world.run(Duration::from_secs(1));
    assert_eq!((world.written(written), world.found(read)), (None, None), "none fails at once");
    assert_eq!((world.delete_error(deleted), world.deleted(deleted)), (None, false));
    world.publish();
    world.run(Duration::from_secs(1));
    assert_eq!(world.written(written), Some(Ok(())));
    assert!(world.deleted(deleted));
    assert_eq!(world.value_of::<greylag_crdt::GCounter>(read).value(), 4);
    let holders = "abc".chars().filter(|name| world.held(*name, &counter_key("c")).value() == 4).count();
    assert!(holders >= 2, "{holders} hold it");
}

/// ddata 92, R9: if no replica ever becomes known, the requests end at their time-outs, and their local effects stand.
#[test]
fn scenario_92_without_replicas_they_end_at_their_timeouts() {
    let mut world = unintroduced();
    let written = count(&mut world, 'a', "c", 4, MAJORITY);
    let read = world.get('a', &counter_key("c"), ReadLevel::majority(TIMEOUT));
    let deleted = world.delete('a', "d", MAJORITY);
    world.run(TIMEOUT - Duration::from_millis(1));
    assert_eq!((world.written(written), world.found(read)), (None, None));
    world.run(Duration::from_millis(2));
    assert!(matches!(world.written(written), Some(Err(UpdateError::Timeout { acked: 0, .. }))));
    assert!(matches!(world.found(read), Some(Err(GetError::Failure { got: 0, .. }))));
    assert!(matches!(world.delete_error(deleted), Some(DeleteError::ReplicationFailed { acked: 0, .. })));
    assert_eq!(world.held('a', &counter_key("c")).value(), 4, "the local effect stands");
    let again = world.delete('a', "d", WriteLevel::Local);
    assert!(matches!(world.delete_error(again), Some(DeleteError::AlreadyDeleted { .. })));
}

/// ddata 92, R9: the first set of replicas decides: a replica without others confirms its own majority, a joining one
/// without voters fails at once.
#[test]
fn scenario_92_the_first_replicas_decide() {
    let mut world = World::with("", ReplicatorSettings::default());
    world.start('a', 0, ReplicaStatus::Up);
    let written = count(&mut world, 'a', "c", 1, MAJORITY);
    let read = world.get('a', &counter_key("c"), ReadLevel::From { n: 2, timeout: TIMEOUT });
    world.publish();
    assert_eq!(world.written(written), Some(Ok(())));
    assert!(matches!(world.found(read), Some(Err(GetError::Failure { needed: 2, .. }))), "{:?}", world.found(read));
    let mut world = World::with("", ReplicatorSettings::default());
    world.start('a', 0, ReplicaStatus::Joining);
    let written = count(&mut world, 'a', "c", 1, MAJORITY);
    world.publish();
    assert!(matches!(world.written(written), Some(Err(UpdateError::Timeout { .. }))));
}
