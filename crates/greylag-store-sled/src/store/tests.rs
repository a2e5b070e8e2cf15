//! Tests the guarantees of the store, each with the fault that would break it.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::*;
use crate::batch::Batch;
use crate::planner::{OnceDurable, Request};

/// A request of the tests.
enum TestRequest {
    Put(Vec<u8>, Vec<u8>),
    Get(Vec<u8>),
    Panic,
    Fail,
    /// Keeps the committer busy until the sender is dropped.
    Block(mpsc::Receiver<()>),
    /// Writes, and keeps the group from being answered until the sender is dropped. Signals when that point is reached.
    Hold(mpsc::Sender<()>, mpsc::Receiver<()>),
    /// Panics when the group is durable, after the sender was dropped.
    PanicWhenDurable(mpsc::Receiver<()>),
    /// Lets the next group be planned only when this one is durable.
    Remove,
}

impl Request for TestRequest {
    fn bytes(&self) -> usize {
        match self {
            Self::Put(key, value) => key.len() + value.len(),
            _ => 1,
        }
    }
}

struct TestPlanner {
    groups: mpsc::Sender<usize>,
    once_durable: Vec<OnceDurable>,
    needs_durable: bool,
}

impl TestPlanner {
    fn new(groups: mpsc::Sender<usize>) -> Self {
        Self { groups, once_durable: Vec::new(), needs_durable: false }
    }
}

impl Planner for TestPlanner {
    type Request = TestRequest;
    type Answer = Option<Vec<u8>>;

    fn recover(&mut self, _: &Reader, _: &mut Batch) -> Result<(), StoreError> {
        Ok(())
    }

    fn plan(
        &mut self,
        requests: Vec<TestRequest>,
        reader: &Reader,
        batch: &mut Batch,
    ) -> Result<Vec<Self::Answer>, StoreError> {
        let _ = self.groups.send(requests.len());
        self.needs_durable = false;
        let mut answers = Vec::new();
        for request in requests {
            answers.push(match request {
                TestRequest::Put(key, value) => {
                    batch.put(&key, &value);
                    None
                }
                TestRequest::Get(key) => reader.get(&key)?.map(|value| value.to_vec()),
                TestRequest::Panic => panic!("planned panic"),
                TestRequest::Fail => return Err(StoreError::corrupt("planned failure")),
                TestRequest::Block(until) => {
                    let _ = until.recv();
                    None
                }
                TestRequest::Hold(reached, until) => {
                    batch.put(b"held", b"1");
                    self.once_durable.push(Box::new(move || {
                        let _ = reached.send(());
                        let _ = until.recv();
                    }));
                    None
                }
                TestRequest::PanicWhenDurable(until) => {
                    self.once_durable.push(Box::new(move || {
                        let _ = until.recv();
                        panic!("planned panic")
                    }));
                    None
                }
                TestRequest::Remove => {
                    self.needs_durable = true;
                    None
                }
            });
        }
        Ok(answers)
    }

    fn once_durable(&mut self) -> OnceDurable {
        let all = std::mem::take(&mut self.once_durable);
        Box::new(|| all.into_iter().for_each(|step| step()))
    }

    fn needs_durable(&self) -> bool {
        self.needs_durable
    }
}

struct World {
    directory: tempfile::TempDir,
    store: Store<TestPlanner>,
    groups: mpsc::Receiver<usize>,
}

fn open(directory: tempfile::TempDir, settings: StoreSettings) -> World {
    let (sender, groups) = mpsc::channel();
    let store = Store::open(directory.path(), settings, TestPlanner::new(sender)).unwrap();
    World { directory, store, groups }
}

fn world(settings: StoreSettings) -> World {
    open(tempfile::tempdir().unwrap(), settings)
}

impl World {
    fn put(&self, key: &str, value: &str) -> Result<Pending<Option<Vec<u8>>>, Refused> {
        self.store.submit(TestRequest::Put(key.into(), value.into()))
    }

    fn get(&self, key: &str) -> Option<Vec<u8>> {
        self.store.submit(TestRequest::Get(key.into())).unwrap().wait().unwrap()
    }

    fn until_up(&self) {
        while self.store.health() != Health::Up {
            thread::yield_now();
        }
    }

    fn reopen(self) -> World {
        self.store.close().unwrap();
        open(self.directory, StoreSettings::test())
    }
}

