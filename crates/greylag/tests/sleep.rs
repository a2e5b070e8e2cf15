//! A process that hosts a singleton and entities is stopped (SIGSTOP) for longer than a takeover takes, and continued:
//! none of its later answers is older than earlier answers of its successors.
//!
//! One process sleeps; two nodes in the test's own process take over and compare the answers. All three ask without
//! pause, the sleeping process its own node too: stale state shows there first.
//!
//! `GREYLAG_SLEEPS=0.5,1,2,3,4,5,8,15,30,60 cargo test -p greylag --test sleep` sleeps for these seconds, one after the
//! other, instead of once until the other nodes have taken over; `GREYLAG_SLEEP_SETTINGS=default` uses default
//! settings, with which the takeover takes most of a minute.
//!
//! Source: cluster F9, scenario 85.

#![cfg(unix)]

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use greylag::cluster::{MemberStatus, RemovalMargin, Singleton, SingletonRef};
use greylag::codec::json;
use greylag::prelude::*;
use greylag::sharding::{Ctx, Entity, EntityKey, EntityType, Failure, Region, ShardingSettings};
use greylag::{NodeBuilder, NodeSettings};
use serde::{Deserialize, Serialize};

/// Set in the child: the directory of the values.
const STORE: &str = "GREYLAG_TEST_SLEEPER_STORE";
const ENTITIES: usize = 4;
/// Timeout for events that only a broken cluster fails to bring about.
const TIME_LIMIT: Duration = Duration::from_secs(180);
/// How long a process is watched after a sleep of given length.
const LATER: Duration = Duration::from_secs(10);

#[derive(Serialize, Deserialize)]
enum Command {
    Add,
    Read { reply_to: ReplyTo<u64> },
}

/// A number stored as the length of a file. It is loaded once; every `Add` is stored before it counts.
struct Register {
    file: File,
    value: u64,
}

impl Register {
    fn load(store: &Path, name: &str) -> Self {
        let file = OpenOptions::new().append(true).create(true).open(store.join(name)).expect("a directory");
        let value = file.metadata().expect("a file").len();
        Self { file, value }
    }

    fn handle(&mut self, command: Command) {
        match command {
            Command::Add => {
                self.file.write_all(b".").expect("room on the disk");
                self.value += 1;
            }
            Command::Read { reply_to } => reply_to.reply(self.value),
        }
    }
}

impl Entity for Register {
    type Message = Command;

    fn receive(&mut self, command: Command, _: &mut Ctx<'_, Command>) -> Result<(), Failure> {
        self.handle(command);
        Ok(())
    }
}

fn settings(settings: &mut NodeSettings) {
    let hour = Duration::from_secs(3600);
    settings.sharding = ShardingSettings { number_of_shards: 8, rebalance_interval: hour, ..ShardingSettings::test() };
    if std::env::var("GREYLAG_SLEEP_SETTINGS").is_ok_and(|which| which == "default") {
        return;
    }
    let cluster = &mut settings.cluster;
    *cluster = greylag::cluster::ClusterSettings {
        downing: cluster.downing.clone(),
        down_removal_margin: RemovalMargin::Derive,
        ..greylag::cluster::ClusterSettings::test()
    };
    cluster.failure_detector.acceptable_heartbeat_pause = Duration::from_secs(1);
    cluster.failure_detector.local_pause_threshold = Duration::from_millis(500);
    *cluster = cluster.clone().with_resolver(greylag::cluster::SbrSettings {
        stable_after: Duration::from_millis(1500),
        ..greylag::cluster::SbrSettings::default()
    });
}

/// A node's references to all subjects.
#[derive(Clone)]
struct Asker {
    entities: Region<Command>,
    singleton: SingletonRef<Command>,
}

impl Asker {
    async fn start(builder: NodeBuilder, store: PathBuf) -> (Node, Self) {
        let node = builder.bind("127.0.0.1", 0).configure(settings).start().await.expect("it starts");
        let place = store.clone();
        let entities =
            EntityType::new(EntityKey::new("Register"), move |init| Ok(Register::load(&place, init.id.as_str())));
        let entities = node.sharding().init(entities.codec(json("register.command"))).expect("fresh");
        let singleton = Singleton::new("till", move |_, mut mailbox| {
            let mut register = Register::load(&store, "till");
            async move {
                while let Some(command) = mailbox.recv().await {
                    register.handle(command);
                }
            }
        });
        let singleton = node.cluster().singleton(singleton.codec(json("till.command"))).expect("fresh");
        (node, Self { entities, singleton })
    }

