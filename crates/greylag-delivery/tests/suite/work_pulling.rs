//! Producers of work and workers over real tasks and an in-process network.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use greylag_codec::json;
use greylag_core::Registry;
use greylag_delivery::{
    ConsumerController, Dedupe, Deliveries, Delivery, DeliverySettings, InMemoryQueues, LocalWorkerDirectory,
    ProducerId, QueueCall, SendError, SeqNr, ServiceKey, StaticWorkerDirectory, StoringState, TrySendError,
    WorkPullingProducer, WorkerHandle, WorkerStats,
};
use greylag_transport::Remoting;
use greylag_transport::memory::MemoryNetwork;

const PATIENCE: Duration = Duration::from_secs(20);

fn settings() -> DeliverySettings {
    let ms = Duration::from_millis;
    let mut settings = DeliverySettings::default();
    settings.consumer.resend_interval_min = ms(50);
    settings.consumer.resend_interval_max = ms(200);
    settings.consumer.redelivery_backoff = ms(10);
    settings.producer.resend_first_interval = ms(50);
    settings.producer.resend_first_unconfirmed_idle_timeout = ms(200);
    settings.work_pulling.worker_first_timeout = ms(500);
    settings
}

struct Nodes {
    network: MemoryNetwork,
    a: Arc<dyn Remoting>,
    b: Arc<dyn Remoting>,
    c: Arc<dyn Remoting>,
    directory: Arc<LocalWorkerDirectory>,
}

fn nodes() -> Nodes {
    let network = MemoryNetwork::new();
    let node = |name: &str| network.node(name.parse().unwrap(), Arc::new(Registry::new()));
    let (a, b, c) = (node("a:1#1"), node("b:1#2"), node("c:1#3"));
    Nodes { network, a, b, c, directory: Arc::new(LocalWorkerDirectory::new()) }
}

fn key() -> ServiceKey {
    ServiceKey::new("thumbnails").unwrap()
}

impl Nodes {
    fn producer(&self, node: &Arc<dyn Remoting>, settings: DeliverySettings) -> WorkPullingProducer<u64> {
        let id = ProducerId::new(format!("uploads of {}", node.self_address())).unwrap();
        let builder = WorkPullingProducer::builder(id, json("number"), key(), self.directory.clone());
        builder.settings(settings).spawn(node).unwrap()
    }

    fn worker(&self, node: &Arc<dyn Remoting>) -> (ConsumerController<u64>, Deliveries<u64>) {
        let builder = ConsumerController::builder(json("number")).settings(settings());
        let worker = builder.service_key(key(), self.directory.clone()).spawn(node).unwrap();
        let deliveries = worker.start(Dedupe::none());
        (worker, deliveries)
    }
}

async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(PATIENCE, future).await.expect("it takes too long")
}

