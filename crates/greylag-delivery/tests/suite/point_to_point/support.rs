//! Nodes, controllers with short intervals, and consumers that report their messages.

use std::sync::Arc;
use std::time::Duration;

use greylag_codec::json;
use greylag_core::{NodeAddress, Registry};
use greylag_delivery::{ConsumerController, Dedupe, Deliveries, DeliverySettings, ProducerController, ProducerId};
use greylag_transport::Remoting;
use greylag_transport::memory::MemoryNetwork;

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Settings with short repeat intervals, so that lost messages are repeated soon.
pub(crate) fn settings() -> DeliverySettings {
    let ms = Duration::from_millis;
    let mut settings = DeliverySettings::test();
    settings.consumer.resend_interval_min = ms(50);
    settings.consumer.resend_interval_max = ms(200);
    settings.consumer.redelivery_backoff = ms(10);
    settings.producer.resend_first_interval = ms(50);
    settings.producer.resend_first_unconfirmed_idle_timeout = ms(200);
    settings
}

pub(crate) struct Nodes {
    pub(crate) network: MemoryNetwork,
    pub(crate) a: Arc<dyn Remoting>,
    pub(crate) b: Arc<dyn Remoting>,
    pub(crate) c: Arc<dyn Remoting>,
}

pub(crate) fn nodes() -> Nodes {
    let network = MemoryNetwork::new();
    let node = |name: &str| network.node(name.parse().unwrap(), Arc::new(Registry::new()));
    let (a, b, c) = (node("a:1#1"), node("b:1#2"), node("c:1#3"));
    Nodes { network, a, b, c }
}

pub(crate) fn address(node: &Arc<dyn Remoting>) -> &NodeAddress {
    node.self_address().address()
}

pub(crate) fn producer(node: &Arc<dyn Remoting>) -> ProducerController<u64> {
    producer_with(node, settings())
}

pub(crate) fn producer_with(node: &Arc<dyn Remoting>, settings: DeliverySettings) -> ProducerController<u64> {
    let id = ProducerId::new("orders (north)/7").unwrap();
    ProducerController::builder(id, json("number")).settings(settings).spawn(node).unwrap()
}

pub(crate) fn consumer(node: &Arc<dyn Remoting>) -> ConsumerController<u64> {
    consumer_with(node, settings())
}

pub(crate) fn consumer_with(node: &Arc<dyn Remoting>, settings: DeliverySettings) -> ConsumerController<u64> {
    ConsumerController::builder(json("number")).settings(settings).spawn(node).unwrap()
}

/// Takes and confirms `count` deliveries, with a pause before each.
pub(crate) async fn take(deliveries: &mut Deliveries<u64>, count: usize, pause: Duration) -> Vec<u64> {
    let mut seen = Vec::new();
    while seen.len() < count {
        let delivery = within(deliveries.next()).await.expect("the controller runs");
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
        seen.push(*delivery);
        delivery.confirm();
    }
    seen
}

pub(crate) async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(PATIENCE, future).await.expect("it takes too long")
}

/// Runs a consumer that confirms every delivery and sends the numbers to the test.
pub(crate) fn run(controller: ConsumerController<u64>) -> tokio::sync::mpsc::UnboundedReceiver<u64> {
    let (seen, numbers) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut deliveries = controller.start(Dedupe::none());
        while let Some(delivery) = deliveries.next().await {
            if seen.send(*delivery).is_err() {
                return;
            }
            delivery.confirm();
        }
    });
    numbers
}

pub(crate) async fn read(numbers: &mut tokio::sync::mpsc::UnboundedReceiver<u64>, count: usize) -> Vec<u64> {
    let mut seen = Vec::new();
    while seen.len() < count {
        seen.push(within(numbers.recv()).await.expect("the consumer runs"));
    }
    seen
}
