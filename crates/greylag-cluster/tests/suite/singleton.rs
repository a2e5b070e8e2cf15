//! Singletons over real sockets: which nodes reach the instance, and the fate of messages while it moves, ends, or does
//! not run.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use greylag_cluster::{
    Clock, Cluster, ClusterEvent, ClusterSettings, FailureDetectorSettings, InMemoryLeases, Lease, LeaseError,
    LeaseFault, LeaseProvider, LeaseSettings, Leases, MemberStatus, NoMessages, OnLost, RemovalMargin, SbrSettings,
    ShutdownReason, Singleton, SingletonAskError, SingletonError, SingletonRef, SingletonSendError, SingletonSettings,
    Strategy,
};
use greylag_codec::json;
use greylag_core::{CodecId, DeadLetterReason, EntityError, NodeAddress, Registry, ReplyTo};
use greylag_transport::{
    AskError, DeadLetterEvents, Destination, Envelope, Fault, GrpcTransport, Recipient, Remoting, TransportSettings,
};
use tokio::sync::watch;

const PATIENCE: Duration = Duration::from_secs(30);

struct Node {
    cluster: Cluster,
    transport: Arc<GrpcTransport>,
}

impl Node {
    async fn start(settings: ClusterSettings) -> Self {
        let transport_settings = TransportSettings {
            cluster_name: "test".into(),
            canonical_host: Some("127.0.0.1".into()),
            canonical_port: 0,
            fault_injection: true,
            ..TransportSettings::default()
        };
        let registry = Registry::new();
        registry.register::<u64>(json("instance")).unwrap();
        let transport = GrpcTransport::bind(transport_settings, Arc::new(registry)).await.unwrap();
        let cluster = Cluster::start(settings, transport.clone()).await.unwrap();
        Self { cluster, transport }
    }

    async fn join(&self, seed: &Node) {
        self.cluster.join_seed_nodes(vec![seed.address()]).await.unwrap();
        within("up", self.cluster.wait_up()).await.unwrap();
    }

    fn address(&self) -> NodeAddress {
        self.cluster.self_address().address().clone()
    }

    async fn end(self) {
        within("shutdown", self.cluster.shutdown()).await;
        self.transport.shutdown().await;
    }

    /// The number of messages dropped here for this reason.
    fn dropped(&self, reason: DeadLetterReason) -> u64 {
        self.transport.dead_letter_totals().get(&reason).copied().unwrap_or(0)
    }
}

/// Ends all nodes at the same time.
async fn end(nodes: Vec<Node>) {
    let mut ending = tokio::task::JoinSet::new();
    nodes.into_iter().for_each(|node| drop(ending.spawn(node.end())));
    ending.join_all().await;
}

/// Nodes that join one after another, so that each is older than the next.
async fn form(count: usize, settings: impl Fn() -> ClusterSettings) -> Vec<Node> {
    let mut nodes: Vec<Node> = Vec::new();
    for _ in 0..count {
        let node = Node::start(settings()).await;
        node.join(nodes.first().unwrap_or(&node)).await;
        nodes.push(node);
    }
    for node in &nodes {
        let all_up = |view: &greylag_cluster::MembershipView| {
            view.members.len() == count && view.members.iter().all(|member| member.status == MemberStatus::Up)
        };
        within("all up", node.cluster.wait_for(all_up)).await.unwrap();
    }
    nodes
}

async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what}: not within {PATIENCE:?}"),
    }
}

