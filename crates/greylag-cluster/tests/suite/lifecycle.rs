//! The life of a node as a program sees it: callbacks, health, versions, shutdown. Over the memory network, with the
//! same driver as over sockets.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use greylag_cluster::*;
use greylag_core::Registry;
use greylag_transport::memory::MemoryNetwork;
use tokio::sync::oneshot;

async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(Duration::from_secs(30), future).await {
        Ok(value) => value,
        Err(_) => panic!("{what}: not within 30 s"),
    }
}

async fn start(network: &MemoryNetwork, address: &str, settings: ClusterSettings) -> Cluster {
    let remoting = network.node(address.parse().unwrap(), Arc::new(Registry::new()));
    Cluster::start(settings, remoting).await.unwrap()
}

/// Two nodes, both Up.
async fn pair(settings: ClusterSettings) -> (MemoryNetwork, Cluster, Cluster) {
    let network = MemoryNetwork::new();
    let one = start(&network, "one:1#1", settings.clone()).await;
    let two = start(&network, "two:1#2", settings).await;
    within("one joins", one.join_self()).await.unwrap();
    within("two joins", two.join(one.self_address().address().clone())).await.unwrap();
    within("two is up", two.wait_up()).await.unwrap();
    within("both agree", one.wait_for(|view| view.members.len() == 2 && view.converged)).await.unwrap();
    (network, one, two)
}

/// cluster M34: each callback runs once; that of the removal also without any join.
#[tokio::test(flavor = "multi_thread")]
async fn scenario_25_callbacks_run_once_and_a_panic_in_one_harms_nobody() {
    let network = MemoryNetwork::new();
    let one = start(&network, "one:1#1", ClusterSettings::test()).await;
    let (ups, removals) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (up, is_up) = oneshot::channel();
    let count = ups.clone();
    one.on_member_up(|| panic!("user code"));
    one.on_member_up(move || {
        count.fetch_add(1, Ordering::SeqCst);
        up.send(()).unwrap();
    });
    let count = removals.clone();
    one.on_member_removed(move || {
        count.fetch_add(1, Ordering::SeqCst);
    });
    within("one joins", one.join_self()).await.unwrap();
    within("the callback", is_up).await.unwrap();
    assert_eq!(removals.load(Ordering::SeqCst), 0);
    assert_eq!(within("one leaves", one.shutdown()).await, ShutdownReason::Left);
    assert_eq!((ups.load(Ordering::SeqCst), removals.load(Ordering::SeqCst)), (1, 1));

    let never = start(&network, "never:1#3", ClusterSettings::test()).await;
    let count = removals.clone();
    never.on_member_removed(move || {
        count.fetch_add(1, Ordering::SeqCst);
    });
    never.on_member_up(|| panic!("it never is"));
    within("it ends without joining", never.shutdown()).await;
    assert_eq!(removals.load(Ordering::SeqCst), 2);
}

/// cluster M35: phases run in order, a late task is left behind, the first reason wins, and a failed phase without
/// recovery ends the rest.
#[tokio::test(flavor = "multi_thread")]
async fn scenario_26_phases_run_in_order_each_with_its_time_and_the_first_reason_wins() {
    for recover in [true, false] {
        let mut settings = ClusterSettings::test();
        settings.coordinated_shutdown.default_phase_timeout = Duration::from_millis(300);
        settings.coordinated_shutdown.phase_recover.insert(Phase::ServiceStop, recover);
        let network = MemoryNetwork::new();
        let one = start(&network, "one:1#1", settings).await;
        within("one joins", one.join_self()).await.unwrap();
        let ran = Arc::new(Mutex::new(Vec::new()));
        for phase in Phase::ALL.into_iter().rev() {
            let ran = ran.clone();
            one.on_phase(phase, "note", move || {
                ran.lock().unwrap().push(phase);
                Box::pin(async { true })
            });
        }
        one.on_phase(Phase::ServiceUnbind, "panics", || Box::pin(async { panic!("user code") }));
        one.on_phase(Phase::ServiceStop, "never ends", || Box::pin(std::future::pending()));
        one.begin_shutdown(ShutdownReason::Terminated);
        one.begin_shutdown(ShutdownReason::Left);
        assert_eq!(within("it ends", one.terminated()).await, ShutdownReason::Terminated);
        let expected = if recover { &Phase::ALL[..] } else { &Phase::ALL[..4] };
        assert_eq!(*ran.lock().unwrap(), expected);
        let joined = within("it joins no more", one.join_self()).await;
        assert_eq!(joined, Err(JoinError::ShuttingDown(ShutdownReason::Terminated)));
    }
    assert_ne!(ShutdownReason::Downed.exit_code(), ShutdownReason::Left.exit_code(), "cluster M27");
}