#[test]
fn requests_that_wait_share_one_group() {
    let world = world(StoreSettings::test());
    let (release, until) = mpsc::channel();
    let blocked = world.store.submit(TestRequest::Block(until)).unwrap();
    assert_eq!(world.groups.recv().unwrap(), 1);
    let waiting: Vec<_> = (0..100).map(|n| world.put(&format!("k{n}"), "v").unwrap()).collect();
    drop(release);
    blocked.wait().unwrap();
    assert!(waiting.into_iter().all(|pending| pending.wait() == Ok(None)));
    assert_eq!(world.groups.recv().unwrap(), 100);
    assert_eq!(world.store.stats().groups, 1, "one batch, one sync; the blocked group wrote nothing");
}

/// Otherwise nothing could be planned while one large group is made durable and answered.
#[test]
fn where_work_takes_longer_than_syncs_a_group_takes_half_of_the_requests() {
    let world = world(StoreSettings::test());
    world.store.handle.shared.lock().sizing.learn(1, Duration::from_millis(10), Duration::from_millis(1));
    let ((release, until), (reached, _is_reached), gate) = (mpsc::channel(), mpsc::channel(), mpsc::channel());
    let (unblock, blocked) = mpsc::channel();
    let blocked = world.store.submit(TestRequest::Block(blocked)).unwrap();
    assert_eq!(world.groups.recv().unwrap(), 1);
    let in_hand =
        [TestRequest::Hold(reached, until), TestRequest::Block(gate.1)].map(|ask| world.store.submit(ask).unwrap());
    drop(unblock);
    blocked.wait().unwrap();
    assert_eq!(world.groups.recv().unwrap(), 2);
    let waiting: Vec<_> = (0..100).map(|n| world.put(&format!("k{n}"), "v").unwrap()).collect();
    drop(gate.0);
    assert_eq!(world.groups.recv().unwrap(), 51, "of 102, two of which are in hand");
    drop(release);
    assert!(waiting.into_iter().chain(in_hand).all(|pending| pending.wait() == Ok(None)));
}

#[test]
fn answered_writes_are_there_after_a_clean_close_and_after_a_drop() {
    let world = world(StoreSettings::test());
    world.put("key", "value").unwrap().wait().unwrap();
    let world = world.reopen();
    assert_eq!(world.get("key").unwrap(), b"value");
    let World { directory, store, .. } = world;
    drop(store);
    let world = open(directory, StoreSettings::test());
    assert_eq!(world.get("key").unwrap(), b"value");
}

#[test]
fn a_failure_leaves_pending_requests_unanswered_and_the_store_comes_back() {
    for fault in [TestRequest::Panic, TestRequest::Fail] {
        let world = world(StoreSettings::test());
        world.put("before", "1").unwrap().wait().unwrap();
        let (release, until) = mpsc::channel();
        world.store.submit(TestRequest::Block(until)).unwrap();
        let same_group = world.put("with", "1").unwrap();
        let failing = world.store.submit(fault).unwrap();
        drop(release);
        assert_eq!(failing.wait(), Err(Unanswered));
        assert_eq!(same_group.wait(), Err(Unanswered), "its group failed");
        world.until_up();
        assert_eq!(world.get("before").unwrap(), b"1");
        assert_eq!(world.get("with"), None);
        assert_eq!(world.store.stats().poisoned, 1);
    }
}

#[test]
fn a_stalled_commit_is_given_up_and_never_answered_afterwards() {
    let world = world(StoreSettings { commit_stall_timeout: Duration::from_millis(20), ..StoreSettings::test() });
    let (release, until) = mpsc::channel();
    let stalled = world.store.submit(TestRequest::Block(until)).unwrap();
    assert_eq!(world.groups.recv().unwrap(), 1);
    let queued = world.put("queued", "1").unwrap();
    assert_eq!(stalled.wait(), Err(Unanswered));
    assert_eq!(queued.wait(), Err(Unanswered));
    assert!(matches!(world.store.health(), Health::Down(reason) if reason.contains("stalled")));
    assert!(matches!(world.put("key", "1").unwrap_err(), Refused::Down(_)));
    assert!(matches!(world.store.reader(), Err(StoreError::Down(_))));
    drop(release);
    world.until_up();
    assert_eq!(world.get("queued"), None);
    assert_eq!(world.store.stats().poisoned, 1);
}

#[test]
fn a_full_queue_refuses_at_once() {
    let world = world(StoreSettings { max_pending_bytes: 10, ..StoreSettings::test() });
    let (release, until) = mpsc::channel();
    world.store.submit(TestRequest::Block(until)).unwrap();
    assert_eq!(world.groups.recv().unwrap(), 1);
    let large = world.put("large", "more than ten bytes: taken, because nothing else waits").unwrap();
    assert!(matches!(world.put("k", "v").unwrap_err(), Refused::Busy { .. }));
    assert!(matches!(world.store.health(), Health::Degraded(_)));
    drop(release);
    large.wait().unwrap();
    assert_eq!(world.store.health(), Health::Up);
}