    fn subjects() -> impl Iterator<Item = String> {
        (0..ENTITIES).map(|id| id.to_string()).chain(["till".to_owned()])
    }

    async fn read(&self, subject: &str) -> Option<u64> {
        let time_limit = Duration::from_millis(500);
        let read = |reply_to| Command::Read { reply_to };
        match subject {
            "till" => self.singleton.ask(read, time_limit).await.ok(),
            id => self.entities.entity_ref(id).ask(read).timeout(time_limit).await.ok(),
        }
    }

    fn add(&self, subject: &str) {
        let _lost_adds_are_no_concern = match subject {
            "till" => self.singleton.tell(Command::Add).is_ok(),
            id => self.entities.entity_ref(id).tell(Command::Add).is_ok(),
        };
    }
}

/// Nanoseconds by the wall clock, which both processes share.
fn now() -> u128 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_nanos()
}

/// The child process; does nothing when run as a test.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_process() {
    let Some(store) = std::env::var_os(STORE) else { return };
    let (node, asker) = Asker::start(Node::builder("test"), store.into()).await;
    say(&format!("listens {}", node.address()));
    for subject in Asker::subjects() {
        let asker = asker.clone();
        tokio::spawn(async move {
            loop {
                let asked_at = now();
                match asker.read(&subject).await {
                    Some(value) => say(&format!("read {subject} {asked_at} {value}")),
                    None => tokio::task::yield_now().await,
                }
            }
        });
    }
    let reason = node.terminated().await;
    say(&format!("ended {reason:?}"));
    std::process::exit(0);
}

/// Prints a line for the parent, uncaptured by the test harness.
fn say(line: &str) {
    writeln!(std::io::stdout(), "\n{line}").expect("the parent reads");
}

/// The highest answers so far, and all stale answers: lower than one that was given before their question was asked.
#[derive(Default)]
struct Score {
    /// Times at which each value was first answered, by subject.
    answered: Mutex<BTreeMap<String, Vec<(u128, u64)>>>,
    stale: Mutex<Vec<String>>,
    by_the_sleeper: Mutex<BTreeMap<String, u64>>,
}

impl Score {
    /// The highest value that was answered before `asked_at`.
    fn floor(&self, subject: &str, asked_at: u128) -> u64 {
        let answered = self.answered.lock().expect("no panic");
        let history = answered.get(subject).map(Vec::as_slice).unwrap_or_default();
        let before = history.partition_point(|(at, _)| *at < asked_at);
        before.checked_sub(1).map_or(0, |last| history[last].1)
    }

    fn highest(&self, subject: &str) -> u64 {
        self.floor(subject, u128::MAX)
    }

    fn note(&self, who: &str, subject: &str, asked_at: u128, value: u64) {
        let floor = self.floor(subject, asked_at);
        if value < floor {
            let text = format!("{who} was answered {value} of {subject}, {} writes old", floor - value);
            self.stale.lock().expect("no panic").push(text);
        }
        if who != "the sleeper" && value > self.highest(subject) {
            let at = now();
            self.answered.lock().expect("no panic").entry(subject.to_owned()).or_default().push((at, value));
        }
    }
}

struct Sleeper {
    child: Child,
}

impl Sleeper {
    /// Starts the child. Its reads go to the score; other lines, its address and its end, to the receiver.
    fn start(store: &Path, score: &Arc<Score>) -> (Self, tokio::sync::mpsc::UnboundedReceiver<String>) {
        let mut child = Process::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "child_process"])
            .env(STORE, store)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        let said = BufReader::new(child.stdout.take().expect("piped")).lines().map_while(Result::ok);
        let (tell, told) = tokio::sync::mpsc::unbounded_channel();
        let score = score.clone();
        std::thread::spawn(move || {
            for line in said {
                let mut words = line.split(' ');
                if words.next() == Some("read") {
                    let subject = words.next().expect("a subject");
                    let asked_at = words.next().expect("a time").parse().expect("a number");
                    let value = words.next().expect("a value").parse().expect("a number");
                    score.note("the sleeper", subject, asked_at, value);
                    *score.by_the_sleeper.lock().expect("no panic").entry(subject.to_owned()).or_default() += 1;
                } else if line.starts_with("listens") || line.starts_with("ended") {
                    let _test_has_ended = tell.send(line);
                }
            }
        });
        (Self { child }, told)
    }

    fn signal(&self, signal: &str) {
        let status = Process::new("kill").args([signal, &self.child.id().to_string()]).status();
        assert!(status.expect("kill exists").success());
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _status = self.child.wait();
    }
}

