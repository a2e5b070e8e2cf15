//! On which threads handlers run, reports of handlers that take long, and the bound of blocking work.
//! Source: sharding §4.1, §4.3, §2.10.

use std::process::Command as Process;
use std::sync::Mutex;
use std::sync::mpsc;
use std::time::Instant;

use tokio::runtime::{Builder, Runtime};

use super::*;
use crate::settings::{BlockingPoolSettings, Dispatcher, RuntimeSettings, StuckShardAction};

const WORKER: EntityKey<Work> = EntityKey::new("Worker");

enum Work {
    /// Answers the name of the thread.
    Thread(ReplyTo<String>),
    /// Blocks its thread until the other end is dropped.
    Hold(mpsc::Receiver<()>),
    /// Blocks on the pool until the other end is dropped; answers whether there was room, and again when the work has
    /// ended.
    Block(mpsc::Receiver<()>, ReplyTo<bool>, ReplyTo<()>),
    Over(ReplyTo<()>),
}

struct Worker;

impl Entity for Worker {
    type Message = Work;

    fn receive(&mut self, work: Work, cx: &mut Ctx<'_, Work>) -> Result<(), Failure> {
        match work {
            Work::Thread(reply_to) => reply_to.reply(std::thread::current().name().unwrap_or_default().to_owned()),
            Work::Hold(until) => drop(until.recv()),
            Work::Block(until, has_room, over) => {
                let run = move || {
                    until.recv().ok();
                    over
                };
                has_room.reply(cx.blocking(run, Work::Over).is_ok());
            }
            Work::Over(reply_to) => reply_to.reply(()),
        }
        Ok(())
    }
}

async fn with(runtime: RuntimeSettings) -> Sharding {
    alone(ShardingSettings { runtime, number_of_shards: 1, ..ShardingSettings::test() }).await
}

fn workers(sharding: &Sharding) -> Region<Work> {
    sharding.init(EntityType::new(WORKER, |_| Ok(Worker))).unwrap()
}

async fn thread_of(workers: &Region<Work>) -> String {
    workers.entity_ref("1").ask(Work::Thread).timeout(PATIENCE).await.unwrap()
}

/// On a runtime of one thread, which a blocking handler of another type would otherwise occupy.
#[tokio::test]
async fn a_type_with_threads_of_its_own_holds_up_no_other() {
    let dedicated = Dispatcher::Dedicated(2.try_into().unwrap());
    let sharding = with(RuntimeSettings::default()).await;
    let workers = EntityType::new(WORKER, |_| Ok(Worker));
    let workers = workers.settings(move |settings| settings.runtime.entity_dispatcher = dedicated.clone());
    let workers = sharding.init(workers).unwrap();
    let counters = sharding.init(counters()).unwrap();
    assert_eq!(thread_of(&workers).await, "sharding-Worker");
    let (let_go, until) = mpsc::channel();
    workers.entity_ref("1").tell(Work::Hold(until)).unwrap();
    let later = workers.entity_ref("1").ask(Work::Thread).timeout(PATIENCE).send();
    assert_eq!(get(&counters, "one").await, 0);
    drop(let_go);
    assert_eq!(later.await.unwrap(), "sharding-Worker");
}

#[tokio::test]
async fn a_dispatcher_is_a_runtime_that_the_program_lends_by_its_name() {
    let named = || Dispatcher::Named("mine".to_owned());
    let sharding =
        with(RuntimeSettings { entity_dispatcher: named(), use_dispatcher: named(), ..RuntimeSettings::default() })
            .await;
    let worker = || EntityType::new(WORKER, |_| Ok(Worker));
    match sharding.init(worker()) {
        Err(InitError::InvalidSetting(wrong)) => assert_eq!(wrong.key, "entity_dispatcher"),
        other => panic!("{other:?}"),
    }
    let mine: Runtime = Builder::new_multi_thread().worker_threads(1).thread_name("mine").enable_all().build().unwrap();
    sharding.add_dispatcher("mine", mine.handle().clone());
    let workers = sharding.init(worker()).unwrap();
    assert_eq!(thread_of(&workers).await, "mine");
    tokio::time::timeout(PATIENCE, workers.graceful_shutdown()).await.unwrap();
    mine.shutdown_background();
}