async fn until(producer: &WorkPullingProducer<u64>, what: impl Fn(WorkerStats) -> bool) {
    within(async {
        while !what(producer.stats()) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

/// delivery 46: both workers get work, every job is confirmed once, and the counters show the workers.
#[tokio::test]
async fn two_workers_share_the_jobs() {
    let nodes = nodes();
    let producer = nodes.producer(&nodes.a, settings());
    assert_eq!(producer.stats(), WorkerStats::default());
    let done: Arc<Mutex<BTreeMap<u64, u32>>> = Arc::default();
    let mut workers = Vec::new();
    for node in [&nodes.b, &nodes.c] {
        let done = done.clone();
        let builder =
            WorkerHandle::builder(json("number"), key(), nodes.directory.clone(), move |job: Delivery<u64>| {
                let done = done.clone();
                async move {
                    *done.lock().unwrap().entry(*job).or_default() += 1;
                    job.confirm();
                    Ok::<_, std::fmt::Error>(())
                }
            });
        workers.push(builder.settings(settings()).parallel(2).spawn(node).unwrap());
    }
    until(&producer, |stats| stats.number_of_workers == 2).await;
    for number in 1..=200 {
        within(producer.send(number)).await.unwrap();
    }
    producer.drain(PATIENCE).await.unwrap();
    assert_eq!(*producer.confirmed().borrow(), SeqNr(200));
    let done = done.lock().unwrap().clone();
    assert_eq!(done, (1..=200).map(|number| (number, 1)).collect());
    for worker in workers {
        assert!(worker.counters().snapshot().confirmed > 0, "each of them got work");
        within(worker.stop()).await;
    }
    until(&producer, |stats| stats.number_of_workers == 0).await;
}

/// delivery 47, 48: a worker's node is lost with two jobs in hand; another worker does them, under the same numbers,
/// and the asks are answered once.
#[tokio::test]
async fn the_jobs_of_a_lost_worker_go_to_another() {
    let nodes = nodes();
    let producer = nodes.producer(&nodes.a, settings());
    let (first, mut deliveries) = nodes.worker(&nodes.b);
    let asks: Vec<_> = (1..=3)
        .map(|number| {
            let producer = producer.clone();
            tokio::spawn(async move { producer.ask(number).await.unwrap() })
        })
        .collect();
    let job = within(deliveries.next()).await.unwrap();
    let confirmed = *job;
    job.confirm();
    until(&producer, |stats| stats.in_flight == 2 && stats.pending == 0).await;
    nodes.network.crash(nodes.b.self_address());
    // The directory learns of the loss, and another worker starts.
    let (second, mut others) = nodes.worker(&nodes.c);
    drop((deliveries, first));
    let mut seen = BTreeSet::from([confirmed]);
    for _ in 0..2 {
        let job = within(others.next()).await.unwrap();
        assert_eq!(job.seq_nr().get(), *job, "asks are numbered in their order");
        seen.insert(*job);
        job.confirm();
    }
    assert_eq!(seen, BTreeSet::from([1, 2, 3]));
    for (number, ask) in (1..).zip(asks) {
        assert_eq!(within(ask).await.unwrap(), SeqNr(number));
    }
    assert!(tokio::time::timeout(Duration::from_millis(100), others.next()).await.is_err());
    drop(second);
}

/// delivery 68: a worker dies and stays listed. Its silence is detected, and its jobs go to another worker.
#[tokio::test]
async fn silent_worker_loses_its_jobs() {
    let nodes = nodes();
    let producer = nodes.producer(&nodes.a, settings());
    let (silent, mut deliveries) = nodes.worker(&nodes.b);
    within(producer.send(1)).await.unwrap();
    within(deliveries.next()).await.unwrap().confirm();
    producer.drain(PATIENCE).await.unwrap();
    for number in 2..=3 {
        within(producer.send(number)).await.unwrap();
    }
    until(&producer, |stats| stats.in_flight == 2).await;
    let in_hand = within(deliveries.next()).await.unwrap();
    nodes.network.crash(nodes.b.self_address());
    let (_second, mut others) = nodes.worker(&nodes.c);
    let mut seen = BTreeSet::new();
    while seen.len() < 2 {
        let job = within(others.next()).await.unwrap();
        seen.insert(*job);
        job.confirm();
    }
    assert_eq!(seen, BTreeSet::from([2, 3]));
    producer.drain(PATIENCE).await.unwrap();
    assert_eq!(producer.stats(), WorkerStats { number_of_workers: 2, selectable: 1, in_flight: 0, pending: 0 });
    drop((silent, deliveries, in_hand));
}

/// W4: without a worker messages wait, up to the buffer's size; then senders wait, and none is refused.
#[tokio::test]
async fn messages_wait_for_workers_and_senders_for_room() {
    let nodes = nodes();
    let mut settings = settings();
    settings.work_pulling.buffer_size = 3;
    let producer = nodes.producer(&nodes.a, settings);
    for number in 1..=3 {
        within(producer.send(number)).await.unwrap();
    }
    assert!(matches!(producer.try_send(4), Err(TrySendError::Full(4))));
    let waiting = tokio::spawn({
        let producer = producer.clone();
        async move { producer.send_confirmed(4).await }
    });
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!((waiting.is_finished(), producer.stats().pending), (false, 3));
    let (_worker, mut deliveries) = nodes.worker(&nodes.b);
    let mut seen = BTreeSet::new();
    for _ in 0..4 {
        let job = within(deliveries.next()).await.unwrap();
        seen.insert(*job);
        job.confirm();
    }
    assert_eq!(seen, BTreeSet::from([1, 2, 3, 4]));
    assert_eq!(within(waiting).await.unwrap().unwrap(), SeqNr(4));
    producer.close().await;
    assert!(matches!(within(producer.send(5)).await, Err(SendError::Closed(Some(5)))));
}

/// A worker serves the producers of every node, and gets a job that failed or panicked again.
#[tokio::test]
async fn a_worker_serves_every_producer_and_does_failed_jobs_again() {
    let nodes = nodes();
    let (one, other) = (nodes.producer(&nodes.a, settings()), nodes.producer(&nodes.c, settings()));
    let attempts = Arc::new(AtomicU32::new(0));
    let counted = attempts.clone();
    let handler = move |job: Delivery<u64>| {
        let attempts = counted.clone();
        async move {
            match (*job, job.attempt()) {
                (1, 1) => {
                    attempts.fetch_add(1, Ordering::Relaxed);
                    return Err("on purpose");
                }
                (100, 1) => {
                    attempts.fetch_add(1, Ordering::Relaxed);
                    std::panic::resume_unwind(Box::new("on purpose"));
                }
                _ => job.confirm(),
            }
            Ok(())
        }
    };
    let builder = WorkerHandle::builder(json("number"), key(), nodes.directory.clone(), handler);
    let worker = builder.settings(settings()).spawn(&nodes.b).unwrap();
    for (producer, first) in [(&one, 1), (&other, 100)] {
        for number in first..first + 20 {
            within(producer.send(number)).await.unwrap();
        }
    }
    one.drain(PATIENCE).await.unwrap();
    other.drain(PATIENCE).await.unwrap();
    assert_eq!(attempts.load(Ordering::Relaxed), 2);
    assert_eq!(worker.counters().snapshot().confirmed, 40);
}

/// delivery 50: the producer and one of three workers are killed; two new workers and a new producer on the same queue
/// do the rest. Every message is seen, and messages whose confirmation was stored are not seen again.
#[tokio::test]
async fn stored_jobs_outlive_their_producer_and_its_workers() {
    let (nodes, disk) = (nodes(), InMemoryQueues::new());
    let stored = Arc::<Mutex<Vec<u64>>>::default();
    let seen_stored = stored.clone();
    disk.fail_when(move |_, call| {
        if let QueueCall::Write(change) = call {
            seen_stored.lock().unwrap().extend(change.messages.iter().map(|sent| sent.seq_nr.get()));
        }
        None
    });
    let start = |node: &Arc<dyn Remoting>| {
        let id = ProducerId::new("uploads").unwrap();
        let builder = WorkPullingProducer::builder(id, json("number"), key(), nodes.directory.clone());
        builder.settings(settings()).durable(disk.open("uploads")).spawn(node).unwrap()
    };
    let id = ProducerId::new("uploads").unwrap();
    let builder = WorkPullingProducer::builder(id, json::<u64>("number"), key(), nodes.directory.clone());
    let outbox = builder.settings(settings()).durable(disk.open_outbox("uploads")).spawn(&nodes.a);
    assert_eq!(outbox.unwrap_err(), greylag_delivery::StartError::Outbox, "its messages would wait for ever");
    let producer = start(&nodes.a);
    let mut seen = BTreeSet::new();
    let mut workers: Vec<_> = [&nodes.a, &nodes.b, &nodes.c].map(|node| nodes.worker(node)).into();
    until(&producer, |stats| stats.number_of_workers == 3).await;
    for number in 1..=15 {
        // An ask is answered once its job is stored.
        assert_eq!(within(producer.ask(number)).await.unwrap(), SeqNr(number));
    }
    let mut confirmed = 0;
    while confirmed < 10 {
        for (_, deliveries) in &mut workers {
            let job = tokio::time::timeout(Duration::from_millis(20), deliveries.next()).await;
            if let Ok(Some(job)) = job
                && confirmed < 10
            {
                seen.insert(*job);
                job.confirm();
                confirmed += 1;
            }
        }
    }
    nodes.network.crash(nodes.a.self_address());
    let killed = workers.remove(0);
    drop((producer, killed));
    let second = start(&nodes.c);
    workers.extend([&nodes.b, &nodes.c].map(|node| nodes.worker(node)));
    for number in 16..=20 {
        assert_eq!(within(second.ask(number)).await.unwrap(), SeqNr(number));
    }
    within(async {
        while seen.len() < 20 || second.drain(Duration::from_millis(1)).await.is_err() {
            for (_, deliveries) in &mut workers {
                if let Ok(Some(job)) = tokio::time::timeout(Duration::from_millis(5), deliveries.next()).await {
                    seen.insert(*job);
                    job.confirm();
                }
            }
        }
    })
    .await;
    assert_eq!(seen, (1..=20).collect());
    // No store call failed: a failed call would be repeated with the same numbers.
    assert_eq!(*stored.lock().unwrap(), (1..=20).collect::<Vec<_>>());
    assert!(matches!((second.storing_state(), second.failure()), (StoringState::Open, None)));
    // Every message is confirmed, and the confirmations are stored.
    second.close().await;
    let third = start(&nodes.c);
    within(third.drain(PATIENCE)).await.unwrap();
    let permit = within(third.request_next()).await.unwrap();
    assert_eq!((permit.current_seq_nr(), third.stats().pending), (SeqNr(21), 0));
}

/// C15, W5: a worker that stops in order finishes the job in hand and begins no other; other workers get those, and the
/// finished job is not done again.
#[tokio::test]
async fn a_worker_that_stops_finishes_its_job_and_gets_no_other() {
    let nodes = nodes();
    let producer = nodes.producer(&nodes.a, settings());
    let (worker, mut deliveries) = nodes.worker(&nodes.b);
    for number in 1..=3 {
        within(producer.send(number)).await.unwrap();
    }
    let in_hand = within(deliveries.next()).await.unwrap();
    worker.deliver_then_stop();
    assert_eq!(*in_hand, 1);
    in_hand.confirm();
    assert!(within(deliveries.next()).await.is_none(), "it ends with the job in hand");
    until(&producer, |stats| stats.number_of_workers == 0 && stats.pending == 2).await;
    let (_other, mut others) = nodes.worker(&nodes.c);
    let mut seen = BTreeSet::new();
    for _ in 0..2 {
        let job = within(others.next()).await.unwrap();
        seen.insert(*job);
        job.confirm();
    }
    assert_eq!(seen, BTreeSet::from([2, 3]));
    producer.drain(PATIENCE).await.unwrap();
    assert_eq!(producer.counters().confirmed, 3);
}

#[tokio::test]
async fn a_fixed_list_names_workers_of_any_node() {
    let nodes = nodes();
    let (worker, mut deliveries) = nodes.worker(&nodes.b);
    let listed = Arc::new(StaticWorkerDirectory::new().with(key(), worker.reference().clone()));
    let id = ProducerId::new("p").unwrap();
    let builder = WorkPullingProducer::builder(id, json::<u64>("number"), key(), listed);
    let producer = builder.settings(settings()).spawn(&nodes.a).unwrap();
    within(producer.send(7)).await.unwrap();
    let job = within(deliveries.next()).await.unwrap();
    assert_eq!(*job, 7);
    job.confirm();
    producer.drain(PATIENCE).await.unwrap();
}

#[cfg(feature = "ddata")]
mod ddata {
    use super::*;
    use greylag_ddata::{
        Membership, MembershipHandle, Replica, ReplicaStatus, Replicas, Replicator, ReplicatorSettings, TypeTable,
    };
    use greylag_delivery::DdataWorkerDirectory;

    struct Member {
        remoting: Arc<dyn Remoting>,
        replicator: Replicator,
        membership: MembershipHandle,
        directory: Arc<DdataWorkerDirectory>,
    }

    fn replica(name: &str, age: u64, reachable: bool) -> Replica {
        Replica { address: name.parse().unwrap(), status: ReplicaStatus::Up, reachable, age }
    }

    fn replicas(own_age: u64, others: Vec<Replica>) -> Replicas {
        Replicas { own_status: Some(ReplicaStatus::Up), own_age, others, ..Replicas::default() }
    }

    fn member(network: &MemoryNetwork, name: &str, replicas: Replicas) -> Member {
        let remoting = network.node(name.parse().unwrap(), Arc::new(Registry::new()));
        let (membership, source) = Membership::manual(replicas);
        let replicator =
            Replicator::start(ReplicatorSettings::test(), TypeTable::new(), remoting.clone(), source).unwrap();
        let directory = DdataWorkerDirectory::new(replicator.clone(), remoting.self_address().clone());
        Member { remoting, replicator, membership, directory: Arc::new(directory) }
    }

    /// W1: a worker is found from another node; while its node is unreachable it gets no jobs, and when its node is
    /// removed it is dropped at once, and deleted from the set by the oldest member.
    #[tokio::test]
    async fn workers_of_a_cluster_are_found_and_forgotten() {
        let network = MemoryNetwork::new();
        let a = member(&network, "a:1#1", replicas(0, vec![replica("b:1#2", 1, true)]));
        let b = member(&network, "b:1#2", replicas(1, vec![replica("a:1#1", 0, true)]));
        let id = ProducerId::new("p").unwrap();
        let builder = WorkPullingProducer::builder(id, json::<u64>("number"), key(), a.directory.clone());
        let producer = builder.settings(settings()).spawn(&a.remoting).unwrap();
        let builder = ConsumerController::<u64>::builder(json("number")).settings(settings());
        let worker = builder.service_key(key(), b.directory.clone()).spawn(&b.remoting).unwrap();
        let mut deliveries = worker.start(Dedupe::none());
        until(&producer, |stats| stats.selectable == 1).await;
        within(producer.send(1)).await.unwrap();
        within(deliveries.next()).await.unwrap().confirm();
        producer.drain(PATIENCE).await.unwrap();

        a.membership.publish(replicas(0, vec![replica("b:1#2", 1, false)]));
        until(&producer, |stats| stats.number_of_workers == 1 && stats.selectable == 0).await;
        a.membership.publish(replicas(0, vec![replica("b:1#2", 1, true)]));
        until(&producer, |stats| stats.selectable == 1).await;

        let mut without = replicas(0, Vec::new());
        without.removed.insert("b:1#2".parse().unwrap());
        a.membership.publish(without);
        until(&producer, |stats| stats.number_of_workers == 0).await;
        let set = a.replicator.replicated::<greylag_crdt::OrSet<String>>("delivery/workers/thumbnails").unwrap();
        within(async {
            while set.get().await.unwrap().iter().next().is_some() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }

    /// A worker that stops is taken off the list, on its own node and on others.
    #[tokio::test]
    async fn a_worker_that_stops_is_listed_no_more() {
        let network = MemoryNetwork::new();
        // Other uids than in the test above: a process runs one replicator of a name for each node.
        let a = member(&network, "a:1#11", replicas(0, vec![replica("b:1#12", 1, true)]));
        let b = member(&network, "b:1#12", replicas(1, vec![replica("a:1#11", 0, true)]));
        let handler = async |job: Delivery<u64>| {
            job.confirm();
            Ok::<_, std::fmt::Error>(())
        };
        let builder = WorkerHandle::builder(json("number"), key(), b.directory.clone(), handler);
        let worker = builder.settings(settings()).spawn(&b.remoting).unwrap();
        let id = ProducerId::new("p").unwrap();
        let builder = WorkPullingProducer::builder(id, json::<u64>("number"), key(), a.directory.clone());
        let producer = builder.settings(settings()).spawn(&a.remoting).unwrap();
        within(producer.send_confirmed(1)).await.unwrap();
        within(worker.stop()).await;
        until(&producer, |stats| stats.number_of_workers == 0).await;
    }
}

/// `drain`, and the background drain of a dropped producer, also wait for messages loaded from the queue.
#[tokio::test]
async fn recovered_messages_are_drained_too() {
    let (nodes, disk) = (nodes(), InMemoryQueues::new());
    let producer = |node| {
        let builder = WorkPullingProducer::builder(
            ProducerId::new("uploads").unwrap(),
            json::<u64>("number"),
            key(),
            nodes.directory.clone(),
        );
        builder.settings(settings()).durable(disk.open("uploads")).spawn(node).unwrap()
    };
    let first = producer(&nodes.a);
    for number in 1..=3 {
        within(first.ask(number)).await.unwrap();
    }
    nodes.network.crash(nodes.a.self_address());
    drop(first);

    let second = producer(&nodes.b);
    let left = second.drain(Duration::from_millis(100)).await.unwrap_err();
    assert_eq!(left.unconfirmed, 3);
    let (_worker, mut deliveries) = nodes.worker(&nodes.c);
    drop(second);
    let mut done = BTreeSet::new();
    while done.len() < 3 {
        let job = within(deliveries.next()).await.unwrap();
        done.insert(*job);
        tokio::time::sleep(Duration::from_millis(20)).await;
        job.confirm();
    }
    assert_eq!(done, (1..=3).collect());
}
