//! Producers and consumers without entities: they appear in the report, and end with their node.

use tokio::sync::{Semaphore, mpsc};

use super::*;
use crate::driver::work_pulling::LocalWorkerDirectory;
use crate::{
    Dedupe, ProducerController, ProducerKind, ProducerReport, SendError, SeqNr, ServiceKey, WorkKey,
    WorkPullingProducer,
};

const PATIENCE: Duration = Duration::from_secs(60);

async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(PATIENCE, future).await.expect("it takes too long")
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("{what}"));
}

fn id(name: &str) -> ProducerId {
    ProducerId::new(name).unwrap()
}

fn numbers() -> WorkKey<u64> {
    WorkKey::new("numbers", json("number"))
}

/// A node with one worker, which can also be found through `directory`. The worker sends each job that it begins to
/// `begun`, and confirms the job once it gets a permit of `may_end`.
struct World {
    sharding: Sharding,
    delivery: NodeDelivery,
    directory: LocalWorkerDirectory,
    begun: mpsc::UnboundedReceiver<u64>,
    may_end: Arc<Semaphore>,
}

impl World {
    async fn new() -> Self {
        let sharding = node().await;
        let mut settings = DeliverySettings::test();
        settings.producer.drain_on_drop = PATIENCE;
        let delivery = NodeDelivery::of(&sharding, settings).unwrap();
        let directory = LocalWorkerDirectory::new();
        let opened = directory.clone();
        delivery.find_workers_by(move || Ok(Arc::new(opened)));
        let (begin, begun) = mpsc::unbounded_channel();
        let may_end = Arc::new(Semaphore::new(0));
        let permits = may_end.clone();
        let work = move |job: Delivery<u64>| {
            let (begin, permits) = (begin.clone(), permits.clone());
            async move {
                begin.send(*job).unwrap();
                permits.acquire().await.unwrap().forget();
                job.confirm();
                Ok::<_, Infallible>(())
            }
        };
        delivery.worker(&numbers(), work).start().await.unwrap();
        Self { sharding, delivery, directory, begun, may_end }
    }

    fn producer(&self, name: &str) -> Option<ProducerReport> {
        self.delivery.report().producers.into_iter().find(|producer| producer.producer_id == id(name))
    }

    fn counted(&self, name: &str) -> crate::DeliverySnapshot {
        let consumers = self.delivery.report().consumers;
        consumers.into_iter().find(|consumers| consumers.name == name).map(|found| found.counts).unwrap_or_default()
    }
}