async fn until(what: &str, done: impl Fn() -> bool) {
    let wait = async {
        while !done() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(TIME_LIMIT, wait).await.unwrap_or_else(|_| panic!("{what}: not in time"));
}

/// The durations of the sleeps; `None` sleeps until other nodes have taken over.
fn sleeps() -> Vec<Option<Duration>> {
    let Ok(given) = std::env::var("GREYLAG_SLEEPS") else { return vec![None] };
    let seconds = given.split(',').map(|text| text.trim_end_matches('s').parse().expect("seconds"));
    seconds.map(|seconds| Some(Duration::from_secs_f64(seconds))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_85_a_resumed_node_answers_nothing_older_than_earlier_answers_of_others() {
    if std::env::var_os(STORE).is_some() {
        return; // the child runs its own test only
    }
    for sleep in sleeps() {
        round(sleep).await;
    }
}

async fn round(sleep: Option<Duration>) {
    let store = tempfile::tempdir().expect("a directory");
    let score = Arc::new(Score::default());
    let (sleeper, mut told) = Sleeper::start(store.path(), &score);
    let listens = tokio::time::timeout(TIME_LIMIT, told.recv()).await.expect("in time").expect("it starts");
    let seed = listens.strip_prefix("listens ").expect("its address").to_owned();
    let builder = || Node::builder("test").seed_nodes([&seed]);
    let (b, at_b) = Asker::start(builder(), store.path().into()).await;
    let (c, at_c) = Asker::start(builder(), store.path().into()).await;
    for node in [&b, &c] {
        let up = node.cluster().wait_for(|view| {
            view.members.len() == 3 && view.members.iter().all(|member| member.status == MemberStatus::Up)
        });
        tokio::time::timeout(TIME_LIMIT, up).await.expect("in time").expect("it runs");
    }
    let mut tasks = tokio::task::JoinSet::new();
    for subject in Asker::subjects() {
        for (who, asker) in [("b", at_b.clone()), ("c", at_c.clone())] {
            let (subject, score) = (subject.clone(), score.clone());
            tasks.spawn(async move {
                loop {
                    if who == "b" {
                        asker.add(&subject);
                    }
                    let asked_at = now();
                    if let Some(value) = asker.read(&subject).await {
                        score.note(who, &subject, asked_at, value);
                    }
                    tokio::task::yield_now().await;
                }
            });
        }
    }
    let sleeper_reads = |subject: &String| score.by_the_sleeper.lock().expect("no panic").get(subject).copied();
    until("all askers read", || {
        Asker::subjects()
            .all(|subject| score.highest(&subject) > 20 && sleeper_reads(&subject).is_some_and(|reads| reads > 20))
    })
    .await;
    let hosts = |node: &Node| at_b.entities.shard_homes().get(node.unique_address()).copied().unwrap_or_default();
    assert_eq!((hosts(&b), hosts(&c)), (0, 0), "the first node hosts everything");

    sleeper.signal("-STOP");
    let slept = tokio::time::Instant::now();
    let before: BTreeMap<String, u64> = Asker::subjects().map(|s| (s.clone(), score.highest(&s))).collect();
    let taken_over = || Asker::subjects().all(|subject| score.highest(&subject) > before[&subject] + 50);
    match sleep {
        None => until("others take over", taken_over).await,
        Some(sleep) => tokio::time::sleep_until(slept + sleep).await,
    }
    sleeper.signal("-CONT");
    let ended = tokio::time::timeout(if sleep.is_none() { TIME_LIMIT } else { LATER }, told.recv()).await;
    match sleep {
        None => assert_eq!(ended.expect("in time").expect("it says so"), "ended Downed"),
        Some(sleep) => say(&format!("slept {sleep:?}; taken over: {}; {ended:?}", taken_over())),
    }
    tasks.shutdown().await;
    let stale = std::mem::take(&mut *score.stale.lock().expect("no panic"));
    assert!(stale.is_empty(), "{} stale answers, the first: {:?}", stale.len(), &stale[..stale.len().min(3)]);
    b.shutdown().await.expect("it leaves in order");
    c.shutdown().await.expect("it leaves in order");
}