/// cluster M36.
#[tokio::test(flavor = "multi_thread")]
async fn health_says_what_is_wrong() {
    let (network, one, two) = pair(ClusterSettings::test()).await;
    let health = one.health().await;
    assert!(health.is_good() && health.status == Some(MemberStatus::Up), "{health:?}");
    assert_eq!(health.leader.as_ref(), Some(one.self_address()));
    assert_eq!(one.self_member().map(|member| member.up_number), Some(1));
    assert_eq!(one.state().members.len(), 2);
    one.remoting().dead_letter(greylag_core::DeadLetterReason::QueueFull, "somewhere", "something");
    assert_eq!(one.health().await.dead_letters.get(&greylag_core::DeadLetterReason::QueueFull), Some(&1));
    let stranger: greylag_core::UniqueAddress = "stranger:1#9".parse().unwrap();
    assert_eq!(one.leave(stranger.clone()), Err(MemberError::UnknownMember(stranger.to_string())));
    within("two leaves", two.shutdown()).await;
    assert!(!two.health().await.initialized);
    within("one leaves", one.shutdown()).await;
    drop(network);
}

/// cluster M31: joining waits for the version, and a member's version never changes.
#[tokio::test(flavor = "multi_thread")]
async fn a_version_may_come_late() {
    let network = MemoryNetwork::new();
    let one = start(&network, "one:1#1", ClusterSettings::test()).await;
    let (tell, told) = oneshot::channel::<AppVersion>();
    one.set_app_version_later(async move { told.await.unwrap() }).unwrap();
    let joining = tokio::spawn({
        let one = one.clone();
        async move { one.join_self().await }
    });
    assert!(!one.health().await.initialized, "it waits");
    tell.send("3.1-RC2".parse().unwrap()).unwrap();
    within("it joins", joining).await.unwrap().unwrap();
    assert_eq!(one.self_member().unwrap().app_version.as_str(), "3.1-RC2");
    assert_eq!(one.set_app_version("4.0".parse().unwrap()), Err(JoinError::AlreadyMember));
    within("it leaves", one.shutdown()).await;
}

/// cluster M27: a membership may end and leave the end of the node to the program.
#[tokio::test(flavor = "multi_thread")]
async fn a_downed_node_may_be_left_to_the_program() {
    let settings = ClusterSettings { shutdown_when_down: false, ..ClusterSettings::test() };
    let (_network, one, two) = pair(settings).await;
    let (removed, is_removed) = oneshot::channel();
    two.on_member_removed(move || removed.send(()).unwrap());
    one.down(two.self_address().clone()).unwrap();
    within("two is no member any more", is_removed).await.unwrap();
    assert!(two.self_member().is_none());
    let again = within("it joins no more", two.join(one.self_address().address().clone())).await;
    assert_eq!(again, Err(JoinError::ShuttingDown(ShutdownReason::Downed)), "though it has not ended");
    two.begin_shutdown(ShutdownReason::Downed);
    assert_eq!(within("the program ends it", two.terminated()).await, ShutdownReason::Downed);
    within("one leaves", one.shutdown()).await;
}