/// Point-to-point and work-pulling producers appear in the report with their target, and with number, age and cause of
/// waiting messages; consumers and workers appear with their counts, by name.
#[tokio::test]
async fn point_to_point_and_work_pulling_are_reported() {
    let mut world = World::new().await;
    let jobs = world.delivery.work_producer(&numbers(), id("jobs")).start().await.unwrap();
    let orders = world.delivery.producer_controller(id("orders"), json::<u64>("number"));
    let orders = orders.durable().start().await.unwrap();
    let handle = orders.start();
    let waiting = tokio::spawn({
        let handle = handle.clone();
        async move { handle.send(1).await }
    });
    until("it waits for a consumer", || {
        let report = world.producer("orders").unwrap();
        (report.counts.waiting, report.trouble.as_deref()) == (1, Some("no consumer is registered"))
    })
    .await;
    let picking = world.delivery.consumer_controller("picking", json::<u64>("number")).start().await.unwrap();
    picking.register_to(orders.reference());
    let mut deliveries = picking.start(Dedupe::none());
    within(waiting).await.unwrap().unwrap();
    within(jobs.send(7)).await.unwrap();
    let order = within(deliveries.next()).await.unwrap();
    assert_eq!(within(world.begun.recv()).await, Some(7));

    let is_shown = |name, kind, to: &str, is_durable| {
        let report = world.producer(name).unwrap();
        let counts = &report.counts;
        (report.kind, &*report.to, report.is_durable, report.trouble) == (kind, to, is_durable, None)
            && (counts.links, counts.unconfirmed, counts.sent) == (1, 1, 1)
            && counts.oldest_unconfirmed.is_some_and(|age| age >= Duration::from_millis(10))
    };
    let to = picking.reference().to_string();
    until("orders", || is_shown("orders", ProducerKind::PointToPoint, &to, true)).await;
    until("jobs", || is_shown("jobs", ProducerKind::WorkPulling, "numbers", false)).await;
    for name in ["picking", "numbers"] {
        let counted = world.counted(name);
        assert_eq!((counted.delivered, counted.confirmed, counted.links), (1, 0, 1), "{name}");
    }
    order.confirm();
    world.may_end.add_permits(1);
    let is_confirmed = |name| {
        let counts = world.producer(name).unwrap().counts;
        (counts.confirmed, counts.unconfirmed, counts.oldest_unconfirmed) == (1, 0, None)
    };
    until("orders are confirmed", || is_confirmed("orders")).await;
    until("jobs are confirmed", || is_confirmed("jobs")).await;
    // The report keeps the counts of an ended consumer; a new consumer of the same name begins at zero.
    drop((deliveries, picking));
    until("it has ended", || world.counted("picking").links == 0).await;
    let again = world.delivery.consumer_controller("picking", json::<u64>("number")).start().await.unwrap();
    assert_eq!((world.counted("picking").confirmed, again.counters().snapshot().confirmed), (1, 0));
    handle.close().await;
    until("a closed producer is shown no more", || world.producer("orders").is_none()).await;
}

/// A node that ends waits for the messages of its own producers, and for the jobs and deliveries in hand of other
/// nodes' producers, but takes no more of the latter.
#[tokio::test]
async fn producers_and_consumers_end_with_their_node() {
    let mut world = World::new().await;
    let remoting = world.sharding.remoting();
    let elsewhere = {
        let (key, directory) = (ServiceKey::new("numbers").unwrap(), Arc::new(world.directory.clone()));
        WorkPullingProducer::builder(id("elsewhere"), json("number"), key, directory).spawn(remoting).unwrap()
    };
    let orders = ProducerController::builder(id("orders"), json("number")).spawn(remoting).unwrap();
    let picking = world.delivery.consumer_controller("picking", json::<u64>("number")).start().await.unwrap();
    picking.register_to(orders.reference());
    let mut deliveries = picking.start(Dedupe::none());
    let handle = orders.start();
    within(handle.send(1)).await.unwrap();
    let in_hand = within(deliveries.next()).await.unwrap();
    within(elsewhere.send(7)).await.unwrap();
    assert_eq!(within(world.begun.recv()).await, Some(7));
    let own = world.delivery.work_producer(&numbers(), id("own")).start().await.unwrap();

    let ended = tokio::spawn({
        let delivery = world.delivery.clone();
        async move { delivery.end().await }
    });
    within(async {
        while own.request_next().await.is_ok() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
    assert!(matches!(within(own.send(8)).await, Err(SendError::Closed(Some(8)))));
    within(elsewhere.send(9)).await.unwrap();
    // The worker ends after the producers by wake-ups alone, all of them on this thread.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(!ended.is_finished(), "a job and a delivery are in hand");
    world.may_end.add_permits(10);
    until("the job is confirmed", || *elsewhere.confirmed().borrow() == SeqNr(1)).await;
    assert!(!ended.is_finished(), "a delivery is in hand");
    in_hand.confirm();
    within(ended).await.unwrap();
    assert!(within(deliveries.next()).await.is_none());
    until("the worker is forgotten", || elsewhere.stats().number_of_workers == 0).await;
    until("the delivery is confirmed", || *handle.confirmed().borrow() == SeqNr(1)).await;
    assert_eq!(elsewhere.stats().pending, 1, "the other job waits for another worker");
    assert!(world.begun.try_recv().is_err(), "it took no other job");
}