/// Waits until a condition holds that no event announces, such as which node a proxy has found. The interval of
/// checking does not affect the outcome.
async fn until(what: &str, fact: impl Fn() -> bool) {
    within(what, async {
        while !fact() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

#[derive(Debug, serde::Serialize, serde::Deserialize)]
enum Msg {
    /// A number to write into the log.
    Number(u64),
    /// Asks for the instance's id.
    Who { reply_to: ReplyTo<u64> },
}

/// A record of the work of all instances, wherever they ran.
#[derive(Debug, Default, Clone)]
struct Log {
    /// Instances that run now.
    running: BTreeSet<u64>,
    /// Instances in the order of their start.
    started: Vec<u64>,
    /// Whether two ran at the same time.
    two: bool,
    /// Numbers in the order taken, each with its instance.
    taken: Vec<(u64, u64)>,
}

impl Log {
    fn numbers(&self) -> Vec<u64> {
        self.taken.iter().map(|(_, number)| *number).collect()
    }
}

/// A singleton that writes numbers into the log; once told to stop, each instance ends when `ends` allows.
fn ledger(log: &watch::Sender<Log>, ends: watch::Receiver<bool>) -> Singleton<Msg> {
    let log = log.clone();
    let ledger = Singleton::new("ledger", move |context, mut mailbox| {
        let (log, mut ends) = (log.clone(), ends.clone());
        let instance = context.instance_id;
        async move {
            log.send_modify(|log| {
                log.running.insert(instance);
                log.started.push(instance);
                log.two |= log.running.len() > 1;
            });
            while let Some(message) = mailbox.recv().await {
                match message {
                    Msg::Number(number) => log.send_modify(|log| log.taken.push((instance, number))),
                    Msg::Who { reply_to } => reply_to.reply(instance),
                }
            }
            ends.wait_for(|may_end| *may_end).await.ok();
            log.send_if_modified(|log| log.running.remove(&instance));
        }
    });
    ledger.codec(json("ledger")).settings(SingletonSettings::test())
}

fn at_once() -> watch::Receiver<bool> {
    watch::channel(true).1
}

async fn who(ledger: &SingletonRef<Msg>) -> u64 {
    let answer = ledger.ask(|reply_to| Msg::Who { reply_to }, PATIENCE).await;
    answer.unwrap_or_else(|error| panic!("{ledger:?}: {error}"))
}

/// cluster P1, P5: a singleton that cannot be started is refused; the same name is the same singleton.
#[tokio::test(flavor = "multi_thread")]
async fn a_singleton_that_cannot_be_started_is_an_error() {
    let node = Node::start(ClusterSettings::test().with_roles(["worker"])).await;
    let log = watch::Sender::new(Log::default());
    let start = |singleton: Singleton<Msg>| node.cluster.singleton(singleton);
    let mut settings = SingletonSettings::test().with_role("worker");
    settings.proxy.buffer_size = 10_001;
    settings.proxy.role = Some("other".into());
    let Err(SingletonError::Config { problems, .. }) = start(ledger(&log, at_once()).settings(settings)) else {
        panic!("started with bad settings")
    };
    let named: Vec<_> = problems.iter().map(|problem| &*problem.setting).collect();
    assert_eq!(named, ["singleton_proxy.buffer_size", "singleton_proxy.role"]);
    assert!(matches!(start(Singleton::proxy("")), Err(SingletonError::Config { .. })));

    let leased = |role: &str| ledger(&log, at_once()).settings(SingletonSettings::test().with_lease().with_role(role));
    assert!(matches!(start(leased("worker")), Err(SingletonError::NoLeaseProvider { .. })));
    // A node that never runs the instance needs no lease; and no singleton was started above.
    let ours = start(leased("other")).unwrap();
    assert_eq!(start(leased("other")).unwrap().name(), ours.name());
    let job = Singleton::job("ledger", |_, mut stop| async move { stop.stopped().await });
    assert!(matches!(node.cluster.singleton(job), Err(SingletonError::OtherMessages { .. })));
    start(Singleton::proxy("elsewhere")).unwrap();
    let host = Singleton::new("elsewhere", |_, mut mailbox| async move { while mailbox.recv().await.is_some() {} });
    assert!(matches!(start(host), Err(SingletonError::ProxyOnly { .. })));
    node.cluster.join_self().await.unwrap();
    within("up", node.cluster.wait_up()).await.unwrap();
    assert!(log.borrow().started.is_empty());
    node.end().await;
}

/// cluster P1, P8: one instance runs, on the first node with the role; every node reaches it.
#[tokio::test(flavor = "multi_thread")]
async fn scenario_55_every_node_reaches_the_instance_with_the_role_or_without() {
    let log = watch::Sender::new(Log::default());
    let mut nodes = Vec::new();
    let mut ledgers = Vec::new();
    for number in 0..7 {
        let roles: &[&str] = if number == 0 { &[] } else { &["worker"] };
        let node = Node::start(ClusterSettings::test().with_roles(roles.iter().copied())).await;
        let ledger = ledger(&log, at_once()).settings(SingletonSettings::test().with_role("worker"));
        ledgers.push(node.cluster.singleton(ledger).unwrap());
        node.join(nodes.first().unwrap_or(&node)).await;
        nodes.push(node);
        if number > 0 {
            let instance = who(&ledgers[1]).await;
            assert_eq!(log.borrow().started, [instance]);
        }
    }
    let only_sends = nodes[0].cluster.singleton(Singleton::<Msg>::proxy("ledger")).unwrap();
    let first = who(&ledgers[1]).await;
    for ledger in ledgers.iter().chain([&only_sends]) {
        assert_eq!(who(ledger).await, first);
        assert_eq!(ledger.identified().as_ref(), Some(nodes[1].cluster.self_address()));
        assert_eq!(ledger.host(), ledger.identified());
    }
    assert!(ledgers[1].is_running_here() && !ledgers[0].is_running_here());
    assert_eq!(log.borrow().started, [first]);
    end(nodes).await;
}

/// All default settings except the membership's intervals.
#[tokio::test(flavor = "multi_thread")]
async fn scenario_55_three_that_join_at_once_reach_it_within_three_seconds() {
    let log = watch::Sender::new(Log::default());
    let mut nodes = Vec::new();
    let mut ledgers = Vec::new();
    for _ in 0..3 {
        let node = Node::start(ClusterSettings::test()).await;
        let ledger = ledger(&log, at_once()).settings(SingletonSettings::default());
        ledgers.push(node.cluster.singleton(ledger).unwrap());
        nodes.push(node);
    }
    let (a, b, c) = (nodes[0].join(&nodes[0]), nodes[1].join(&nodes[0]), nodes[2].join(&nodes[0]));
    tokio::join!(a, b, c);
    let all_up = Instant::now();
    let instances = [who(&ledgers[0]).await, who(&ledgers[1]).await, who(&ledgers[2]).await];
    assert!(all_up.elapsed() < Duration::from_secs(3), "took {:?}", all_up.elapsed());
    assert_eq!(instances, [instances[0]; 3]);
    end(nodes).await;
}

/// cluster P7, P8: messages arrive in order while the instance stays; they are kept while it is handed over, although
/// no member has changed yet; and they are flushed in order before later ones.
#[tokio::test(flavor = "multi_thread")]
async fn scenario_56_messages_wait_for_the_hand_over_and_keep_their_order() {
    let log = watch::Sender::new(Log::default());
    let mut logged = log.subscribe();
    let nodes = form(3, ClusterSettings::test).await;
    let (release, held) = watch::channel(false);
    let start = |index: usize| nodes[index].cluster.singleton(ledger(&log, held.clone())).unwrap();
    let (a, b, c) = (start(0), start(1), start(2));
    let first = who(&c).await;
    assert!(a.is_running_here());
    for number in 0..1000 {
        c.tell(Msg::Number(number)).unwrap();
    }
    // An answer comes after everything that this node sent before the question.
    assert_eq!(who(&c).await, first);
    assert_eq!(log.borrow().numbers(), (0..1000).collect::<Vec<_>>());

    let leaving = tokio::spawn({
        let cluster = nodes[0].cluster.clone();
        async move { cluster.shutdown().await }
    });
    until("the proxies know that it ends", || b.identified().is_none() && c.identified().is_none()).await;
    for number in 1000..1300 {
        c.tell(Msg::Number(number)).unwrap();
    }
    let asked = c.ask(|reply_to| Msg::Who { reply_to }, PATIENCE);
    assert_eq!(log.borrow().numbers().len(), 1000, "nothing reaches an instance that is ending");
    release.send_replace(true);
    let second = within("the answer", asked).await.unwrap();
    assert_ne!(second, first);
    for number in 1300..1400 {
        c.tell(Msg::Number(number)).unwrap();
    }
    within("all of them", logged.wait_for(|log| log.taken.len() == 1400)).await.unwrap();
    assert_eq!(log.borrow().numbers(), (0..1400).collect::<Vec<_>>());
    assert!(log.borrow().taken.iter().all(|(instance, number)| (*instance == first) == (*number < 1000)));
    assert!(b.is_running_here() && !log.borrow().two);
    within("it left", leaving).await.unwrap();
    end(nodes).await;
}

/// cluster P8: a message that meets no instance is never kept silently, wherever that happens; and its asker need not
/// wait.
#[tokio::test(flavor = "multi_thread")]
async fn messages_without_an_instance_are_dead_letters_and_their_asks_fail() {
    let nodes = form(2, ClusterSettings::test).await;
    // The instance takes one message and then reads no more.
    let (busy, mut is_busy) = watch::channel(false);
    let deaf = move || {
        let busy = busy.clone();
        let deaf = Singleton::new("ledger", move |_, mut mailbox| {
            let busy = busy.clone();
            async move {
                mailbox.recv().await;
                busy.send_replace(true);
                mailbox.stop_token().stopped().await;
            }
        });
        deaf.codec(json::<Msg>("ledger")).settings(SingletonSettings::test())
    };
    let here = nodes[0].cluster.singleton(deaf()).unwrap();
    let there = nodes[1].cluster.singleton(deaf()).unwrap();
    until("identified", || here.identified().is_some() && there.identified().is_some()).await;

    // A node without the instance bounces a message that reaches it, and tells the proxy at the other end.
    let ask = nodes[0].transport.open_ask(PATIENCE);
    let stray = Envelope::new(Recipient::new("singleton/ledger"), CodecId::JSON, "ledger", &br#"{"Number":1}"#[..]);
    let to = Destination::from(nodes[1].cluster.self_address().clone());
    nodes[0].transport.send(&to, stray.asking(ask.address.ask_id, PATIENCE)).unwrap();
    let bounced = within("at once", ask.answer).await.map(drop);
    assert_eq!(bounced, Err(AskError::Dropped(DeadLetterReason::NotSingletonHost)));
    assert_eq!(nodes[1].dropped(DeadLetterReason::NotSingletonHost), 1);
    assert!(here.identified().is_some(), "another node than the oldest has nothing to say");

    there.tell(Msg::Number(1)).unwrap();
    within("busy", is_busy.wait_for(|busy| *busy)).await.unwrap();
    let far = there.ask(|reply_to| Msg::Who { reply_to }, PATIENCE);
    let near = here.ask(|reply_to| Msg::Who { reply_to }, PATIENCE);
    assert_eq!(nodes[1].transport.dead_letter_totals().values().sum::<u64>(), 1, "both are on their way");
    nodes[0].cluster.leave(nodes[0].cluster.self_address().clone()).unwrap();
    let near = within("the near asker", near).await;
    assert_eq!(near, Err(SingletonAskError::Dropped(DeadLetterReason::NotSingletonHost)));
    let far = within("the far asker", far).await;
    // A message that reaches a host after the end of its instance, before proxies know, is dropped there.
    let ended = [
        Err(SingletonAskError::Instance(EntityError::Stopped)),
        Err(SingletonAskError::Dropped(DeadLetterReason::NotSingletonHost)),
    ];
    assert!(ended.contains(&far), "{far:?}");
    assert!(nodes[0].dropped(DeadLetterReason::NotSingletonHost) >= 2);
    end(nodes).await;
}

/// cluster P8: the buffer is bounded; the oldest message is dropped first, and its ask fails at once; the rest are
/// dropped when the node ends.
#[tokio::test(flavor = "multi_thread")]
async fn the_proxy_buffer_is_bounded_and_its_drops_are_counted() {
    let node = Node::start(ClusterSettings::test()).await;
    let mut letters: DeadLetterEvents = node.transport.dead_letters(100);
    let mut settings = SingletonSettings::test();
    settings.proxy.buffer_size = 2;
    let proxy = Singleton::proxy("ledger").codec(json::<Msg>("ledger")).settings(settings.clone());
    let ledger = node.cluster.singleton(proxy).unwrap();
    settings.proxy.buffer_size = 0;
    let keeps_nothing = node.cluster.singleton(Singleton::<Msg>::proxy("other").settings(settings)).unwrap();
    let first = ledger.ask(|reply_to| Msg::Who { reply_to }, PATIENCE);
    ledger.tell(Msg::Number(1)).unwrap();
    let last = ledger.ask(|reply_to| Msg::Who { reply_to }, PATIENCE);
    let dropped = within("the first is dropped", first).await;
    assert_eq!(dropped, Err(SingletonAskError::Dropped(DeadLetterReason::ProxyBufferFull)));
    let letter = within("its letter", letters.next()).await;
    assert_eq!((letter.reason, &*letter.recipient), (DeadLetterReason::ProxyBufferFull, "singleton/ledger"));
    assert_eq!(letter.manifest, "ledger");
    assert_eq!(keeps_nothing.tell(Msg::Number(1)), Err(SingletonSendError::NotFound));
    let refused = keeps_nothing.ask(|reply_to| Msg::Who { reply_to }, PATIENCE).await;
    assert_eq!(refused, Err(SingletonAskError::Send(SingletonSendError::NotFound)));
    assert_eq!(
        ledger.ask(|reply_to| Msg::Who { reply_to }, Duration::ZERO).await,
        Err(SingletonAskError::InvalidTimeout)
    );
    assert_eq!(node.dropped(DeadLetterReason::ProxyBufferFull), 3);

    let before = node.dropped(DeadLetterReason::ShuttingDown);
    within("shutdown", node.cluster.shutdown()).await;
    let lost = within("the last is lost", last).await;
    assert_eq!(lost, Err(SingletonAskError::Dropped(DeadLetterReason::ShuttingDown)));
    assert_eq!(ledger.tell(Msg::Number(2)), Err(SingletonSendError::ShuttingDown));
    assert_eq!(node.dropped(DeadLetterReason::ShuttingDown) - before, 3);
    node.transport.shutdown().await;
}

/// cluster P8: no messages go to an instance that ended by itself, here by a panic; a proxy without a codec reaches
/// only the instance of its own node.
#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_panics_is_followed_no_more() {
    let nodes = form(2, ClusterSettings::test).await;
    let fragile = || {
        let fragile = Singleton::new("ledger", |_, mut mailbox| async move {
            match mailbox.recv().await {
                Some(Msg::Who { reply_to }) => reply_to.reply(1),
                _ => panic!("on purpose"),
            }
            mailbox.recv().await;
            panic!("on purpose")
        });
        fragile.settings(SingletonSettings::test())
    };
    let here = nodes[0].cluster.singleton(fragile()).unwrap();
    let there = nodes[1].cluster.singleton(fragile()).unwrap();
    until("identified", || here.identified().is_some() && there.identified().is_some()).await;
    assert_eq!(there.tell(Msg::Number(1)), Err(SingletonSendError::NoCodec));
    assert_eq!(nodes[1].dropped(DeadLetterReason::SerializeFailed), 1);
    assert_eq!(who(&here).await, 1);
    here.tell(Msg::Number(1)).unwrap();
    until("no proxy follows it", || here.identified().is_none() && there.identified().is_none()).await;
    assert!(here.host().is_some(), "the oldest is still the oldest");
    end(nodes).await;
}

/// cluster P4 (AcquiringLease, Oldest), P5, P8: no start without the lease; a lost lease stops the instance, and a new
/// one starts when the lease is held again, found by the proxies although no member has changed.
#[tokio::test(flavor = "multi_thread")]
async fn scenario_59_the_instance_runs_while_the_lease_is_held() {
    let log = watch::Sender::new(Log::default());
    let mut logged = log.subscribe();
    let leases = InMemoryLeases::new();
    let name = "test-singleton-ledger";
    leases.set_fault(name, Some(LeaseFault::Deny));
    let nodes = form(2, || ClusterSettings {
        leases: Some(Leases::new("test", leases.clone())),
        lease: LeaseSettings::test(),
        ..ClusterSettings::test()
    })
    .await;
    let leased = || ledger(&log, at_once()).settings(SingletonSettings::test().with_lease());
    let (a, b) = (nodes[0].cluster.singleton(leased()).unwrap(), nodes[1].cluster.singleton(leased()).unwrap());
    let asked = b.ask(|reply_to| Msg::Who { reply_to }, PATIENCE);
    let oldest = &nodes[0].cluster;
    let hosts_it = oldest.wait_for(|_| a.host().as_ref() == Some(oldest.self_address()));
    within("the oldest is known to host it", hosts_it).await.unwrap();
    leases.fail_next(name, LeaseFault::FailAfter);
    assert!(log.borrow().started.is_empty(), "denied, and then not sure");
    leases.set_fault(name, None);
    let first = within("the lease is granted", asked).await.unwrap();
    assert_eq!(leases.holder(name), Some(nodes[0].address().to_string()));

    assert!(leases.lose(name));
    within("another instance", logged.wait_for(|log| log.started.len() == 2)).await.unwrap();
    let second = *log.borrow().started.last().unwrap();
    assert_ne!(first, second);
    until("both have found it", || a.identified().is_some() && b.identified().is_some()).await;
    assert_eq!((who(&a).await, who(&b).await), (second, second));

    // A leaving host releases the lease only when its instance has ended.
    let mut nodes = nodes.into_iter();
    nodes.next().unwrap().end().await;
    let third = who(&b).await;
    assert_eq!((log.borrow().started.len(), third == second), (3, false));
    let left = nodes.next().unwrap();
    assert_eq!(leases.holder(name), Some(left.address().to_string()));
    left.end().await;
    assert!(!log.borrow().two);
    assert_eq!(leases.holder(name), None, "a node that ends holds nothing");
}

/// A lease that expires by a clock that counts during a suspension, and that notices this only when checked: its own
/// timer slept as well.
#[derive(Debug, Clone)]
struct Timed {
    clock: Clock,
    leases: InMemoryLeases,
    until: Arc<std::sync::Mutex<Option<Instant>>>,
}

impl LeaseProvider for Timed {
    fn lease(&self, name: &str, owner: &str, settings: &LeaseSettings) -> Result<Arc<dyn Lease>, LeaseError> {
        let lease = self.leases.lease(name, owner, settings)?;
        Ok(Arc::new(TimedLease { timed: self.clone(), lease }))
    }
}

struct TimedLease {
    timed: Timed,
    lease: Arc<dyn Lease>,
}

#[async_trait]
impl Lease for TimedLease {
    fn name(&self) -> &str {
        self.lease.name()
    }

    fn owner(&self) -> &str {
        self.lease.owner()
    }

    async fn acquire(&self, on_lost: OnLost) -> Result<bool, LeaseError> {
        let granted = self.lease.acquire(on_lost).await?;
        *self.timed.until.lock().unwrap() =
            granted.then(|| self.timed.clock.now() + LeaseSettings::default().heartbeat_timeout);
        Ok(granted)
    }

    async fn release(&self) -> Result<bool, LeaseError> {
        self.lease.release().await
    }

    fn check(&self) -> bool {
        let until = *self.timed.until.lock().unwrap();
        self.lease.check() && until.is_some_and(|until| self.timed.clock.now() < until)
    }
}

/// cluster 81: the clock of a suspended machine goes on, its timers do not. The instance under a lease handles no
/// message that was sent after waking; the next instance does, once the lease is held anew.
#[tokio::test(flavor = "multi_thread")]
async fn scenario_81_a_suspended_lease_holder_handles_nothing_on_waking() {
    for round in 1..=20 {
        let clock = Clock::for_test();
        let timed = Timed { clock: clock.clone(), leases: InMemoryLeases::new(), until: Arc::default() };
        let leases = Some(Leases::new("test", timed));
        let node = Node::start(ClusterSettings { leases, clock: clock.clone(), ..ClusterSettings::test() }).await;
        let log = watch::Sender::new(Log::default());
        let leased = ledger(&log, at_once()).settings(SingletonSettings::test().with_lease());
        let ledger = node.cluster.singleton(leased).unwrap();
        node.cluster.join_self().await.unwrap();
        let first = who(&ledger).await;
        let mut events = node.cluster.subscribe();
        clock.jump(Duration::from_secs(600));
        ledger.tell(Msg::Number(round)).unwrap();
        let paused = async { while !matches!(events.next().await.expect("it runs"), ClusterEvent::LocalPause(_)) {} };
        within("the pause is told", paused).await;
        within("another instance runs", log.subscribe().wait_for(|log| log.started.len() == 2)).await.unwrap();
        let second = who(&ledger).await;
        assert_ne!(first, second);
        let taken = log.borrow().taken.clone();
        assert!(taken.iter().all(|(by, _)| *by == second), "{first} took what was sent after it woke: {taken:?}");
        assert!(!log.borrow().two);
        node.end().await;
    }
}

/// cluster F9, 85, the short form: an instance that slept handles no message before its node has checked how long that
/// was, and none at all if the node may have been removed meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_slept_answers_only_once_its_node_is_confirmed() {
    let clock = Clock::for_test();
    let resolver = SbrSettings { stable_after: Duration::from_secs(3), ..SbrSettings::default() };
    let settings = ClusterSettings::test().with_resolver(resolver);
    let a = Node::start(ClusterSettings { clock: clock.clone(), ..settings.clone() }).await;
    a.join(&a).await;
    let b = Node::start(settings).await;
    b.join(&a).await;
    let log = watch::Sender::new(Log::default());
    let on_a = a.cluster.singleton(ledger(&log, at_once())).unwrap();
    let on_b = b.cluster.singleton(ledger(&log, at_once())).unwrap();
    let first = who(&on_b).await;
    assert_eq!(who(&on_a).await, first);
    let pulse = a.cluster.pulse();
    assert!(pulse.is_fresh());

    // The node can be confirmed: then the message is handled, and not before.
    clock.jump(Duration::from_secs(60));
    assert!(!pulse.is_fresh());
    let asked = on_a.ask(|reply_to| Msg::Who { reply_to }, PATIENCE);
    assert_eq!(within("an answer", asked).await.unwrap(), first);
    assert!(pulse.is_fresh(), "the other member has confirmed it");

    // No member confirms this node: it ends, and has answered nothing.
    a.transport.fault(&b.address(), Fault::Blackhole);
    b.transport.fault(&a.address(), Fault::Blackhole);
    clock.jump(Duration::from_secs(60));
    let asked = on_a.ask(|reply_to| Msg::Who { reply_to }, PATIENCE);
    let answer = within("an answer", asked).await;
    assert!(answer.is_err(), "{answer:?}");
    assert_eq!(within("its end", a.cluster.terminated()).await, ShutdownReason::Downed);
    assert!(!pulse.is_fresh());
    end(vec![a, b]).await;
}

/// cluster 53 and 60 in one: the oldest is alone against two under lease_majority. Its instance ends with it; the
/// others start theirs after the margin and release the lease; their messages meanwhile are kept.
#[tokio::test(flavor = "multi_thread")]
async fn scenarios_53_and_60_an_oldest_cut_off_alone_is_replaced_after_the_margin() {
    let log = watch::Sender::new(Log::default());
    let mut logged = log.subscribe();
    let leases = InMemoryLeases::new();
    let strategy = Strategy::LeaseMajority {
        lease_name: None,
        acquire_lease_delay_for_minority: Duration::from_millis(200),
        release_after: Duration::from_millis(300),
        role: None,
    };
    let sbr = SbrSettings { stable_after: Duration::from_millis(1500), ..SbrSettings::with_strategy(strategy) };
    let failure_detector = FailureDetectorSettings {
        acceptable_heartbeat_pause: Duration::from_secs(1),
        local_pause_threshold: Duration::from_secs(1),
        ..FailureDetectorSettings::test()
    };
    let settings = || ClusterSettings {
        leases: Some(Leases::new("test", leases.clone())),
        lease: LeaseSettings::test(),
        failure_detector: failure_detector.clone(),
        down_removal_margin: RemovalMargin::Fixed(Duration::from_secs(1)),
        ..ClusterSettings::test().with_resolver(sbr.clone())
    };
    let margin = settings().removal_margin();
    let nodes = form(3, settings).await;
    let ledgers: Vec<_> = nodes.iter().map(|node| node.cluster.singleton(ledger(&log, at_once())).unwrap()).collect();
    let first = who(&ledgers[2]).await;
    for other in &nodes[1..] {
        nodes[0].transport.fault(&other.address(), Fault::Blackhole);
    }
    let reason = within("it finds out", nodes[0].cluster.terminated()).await;
    assert_eq!(reason, ShutdownReason::Downed);
    assert!(!log.borrow().running.contains(&first), "its instance ended before it did");
    within("removed", nodes[2].cluster.wait_for(|view| view.members.len() == 2)).await.unwrap();
    let removed = Instant::now();
    assert_eq!(log.borrow().started, [first], "the margin runs");
    let kept = ledgers[2].ask(|reply_to| Msg::Who { reply_to }, PATIENCE);
    within("the successor", logged.wait_for(|log| log.started.len() == 2)).await.unwrap();
    // Allow 500 ms: the test reads the view a moment after the manager was told of it.
    assert!(removed.elapsed() + Duration::from_millis(500) >= margin, "started after {:?}", removed.elapsed());
    let second = within("what was kept", kept).await.unwrap();
    assert_eq!(who(&ledgers[1]).await, second);
    assert!(!log.borrow().two && ledgers[1].is_running_here());
    until("the lease is given back", || leases.holder("test-greylag-sbr").is_none()).await;
    end(nodes).await;
}

/// A job takes no messages, and has no proxy: no node asks where it runs.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_not_looked_for() {
    let node = Node::start(ClusterSettings::test()).await;
    let job = || Singleton::job("job", |_, mut stop| async move { stop.stopped().await });
    let job: SingletonRef<NoMessages> = node.cluster.singleton(job()).unwrap();
    node.cluster.join_self().await.unwrap();
    within("it runs", job.running_here().wait_for(|running| *running)).await.unwrap();
    assert_eq!((job.identified(), job.host().as_ref()), (None, Some(node.cluster.self_address())));
    node.end().await;
}

/// cluster T39: a message that a full mailbox cannot take is a dead letter, and the worker goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_mailbox_drops_and_holds_up_nothing() {
    let nodes = form(2, ClusterSettings::test).await;
    let deaf = || {
        let deaf = Singleton::new("ledger", |_, mailbox| async move { mailbox.stop_token().stopped().await });
        let deaf = deaf.codec(json::<Msg>("ledger")).settings(SingletonSettings::test());
        deaf.mailbox_capacity(std::num::NonZeroUsize::MIN)
    };
    let _here = nodes[0].cluster.singleton(deaf()).unwrap();
    let there = nodes[1].cluster.singleton(deaf()).unwrap();
    until("identified", || there.identified().is_some()).await;
    (0..20).for_each(|number| there.tell(Msg::Number(number)).unwrap());
    until("all but one", || nodes[0].dropped(DeadLetterReason::MailboxFull) == 19).await;
    end(nodes).await;
}