/// cluster M30, M32: a subscriber of member events alone sees the whole cluster prepare.
#[tokio::test(flavor = "multi_thread")]
async fn scenario_29_a_whole_cluster_prepares_and_ends() {
    let (network, one, two) = pair(ClusterSettings::test()).await;
    let mut events = two.subscribe_to([EventKind::Members], InitialState::Events);
    one.prepare_for_full_shutdown().unwrap();
    let mut ready = 0;
    while ready < 2 {
        match within("ready", events.next()).await {
            Some(ClusterEvent::MemberReadyForShutdown(_)) => ready += 1,
            Some(event) => assert_eq!(event.kind(), Some(EventKind::Members)),
            None => panic!("two has ended"),
        }
    }
    let late = start(&network, "late:1#3", ClusterSettings::test()).await;
    assert!(late.prepare_for_full_shutdown().is_err(), "no member");
    within("two leaves", two.shutdown()).await;
    within("one leaves", one.shutdown()).await;
}

/// A detector that panics at the first answer.
#[derive(Debug)]
struct Broken;

impl FailureDetector for Broken {
    fn heartbeat(&mut self, _: std::time::Instant) {
        panic!("a broken invariant");
    }
    fn is_started(&self) -> bool {
        false
    }
    fn is_available(&self, _: std::time::Instant) -> bool {
        true
    }
    fn restart_after_pause(&mut self, _: std::time::Instant) {}
}

/// cluster §7, F7: a machine that fails ends its own node, with a reason, and no other node.
#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_fails_ends_its_node() {
    let network = MemoryNetwork::new();
    let mut settings = ClusterSettings::test();
    let one = start(&network, "one:1#1", settings.clone()).await;
    settings.failure_detector.kind = DetectorKind::Custom(CustomDetector::new(|_| Box::new(Broken)));
    let two = start(&network, "two:1#2", settings).await;
    within("one joins", one.join_self()).await.unwrap();
    let mut events = two.subscribe();
    // The detector fails at the first answer to a heartbeat, once the node is a member.
    let _joined_or_not = within("two joins", two.join(one.self_address().address().clone())).await;
    assert_eq!(within("two ends", two.terminated()).await, ShutdownReason::CoreFailed);
    let mut said = false;
    while let Some(event) = within("the end of the stream", events.next()).await {
        said |= event == ClusterEvent::ClusterShuttingDown;
    }
    assert!(said && two.view().members.is_empty() && !two.health().await.initialized);
    assert!(one.health().await.initialized, "the others live on");
}

/// cluster M34: a node that leaves before it came up never counts as Up.
#[tokio::test(flavor = "multi_thread")]
async fn scenario_27_a_member_that_leaves_before_the_cluster_is_big_enough_is_never_up() {
    let settings = ClusterSettings { min_number_of_members: 3, ..ClusterSettings::test() };
    let network = MemoryNetwork::new();
    let one = start(&network, "one:1#1", settings.clone()).await;
    let two = start(&network, "two:1#2", settings).await;
    let never = Arc::new(AtomicUsize::new(0));
    let count = never.clone();
    two.on_member_up(move || {
        count.fetch_add(1, Ordering::SeqCst);
    });
    within("one joins", one.join_self()).await.unwrap();
    within("two joins", two.join(one.self_address().address().clone())).await.unwrap();
    within("both wait", one.wait_for(|view| view.members.len() == 2 && view.converged)).await.unwrap();
    one.leave(two.self_address().clone()).unwrap();
    assert_eq!(within("two ends", two.wait_up()).await, Err(Terminated(ShutdownReason::Left)));
    assert_eq!(never.load(Ordering::SeqCst), 0);
    within("one leaves", one.shutdown()).await;
}

/// cluster M32: a subscriber that comes in the middle of a change gets its events once.
#[tokio::test(flavor = "multi_thread")]
async fn scenario_35_nothing_is_told_twice_to_whoever_comes_in_the_middle_of_a_change() {
    // Repeat: a subscription cannot be timed into the middle of a change, but some of many are.
    for _ in 0..10 {
        subscribe_all_along_one_change().await;
    }
}