/// sharding §4.3: the pool runs and queues a bounded number of jobs, and the handler that asks for more is refused.
#[tokio::test]
async fn blocking_work_has_a_bound_and_the_entity_hears_of_it() {
    let blocking_pool = BlockingPoolSettings { threads: 1, queue: 1 };
    let sharding = with(RuntimeSettings { blocking_pool, ..RuntimeSettings::default() }).await;
    let workers = workers(&sharding);
    let one = workers.entity_ref("1");
    let (let_go, gates): (Vec<_>, Vec<_>) = (0..4).map(|_| mpsc::channel()).unzip();
    let overs: Mutex<Vec<_>> = Mutex::default();
    let mut gates = gates.into_iter();
    let mut ask = async || {
        let gate = gates.next().unwrap();
        let over = sharding.remoting().open_ask(PATIENCE);
        let over_to = ReplyTo::new(over.address.clone(), sharding.remoting().reply_port());
        overs.lock().unwrap().push(over.answer);
        one.ask(move |has_room| Work::Block(gate, has_room, over_to)).timeout(PATIENCE).await.unwrap()
    };
    assert_eq!([ask().await, ask().await, ask().await], [true, true, false]);
    drop(let_go);
    let mut overs_so_far = std::mem::take(&mut *overs.lock().unwrap());
    assert!(overs_so_far.pop().unwrap().await.is_err(), "what was refused does not run");
    for over in overs_so_far {
        assert!(over.await.is_ok());
    }
    assert!(ask().await, "there is room again");
}

/// sharding §7: slow handlers are counted.
#[tokio::test]
async fn slow_handlers_are_counted() {
    let slow_handler_threshold = Duration::from_millis(500);
    let sharding = with(RuntimeSettings { slow_handler_threshold, ..RuntimeSettings::default() }).await;
    let counters = sharding.init(counters()).unwrap();
    assert_eq!(counters.handler_counts().slow, 0);
    let (let_go, until) = mpsc::channel();
    let workers = workers(&sharding);
    workers.entity_ref("1").tell(Work::Hold(until)).unwrap();
    let lets_go = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(800));
        drop(let_go);
    });
    thread_of(&workers).await;
    let until_counted = Instant::now() + PATIENCE;
    while workers.handler_counts().slow == 0 && Instant::now() < until_counted {
        tokio::task::yield_now().await;
    }
    assert_eq!((workers.handler_counts().slow, counters.handler_counts().slow), (1, 0), "of its own type");
    lets_go.join().unwrap();
}

/// sharding §2.10: a handler that does not return is reported while it runs; once it returns, its shard goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_does_not_return_is_an_event() {
    let stuck_handler_threshold = Duration::from_millis(100);
    let sharding = with(RuntimeSettings { stuck_handler_threshold, ..RuntimeSettings::default() }).await;
    let workers = workers(&sharding);
    thread_of(&workers).await;
    let mut events = workers.subscribe();
    let (let_go, until) = mpsc::channel();
    workers.entity_ref("1").tell(Work::Hold(until)).unwrap();
    let stuck = async {
        loop {
            if let Some(Event::ShardStuck { shard, running_for }) = events.next().await {
                return (shard.as_str().to_owned(), running_for);
            }
        }
    };
    let (shard, running_for) = tokio::time::timeout(PATIENCE, stuck).await.unwrap();
    assert!(shard == "0" && running_for >= stuck_handler_threshold, "{shard}, {running_for:?}");
    drop(let_go);
    thread_of(&workers).await;
}

/// The log output of this thread.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// sharding §7: `verbose_debug_logging`.
#[tokio::test]
async fn verbose_debug_logging_logs_starts_ends_and_messages_of_entities() {
    for verbose_debug_logging in [false, true] {
        let log = Log::default();
        let writer = log.clone();
        let to_log = move || writer.clone();
        let subscriber = tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG).with_writer(to_log).finish();
        let _until_then = tracing::subscriber::set_default(subscriber);
        let sharding = with(RuntimeSettings { verbose_debug_logging, ..RuntimeSettings::default() }).await;
        let counters = sharding.init(counters()).unwrap();
        get(&counters, "verbose").await;
        tokio::time::timeout(PATIENCE, counters.graceful_shutdown()).await.unwrap();
        let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        for what in ["starts", "is sent a message", "ends"] {
            let said = text.lines().any(|line| line.contains(what) && line.contains("verbose"));
            assert_eq!(said, verbose_debug_logging, "{what}");
        }
    }
}

const ACTION: &str = "GREYLAG_TEST_STUCK_SHARD";