#[test]
fn a_queue_more_than_half_full_degrades_health() {
    let world = world(StoreSettings { max_pending_bytes: 10, ..StoreSettings::test() });
    let (release, until) = mpsc::channel();
    world.store.submit(TestRequest::Block(until)).unwrap();
    assert_eq!(world.groups.recv().unwrap(), 1);
    let half = world.put("half", "5").unwrap();
    assert_eq!(world.store.health(), Health::Up, "half of it waits");
    let more = world.store.submit(TestRequest::Get(b"key".to_vec())).unwrap();
    assert_eq!(world.store.health(), Health::Degraded(vec!["6 bytes wait for the committer".into()]));
    drop(release);
    half.wait().unwrap();
    more.wait().unwrap();
    assert_eq!(world.store.health(), Health::Up);
}

/// Checks that `pending` is not answered, and returns it.
fn unanswered(mut pending: Pending<Option<Vec<u8>>>) -> Pending<Option<Vec<u8>>> {
    assert_eq!(pending.0.try_recv(), Ok(None), "nothing may be answered before the group before it");
    pending
}

#[test]
fn a_group_is_planned_while_the_one_before_is_made_durable_and_answered_after_it() {
    let world = world(StoreSettings::test());
    let (release, until) = mpsc::channel();
    let (reached, is_reached) = mpsc::channel();
    let (unblock, blocked) = mpsc::channel();
    world.store.submit(TestRequest::Block(blocked)).unwrap();
    assert_eq!(world.groups.recv().unwrap(), 1);
    let held = world.store.submit(TestRequest::Hold(reached, until)).unwrap();
    // Taken while a request waits, the group is finished on the finisher thread.
    let gate = mpsc::channel();
    let gated = world.store.submit(TestRequest::Block(gate.1)).unwrap();
    drop(unblock);
    assert_eq!(world.groups.recv().unwrap(), 2);
    let after = [world.put("after", "1").unwrap(), world.put("after", "2").unwrap()];
    drop(gate.0);
    is_reached.recv().unwrap();
    assert_eq!(world.groups.recv().unwrap(), 2, "planned before the group before it is answered");
    let (held, [first, second]) = (unanswered(held), after.map(unanswered));
    drop(release);
    assert!([held, gated, first, second].into_iter().all(|pending| pending.wait() == Ok(None)));
    assert_eq!(world.get("after").unwrap(), b"2");
}

#[test]
fn close_answers_waiting_requests_and_refuses_later_ones() {
    let world = world(StoreSettings::test());
    let pending: Vec<_> = (0..50).map(|n| world.put(&n.to_string(), "v").unwrap()).collect();
    world.store.close().unwrap();
    assert!(pending.into_iter().all(|pending| pending.wait().is_ok()));
    assert!(matches!(world.put("late", "v").unwrap_err(), Refused::Down(_)));
    assert!(matches!(world.store.health(), Health::Down(_)));
    world.store.close().unwrap();
}

#[test]
fn a_store_in_use_is_locked() {
    let world = world(StoreSettings::test());
    let settings = StoreSettings { lock_retry: Duration::from_millis(30), ..StoreSettings::test() };
    let (groups, _) = mpsc::channel();
    let second = Store::open(world.directory.path(), settings, TestPlanner::new(groups));
    assert!(matches!(second.unwrap_err(), OpenError::Locked { .. }));
}

#[test]
fn large_values_stay_in_the_log() {
    let world = world(StoreSettings::test());
    let value = vec![7_u8; crate::MAX_VALUE_BYTES];
    let pending: Vec<_> = (0..400_u32)
        .map(|n| world.store.submit(TestRequest::Put(n.to_be_bytes().to_vec(), value.clone())).unwrap())
        .collect();
    assert!(pending.into_iter().all(|pending| pending.wait().is_ok()));
    let blobs = std::fs::read_dir(world.directory.path().join("blobs")).unwrap().count();
    assert_eq!(blobs, 0, "values in blobs/ are never synced");
    assert_eq!(world.reopen().get("\0\0\0\u{7}").unwrap(), value);
}

