//! The promises of the store, each with the fault that would break it.

use std::sync::mpsc;

use super::*;
use crate::batch::Batch;
use crate::planner::Request;

/// What a test asks of the store.
enum Ask {
    Put(Vec<u8>, Vec<u8>),
    Get(Vec<u8>),
    Panic,
    Fail,
    /// Keeps the committer busy until the sender is dropped.
    Block(mpsc::Receiver<()>),
}

impl Request for Ask {
    fn bytes(&self) -> usize {
        match self {
            Self::Put(key, value) => key.len() + value.len(),
            _ => 1,
        }
    }
}

struct TestPlanner {
    groups: mpsc::Sender<usize>,
}

impl Planner for TestPlanner {
    type Request = Ask;
    type Answer = Option<Vec<u8>>;

    fn recover(&mut self, _: &Reader, _: &mut Batch) -> Result<(), StoreError> {
        Ok(())
    }

    fn plan(&mut self, asks: Vec<Ask>, reader: &Reader, batch: &mut Batch) -> Result<Vec<Self::Answer>, StoreError> {
        let _ = self.groups.send(asks.len());
        let mut answers = Vec::new();
        for ask in asks {
            answers.push(match ask {
                Ask::Put(key, value) => {
                    batch.put(&key, &value);
                    None
                }
                Ask::Get(key) => reader.get(&key)?.map(|value| value.to_vec()),
                Ask::Panic => panic!("planned panic"),
                Ask::Fail => return Err(StoreError::corrupt("planned failure")),
                Ask::Block(until) => {
                    let _ = until.recv();
                    None
                }
            });
        }
        Ok(answers)
    }
}

struct World {
    directory: tempfile::TempDir,
    store: Store<TestPlanner>,
    groups: mpsc::Receiver<usize>,
}

fn open(directory: tempfile::TempDir, settings: StoreSettings) -> World {
    let (sender, groups) = mpsc::channel();
    let store = Store::open(directory.path(), settings, TestPlanner { groups: sender }).unwrap();
    World { directory, store, groups }
}

fn world(settings: StoreSettings) -> World {
    open(tempfile::tempdir().unwrap(), settings)
}

impl World {
    fn put(&self, key: &str, value: &str) -> Result<Pending<Option<Vec<u8>>>, Refused> {
        self.store.submit(Ask::Put(key.into(), value.into()))
    }

    fn get(&self, key: &str) -> Option<Vec<u8>> {
        self.store.submit(Ask::Get(key.into())).unwrap().wait().unwrap()
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
    let blocked = world.store.submit(Ask::Block(until)).unwrap();
    assert_eq!(world.groups.recv().unwrap(), 1);
    let waiting: Vec<_> = (0..100).map(|n| world.put(&format!("k{n}"), "v").unwrap()).collect();
    drop(release);
    blocked.wait().unwrap();
    assert!(waiting.into_iter().all(|pending| pending.wait() == Ok(None)));
    assert_eq!(world.groups.recv().unwrap(), 100);
    assert_eq!(world.store.stats().groups, 1, "one batch, one sync; the blocked group wrote nothing");
}

#[test]
fn what_was_answered_is_there_after_a_clean_close_and_after_a_drop() {
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
    for fault in [Ask::Panic, Ask::Fail] {
        let world = world(StoreSettings::test());
        world.put("before", "1").unwrap().wait().unwrap();
        let (release, until) = mpsc::channel();
        world.store.submit(Ask::Block(until)).unwrap();
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
    let stalled = world.store.submit(Ask::Block(until)).unwrap();
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
    world.store.submit(Ask::Block(until)).unwrap();
    assert_eq!(world.groups.recv().unwrap(), 1);
    let large = world.put("large", "more than ten bytes: taken, because nothing else waits").unwrap();
    assert!(matches!(world.put("k", "v").unwrap_err(), Refused::Busy { .. }));
    assert!(matches!(world.store.health(), Health::Degraded(_)));
    drop(release);
    large.wait().unwrap();
    assert_eq!(world.store.health(), Health::Up);
}

#[test]
fn close_answers_what_waits_and_refuses_the_rest() {
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
    let second = Store::open(world.directory.path(), settings, TestPlanner { groups });
    assert!(matches!(second.unwrap_err(), OpenError::Locked { .. }));
}

#[test]
fn large_values_stay_in_the_log() {
    let world = world(StoreSettings::test());
    let value = vec![7_u8; crate::MAX_VALUE_BYTES];
    let pending: Vec<_> =
        (0..400_u32).map(|n| world.store.submit(Ask::Put(n.to_be_bytes().to_vec(), value.clone())).unwrap()).collect();
    assert!(pending.into_iter().all(|pending| pending.wait().is_ok()));
    let blobs = std::fs::read_dir(world.directory.path().join("blobs")).unwrap().count();
    assert_eq!(blobs, 0, "values in blobs/ are never synced");
    assert_eq!(world.reopen().get("\0\0\0\u{7}").unwrap(), value);
}