async fn subscribe_all_along_one_change() {
    let network = MemoryNetwork::new();
    // Make many events in one change: every role gets its leader.
    let settings = ClusterSettings::test().with_roles((0..100).map(|role| format!("role-{role}")));
    let one = start(&network, "one:1#1", settings).await;
    let watched = one.clone();
    let subscriber = std::thread::spawn(move || {
        let mut latest = std::collections::VecDeque::new();
        loop {
            let has_changed = !watched.view().members.is_empty();
            latest.push_back(watched.subscribe());
            if has_changed {
                return latest;
            }
            if latest.len() > 100 {
                latest.pop_front();
            }
        }
    });
    within("one joins", one.join_self()).await.unwrap();
    let all = tokio::task::spawn_blocking(|| subscriber.join().unwrap()).await.unwrap();
    within("one leaves", one.shutdown()).await;
    for mut events in all {
        let Some(ClusterEvent::Snapshot(snapshot)) = events.next().await else { panic!("a snapshot first") };
        let mut known = snapshot.role_leaders.clone();
        while let Some(event) = events.next().await {
            if let ClusterEvent::RoleLeaderChanged { role, leader } = event {
                assert_ne!(known.get(&role).cloned(), leader, "of {role} it was told before");
                match leader {
                    Some(leader) => drop(known.insert(role, leader)),
                    None => drop(known.remove(&role)),
                }
            }
        }
        assert!(known.is_empty(), "and nothing was lost");
    }
}

/// cluster M35: the leave phase has settings like any other.
#[tokio::test(flavor = "multi_thread")]
async fn the_leave_phase_has_its_own_time_and_may_stop_the_rest() {
    let mut settings = ClusterSettings::test();
    let others_may = Duration::from_millis(100);
    settings.coordinated_shutdown.default_phase_timeout = others_may;
    let (network, one, two) = pair(settings.clone()).await;
    let ended = Arc::new(AtomicUsize::new(0));
    let (count, leaving) = (ended.clone(), two.clone());
    two.on_phase(Phase::ClusterLeave, "takes longer than other phases may", move || {
        Box::pin(async move {
            leaving.wait_for(|view| view.self_status() >= Some(MemberStatus::Leaving)).await.ok();
            // Sleep longer than the other phases may take: a slow machine may miss a phase that is cut short, but never
            // sees one that is not.
            tokio::time::sleep(others_may * 3).await;
            count.fetch_add(1, Ordering::SeqCst);
            true
        })
    });
    let count = ended.clone();
    two.on_phase(Phase::ClusterShutdown, "looks", move || {
        Box::pin(async move {
            assert_eq!(count.fetch_add(10, Ordering::SeqCst), 1, "the task before had its time");
            true
        })
    });
    within("two leaves", two.shutdown()).await;
    assert_eq!(ended.load(Ordering::SeqCst), 11);
    within("one is alone", one.wait_for(|view| view.members.len() == 1)).await.unwrap();

    settings.coordinated_shutdown.phase_timeouts.insert(Phase::ClusterLeave, Duration::from_millis(300));
    settings.coordinated_shutdown.phase_recover.insert(Phase::ClusterLeave, false);
    let three = start(&network, "three:1#3", settings).await;
    within("three joins", three.join(one.self_address().address().clone())).await.unwrap();
    within("three is up", three.wait_up()).await.unwrap();
    three.on_phase(Phase::ClusterShutdown, "must not run", {
        let ended = ended.clone();
        move || {
            ended.fetch_add(100, Ordering::SeqCst);
            Box::pin(async { true })
        }
    });
    network.cut(one.self_address().address(), three.self_address().address());
    within("three ends", three.shutdown()).await;
    assert_eq!(ended.load(Ordering::SeqCst), 11, "a phase that must not fail did");
}