/// Otherwise a loss of power could leave the later of two groups, and a hole in place of the earlier one.
#[test]
fn a_group_is_applied_only_when_the_one_before_is_synced() {
    let world = world(StoreSettings::test());
    let unsynced = world.store.handle.shared.sync.lock().unwrap();
    let gate = mpsc::channel();
    world.store.submit(TestRequest::Block(gate.1)).unwrap();
    assert_eq!(world.groups.recv().unwrap(), 1);
    let first = world.put("first", "1").unwrap();
    let (unblock, blocked) = mpsc::channel();
    world.store.submit(TestRequest::Block(blocked)).unwrap();
    drop(gate.0);
    assert_eq!(world.groups.recv().unwrap(), 2);
    let second = ["2", "3"].map(|value| world.put("second", value).unwrap());
    drop(unblock);
    assert_eq!(world.groups.recv().unwrap(), 2, "planned meanwhile");
    let reader = world.store.reader().unwrap();
    assert!(reader.get(b"first").unwrap().is_some());
    // Without the wait, the second group would be applied a moment after it is planned.
    let until = Instant::now() + Duration::from_millis(20);
    while Instant::now() < until {
        assert_eq!(reader.get(b"second").unwrap(), None, "the group before it is not synced");
    }
    drop((unsynced, reader));
    assert!(second.into_iter().chain([first]).all(|pending| pending.wait() == Ok(None)));
    assert_eq!(world.get("second").unwrap(), b"3");
}

#[test]
fn a_plan_that_removes_what_readers_still_need_waits_for_the_group_before() {
    let world = world(StoreSettings::test());
    let ((release, until), (reached, is_reached), gate) = (mpsc::channel(), mpsc::channel(), mpsc::channel());
    world.store.submit(TestRequest::Block(gate.1)).unwrap();
    assert_eq!(world.groups.recv().unwrap(), 1);
    let (unblock, blocked) = mpsc::channel();
    let group = [TestRequest::Hold(reached, until), TestRequest::Remove, TestRequest::Block(blocked)];
    let group = group.map(|ask| world.store.submit(ask).unwrap());
    drop(gate.0);
    assert_eq!(world.groups.recv().unwrap(), 3);
    let after: Vec<_> = (0..5).map(|_| world.put("after", "1").unwrap()).collect();
    drop(unblock);
    is_reached.recv().unwrap();
    // Without the wait, the next group could be planned at any time from here on.
    assert!(world.groups.recv_timeout(Duration::from_millis(20)).is_err());
    drop(release);
    assert_eq!(world.groups.recv().unwrap(), 5);
    assert!(group.into_iter().chain(after).all(|pending| pending.wait() == Ok(None)));
}

#[test]
fn when_a_group_cannot_be_made_durable_the_ones_after_it_stay_unanswered() {
    let world = world(StoreSettings::test());
    world.put("before", "1").unwrap().wait().unwrap();
    assert_eq!(world.groups.recv().unwrap(), 1);
    let (unblock, blocked) = mpsc::channel();
    world.store.submit(TestRequest::Block(blocked)).unwrap();
    assert_eq!(world.groups.recv().unwrap(), 1);
    let ((release, until), gate) = (mpsc::channel(), mpsc::channel());
    let failing = world.store.submit(TestRequest::PanicWhenDurable(until)).unwrap();
    let gated = world.store.submit(TestRequest::Block(gate.1)).unwrap();
    drop(unblock);
    assert_eq!(world.groups.recv().unwrap(), 2);
    let after = [world.put("after", "1").unwrap(), world.put("after", "2").unwrap()];
    drop(gate.0);
    assert_eq!(world.groups.recv().unwrap(), 2, "planned, perhaps applied");
    drop(release);
    assert!([failing, gated].into_iter().chain(after).all(|pending| pending.wait() == Err(Unanswered)));
    world.until_up();
    assert_eq!(world.get("before").unwrap(), b"1");
    assert_eq!(world.store.stats().poisoned, 1);
}

const STUCK: &str = "GREYLAG_TEST_STUCK";

/// Not a test by itself: the process that [`a_store_that_stays_stuck_ends_the_process_if_asked_to`] starts.
#[test]
fn stuck_process() {
    let Ok(abort_when_stuck) = std::env::var(STUCK).map(|value| value == "abort") else { return };
    let stall = Duration::from_millis(20);
    let world = world(StoreSettings { commit_stall_timeout: stall, abort_when_stuck, ..StoreSettings::test() });
    let (release, until) = mpsc::channel();
    let stalled = world.store.submit(TestRequest::Block(until)).unwrap();
    assert_eq!(stalled.wait(), Err(Unanswered));
    // Wait ten times as long as needed; without the setting the process must live on, and end well.
    thread::park_timeout(if abort_when_stuck { Duration::from_secs(60) } else { 10 * stall });
    drop(release);
}

#[test]
fn a_store_that_stays_stuck_ends_the_process_if_asked_to() {
    let run = |setting: &str| {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "store::tests::stuck_process"]).env(STUCK, setting);
        child.output().unwrap().status
    };
    const SIGABRT: i32 = 6;
    assert_eq!(run("abort").signal(), Some(SIGABRT));
    assert!(run("stay").success(), "the default is to stay down");
}