/// Not a test by itself: the process that [`a_shard_that_cannot_stop_ends_the_process_if_asked_to`] starts.
#[test]
fn stuck_process() {
    let Ok(action) = std::env::var(ACTION) else { return };
    let stuck_shard_action =
        if action == "abort_process" { StuckShardAction::AbortProcess } else { StuckShardAction::Report };
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (let_go, until) = mpsc::channel();
    runtime.block_on(async {
        let stuck_handler_threshold = Duration::from_millis(100);
        let runtime = RuntimeSettings { stuck_handler_threshold, stuck_shard_action, ..RuntimeSettings::default() };
        let settings = ShardingSettings {
            runtime,
            number_of_shards: 1,
            handoff_timeout: Duration::from_millis(100),
            ..ShardingSettings::test()
        };
        let sharding = alone(settings).await;
        let workers = workers(&sharding);
        thread_of(&workers).await;
        workers.entity_ref("1").tell(Work::Hold(until)).unwrap();
        // The process ends a little more than ten seconds later.
        let patience = Duration::from_secs(if action == "abort_process" { 60 } else { 12 });
        let stopped = tokio::time::timeout(patience, workers.graceful_shutdown()).await;
        assert!(stopped.is_err(), "a shard with a stuck handler does not stop");
    });
    drop(let_go);
}

/// sharding §2.10: `stuck_shard_action`.
#[test]
fn a_shard_that_cannot_stop_ends_the_process_if_asked_to() {
    use std::os::unix::process::ExitStatusExt as _;
    let run = |action: &str| {
        let mut child = Process::new(std::env::current_exe().unwrap());
        child.args(["--exact", "driver::tests::threads::stuck_process"]).env(ACTION, action);
        child.output().unwrap().status
    };
    const SIGABRT: i32 = 6;
    let (aborts, stays) = std::thread::scope(|scope| {
        let stays = scope.spawn(|| run("report"));
        (run("abort_process"), stays.join().unwrap())
    });
    assert_eq!(aborts.signal(), Some(SIGABRT));
    assert!(stays.success(), "the default is to report it: {stays}");
}

/// sharding 61, §4.3: a suspension whose future panics, or is dropped, is a failure of its entity; a new value goes on.
#[tokio::test]
async fn scenario_61_a_suspension_without_a_result_is_a_failure() {
    /// Suspends by a future that panics, or that is dropped with its runtime.
    struct Waits;

    impl Entity for Waits {
        type Message = (bool, Option<ReplyTo<u64>>);

        fn receive(&mut self, message: Self::Message, cx: &mut Ctx<'_, Self::Message>) -> Result<(), Failure> {
            match message {
                (_, Some(reply_to)) => reply_to.reply(cx.incarnation().unwrap()),
                (true, None) => cx.suspend(async { panic!("on purpose") }, |()| (true, None))?,
                (false, None) => cx.suspend(std::future::pending::<()>(), |()| (false, None))?,
            }
            Ok(())
        }
    }

    // Futures of entities run on the runtime where sharding was started; this runtime ends before the shard does.
    let theirs = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let mine = tokio::runtime::Handle::current();
    let waits = theirs.spawn(async move {
        let entity_dispatcher = Dispatcher::Named("mine".to_owned());
        let sharding = with(RuntimeSettings { entity_dispatcher, ..RuntimeSettings::default() }).await;
        sharding.add_dispatcher("mine", mine);
        sharding.init(EntityType::new(EntityKey::new("Waits"), |_| Ok(Waits))).unwrap()
    });
    let waits = waits.await.unwrap();
    let one = waits.entity_ref("1");
    let who = async || one.ask(|reply_to| (true, Some(reply_to))).timeout(PATIENCE).await.unwrap();
    let mut events = waits.subscribe();
    let mut failure = async || loop {
        if let Some(Event::EntityFailed { cause, .. }) = events.next().await {
            return cause.to_string();
        }
    };
    let first = who().await;
    one.tell((true, None)).unwrap();
    assert_eq!(tokio::time::timeout(PATIENCE, failure()).await.unwrap(), "suspended work failed: on purpose");
    let second = who().await;
    assert_ne!(first, second);
    one.tell((false, None)).unwrap();
    let later = one.ask(|reply_to| (true, Some(reply_to))).timeout(PATIENCE).send();
    // Wait until the shard has the message: the shard does not need the runtime of its futures after that.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    theirs.shutdown_background();
    let dropped = tokio::time::timeout(PATIENCE, failure()).await.unwrap();
    assert_eq!(dropped, "suspended work failed: its future was dropped before it was done");
    assert_ne!(later.await.unwrap(), second);
}
